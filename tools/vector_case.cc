#include "tools/vector_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>

#include "millipede/rope.h"
#include "tools/batch.h"
#include "tools/errors.h"

namespace millipede::tools {
namespace {

using fixtures::DType;
using fixtures::SafetensorsFile;
using reference::EndToEndTensor;
using reference::Values;

using Shape = std::vector<int64_t>;

Shape NoDims(const ModelConfig& /*config*/) { return {}; }
Shape RopeDims(const ModelConfig& /*config*/) { return {kRopePairs}; }
Shape HeadDims(const ModelConfig& /*config*/) { return {kHeadDim}; }
Shape StreamDims(const ModelConfig& /*config*/) { return {kHcStreams}; }
Shape CombDims(const ModelConfig& /*config*/) { return {kHcStreams, kHcStreams}; }
Shape HiddenDims(const ModelConfig& config) { return {config.hidden}; }
Shape LatentDims(const ModelConfig& config) { return {config.q_rank}; }
Shape AllHeadsDims(const ModelConfig& config) { return {config.num_heads, kHeadDim}; }
Shape HcaStateDims(const ModelConfig& /*config*/) { return {int64_t{2} * kHeadDim}; }
Shape CsaStateDims(const ModelConfig& /*config*/) { return {int64_t{4} * kHeadDim}; }
Shape InnerStateDims(const ModelConfig& /*config*/) { return {int64_t{4} * kIndexDim}; }
Shape IndexDims(const ModelConfig& /*config*/) { return {kIndexDim}; }
Shape IndexHeadsDims(const ModelConfig& config) { return {config.num_index_heads}; }
Shape IndexQueryDims(const ModelConfig& config) { return {config.num_index_heads, kIndexDim}; }
Shape TopKDims(const ModelConfig& config) { return {config.index_topk}; }
Shape AllStreamsDims(const ModelConfig& config) { return {kHcStreams, config.hidden}; }

reference::Verdict JudgeCodes(Values a, Values e) { return reference::JudgeCodes(a, e); }
reference::Verdict JudgeAttnOut(Values a, Values e) { return reference::JudgeAttnOut(a, e); }

constexpr TensorRows kNew = TensorRows::kNew;
constexpr TensorRows kStored = TensorRows::kStored;
constexpr TensorRows kProbe = TensorRows::kProbe;
constexpr TensorRows kLast = TensorRows::kLast;
constexpr TensorRows kEvent = TensorRows::kEvent;

// Of every kind.
std::vector<TensorRule> LayerTensors() {
  return {
      {"tokens", DType::kI32, kStored, NoDims},
      {"probe_tokens", DType::kI32, kProbe, NoDims},
      {"rope_cos", DType::kF32, kNew, RopeDims},
      {"rope_sin", DType::kF32, kNew, RopeDims},
      {"x_mixed", DType::kBf16, kProbe, HiddenDims, reference::JudgeRounded, kProbe,
       "stage, from x"},
      {"post", DType::kF32, kProbe, StreamDims, reference::JudgeGate, kProbe, "stage, from x"},
      {"comb", DType::kF32, kProbe, CombDims, reference::JudgeGate, kProbe, "stage, from x"},
      {"xn", DType::kBf16, kStored, HiddenDims, reference::JudgeRounded, kProbe,
       "stage, from x_mixed"},
      {"qr", DType::kI8, kProbe, LatentDims, JudgeCodes, kProbe, "stage, from xn"},
      {"qr_scale", DType::kF32, kProbe, NoDims, reference::JudgeLatentScale, kProbe,
       "stage, from xn"},
      {"q", DType::kBf16, kProbe, AllHeadsDims, reference::JudgeRounded, kProbe,
       "stage, from qr and qr_scale", EndToEndTensor::kQ},
      {"kv", DType::kBf16, kNew, HeadDims, reference::JudgeRounded, kNew, "stage, from xn",
       EndToEndTensor::kKv},
      {"heads", DType::kBf16, kProbe, AllHeadsDims, reference::JudgeHeads, kProbe,
       "stage, from q and the rows", EndToEndTensor::kHeads},
      {"attn_out", DType::kBf16, kStored, HiddenDims, JudgeAttnOut, kProbe, "stage, from heads",
       EndToEndTensor::kAttnOut},
      {"x_out", DType::kF32, kProbe, AllStreamsDims, reference::JudgeXOut, kProbe,
       "stage, from attn_out, post and comb", EndToEndTensor::kXOut},
  };
}

// Of the main compressor, whose state rows have these dimensions.
std::vector<TensorRule> CompressorTensors(Shape (*state_dims)(const ModelConfig&)) {
  return {
      {"event_pos", DType::kI64, kEvent, NoDims},
      {"event_rope_cos", DType::kF32, kEvent, RopeDims},
      {"event_rope_sin", DType::kF32, kEvent, RopeDims},
      {"state_rows", DType::kF32, kLast, state_dims, reference::JudgeState, kLast, "stage, from xn",
       EndToEndTensor::kState},
      {"cmp_rows", DType::kBf16, kEvent, HeadDims, reference::JudgeRounded, kEvent,
       "stage, from state rows", EndToEndTensor::kCompressedRow},
  };
}

std::vector<TensorRule> IndexerTensors() {
  return {
      {"inner_state_rows", DType::kF32, kLast, InnerStateDims, reference::JudgeState, kLast,
       "stage, from xn", EndToEndTensor::kState},
      {"idx_rows", DType::kI8, kEvent, IndexDims},
      {"idx_scales", DType::kF32, kEvent, NoDims},
      {"idx_q", DType::kI8, kProbe, IndexQueryDims, JudgeCodes, kProbe,
       "stage, from qr and qr_scale"},
      {"idx_q_scale", DType::kF32, kProbe, IndexHeadsDims, reference::JudgeIndexQueryScale, kProbe,
       "stage, from qr and qr_scale"},
      {"idx_weights", DType::kF32, kProbe, IndexHeadsDims, reference::JudgeGate, kProbe,
       "stage, from xn"},
      {"topk_idx", DType::kI32, kStored, TopKDims},
      {"topk_score", DType::kF32, kStored, TopKDims},
      {"topk_next", DType::kF32, kStored, NoDims},
  };
}

std::vector<TensorRule> Join(std::initializer_list<std::vector<TensorRule>> parts) {
  std::vector<TensorRule> joined;
  for (const auto& part : parts) joined.insert(joined.end(), part.begin(), part.end());
  return joined;
}

Result<AttentionKind> ReadKind(const SafetensorsFile& file) {
  auto word = file.Metadata("kind");
  if (!word) return ErrorOf(word);
  for (const AttentionKind kind : {AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa}) {
    if (*word != KindName(kind)) continue;
    auto ratio = file.MetadataInt("ratio");
    if (!ratio) return ErrorOf(ratio);
    if (*ratio != RatioOf(kind)) {
      return BadValue("ratio", std::to_string(*ratio),
                      fmt::format("{} for {}", RatioOf(kind), *word));
    }
    return kind;
  }
  return BadValue("kind", *word, "swa, hca, csa, indexer or indexer_ties");
}

// The metadata, and whether it describes steps that exist.
Result<VectorCase> ReadMetadata(const SafetensorsFile& file, const ModelConfig& config) {
  VectorCase vectors;
  vectors.config = config;
  auto kind = ReadKind(file);
  if (!kind) return ErrorOf(kind);
  auto seed = file.MetadataInt("seed");
  if (!seed) return ErrorOf(seed);
  auto start_pos = file.MetadataInts("start_pos");
  if (!start_pos) return ErrorOf(start_pos);
  auto tokens = file.MetadataInts("tokens_per_step");
  if (!tokens) return ErrorOf(tokens);
  auto steps = file.MetadataInt("steps");
  if (!steps) return ErrorOf(steps);
  const int64_t ceiling = config.max_context_tokens;
  if (start_pos->size() != tokens->size()) {
    return BadValue("tokens_per_step", fmt::format("{} entries", tokens->size()),
                    fmt::format("{}, as start_pos", start_pos->size()));
  }
  if (*steps < 1 || *steps > ceiling) {
    return BadValue("steps", std::to_string(*steps), fmt::format("1 to {}", ceiling));
  }
  for (size_t r = 0; r < tokens->size(); ++r) {
    const int64_t start = (*start_pos)[r];
    const int64_t width = (*tokens)[r];
    if (start < 0 || start > ceiling) {
      return BadValue(fmt::format("start_pos[{}]", r), std::to_string(start),
                      fmt::format("0 to {}", ceiling));
    }
    if (width < 0 || width > (ceiling - start) / *steps) {
      return BadValue(fmt::format("tokens_per_step[{}]", r), std::to_string(width),
                      fmt::format("0 to {}", (ceiling - start) / *steps));
    }
    if (width == 0) continue;
    if (*kind != AttentionKind::kSwa && *steps == 1 && width > kStateTokens) {
      return BadValue(fmt::format("tokens_per_step[{}]", r), std::to_string(width),
                      fmt::format("0 to {} in a file of one step, whose state rows are all stored",
                                  kStateTokens));
    }
    RequestCase& request = vectors.requests.emplace_back();
    request.request = static_cast<int64_t>(r);
    request.start_pos = start;
    request.num_new = width * *steps;
    if (const int64_t ratio = RatioOf(*kind); ratio > 0) {
      request.first_row = start / ratio;
      request.num_events = (start + request.num_new) / ratio - request.first_row;
    }
  }
  vectors.kind = *kind;
  vectors.seed = static_cast<uint64_t>(*seed);
  vectors.start_pos = *std::move(start_pos);
  vectors.tokens_per_step = *std::move(tokens);
  vectors.steps = *steps;
  return vectors;
}

// The entries of a token list: at least one, ascending, each in [0, num_new).
std::vector<int64_t> ReadTokens(const SafetensorsFile& file, const std::string& name,
                                int64_t num_new, std::vector<std::string>& problems) {
  if (!file.Has(name)) return {};  // reported as missing with all others
  const auto values = file.Values<int32_t>(name);
  if (!values) {
    problems.push_back(values.error().message);
    return {};
  }
  std::vector<int64_t> tokens(values->begin(), values->end());
  if (tokens.empty()) problems.push_back(name + ": no entries; allowed: at least one");
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t low = i == 0 ? 0 : tokens[i - 1] + 1;
    if (tokens[i] < low || tokens[i] >= num_new) {
      problems.push_back(
          fmt::format("{}[{}]: {}; allowed: {} to {}", name, i, tokens[i], low, num_new - 1));
      break;
    }
  }
  return tokens;
}

void ReadTokenLists(const SafetensorsFile& file, bool one_step, RequestCase& request,
                    std::vector<std::string>& problems) {
  const std::string stored_name = request.TensorName("tokens");
  const std::string probe_name = request.TensorName("probe_tokens");
  request.stored = ReadTokens(file, stored_name, request.num_new, problems);
  request.probe = ReadTokens(file, probe_name, request.num_new, problems);
  if (one_step && static_cast<int64_t>(request.stored.size()) != request.num_new) {
    problems.push_back(fmt::format("{}: {} entries; allowed: all {} new tokens", stored_name,
                                   request.stored.size(), request.num_new));
  }
  for (const int64_t token : request.probe) {
    if (!std::binary_search(request.stored.begin(), request.stored.end(), token)) {
      problems.push_back(
          fmt::format("{}: {}; allowed: entries of {}", probe_name, token, stored_name));
    }
  }
}

void CompareTensors(const SafetensorsFile& file, const VectorCase& vectors,
                    std::vector<std::string>& problems) {
  std::set<std::string> known;
  for (const RequestCase& request : vectors.requests) {
    for (const TensorRule& rule : TensorRulesOf(vectors.kind)) {
      const std::string name = request.TensorName(rule.name);
      known.insert(name);
      Shape shape = rule.row_shape(vectors.config);
      shape.insert(shape.begin(), request.NumRows(rule.rows));
      std::string problem = TensorProblem(file, name, rule.dtype, shape);
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  for (const auto& [name, entry] : file.tensors()) {
    if (!known.contains(name)) {
      problems.push_back(fmt::format("{}: unknown tensor; allowed: those of a {} file", name,
                                     KindName(vectors.kind)));
    }
  }
}

// Each stored selection has as many distinct visible rows as there are, then -1. Attention is given
// them, so they have to make sense.
void CheckSelections(const SafetensorsFile& file, const VectorCase& vectors,
                     std::vector<std::string>& problems) {
  const int64_t topk = vectors.config.index_topk;
  for (const RequestCase& request : vectors.requests) {
    const auto all = file.Values<int32_t>(request.TensorName("topk_idx"));
    for (size_t i = 0; i < request.stored.size(); ++i) {
      const auto rows =
          std::span(*all).subspan(i * static_cast<size_t>(topk), static_cast<size_t>(topk));
      const int64_t visible = (request.start_pos + request.stored[i] + 1) / kCsaRatio;
      const auto count = static_cast<size_t>(std::min(visible, topk));
      const std::set<int32_t> seen(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count));
      const bool good = seen.size() == count &&
                        (count == 0 || (*seen.begin() >= 0 && *seen.rbegin() < visible)) &&
                        std::all_of(rows.begin() + static_cast<std::ptrdiff_t>(count), rows.end(),
                                    [](int32_t row) { return row == -1; });
      if (good) continue;
      problems.push_back(
          fmt::format("{}: not a selection; allowed: {} different rows below {}, then -1",
                      request.Where("topk_idx", kStored, static_cast<int64_t>(i)), count, visible));
    }
  }
}

}  // namespace

std::string TensorProblem(const SafetensorsFile& file, const std::string& name, DType dtype,
                          const Shape& shape) {
  const std::string allowed =
      fmt::format("{} [{}]", fixtures::DTypeName(dtype), fmt::join(shape, ","));
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) return fmt::format("{}: missing; allowed: {}", name, allowed);
  if (found->second.dtype == dtype && found->second.shape == shape) return "";
  return fmt::format("{}: {} [{}]; allowed: {}", name, fixtures::DTypeName(found->second.dtype),
                     fmt::join(found->second.shape, ","), allowed);
}

