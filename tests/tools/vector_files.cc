#include "tools/vector_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "fixtures/formula.h"
#include "reference/golden.h"
#include "tools/batch.h"
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

// A tensor without rows, if the file does not have it yet.
template <typename T>
StoredTensor& TensorOf(VectorFile& file, const std::string& name,
                       const std::vector<int64_t>& row_shape) {
  StoredTensor& tensor = file.tensors[name];
  tensor.dtype = fixtures::DTypeOf<T>();
  if (tensor.shape.empty()) {
    tensor.shape = row_shape;
    tensor.shape.insert(tensor.shape.begin(), 0);
  }
  return tensor;
}

// Appends one row.
template <typename Values>
void Append(VectorFile& file, const std::string& name, const std::vector<int64_t>& row_shape,
            const Values& values) {
  using T = std::decay_t<decltype(*std::data(values))>;
  StoredTensor& tensor = TensorOf<T>(file, name, row_shape);
  tensor.shape[0] += 1;
  const auto bytes = std::as_bytes(std::span(std::data(values), std::size(values)));
  tensor.bytes.insert(tensor.bytes.end(), bytes.begin(), bytes.end());
}

// The rotation of a position, rounded as stored ones are.
reference::RopeRow StoredRope(AttentionKind kind, int64_t position) {
  reference::RopeRow rope = reference::RopeRowAt(kind, position);
  for (float& value : rope.cos) value = tools::ToFloat(tools::RoundToBf16(value));
  for (float& value : rope.sin) value = tools::ToFloat(tools::RoundToBf16(value));
  return rope;
}

