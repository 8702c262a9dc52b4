// From attention heads back to the hidden width.
#include <algorithm>

#include "kernels/matmul_bf16.h"
#include "kernels/matmul_int8.h"
#include "kernels/output_sum.h"
#include "kernels/quantize.h"
#include "layers/checks.h"
#include "layers/split.h"
#include "millipede/stages.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {
namespace {

// The weights of `num_groups` consecutive groups.
Status CheckOutputWeights(const ModelConfig& config, const OutputWeights& weights,
                          int64_t num_groups) {
  if (static_cast<int64_t>(weights.wo_a.size()) != num_groups ||
      static_cast<int64_t>(weights.wo_b.size()) != num_groups) {
    return MakeError(ErrorCode::kShapeMismatch, "weights", "{} and {} groups; allowed: {} each",
                     weights.wo_a.size(), weights.wo_b.size(), num_groups);
  }
  const int64_t group_inputs = int64_t{config.heads_per_group()} * kHeadDim;
  for (size_t g = 0; g < weights.wo_a.size(); ++g) {
    const MatrixBf16& wo_a = weights.wo_a[g];
    const MatrixInt8& wo_b = weights.wo_b[g];
    if (wo_a.num_outputs() != config.o_rank || wo_a.num_inputs() != group_inputs) {
      return MakeError(ErrorCode::kShapeMismatch, fmt::format("wo_a[{}]", g),
                       "shape [{}, {}]; allowed: [{}, {}]", wo_a.num_outputs(), wo_a.num_inputs(),
                       config.o_rank, group_inputs);
    }
    if (wo_b.num_outputs() != config.hidden || wo_b.num_inputs() != config.o_rank) {
      return MakeError(ErrorCode::kShapeMismatch, fmt::format("wo_b[{}]", g),
                       "shape [{}, {}]; allowed: [{}, {}]", wo_b.num_outputs(), wo_b.num_inputs(),
                       config.hidden, config.o_rank);
    }
  }
  return {};
}

// The output projection of the groups that `weights` has, n of them, up to their sum.
class GroupProducts {
 public:
  // `scratch` was checked against `layout`. `own_tokens`: they are the query tokens of the plan
  // that a trace is told of, in order.
  GroupProducts(Context& context, const ModelConfig& config, const OutputWeights& weights,
                TensorView<const Bf16, 3> heads, bool own_tokens, const OutputScratch& layout,
                Scratch scratch)
      : context_(context),
        weights_(weights),
        heads_(heads),
        own_tokens_(own_tokens),
        layout_(layout),
        scratch_(scratch),
        num_tokens_(heads.shape[0]),
        num_groups_(static_cast<int64_t>(weights.wo_a.size())),
        rank_(config.o_rank),
        group_inputs_(int64_t{config.heads_per_group()} * kHeadDim),
        hidden_(config.hidden),
        latent_(PartOf<float>(scratch, layout.latent)),
        codes_(PartOf<int8_t>(scratch, layout.codes)),
        scales_(PartOf<float>(scratch, layout.scales)) {}

  // The groups' latents of every token as codes and scales.
  void QuantizeLatents() {
    const ProductSplit split(num_tokens_, rank_, context_.num_threads());
    const int64_t group_items = split.num_items();
    ParallelFor(context_, "output latent", num_groups_ * group_items,
                [&](int64_t item, int thread) {
                  const int64_t group = item / group_items;
                  const RowRange rows = split.rows(item % group_items);
                  const RowRange panels = split.panels(item % group_items);
                  Describe(thread, ProductTrace(rows, panels, group_inputs_, sizeof(Bf16)));
                  MatmulBf16({.x = heads_.row(rows.begin) + group * group_inputs_,
                              .x_stride = heads_.stride0,
                              .num_rows = rows.end - rows.begin,
                              .num_inputs = group_inputs_,
                              .weights = weights_.wo_a[static_cast<size_t>(group)].data(),
                              .num_outputs = rank_,
                              .panel_begin = panels.begin,
                              .panel_end = panels.end,
                              .out = latent_ + (rows.begin * num_groups_ + group) * rank_ +
                                     panels.begin * kPanelOutputs,
                              .out_stride = num_groups_ * rank_,
                              .scratch = own_part(thread)});
                });
    ParallelFor(context_, "output quantize", num_tokens_ * num_groups_,
                [&](int64_t item, int thread) {
                  Describe(thread, TokensTrace(item / num_groups_, 1));
                  Quantize({.x = latent_ + item * rank_,
                            .codes = codes_ + item * rank_,
                            .scale = scales_ + item,
                            .num_values = rank_});
                });
  }

