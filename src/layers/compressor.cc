// Compressor stages: state rows of new tokens, and the compressed rows of blocks they finish.
#include "kernels/compressor.h"

#include <array>

#include "geometry/visibility.h"
#include "kernels/index_rows.h"
#include "kernels/matmul_bf16.h"
#include "kernels/norm_heads.h"
#include "layers/checks.h"
#include "layers/plan_checks.h"
#include "layers/pool_rows.h"
#include "layers/split.h"
#include "millipede/stages.h"
#include "pages/view_checks.h"
#include "plan/plan_state.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {
namespace {

// kShapeMismatch unless the weights are those of a compressor that the plan's kind has.
Status CheckCompressor(const ModelConfig& config, AttentionKind kind,
                       const CompressorWeights& weights) {
  const int64_t lanes = weights.wkv.num_outputs();
  const bool known = kind == AttentionKind::kHca
                         ? lanes == kHeadDim
                         : kind == AttentionKind::kCsa &&
                               (lanes == int64_t{2} * kHeadDim || lanes == int64_t{2} * kIndexDim);
  if (!known) {
    return MakeError(ErrorCode::kShapeMismatch, "weights.wkv", "{} outputs; allowed: those of {}",
                     lanes, KindName(kind));
  }
  if (weights.wkv.num_inputs() != config.hidden) {
    return MakeError(ErrorCode::kShapeMismatch, "weights.wkv", "{} inputs; allowed: {}",
                     weights.wkv.num_inputs(), config.hidden);
  }
  if (weights.wgate.num_outputs() != lanes || weights.wgate.num_inputs() != config.hidden) {
    return MakeError(ErrorCode::kShapeMismatch, "weights.wgate",
                     "shape [{}, {}]; allowed: [{}, {}]", weights.wgate.num_outputs(),
                     weights.wgate.num_inputs(), lanes, config.hidden);
  }
  const int64_t ape_elements = RatioOf(kind) * lanes;
  if (static_cast<int64_t>(weights.ape.size()) != ape_elements) {
    return MakeError(ErrorCode::kShapeMismatch, "weights.ape", "{} elements; allowed: {}",
                     weights.ape.size(), ape_elements);
  }
  return {};
}

}  // namespace

