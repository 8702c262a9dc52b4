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

Status CheckOutputWeights(const ModelConfig& config, const OutputWeights& weights) {
  const int64_t num_groups = config.o_groups;
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

}  // namespace

Status ProjectOutput(Context& context, const ModelConfig& config, const OutputWeights& weights,
                     TensorView<const Bf16, 3> heads, TensorView<Bf16, 2> attn_out,
                     Scratch scratch) {
  const int64_t num_tokens = heads.shape[0];
  const int64_t num_groups = config.o_groups;
  const int64_t rank = config.o_rank;
  const int64_t group_inputs = int64_t{config.heads_per_group()} * kHeadDim;
  MILLIPEDE_RETURN_IF_ERROR(CheckOutputWeights(config, weights));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("heads", heads, {num_tokens, config.num_heads, kHeadDim}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("attn_out", attn_out, {num_tokens, config.hidden}));
  const OutputScratch layout = LayOutOutput(config, num_tokens, context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));
  auto* const latent = PartOf<float>(scratch, layout.latent);
  auto* const codes = PartOf<int8_t>(scratch, layout.codes);
  auto* const scales = PartOf<float>(scratch, layout.scales);
  const auto own_part = [&](int thread) {
    return PartOf<std::byte>(scratch, layout.per_thread + thread * layout.per_thread_bytes);
  };

  const ProductSplit latent_split(num_tokens, rank, context.num_threads());
  const int64_t latent_items = latent_split.num_items();
  ParallelFor(context, "output latent", num_groups * latent_items, [&](int64_t item, int thread) {
    const int64_t group = item / latent_items;
    const RowRange rows = latent_split.rows(item % latent_items);
    const RowRange panels = latent_split.panels(item % latent_items);
    DescribeItem(context.impl().trace, thread,
                 ProductTrace(rows, panels, group_inputs, sizeof(Bf16)));
    MatmulBf16(
        {.x = heads.row(rows.begin) + group * group_inputs,
         .x_stride = heads.stride0,
         .num_rows = rows.end - rows.begin,
         .num_inputs = group_inputs,
         .weights = weights.wo_a[static_cast<size_t>(group)].data(),
         .num_outputs = rank,
         .panel_begin = panels.begin,
         .panel_end = panels.end,
         .out = latent + (rows.begin * num_groups + group) * rank + panels.begin * kPanelOutputs,
         .out_stride = num_groups * rank,
         .scratch = own_part(thread)});
  });

  ParallelFor(context, "output quantize", num_tokens * num_groups, [&](int64_t item, int thread) {
    DescribeItem(context.impl().trace, thread, TokensTrace(item / num_groups, 1));
    Quantize({.x = latent + item * rank,
              .codes = codes + item * rank,
              .scale = scales + item,
              .num_values = rank});
  });

  // An item is a tile of outputs of a chunk of tokens: every group's exact products, scaled, and
  // their tree.
  constexpr int64_t kTilePanels = kOutputTile / kPanelOutputs;
  const int64_t num_panels = NumPanels(config.hidden);
  const int64_t num_tiles = CeilDiv(num_panels, kTilePanels);
  const int64_t num_chunks = CeilDiv(num_tokens, kTileRows);
  ParallelFor(context, "output product", num_tiles * num_chunks, [&](int64_t item, int thread) {
    const int64_t panel_begin = item / num_chunks * kTilePanels;
    const int64_t panel_end = std::min(num_panels, panel_begin + kTilePanels);
    const int64_t first_output = panel_begin * kPanelOutputs;
    const int64_t num_outputs =
        std::min<int64_t>(config.hidden, panel_end * kPanelOutputs) - first_output;
    const int64_t chunk = item % num_chunks;
    const int64_t begin = chunk * num_tokens / num_chunks;
    const int64_t num_rows = (chunk + 1) * num_tokens / num_chunks - begin;
    DescribeItem(context.impl().trace, thread,
                 ProductTrace({begin, begin + num_rows}, {panel_begin, panel_end},
                              num_groups * rank, sizeof(int8_t)));
    std::byte* const own = own_part(thread);
    auto* const sums = reinterpret_cast<int32_t*>(own + layout.product);
    auto* const group_tiles = reinterpret_cast<float*>(own + layout.groups);
    for (int64_t group = 0; group < num_groups; ++group) {
      MatmulInt8({.x = codes + (begin * num_groups + group) * rank,
                  .x_stride = num_groups * rank,
                  .num_rows = num_rows,
                  .num_inputs = rank,
                  .weights = weights.wo_b[static_cast<size_t>(group)].data(),
                  .num_outputs = config.hidden,
                  .panel_begin = panel_begin,
                  .panel_end = panel_end,
                  .out = sums,
                  .out_stride = kOutputTile,
                  .scratch = own});
      ScaleGroup({.sums = sums,
                  .sums_stride = kOutputTile,
                  .row_scale = scales + begin * num_groups + group,
                  .row_scale_stride = num_groups,
                  .out = group_tiles + group * kTileRows * kOutputTile,
                  .out_stride = kOutputTile,
                  .num_rows = num_rows,
                  .num_cols = num_outputs});
    }
    SumGroups({.groups = group_tiles,
               .group_stride = kTileRows * kOutputTile,
               .row_stride = kOutputTile,
               .scale = weights.wo_b[0].scale() + first_output,
               .out = attn_out.row(begin) + first_output,
               .out_stride = attn_out.stride0,
               .num_groups = num_groups,
               .num_rows = num_rows,
               .num_cols = num_outputs});
  });
  return {};
}

}  // namespace millipede