  // A tile of outputs of a chunk of tokens.
  struct Tile {
    int64_t panel_begin;
    int64_t panel_end;
    int64_t first_output;
    int64_t num_outputs;
    int64_t first_token;
    int64_t num_tokens;
  };

  // Calls body(tile, thread) for each tile of the product; tiles that run together share weights.
  template <typename Body>
  void ForEachTile(const Body& body) {
    constexpr int64_t kTilePanels = kOutputTile / kPanelOutputs;
    const int64_t num_panels = NumPanels(hidden_);
    const int64_t num_tiles = CeilDiv(num_panels, kTilePanels);
    const int64_t num_chunks = CeilDiv(num_tokens_, kTileRows);
    ParallelFor(context_, "output product", num_tiles * num_chunks, [&](int64_t item, int thread) {
      const int64_t panel_begin = item / num_chunks * kTilePanels;
      const int64_t panel_end = std::min(num_panels, panel_begin + kTilePanels);
      const int64_t first_output = panel_begin * kPanelOutputs;
      const int64_t chunk = item % num_chunks;
      const int64_t begin = chunk * num_tokens_ / num_chunks;
      const int64_t end = (chunk + 1) * num_tokens_ / num_chunks;
      Describe(thread, ProductTrace({begin, end}, {panel_begin, panel_end}, num_groups_ * rank_,
                                    sizeof(int8_t)));
      body(Tile{.panel_begin = panel_begin,
                .panel_end = panel_end,
                .first_output = first_output,
                .num_outputs = std::min(hidden_, panel_end * kPanelOutputs) - first_output,
                .first_token = begin,
                .num_tokens = end - begin},
           thread);
    });
  }

  // A group's exact products of a tile, scaled, to out [tile.num_tokens, tile.num_outputs].
  void Project(const Tile& tile, int64_t group, int thread, float* out, int64_t out_stride) const {
    std::byte* const own = own_part(thread);
    auto* const sums = reinterpret_cast<int32_t*>(own + layout_.product);
    MatmulInt8({.x = codes_ + (tile.first_token * num_groups_ + group) * rank_,
                .x_stride = num_groups_ * rank_,
                .num_rows = tile.num_tokens,
                .num_inputs = rank_,
                .weights = weights_.wo_b[static_cast<size_t>(group)].data(),
                .num_outputs = hidden_,
                .panel_begin = tile.panel_begin,
                .panel_end = tile.panel_end,
                .out = sums,
                .out_stride = kOutputTile,
                .scratch = own});
    ScaleGroup({.sums = sums,
                .sums_stride = kOutputTile,
                .row_scale = scales_ + tile.first_token * num_groups_ + group,
                .row_scale_stride = num_groups_,
                .out = out,
                .out_stride = out_stride,
                .num_rows = tile.num_tokens,
                .num_cols = tile.num_outputs});
  }

  // A thread's own float32 tiles [n, kTileRows, kOutputTile].
  float* group_tiles(int thread) const {
    return reinterpret_cast<float*>(own_part(thread) + layout_.groups);
  }

 private:
  std::byte* own_part(int thread) const {
    return PartOf<std::byte>(scratch_, layout_.per_thread + thread * layout_.per_thread_bytes);
  }

  void Describe(int thread, TraceArgs args) const {
    if (!own_tokens_) args.first_query = -1;
    DescribeItem(context_.impl().trace, thread, args);
  }

  Context& context_;
  const OutputWeights& weights_;
  TensorView<const Bf16, 3> heads_;  // [T, n*H/G, 512]
  bool own_tokens_;
  const OutputScratch& layout_;
  Scratch scratch_;
  int64_t num_tokens_;
  int64_t num_groups_;
  int64_t rank_;
  int64_t group_inputs_;
  int64_t hidden_;
  float* latent_;  // [T, n, o_rank]
  int8_t* codes_;  // [T, n, o_rank]
  float* scales_;  // [T, n]
};

}  // namespace

Result<RowRange> GroupsOf(const ModelConfig& config, OutputShard shard) try {
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  if (shard.degree < 1 || config.o_groups % shard.degree != 0) {
    return MakeError(ErrorCode::kInvalidArgument, "shard.degree",
                     "{}; allowed: a divisor of the {} output groups", shard.degree,
                     config.o_groups);
  }
  if (shard.rank < 0 || shard.rank >= shard.degree) {
    return MakeError(ErrorCode::kInvalidArgument, "shard.rank", "{}; allowed: 0 to {}", shard.rank,
                     shard.degree - 1);
  }
  const int64_t num_groups = config.o_groups / shard.degree;
  return RowRange{shard.rank * num_groups, (shard.rank + 1) * num_groups};
} catch (const std::bad_alloc&) {
  return OutOfMemory("shard", "an error message");
}

