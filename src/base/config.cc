#include "millipede/config.h"

#include <cmath>

#include "base/error.h"

namespace millipede {
namespace {

constexpr int32_t kMaxDimension = 1
                                  << 20;  // keeps every product of two dimensions far inside int64

Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    return MakeError(ErrorCode::kInvalidConfig, field, "{}; allowed: {} to {}", value, low, high);
  }
  return {};
}

Status CheckFixed(const char* field, int64_t value, int64_t required) {
  if (value != required) {
    return MakeError(ErrorCode::kInvalidConfig, field, "{}; allowed: {}", value, required);
  }
  return {};
}

Status CheckEps(const char* field, float value) {
  if (!(value > 0) || !std::isfinite(value)) {
    return MakeError(ErrorCode::kInvalidConfig, field, "{}; allowed: finite and above 0", value);
  }
  return {};
}

// `leading`, then `pairs` times (4, 128), then 4.
std::vector<int32_t> Ratios(std::vector<int32_t> leading, int pairs) {
  for (int i = 0; i < pairs; ++i) leading.insert(leading.end(), {kCsaRatio, kHcaRatio});
  leading.push_back(kCsaRatio);
  return leading;
}

}  // namespace

ModelConfig ModelConfig::Flash() {
  ModelConfig config;
  config.hidden = 4096;
  config.num_heads = 64;
  config.q_rank = 1024;
  config.o_rank = 1024;
  config.o_groups = 8;
  config.num_index_heads = 64;
  config.index_topk = 512;
  config.layer_ratios = Ratios({0, 0}, 20);
  return config;
}

ModelConfig ModelConfig::Pro() {
  ModelConfig config;
  config.hidden = 7168;
  config.num_heads = 128;
  config.q_rank = 1536;
  config.o_rank = 1024;
  config.o_groups = 16;
  config.num_index_heads = 64;
  config.index_topk = 1024;
  config.layer_ratios = Ratios({kHcaRatio, kHcaRatio}, 29);
  return config;
}

ModelConfig ModelConfig::Tiny() {
  ModelConfig config;
  config.hidden = 256;
  config.num_heads = 8;
  config.q_rank = 64;
  config.o_rank = 32;
  config.o_groups = 4;
  config.num_index_heads = 4;
  config.index_topk = 512;
  config.layer_ratios = {0, kHcaRatio, kCsaRatio};
  return config;
}

std::optional<ModelConfig> PresetByName(std::string_view name) {
  if (name == "flash") return ModelConfig::Flash();
  if (name == "pro") return ModelConfig::Pro();
  if (name == "tiny") return ModelConfig::Tiny();
  return std::nullopt;
}

Status Validate(const ModelConfig& config) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckFixed("head_dim", config.head_dim, kHeadDim));
  MILLIPEDE_RETURN_IF_ERROR(CheckFixed("rope_lanes", config.rope_lanes, kRopeLanes));
  MILLIPEDE_RETURN_IF_ERROR(CheckFixed("window_rows", config.window_rows, kWindowRows));
  MILLIPEDE_RETURN_IF_ERROR(CheckFixed("index_dim", config.index_dim, kIndexDim));
  MILLIPEDE_RETURN_IF_ERROR(CheckRange("hidden", config.hidden, 1, kMaxDimension));
  MILLIPEDE_RETURN_IF_ERROR(CheckRange("num_heads", config.num_heads, 1, 4096));
  MILLIPEDE_RETURN_IF_ERROR(CheckRange("q_rank", config.q_rank, 1, 131071));
  MILLIPEDE_RETURN_IF_ERROR(CheckRange("o_rank", config.o_rank, 1, 131071));
  MILLIPEDE_RETURN_IF_ERROR(CheckRange("o_groups", config.o_groups, 1, config.num_heads));
  if (config.num_heads % config.o_groups != 0) {
    return MakeError(ErrorCode::kInvalidConfig, "o_groups",
                     "{}; allowed: a divisor of num_heads {}", config.o_groups, config.num_heads);
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckRange("num_index_heads", config.num_index_heads, 1, 4096));
  MILLIPEDE_RETURN_IF_ERROR(CheckRange("index_topk", config.index_topk, 1, 2048));
  MILLIPEDE_RETURN_IF_ERROR(CheckEps("rms_eps", config.rms_eps));
  MILLIPEDE_RETURN_IF_ERROR(CheckEps("hc_eps", config.hc_eps));
  MILLIPEDE_RETURN_IF_ERROR(CheckRange("sinkhorn_rounds", config.sinkhorn_rounds, 1, 1000));
  for (size_t i = 0; i < config.layer_ratios.size(); ++i) {
    if (!KindOfRatio(config.layer_ratios[i])) {
      return MakeError(ErrorCode::kInvalidConfig, fmt::format("layer_ratios[{}]", i),
                       "{}; allowed: 0, 4 or 128", config.layer_ratios[i]);
    }
  }
  return CheckRange("max_context_tokens", config.max_context_tokens, 1, kMaxContextTokens);
} catch (const std::bad_alloc&) {
  return OutOfMemory("config", "an error message");
}

Result<AttentionKind> KindOfRatio(int32_t ratio) try {
  switch (ratio) {
    case 0:
      return AttentionKind::kSwa;
    case kHcaRatio:
      return AttentionKind::kHca;
    case kCsaRatio:
      return AttentionKind::kCsa;
    default:
      return MakeError(ErrorCode::kInvalidArgument, "ratio", "{}; allowed: 0, 4 or 128", ratio);
  }
} catch (const std::bad_alloc&) {
  return OutOfMemory("ratio", "an error message");
}

Result<AttentionKind> KindOfLayer(const ModelConfig& config, int32_t layer) try {
  const auto num_layers = static_cast<int64_t>(config.layer_ratios.size());
  if (layer < 0 || layer >= num_layers) {
    return MakeError(ErrorCode::kInvalidArgument, "layer", "{}; allowed: 0 to {}", layer,
                     num_layers - 1);
  }
  return KindOfRatio(config.layer_ratios[static_cast<size_t>(layer)]);
} catch (const std::bad_alloc&) {
  return OutOfMemory("layer", "an error message");
}

std::string_view KindName(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kSwa:
      return "swa";
    case AttentionKind::kHca:
      return "hca";
    case AttentionKind::kCsa:
      return "csa";
  }
  return "unknown";
}

}  // namespace millipede