std::span<const TensorRule> TensorRulesOf(AttentionKind kind) {
  static const std::vector<TensorRule> swa = LayerTensors();
  static const std::vector<TensorRule> hca =
      Join({LayerTensors(), CompressorTensors(HcaStateDims)});
  static const std::vector<TensorRule> csa =
      Join({LayerTensors(), CompressorTensors(CsaStateDims), IndexerTensors()});
  switch (kind) {
    case AttentionKind::kHca:
      return hca;
    case AttentionKind::kCsa:
      return csa;
    case AttentionKind::kSwa:
      break;
  }
  return swa;
}

std::string RequestCase::TensorName(std::string_view tensor) const {
  return fmt::format("r{}.{}", request, tensor);
}

int64_t RequestCase::NumRows(TensorRows rows) const {
  switch (rows) {
    case TensorRows::kNew:
      return num_new;
    case TensorRows::kStored:
      return static_cast<int64_t>(stored.size());
    case TensorRows::kProbe:
      return static_cast<int64_t>(probe.size());
    case TensorRows::kLast:
      return std::min(num_new, kStateTokens);
    case TensorRows::kEvent:
      return num_events;
  }
  return 0;
}

int64_t RequestCase::TokenOfRow(TensorRows rows, int64_t row) const {
  switch (rows) {
    case TensorRows::kNew:
      return row;
    case TensorRows::kStored:
      return stored[static_cast<size_t>(row)];
    case TensorRows::kProbe:
      return probe[static_cast<size_t>(row)];
    case TensorRows::kLast:
      return num_new - NumRows(rows) + row;
    case TensorRows::kEvent:
      break;
  }
  return -1;
}

