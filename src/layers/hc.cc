// Hyper-connection stages: mixing the streams before a layer, and back into them after it.
#include <algorithm>
#include <array>

#include "kernels/hc_post.h"
#include "kernels/hc_pre.h"
#include "layers/checks.h"
#include "layers/split.h"
#include "millipede/stages.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {

Status HcPre(Context& context, const ModelConfig& config, const HcWeights& weights,
             TensorView<const float, 3> x, TensorView<Bf16, 2> x_mixed, TensorView<float, 2> post,
             TensorView<float, 3> comb, Scratch scratch) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  const int64_t num_tokens = x.shape[0];
  const int64_t hidden = config.hidden;
  MILLIPEDE_RETURN_IF_ERROR(CheckView("x", x, {num_tokens, kHcStreams, hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("x_mixed", x_mixed, {num_tokens, hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("post", post, {num_tokens, kHcStreams}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("comb", comb, {num_tokens, kHcStreams, kHcStreams}));
  if (weights.num_inputs() != kHcStreams * hidden) {
    return MakeError(ErrorCode::kShapeMismatch, "weights", "{} inputs; allowed: {}",
                     weights.num_inputs(), kHcStreams * hidden);
  }
  const HcPreScratch layout = LayOutHcPre(num_tokens);
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));
  auto* partials = PartOf<float>(scratch, layout.partials);

  // Tokens share reads of hc_fn; ranges of inputs give one token to all threads.
  const int64_t num_blocks = CeilDiv(num_tokens, kHcTileRows);
  ParallelFor(
      context, "hc_pre product", num_blocks * kHcInputRanges, [&](int64_t item, int thread) {
        const int64_t first = item / kHcInputRanges * kHcTileRows;
        const int64_t range_index = item % kHcInputRanges;
        const auto inputs = HcInputRange(weights.num_inputs(), range_index);
        TraceArgs traced = TokensTrace(first, std::min(kHcTileRows, num_tokens - first));
        traced.bytes = (inputs.end - inputs.begin) * kHcMixes * int64_t{sizeof(float)};
        DescribeItem(context.impl().trace, thread, traced);
        HcPartial({.x = x.row(first),
                   .x_stride = x.stride0,
                   .packed_fn = weights.fn(),
                   .begin = inputs.begin,
                   .end = inputs.end,
                   .partials = partials + (first * kHcInputRanges + range_index) * kHcPartialFloats,
                   .partials_stride = kHcInputRanges * kHcPartialFloats,
                   .num_rows = std::min(kHcTileRows, num_tokens - first)});
      });
  ParallelFor(context, "hc_pre mix", num_tokens, [&](int64_t token, int thread) {
    DescribeItem(context.impl().trace, thread, TokensTrace(token, 1));
    std::array<float, kHcStreams> pre{};
    HcFinish({.partials = partials + token * kHcInputRanges * kHcPartialFloats,
              .scale = weights.scale().data(),
              .base = weights.base().data(),
              .num_inputs = weights.num_inputs(),
              .rms_eps = config.rms_eps,
              .hc_eps = config.hc_eps,
              .sinkhorn_rounds = config.sinkhorn_rounds,
              .pre = pre.data(),
              .post = post.row(token),
              .comb = comb.row(token)});
    HcCombine(
        {.x = x.row(token), .pre = pre.data(), .x_mixed = x_mixed.row(token), .hidden = hidden});
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

Status HcPost(Context& context, const ModelConfig& config, TensorView<const float, 3> x,
              TensorView<const Bf16, 2> attn_out, TensorView<const float, 2> post,
              TensorView<const float, 3> comb, TensorView<float, 3> x_out) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  const int64_t num_tokens = x.shape[0];
  const int64_t hidden = config.hidden;
  MILLIPEDE_RETURN_IF_ERROR(CheckView("x", x, {num_tokens, kHcStreams, hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("attn_out", attn_out, {num_tokens, hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("post", post, {num_tokens, kHcStreams}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("comb", comb, {num_tokens, kHcStreams, kHcStreams}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("x_out", x_out, {num_tokens, kHcStreams, hidden}));

  // Ranges of lanes, so that one token alone fills the threads.
  constexpr int64_t kLanes = 1024;
  const int64_t num_ranges = CeilDiv(hidden, kLanes);
  ParallelFor(context, "hc_post", num_tokens * num_ranges, [&](int64_t item, int thread) {
    const int64_t token = item / num_ranges;
    DescribeItem(context.impl().trace, thread, TokensTrace(token, 1));
    const int64_t begin = item % num_ranges * kLanes;
    HcPost({.x = x.row(token),
            .attn_out = attn_out.row(token),
            .post = post.row(token),
            .comb = comb.row(token),
            .x_out = x_out.row(token),
            .hidden = hidden,
            .begin = begin,
            .end = std::min(hidden, begin + kLanes)});
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

}  // namespace millipede
