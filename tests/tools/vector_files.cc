#include "tools/vector_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "fixtures/formula.h"
#include "reference/golden.h"
#include "tools/buffers.h"

namespace millipede::testing {
namespace {

using fixtures::DType;

template <typename T>
void AddTo(fixtures::SafetensorsWriter& writer, const std::string& name,
           const StoredTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  writer.Add<T>(name, tensor.shape, values);
}

template <typename T, typename Change>
void ChangeValue(StoredTensor& tensor, bool last, Change change) {
  std::byte* place = tensor.bytes.data() + (last ? tensor.bytes.size() - sizeof(T) : 0);
  T value;
  std::memcpy(&value, place, sizeof(T));
  change(value);
  std::memcpy(place, &value, sizeof(T));
}

// Appends rows of one tensor.
template <typename Values>
void Append(VectorFile& file, const std::string& name, const std::vector<int64_t>& row_shape,
            const Values& values) {
  using T = std::decay_t<decltype(*std::data(values))>;
  StoredTensor& tensor = file.tensors[name];
  tensor.dtype = fixtures::DTypeOf<T>();
  if (tensor.shape.empty()) {
    tensor.shape = row_shape;
    tensor.shape.insert(tensor.shape.begin(), 0);
  }
  tensor.shape[0] += 1;
  const auto bytes = std::as_bytes(std::span(std::data(values), std::size(values)));
  tensor.bytes.insert(tensor.bytes.end(), bytes.begin(), bytes.end());
}

}  // namespace

VectorFile VectorFile::Of(const fixtures::SafetensorsFile& file) {
  VectorFile copy;
  copy.metadata = file.metadata();
  for (const auto& [name, entry] : file.tensors()) {
    copy.tensors[name] = {entry.dtype, entry.shape, {entry.bytes.begin(), entry.bytes.end()}};
  }
  return copy;
}

std::vector<std::byte> VectorFile::Serialize() const {
  fixtures::SafetensorsWriter writer;
  for (const auto& [key, value] : metadata) writer.SetMetadata(key, value);
  for (const auto& [name, tensor] : tensors) {
    switch (tensor.dtype) {
      case DType::kF32:
        AddTo<float>(writer, name, tensor);
        break;
      case DType::kBf16:
        AddTo<Bf16>(writer, name, tensor);
        break;
      case DType::kI8:
        AddTo<int8_t>(writer, name, tensor);
        break;
      case DType::kI32:
        AddTo<int32_t>(writer, name, tensor);
        break;
      case DType::kI64:
        AddTo<int64_t>(writer, name, tensor);
        break;
    }
  }
  auto bytes = writer.Serialize();
  if (!bytes) std::abort();
  return *std::move(bytes);
}

fixtures::SafetensorsFile VectorFile::Parse() const {
  auto file = fixtures::SafetensorsFile::Parse(Serialize(), "memory");
  if (!file) std::abort();
  return *std::move(file);
}

void VectorFile::Write(const std::string& path) const {
  const std::vector<std::byte> bytes = Serialize();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
}

void Spoil(StoredTensor& tensor, bool last) {
  switch (tensor.dtype) {
    case DType::kF32:
      return ChangeValue<float>(tensor, last, [](float& v) { v += 1000; });
    case DType::kBf16:
      return ChangeValue<Bf16>(tensor, last, [](Bf16& v) { v = {0x4780}; });  // 65536
    case DType::kI8:
      return ChangeValue<int8_t>(
          tensor, last, [](int8_t& v) { v = static_cast<int8_t>(v > 0 ? v - 64 : v + 64); });
    case DType::kI32:
      return ChangeValue<int32_t>(tensor, last, [](int32_t& v) { v += 1000; });
    case DType::kI64:
      return ChangeValue<int64_t>(tensor, last, [](int64_t& v) { v += 1000; });
  }
}

VectorFile MakeSwaFile(const ModelConfig& config, uint64_t seed,
                       const std::vector<int64_t>& start_pos,
                       const std::vector<int64_t>& tokens_per_step, int64_t steps) {
  const auto weights = fixtures::MakeLayerFixture(config, AttentionKind::kSwa, seed);
  const reference::Golden golden(config, AttentionKind::kSwa, weights.views());
  VectorFile file;
  file.metadata = {{"kind", "swa"},
                   {"ratio", "0"},
                   {"seed", std::to_string(seed)},
                   {"start_pos", nlohmann::json(start_pos).dump()},
                   {"tokens_per_step", nlohmann::json(tokens_per_step).dump()},
                   {"steps", std::to_string(steps)}};
  for (size_t r = 0; r < start_pos.size(); ++r) {
    const auto num_new = static_cast<int32_t>(tokens_per_step[r] * steps);
    if (num_new == 0) continue;
    const std::set<int32_t> probes{0, num_new / 2, num_new - 1};
    const fixtures::RequestFixture fixture(config, seed, static_cast<int64_t>(r));
    reference::SwaDecoder decoder(golden, start_pos[r]);
    std::vector<Bf16> row(kHeadDim);
    for (int64_t p = std::max<int64_t>(0, start_pos[r] - 127); p < start_pos[r]; ++p) {
      fixture.KvRow(p, row);
      decoder.SetHistory(p, row);
    }
    std::vector<float> x(static_cast<size_t>(kHcStreams) * static_cast<size_t>(config.hidden));
    for (int32_t i = 0; i < num_new; ++i) {
      fixture.X(i, x);
      reference::RopeRow rope = reference::RopeRowAt(AttentionKind::kSwa, start_pos[r] + i);
      for (float& value : rope.cos) value = tools::ToFloat(tools::RoundToBf16(value));
      for (float& value : rope.sin) value = tools::ToFloat(tools::RoundToBf16(value));
      const reference::TokenResult token = decoder.Decode(x, rope);
      const auto append = [&](const char* tensor, const std::vector<int64_t>& shape,
                              const auto& values) {
        Append(file, fmt::format("r{}.{}", r, tensor), shape, values);
      };
      append("tokens", {}, std::vector<int32_t>{i});
      append("rope_cos", {kRopePairs}, rope.cos);
      append("rope_sin", {kRopePairs}, rope.sin);
      append("kv", {kHeadDim}, token.kv);
      append("xn", {config.hidden}, token.xn);
      append("attn_out", {config.hidden}, token.attn_out);
      if (!probes.contains(i)) continue;
      append("probe_tokens", {}, std::vector<int32_t>{i});
      append("x_mixed", {config.hidden}, token.hc.x_mixed);
      append("post", {kHcStreams}, token.hc.post);
      append("comb", {kHcStreams, kHcStreams}, token.hc.comb);
      append("qr", {config.q_rank}, token.qr.codes);
      append("qr_scale", {}, std::vector<float>{token.qr.scale});
      append("q", {config.num_heads, kHeadDim}, token.q);
      append("heads", {config.num_heads, kHeadDim}, token.heads);
      append("x_out", {kHcStreams, config.hidden}, token.x_out);
    }
  }
  return file;
}

}  // namespace millipede::testing
