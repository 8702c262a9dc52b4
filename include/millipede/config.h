// The shapes of a model. One value of ModelConfig drives every size in the library.
#ifndef MILLIPEDE_CONFIG_H_
#define MILLIPEDE_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "millipede/status.h"

namespace millipede {

// The highest number of tokens a request may ever hold. A ceiling, never a shape.
inline constexpr int64_t kMaxContextTokens = 1'048'576;

// Kernels are specialised on these four; a config with other values is refused.
inline constexpr int32_t kHeadDim = 512;   // lanes of a query head and of a KV row
inline constexpr int32_t kRopeLanes = 64;  // the last lanes of a head, rotated in pairs (2i, 2i+1)
inline constexpr int32_t kWindowRows = 128;  // raw rows every kind attends to, the token's included
inline constexpr int32_t kIndexDim = 128;    // lanes of an indexer head and of an index key

inline constexpr int32_t kHcStreams = 4;  // hyper-connection streams
inline constexpr int32_t kHcMixes = 24;   // rows of hc_fn: 4 pre, 4 post, 16 comb

enum class AttentionKind : uint8_t {
  kSwa,  // ratio 0: the window alone
  kHca,  // ratio 128: window and every compressed row
  kCsa,  // ratio 4: window and the indexer's top-k compressed rows
};

inline constexpr int32_t kHcaRatio = 128;  // tokens per HCA compressed row
inline constexpr int32_t kCsaRatio = 4;    // tokens per CSA compressed row

struct ModelConfig {
  int32_t hidden = 0;     // D
  int32_t num_heads = 0;  // H
  int32_t head_dim = kHeadDim;
  int32_t rope_lanes = kRopeLanes;
  int32_t q_rank = 0;    // width of the quantized query latent
  int32_t o_rank = 0;    // width of one output group's latent
  int32_t o_groups = 0;  // groups of num_heads / o_groups consecutive heads
  int32_t window_rows = kWindowRows;
  int32_t num_index_heads = 0;
  int32_t index_dim = kIndexDim;
  int32_t index_topk = 0;
  float rms_eps = 1e-6F;
  int32_t sinkhorn_rounds = 20;
  float hc_eps = 1e-6F;
  std::vector<int32_t> layer_ratios;  // compression ratio of each layer: 0, 4 or 128
  int64_t max_context_tokens = kMaxContextTokens;

  int32_t heads_per_group() const { return num_heads / o_groups; }

  static ModelConfig Flash();
  static ModelConfig Pro();
  static ModelConfig Tiny();  // small shapes for tests
};

// The preset named "flash", "pro" or "tiny"; nothing for any other name.
std::optional<ModelConfig> PresetByName(std::string_view name);

// kInvalidConfig naming the first field outside its range.
Status Validate(const ModelConfig& config);

// kInvalidArgument unless `ratio` is 0, 4 or 128.
Result<AttentionKind> KindOfRatio(int32_t ratio);

// kInvalidArgument unless 0 <= layer < layer_ratios.size().
Result<AttentionKind> KindOfLayer(const ModelConfig& config, int32_t layer);

// "swa", "hca" or "csa".
std::string_view KindName(AttentionKind kind);

}  // namespace millipede

#endif  // MILLIPEDE_CONFIG_H_