Status ProjectOutput(Context& context, const ModelConfig& config, const OutputWeights& weights,
                     TensorView<const Bf16, 3> heads, TensorView<Bf16, 2> attn_out,
                     Scratch scratch) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  const int64_t num_tokens = heads.shape[0];
  const int64_t num_groups = config.o_groups;
  MILLIPEDE_RETURN_IF_ERROR(CheckOutputWeights(config, weights, num_groups));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("heads", heads, {num_tokens, config.num_heads, kHeadDim}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("attn_out", attn_out, {num_tokens, config.hidden}));
  const OutputScratch layout = LayOutOutput(config, num_groups, num_tokens, context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));

  // A tile's groups are summed while they are in the cache.
  GroupProducts products(context, config, weights, heads, /*own_tokens=*/true, layout, scratch);
  products.QuantizeLatents();
  products.ForEachTile([&](const GroupProducts::Tile& tile, int thread) {
    constexpr int64_t kGroupStride = kTileRows * kOutputTile;
    float* const tiles = products.group_tiles(thread);
    for (int64_t group = 0; group < num_groups; ++group) {
      products.Project(tile, group, thread, tiles + group * kGroupStride, kOutputTile);
    }
    SumGroups({.groups = tiles,
               .group_stride = kGroupStride,
               .row_stride = kOutputTile,
               .scale = weights.wo_b[0].scale() + tile.first_output,
               .out = attn_out.row(tile.first_token) + tile.first_output,
               .out_stride = attn_out.stride0,
               .num_groups = num_groups,
               .num_rows = tile.num_tokens,
               .num_cols = tile.num_outputs});
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

Status ProjectOutputGroups(Context& context, const ModelConfig& config,
                           const OutputWeights& weights, TensorView<const Bf16, 3> heads,
                           TensorView<float, 3> partials, Scratch scratch) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  const int64_t num_tokens = heads.shape[0];
  const auto num_groups = static_cast<int64_t>(weights.wo_a.size());
  if (num_groups < 1 || num_groups > config.o_groups) {
    return MakeError(ErrorCode::kShapeMismatch, "weights", "{} groups; allowed: 1 to {}",
                     num_groups, config.o_groups);
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckOutputWeights(config, weights, num_groups));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("heads", heads, {num_tokens, num_groups * config.heads_per_group(), kHeadDim}));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("partials", partials, {num_tokens, num_groups, config.hidden}));
  const OutputScratch layout = LayOutOutput(config, num_groups, num_tokens, context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));

  GroupProducts products(context, config, weights, heads, /*own_tokens=*/false, layout, scratch);
  products.QuantizeLatents();
  products.ForEachTile([&](const GroupProducts::Tile& tile, int thread) {
    float* const out = partials.row(tile.first_token) + tile.first_output;
    for (int64_t group = 0; group < num_groups; ++group) {
      products.Project(tile, group, thread, out + group * config.hidden, partials.stride0);
    }
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

Status SumOutputGroups(Context& context, const ModelConfig& config,
                       TensorView<const float, 3> partials, TensorView<const float, 1> wo_b_scale,
                       TensorView<Bf16, 2> attn_out) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  const int64_t num_tokens = partials.shape[0];
  const int64_t hidden = config.hidden;
  MILLIPEDE_RETURN_IF_ERROR(CheckView("partials", partials, {num_tokens, config.o_groups, hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wo_b_scale", wo_b_scale, {hidden}));
  if (wo_b_scale.stride0 != 1) {
    return MakeError(ErrorCode::kShapeMismatch, "wo_b_scale", "stride0 {}; allowed: 1",
                     wo_b_scale.stride0);
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckView("attn_out", attn_out, {num_tokens, hidden}));

  constexpr int64_t kItemOutputs = 1024;
  const int64_t num_pieces = CeilDiv(hidden, kItemOutputs);
  ParallelFor(context, "output sum", num_tokens * num_pieces, [&](int64_t item, int thread) {
    DescribeItem(context.impl().trace, thread, {.rows = 1});
    const int64_t token = item / num_pieces;
    const int64_t first_output = item % num_pieces * kItemOutputs;
    SumGroups({.groups = partials.row(token) + first_output,
               .group_stride = hidden,
               .row_stride = partials.stride0,
               .scale = wo_b_scale.data + first_output,
               .out = attn_out.row(token) + first_output,
               .out_stride = attn_out.stride0,
               .num_groups = config.o_groups,
               .num_rows = 1,
               .num_cols = std::min(kItemOutputs, hidden - first_output)});
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

}  // namespace millipede
