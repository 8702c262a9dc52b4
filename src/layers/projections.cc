// From the mixed stream to queries and KV rows.
#include "kernels/matmul_int8.h"
#include "kernels/norm_heads.h"
#include "kernels/norm_rows.h"
#include "layers/checks.h"
#include "layers/product.h"
#include "millipede/stages.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {
Status AttnNorm(Context& context, const ModelConfig& config, TensorView<const float, 1> attn_norm,
                TensorView<const Bf16, 2> x_mixed, TensorView<Bf16, 2> xn) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  const int64_t num_tokens = x_mixed.shape[0];
  MILLIPEDE_RETURN_IF_ERROR(CheckView("attn_norm", attn_norm, {config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("x_mixed", x_mixed, {num_tokens, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("xn", xn, {num_tokens, config.hidden}));
  ParallelFor(context, "attn_norm", num_tokens, [&](int64_t token, int thread) {
    DescribeItem(context.impl().trace, thread, TokensTrace(token, 1));
    RmsNorm({.x = x_mixed.row(token),
             .weight = attn_norm.data,
             .out = xn.row(token),
             .num_values = config.hidden,
             .eps = config.rms_eps});
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

Status ProjectLatent(Context& context, const ModelConfig& config, const MatrixBf16& wq_a,
                     TensorView<const float, 1> q_norm, TensorView<const Bf16, 2> xn,
                     TensorView<int8_t, 2> qr, TensorView<float, 1> qr_scale, Scratch scratch) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  const int64_t num_tokens = xn.shape[0];
  MILLIPEDE_RETURN_IF_ERROR(
      CheckMatrix("wq_a", wq_a.num_outputs(), wq_a.num_inputs(), config.q_rank, config.hidden));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("q_norm", q_norm, {config.q_rank}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("xn", xn, {num_tokens, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("qr", qr, {num_tokens, config.q_rank}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("qr_scale", qr_scale, {num_tokens}));
  const ProductScratch layout = LayOutProduct(config.q_rank, num_tokens, context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));

  MultiplyAll(context, "q latent product", wq_a, xn, layout, scratch);
  const auto* product = PartOf<float>(scratch, layout.product);
  ParallelFor(context, "q latent quantize", num_tokens, [&](int64_t token, int thread) {
    DescribeItem(context.impl().trace, thread, TokensTrace(token, 1));
    RmsNormQuantize({.x = product + token * config.q_rank,
                     .weight = q_norm.data,
                     .codes = qr.row(token),
                     .scale = qr_scale.row(token),
                     .num_values = config.q_rank,
                     .eps = config.rms_eps});
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

Status ProjectQuery(Context& context, const ModelConfig& config, const MatrixInt8& wq_b,
                    TensorView<const int8_t, 2> qr, TensorView<const float, 1> qr_scale,
                    const RopeRows& rope, TensorView<Bf16, 3> q, Scratch scratch) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  const int64_t num_tokens = qr.shape[0];
  const int64_t num_heads = config.num_heads;
  MILLIPEDE_RETURN_IF_ERROR(CheckMatrix("wq_b", wq_b.num_outputs(), wq_b.num_inputs(),
                                        num_heads * kHeadDim, config.q_rank));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("qr", qr, {num_tokens, config.q_rank}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("qr_scale", qr_scale, {num_tokens}));
  MILLIPEDE_RETURN_IF_ERROR(CheckRope("rope", rope, num_tokens));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("q", q, {num_tokens, num_heads, kHeadDim}));
  const QueryScratch layout = LayOutQuery(context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));

  // An item is one head of a chunk of tokens: its exact products, then their norm and rotation.
  constexpr int64_t kHeadPanels = kHeadDim / kPanelOutputs;
  const int64_t num_chunks = CeilDiv(num_tokens, kTileRows);
  ParallelFor(context, "q heads", num_heads * num_chunks, [&](int64_t item, int thread) {
    const int64_t head = item / num_chunks;
    const int64_t chunk = item % num_chunks;
    const int64_t begin = chunk * num_tokens / num_chunks;
    const int64_t end = (chunk + 1) * num_tokens / num_chunks;
    DescribeItem(context.impl().trace, thread,
                 ProductTrace({begin, end}, {0, kHeadPanels}, config.q_rank, sizeof(int8_t)));
    std::byte* const own = PartOf<std::byte>(scratch, thread * layout.per_thread_bytes);
    auto* const sums = reinterpret_cast<int32_t*>(own + layout.product);
    MatmulInt8({.x = qr.row(begin),
                .x_stride = qr.stride0,
                .num_rows = end - begin,
                .num_inputs = config.q_rank,
                .weights = wq_b.data(),
                .num_outputs = wq_b.num_outputs(),
                .panel_begin = head * kHeadPanels,
                .panel_end = (head + 1) * kHeadPanels,
                .out = sums,
                .out_stride = kHeadDim,
                .scratch = own});
    for (int64_t token = begin; token < end; ++token) {
      HeadNormRope({.sums = sums + (token - begin) * kHeadDim,
                    .row_scale = *qr_scale.row(token),
                    .output_scale = wq_b.scale() + head * kHeadDim,
                    .cos = rope.cos.row(token),
                    .sin = rope.sin.row(token),
                    .out = q.row(token) + head * kHeadDim,
                    .eps = config.rms_eps});
    }
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

Status ProjectKv(Context& context, const ModelConfig& config, const MatrixBf16& wkv,
                 TensorView<const float, 1> kv_norm, TensorView<const Bf16, 2> xn,
                 const RopeRows& rope, TensorView<Bf16, 2> kv, Scratch scratch) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  const int64_t num_tokens = xn.shape[0];
  MILLIPEDE_RETURN_IF_ERROR(
      CheckMatrix("wkv", wkv.num_outputs(), wkv.num_inputs(), kHeadDim, config.hidden));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("kv_norm", kv_norm, {kHeadDim}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("xn", xn, {num_tokens, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckRope("rope", rope, num_tokens));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("kv", kv, {num_tokens, kHeadDim}));
  const ProductScratch layout = LayOutProduct(kHeadDim, num_tokens, context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));

  MultiplyAll(context, "kv product", wkv, xn, layout, scratch);
  const auto* product = PartOf<float>(scratch, layout.product);
  ParallelFor(context, "kv norm", num_tokens, [&](int64_t token, int thread) {
    DescribeItem(context.impl().trace, thread, TokensTrace(token, 1));
    KvNormRope({.x = product + token * kHeadDim,
                .weight = kv_norm.data,
                .cos = rope.cos.row(token),
                .sin = rope.sin.row(token),
                .out = kv.row(token),
                .eps = config.rms_eps});
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

}  // namespace millipede