// Tensors of events, which may have no rows.
void AddEventTensors(VectorFile& file, AttentionKind kind, const std::string& request) {
  if (kind == AttentionKind::kSwa) return;
  TensorOf<int64_t>(file, request + "event_pos", {});
  TensorOf<float>(file, request + "event_rope_cos", {kRopePairs});
  TensorOf<float>(file, request + "event_rope_sin", {kRopePairs});
  TensorOf<Bf16>(file, request + "cmp_rows", {kHeadDim});
  if (kind == AttentionKind::kHca) return;
  TensorOf<int8_t>(file, request + "idx_rows", {kIndexDim});
  TensorOf<float>(file, request + "idx_scales", {});
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
      return ChangeValue<float>(tensor, last,
                                [](float& v) { v = std::abs(v) < 1e6F ? v + 1000 : 0; });
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

namespace {

// Appends what one token adds to a file.
class TokenWriter {
 public:
  TokenWriter(VectorFile& file, AttentionKind kind, const ModelConfig& config, std::string request)
      : file_(file), kind_(kind), config_(config), request_(std::move(request)) {}

  template <typename Values>
  void Add(const char* tensor, const std::vector<int64_t>& shape, const Values& values) {
    Append(file_, request_ + tensor, shape, values);
  }

  void AddToken(int32_t token, const reference::RopeRow& rope,
                const reference::TokenResult& result) {
    Add("tokens", {}, std::vector<int32_t>{token});
    Add("rope_cos", {kRopePairs}, rope.cos);
    Add("rope_sin", {kRopePairs}, rope.sin);
    Add("kv", {kHeadDim}, result.kv);
    Add("xn", {config_.hidden}, result.xn);
    Add("attn_out", {config_.hidden}, result.attn_out);
    if (kind_ != AttentionKind::kCsa) return;
    Add("topk_idx", {config_.index_topk}, result.selection.idx);
    Add("topk_score", {config_.index_topk}, result.selection.score);
    Add("topk_next", {}, std::vector<float>{result.selection.next_score});
  }

  void AddProbe(int32_t token, const reference::TokenResult& result) {
    Add("probe_tokens", {}, std::vector<int32_t>{token});
    Add("x_mixed", {config_.hidden}, result.hc.x_mixed);
    Add("post", {kHcStreams}, result.hc.post);
    Add("comb", {kHcStreams, kHcStreams}, result.hc.comb);
    Add("qr", {config_.q_rank}, result.qr.codes);
    Add("qr_scale", {}, std::vector<float>{result.qr.scale});
    Add("q", {config_.num_heads, kHeadDim}, result.q);
    Add("heads", {config_.num_heads, kHeadDim}, result.heads);
    Add("x_out", {kHcStreams, config_.hidden}, result.x_out);
    if (kind_ != AttentionKind::kCsa) return;
    Add("idx_q", {config_.num_index_heads, kIndexDim}, result.idx.codes);
    Add("idx_q_scale", {config_.num_index_heads}, result.idx.scales);
    Add("idx_weights", {config_.num_index_heads}, result.idx_weights);
  }

  void AddState(const reference::Decoder& decoder, int64_t position) {
    const std::vector<float> state = decoder.StateAt(position);
    Add("state_rows", {static_cast<int64_t>(state.size())}, state);
    if (kind_ == AttentionKind::kCsa) {
      Add("inner_state_rows", {4 * kIndexDim}, decoder.InnerStateAt(position));
    }
  }

  void AddEvent(const reference::Decoder& decoder, int64_t position, int64_t row,
                const reference::RopeRow& rope) {
    Add("event_pos", {}, std::vector<int64_t>{position});
    Add("event_rope_cos", {kRopePairs}, rope.cos);
    Add("event_rope_sin", {kRopePairs}, rope.sin);
    Add("cmp_rows", {kHeadDim}, decoder.CompressedAt(row));
    if (kind_ != AttentionKind::kCsa) return;
    const reference::Quantized key = decoder.IndexAt(row);
    Add("idx_rows", {kIndexDim}, key.codes);
    Add("idx_scales", {}, std::vector<float>{key.scale});
  }

 private:
  VectorFile& file_;
  AttentionKind kind_;
  const ModelConfig& config_;
  std::string request_;
};

}  // namespace

VectorFile MakeLayerFile(const ModelConfig& config, AttentionKind kind, uint64_t seed,
                         const std::vector<int64_t>& start_pos,
                         const std::vector<int64_t>& tokens_per_step, int64_t steps) {
  const auto weights = fixtures::MakeLayerFixture(config, kind, seed);
  const reference::Golden golden(config, kind, weights.views());
  const int64_t ratio = tools::RatioOf(kind);
  VectorFile file;
  file.metadata = {{"kind", std::string(KindName(kind))},
                   {"ratio", std::to_string(ratio)},
                   {"seed", std::to_string(seed)},
                   {"start_pos", nlohmann::json(start_pos).dump()},
                   {"tokens_per_step", nlohmann::json(tokens_per_step).dump()},
                   {"steps", std::to_string(steps)}};
  for (size_t r = 0; r < start_pos.size(); ++r) {
    const auto num_new = static_cast<int32_t>(tokens_per_step[r] * steps);
    if (num_new == 0) continue;
    const std::string request = fmt::format("r{}.", r);
    AddEventTensors(file, kind, request);
    TokenWriter writer(file, kind, config, request);
    const std::set<int32_t> probes{0, num_new / 2, num_new - 1};
    const fixtures::RequestFixture fixture(config, seed, static_cast<int64_t>(r));
    reference::Decoder decoder(golden, start_pos[r], reference::HistoryOf(fixture));
    std::vector<float> x(static_cast<size_t>(kHcStreams) * static_cast<size_t>(config.hidden));
    for (int32_t i = 0; i < num_new; ++i) {
      fixture.X(i, x);
      const int64_t position = start_pos[r] + i;
      const reference::RopeRow rope = StoredRope(kind, position);
      const bool event = ratio > 0 && (position + 1) % ratio == 0;
      reference::RopeRow event_rope;
      if (event) event_rope = StoredRope(kind, position / ratio * ratio);
      const reference::TokenResult token = decoder.Decode(x, rope, event ? &event_rope : nullptr);
      writer.AddToken(i, rope, token);
      if (probes.contains(i)) writer.AddProbe(i, token);
      if (event) writer.AddEvent(decoder, position, position / ratio, event_rope);
      if (ratio > 0 && i >= num_new - 8) writer.AddState(decoder, position);
    }
  }
  return file;
}

VectorFile MakeIndexerFile(const ModelConfig& config, fixtures::IndexerValues values, uint64_t seed,
                           const std::vector<int64_t>& candidates) {
  const bool ties = values == fixtures::IndexerValues::kTies;
  VectorFile file;
  file.metadata = {{"kind", ties ? "indexer_ties" : "indexer"},
                   {"seed", std::to_string(seed)},
                   {"candidates", nlohmann::json(candidates).dump()}};
  for (size_t c = 0; c < candidates.size(); ++c) {
    const auto data =
        fixtures::MakeIndexerFixture(config, seed, static_cast<int64_t>(c), candidates[c], values);
    const reference::Selection selection = reference::TopK(
        reference::Scores({data.q, data.q_scale}, data.weights, data.keys, data.key_scale),
        config.index_topk);
    const auto add = [&](const char* tensor, const auto& row) {
      using T = std::decay_t<decltype(row[0])>;
      StoredTensor& stored = file.tensors[fmt::format("c{}.{}", c, tensor)];
      const auto bytes = std::as_bytes(std::span(row));
      stored = {
          fixtures::DTypeOf<T>(), {static_cast<int64_t>(row.size())}, {bytes.begin(), bytes.end()}};
    };
    add("topk_idx", selection.idx);
    add("topk_score", selection.score);
    if (ties || candidates[c] <= config.index_topk) continue;
    const float last = selection.score.back();
    add("gap", std::vector<float>{(last - selection.next_score) / std::abs(last)});
  }
  return file;
}

}  // namespace millipede::testing
