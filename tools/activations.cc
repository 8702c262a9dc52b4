#include "tools/activations.h"

#include <algorithm>
#include <limits>

#include "millipede/stages.h"
#include "tools/buffers.h"
#include "tools/errors.h"

namespace millipede::tools {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Bf16 kNanBf16{0x7FC0};
constexpr int8_t kNoCode = -128;
constexpr int32_t kNoRow = -2;

int64_t FloatsPerRow(PoolKind pool) { return FormatOf(pool).row_bytes / int64_t{sizeof(float)}; }

template <typename T>
void CopyRows(TensorView<const T, 2> from, std::vector<T>& to) {
  for (int64_t t = 0; t < from.shape[0]; ++t) {
    std::copy_n(from.row(t), from.shape[1], to.begin() + t * from.shape[1]);
  }
}

template <typename T>
NamedActivation Named(std::string_view name, std::vector<T>& values, int64_t rows) {
  const auto total = static_cast<int64_t>(values.size());
  return {name, fixtures::DTypeOf<T>(), rows == 0 ? 0 : total / rows,
          std::as_writable_bytes(std::span(values))};
}

}  // namespace

Activations::Activations(const ModelConfig& model, AttentionKind attention, int64_t tokens,
                         int64_t events)
    : config(model), kind(attention), num_tokens(tokens), num_events(events) {
  const auto make = [](auto& values, int64_t rows, int64_t width, auto fill) {
    values.assign(static_cast<size_t>(rows * width), fill);
  };
  const int64_t hidden = model.hidden;
  const int64_t head_lanes = int64_t{model.num_heads} * kHeadDim;
  make(x_mixed, tokens, hidden, kNanBf16);
  make(post, tokens, kHcStreams, kNan);
  make(comb, tokens, int64_t{kHcStreams} * kHcStreams, kNan);
  make(xn, tokens, hidden, kNanBf16);
  make(qr, tokens, model.q_rank, kNoCode);
  make(qr_scale, tokens, 1, kNan);
  make(q, tokens, head_lanes, kNanBf16);
  make(kv, tokens, kHeadDim, kNanBf16);
  make(heads, tokens, head_lanes, kNanBf16);
  make(attn_out, tokens, hidden, kNanBf16);
  make(x_out, tokens, hidden * kHcStreams, kNan);
  if (kind == AttentionKind::kSwa) return;
  const bool csa = kind == AttentionKind::kCsa;
  make(state, tokens, FloatsPerRow(csa ? PoolKind::kCsaState : PoolKind::kHcaState), kNan);
  make(cmp_rows, events, kHeadDim, kNanBf16);
  if (!csa) return;
  const int64_t index_heads = model.num_index_heads;
  make(inner_state, tokens, FloatsPerRow(PoolKind::kCsaInnerState), kNan);
  make(idx_rows, events, kIndexDim, kNoCode);
  make(idx_scales, events, 1, kNan);
  make(idx_q, tokens, index_heads * kIndexDim, kNoCode);
  make(idx_q_scale, tokens, index_heads, kNan);
  make(idx_weights, tokens, index_heads, kNan);
  make(topk_idx, tokens, model.index_topk, kNoRow);
  make(topk_score, tokens, model.index_topk, kNan);
  make(topk_next, tokens, 1, kNan);
  make(wide_idx, tokens, model.index_topk + 1, kNoRow);
  make(wide_score, tokens, model.index_topk + 1, kNan);
}

StepActivations Activations::views() {
  const int64_t tokens = num_tokens;
  StepActivations views;
  views.x_mixed = MakeView(x_mixed.data(), tokens, config.hidden);
  views.post = MakeView(post.data(), tokens, kHcStreams);
  views.comb = MakeView(comb.data(), tokens, kHcStreams, kHcStreams);
  views.xn = MakeView(xn.data(), tokens, config.hidden);
  views.qr = MakeView(qr.data(), tokens, config.q_rank);
  views.qr_scale = MakeView(qr_scale.data(), tokens);
  views.q = MakeView(q.data(), tokens, config.num_heads, kHeadDim);
  views.heads = MakeView(heads.data(), tokens, config.num_heads, kHeadDim);
  views.attn_out = MakeView(attn_out.data(), tokens, config.hidden);
  if (kind != AttentionKind::kCsa) return views;
  views.idx_q = MakeView(idx_q.data(), tokens, config.num_index_heads, kIndexDim);
  views.idx_q_scale = MakeView(idx_q_scale.data(), tokens, config.num_index_heads);
  views.idx_weights = MakeView(idx_weights.data(), tokens, config.num_index_heads);
  views.topk_idx = MakeView(topk_idx.data(), tokens, config.index_topk);
  views.topk_score = MakeView(topk_score.data(), tokens, config.index_topk);
  return views;
}