Status ProjectState(Context& context, const ModelConfig& config, const Plan& plan,
                    const CompressorWeights& weights, TensorView<const Bf16, 2> xn,
                    TensorView<float, 2> state, Scratch scratch) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  const int64_t num_tokens = plan.num_tokens();
  const int64_t lanes = weights.wkv.num_outputs();
  MILLIPEDE_RETURN_IF_ERROR(CheckPlanConfig(*plan.state(), config));
  MILLIPEDE_RETURN_IF_ERROR(CheckCompressor(config, plan.kind(), weights));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("xn", xn, {num_tokens, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("state", state, {num_tokens, 2 * lanes}));
  const ProductScratch layout = LayOutProduct(0, num_tokens, context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));

  const PackedWork& work = plan.work();
  const int64_t ratio = RatioOf(plan.kind());
  const ProductSplit split(num_tokens, lanes, context.num_threads());
  ParallelFor(context, "state product", 2 * split.num_items(), [&](int64_t item, int thread) {
    const bool gate = item >= split.num_items();
    const int64_t part = gate ? item - split.num_items() : item;
    const MatrixBf16& matrix = gate ? weights.wgate : weights.wkv;
    const RowRange rows = split.rows(part);
    const RowRange panels = split.panels(part);
    DescribeItem(context.impl().trace, thread,
                 ProductTrace(rows, panels, config.hidden, sizeof(Bf16)));
    const int64_t first_lane = panels.begin * kPanelOutputs;
    float* const out = state.row(rows.begin) + (gate ? lanes : 0) + first_lane;
    MatmulBf16({.x = xn.row(rows.begin),
                .x_stride = xn.stride0,
                .num_rows = rows.end - rows.begin,
                .num_inputs = config.hidden,
                .weights = matrix.data(),
                .num_outputs = lanes,
                .panel_begin = panels.begin,
                .panel_end = panels.end,
                .out = out,
                .out_stride = state.stride0,
                .scratch = PartOf<std::byte>(
                    scratch, layout.per_thread + thread * layout.per_thread_bytes)});
    if (!gate) return;
    for (int64_t token = rows.begin; token < rows.end; ++token) {
      const int64_t place = work.queries[static_cast<size_t>(token)].position % ratio;
      AddRow({.row = out + (token - rows.begin) * state.stride0,
              .addend = weights.ape.data() + place * lanes + first_lane,
              .num_values = (panels.end - panels.begin) * kPanelOutputs});
    }
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

namespace {

// What Compress and CompressIndex read: the ring and overlay rows of one compressor.
struct StateRows {
  PoolKind pool_kind;
  PoolView pool;
  TensorView<const float, 2> new_rows;  // [T, 2*L]
  const int32_t* sources;               // [E, num_sources]
  int64_t num_sources;
  int64_t width;  // lanes of a pooled row
  bool overlap;   // L is 2 * width: the front half of the block before, the back half of its own
};

// Pools the state rows of event `event` into out [width]; returns how many there are.
int64_t PoolEvent(const StateRows& rows, int64_t event, float* out) {
  std::array<const float*, kMaxPooledRows> kv{};
  std::array<const float*, kMaxPooledRows> score{};
  const int64_t lanes = rows.overlap ? 2 * rows.width : rows.width;
  const int32_t* sources = rows.sources + event * rows.num_sources;
  int64_t num_rows = 0;
  for (int64_t i = 0; i < rows.num_sources; ++i) {
    if (sources[i] == -1) continue;  // the block before the first counts nothing
    const float* row = sources[i] >= 0 ? PoolRow<const float>(rows.pool, rows.pool_kind, sources[i])
                                       : rows.new_rows.row(-2 - sources[i]);
    const int64_t half = rows.overlap && i >= rows.num_sources / 2 ? rows.width : 0;
    kv[static_cast<size_t>(num_rows)] = row + half;
    score[static_cast<size_t>(num_rows)] = row + lanes + half;
    ++num_rows;
  }
  PoolRows({.kv = kv.data(),
            .score = score.data(),
            .num_rows = num_rows,
            .num_lanes = rows.width,
            .out = out});
  return num_rows;
}

// What a trace says of an event that pooled `num_rows` state rows into row_bytes.
TraceArgs EventTrace(TraceTask task, const CompressEvent& event, int64_t num_rows, int64_t width,
                     int64_t row_bytes) {
  return {.task = task,
          .index = event.row,
          .request = event.request,
          .first_query = event.query,
          .rows = num_rows,
          .bytes = num_rows * 2 * width * int64_t{sizeof(float)} + row_bytes};
}

// The checks of both; `width` is that of the pooled row.
Status CheckCompress(const ModelConfig& config, const Plan& plan, const CompressInputs& inputs,
                     const StateRows& rows, int32_t space_pages) {
  const auto num_events = static_cast<int64_t>(plan.work().events.size());
  MILLIPEDE_RETURN_IF_ERROR(CheckPlanConfig(*plan.state(), config));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("new_state", inputs.new_state,
                                      {plan.num_tokens(), (rows.overlap ? 4 : 2) * rows.width}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("norm", inputs.norm, {rows.width}));
  MILLIPEDE_RETURN_IF_ERROR(CheckRope("rope", inputs.rope, num_events));
  return CheckPoolView(inputs.state, rows.pool_kind, space_pages, "inputs.state");
}

}  // namespace

Status Compress(Context& context, const ModelConfig& config, const Plan& plan,
                const CompressInputs& inputs, PoolView main) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  if (plan.kind() == AttentionKind::kSwa) {
    return MakeError(ErrorCode::kPlanMismatch, "plan", "kind swa; allowed: hca or csa");
  }
  const bool csa = plan.kind() == AttentionKind::kCsa;
  const PackedWork& work = plan.work();
  const KindSpaces& spaces = plan.state()->spaces;
  const StateRows rows = {.pool_kind = csa ? PoolKind::kCsaState : PoolKind::kHcaState,
                          .pool = inputs.state,
                          .new_rows = inputs.new_state,
                          .sources = work.event_sources.data(),
                          .num_sources = csa ? int64_t{2} * kCsaRatio : kHcaRatio,
                          .width = kHeadDim,
                          .overlap = csa};
  const PoolKind main_kind = csa ? PoolKind::kCsaMain : PoolKind::kHcaMain;
  MILLIPEDE_RETURN_IF_ERROR(CheckCompress(config, plan, inputs, rows, spaces.state.num_pages));
  MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(main, main_kind, spaces.main.num_pages, "main"));
  MILLIPEDE_RETURN_IF_ERROR(RecheckPages(*plan.state()));

  ReserveRequestCounts(context, static_cast<int64_t>(work.requests.size()));
  const auto num_events = static_cast<int64_t>(work.events.size());
  ParallelFor(context, "compress", num_events, [&](int64_t item, int thread) {
    const CompressEvent& event = work.events[static_cast<size_t>(item)];
    alignas(kBufferAlignment) std::array<float, kHeadDim> pooled;
    const int64_t num_rows = PoolEvent(rows, item, pooled.data());
    DescribeItem(
        context.impl().trace, thread,
        EventTrace(TraceTask::kEvent, event, num_rows, kHeadDim, FormatOf(main_kind).row_bytes));
    KvNormRope({.x = pooled.data(),
                .weight = inputs.norm.data,
                .cos = inputs.rope.cos.row(item),
                .sin = inputs.rope.sin.row(item),
                .out = PoolRow<Bf16>(main, main_kind, event.main_write_row),
                .eps = config.rms_eps});
    CountsOf(context, thread, event.request).events += 1;
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

Status CompressIndex(Context& context, const ModelConfig& config, const Plan& plan,
                     const CompressInputs& inputs, PoolView index_rows, PoolView index_scales) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  if (plan.kind() != AttentionKind::kCsa) {
    return MakeError(ErrorCode::kPlanMismatch, "plan", "kind {}; allowed: csa",
                     KindName(plan.kind()));
  }
  const PackedWork& work = plan.work();
  const KindSpaces& spaces = plan.state()->spaces;
  const StateRows rows = {.pool_kind = PoolKind::kCsaInnerState,
                          .pool = inputs.state,
                          .new_rows = inputs.new_state,
                          .sources = work.inner_event_sources.data(),
                          .num_sources = int64_t{2} * kCsaRatio,
                          .width = kIndexDim,
                          .overlap = true};
  MILLIPEDE_RETURN_IF_ERROR(
      CheckCompress(config, plan, inputs, rows, spaces.inner_state.num_pages));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckPoolView(index_rows, PoolKind::kCsaIndexRows, spaces.index.num_pages, "index_rows"));
  MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(index_scales, PoolKind::kCsaIndexScales,
                                          spaces.index.num_pages, "index_scales"));
  MILLIPEDE_RETURN_IF_ERROR(RecheckPages(*plan.state()));

  const auto num_events = static_cast<int64_t>(work.events.size());
  constexpr int64_t kKeyBytes =
      FormatOf(PoolKind::kCsaIndexRows).row_bytes + FormatOf(PoolKind::kCsaIndexScales).row_bytes;
  ParallelFor(context, "compress index", num_events, [&](int64_t item, int thread) {
    const CompressEvent& event = work.events[static_cast<size_t>(item)];
    alignas(kBufferAlignment) std::array<float, kIndexDim> pooled;
    const int64_t num_rows = PoolEvent(rows, item, pooled.data());
    DescribeItem(context.impl().trace, thread,
                 EventTrace(TraceTask::kIndexEvent, event, num_rows, kIndexDim, kKeyBytes));
    IndexKeyRow(
        {.pooled = pooled.data(),
         .weight = inputs.norm.data,
         .cos = inputs.rope.cos.row(item),
         .sin = inputs.rope.sin.row(item),
         .codes = PoolRow<int8_t>(index_rows, PoolKind::kCsaIndexRows, event.index_write_row),
         .scale = PoolRow<float>(index_scales, PoolKind::kCsaIndexScales, event.index_write_row),
         .eps = config.rms_eps});
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

}  // namespace millipede