int64_t RequestCase::OwnRowOf(TensorRows rows, int64_t row) const {
  return rows == TensorRows::kEvent ? row : TokenOfRow(rows, row);
}

std::string RequestCase::Where(std::string_view tensor, TensorRows rows, int64_t row) const {
  if (rows == TensorRows::kEvent) {
    return fmt::format("{} row {} (compressed row {})", TensorName(tensor), row, first_row + row);
  }
  const int64_t token = TokenOfRow(rows, row);
  return fmt::format("{} token {} (position {})", TensorName(tensor), token, start_pos + token);
}

int64_t RequestCase::StoredRowOf(int64_t token) const {
  return std::lower_bound(stored.begin(), stored.end(), token) - stored.begin();
}

Result<VectorCase> ReadVectorCase(const SafetensorsFile& file, const ModelConfig& config,
                                  std::vector<std::string>& problems) {
  auto vectors = ReadMetadata(file, config);
  if (!vectors) return vectors;
  if (vectors->requests.empty()) problems.emplace_back("nothing to check: no request has tokens");
  for (RequestCase& request : vectors->requests) {
    ReadTokenLists(file, vectors->one_step(), request, problems);
  }
  CompareTensors(file, *vectors, problems);
  if (vectors->kind == AttentionKind::kCsa && problems.empty()) {
    CheckSelections(file, *vectors, problems);
  }
  return vectors;
}

}  // namespace millipede::tools