std::vector<NamedActivation> Activations::named() {
  std::vector<NamedActivation> tensors;
  const auto add = [&](std::string_view name, auto& values) {
    tensors.push_back(Named(name, values, num_tokens));
  };
  add("x_mixed", x_mixed);
  add("post", post);
  add("comb", comb);
  add("xn", xn);
  add("qr", qr);
  add("qr_scale", qr_scale);
  add("q", q);
  add("kv", kv);
  add("heads", heads);
  add("attn_out", attn_out);
  add("x_out", x_out);
  if (kind == AttentionKind::kSwa) return tensors;
  add("state_rows", state);
  if (kind == AttentionKind::kHca) return tensors;
  add("inner_state_rows", inner_state);
  add("idx_q", idx_q);
  add("idx_q_scale", idx_q_scale);
  add("idx_weights", idx_weights);
  add("topk_idx", topk_idx);
  add("topk_score", topk_score);
  add("topk_next", topk_next);
  return tensors;
}

std::vector<NamedActivation> Activations::named_events() {
  std::vector<NamedActivation> tensors;
  if (kind == AttentionKind::kSwa) return tensors;
  tensors.push_back(Named("cmp_rows", cmp_rows, num_events));
  if (kind == AttentionKind::kHca) return tensors;
  tensors.push_back(Named("idx_rows", idx_rows, num_events));
  tensors.push_back(Named("idx_scales", idx_scales, num_events));
  return tensors;
}

void Activations::TakeOverlay(const Plan& plan, std::span<const std::byte> overlay) {
  CopyRows(OverlayKv(plan, overlay), kv);
  if (kind != AttentionKind::kSwa) CopyRows(OverlayState(plan, overlay), state);
  if (kind == AttentionKind::kCsa) CopyRows(OverlayInnerState(plan, overlay), inner_state);
}

void Activations::TakeEvents(const Batch& batch, const LayerCaches& caches,
                             std::span<const StepEvent> step_events) {
  for (size_t e = 0; e < step_events.size(); ++e) {
    const StepEvent& event = step_events[e];
    const auto take = [&]<typename T>(PoolKind pool, std::vector<T>& values) {
      const std::vector<int32_t> pages = batch.Pages(kind, pool, event.request);
      const std::span<T> row = RowAs<T>(caches.Row(pool, PoolRowOf(pool, pages, event.row)));
      std::copy(row.begin(), row.end(),
                values.begin() + static_cast<std::ptrdiff_t>(e * row.size()));
    };
    take(kind == AttentionKind::kCsa ? PoolKind::kCsaMain : PoolKind::kHcaMain, cmp_rows);
    if (kind != AttentionKind::kCsa) continue;
    take(PoolKind::kCsaIndexRows, idx_rows);
    take(PoolKind::kCsaIndexScales, idx_scales);
  }
}

Status SelectWide(Executor& executor, const Plan& plan, const LayerPools& pools,
                  Activations& values) {
  Context context(executor);
  const int64_t width = int64_t{values.config.index_topk} + 1;
  const AlignedBuffer scratch(SelectScratchBytes(values.config, width, context.num_threads()));
  const StepActivations views = values.views();
  auto status =
      Select(context, values.config, plan,
             {.idx_q = views.idx_q,
              .idx_q_scale = views.idx_q_scale,
              .idx_weights = views.idx_weights,
              .index_rows = pools.index_rows,
              .index_scales = pools.index_scales},
             MakeView(values.wide_idx.data(), values.num_tokens, width),
             MakeView(values.wide_score.data(), values.num_tokens, width), scratch.span());
  if (!status) return status;
  for (int64_t t = 0; t < values.num_tokens; ++t) {
    values.topk_next[static_cast<size_t>(t)] =
        values.wide_score[static_cast<size_t>((t + 1) * width - 1)];
  }
  return {};
}

}  // namespace millipede::tools
