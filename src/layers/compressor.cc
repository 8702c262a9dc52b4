// Compressor stages: state rows of new tokens, and the compressed rows of blocks they finish.
#include "kernels/compressor.h"

#include <array>

#include "geometry/visibility.h"
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
  const bool known =
      kind == AttentionKind::kHca
          ? lanes == kHeadDim
          : kind == AttentionKind::kCsa && (lanes == 2 * kHeadDim || lanes == 2 * kIndexDim);
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
                    TensorView<float, 2> state, Scratch scratch) {
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
}

Status Compress(Context& context, const ModelConfig& config, const Plan& plan,
                const CompressInputs& inputs, PoolView main) {
  const Plan::State& state = *plan.state();
  const AttentionKind kind = plan.kind();
  const bool overlap = kind == AttentionKind::kCsa;
  const PackedWork& work = plan.work();
  const auto num_events = static_cast<int64_t>(work.events.size());
  const int64_t lanes = overlap ? 2 * kHeadDim : kHeadDim;
  const PoolKind state_kind = overlap ? PoolKind::kCsaState : PoolKind::kHcaState;
  const PoolKind main_kind = overlap ? PoolKind::kCsaMain : PoolKind::kHcaMain;
  if (kind == AttentionKind::kSwa) {
    return MakeError(ErrorCode::kPlanMismatch, "plan", "kind swa; allowed: hca or csa");
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckPlanConfig(state, config));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("new_state", inputs.new_state, {plan.num_tokens(), 2 * lanes}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("norm", inputs.norm, {kHeadDim}));
  MILLIPEDE_RETURN_IF_ERROR(CheckRope("rope", inputs.rope, num_events));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckPoolView(inputs.state, state_kind, state.spaces.state.num_pages, "inputs.state"));
  MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(main, main_kind, state.spaces.main.num_pages, "main"));
  MILLIPEDE_RETURN_IF_ERROR(RecheckPages(*plan.state()));

  const int64_t num_sources = overlap ? 2 * kCsaRatio : kHcaRatio;
  ReserveRequestCounts(context, static_cast<int64_t>(work.requests.size()));
  ParallelFor(context, "compress", num_events, [&](int64_t item, int thread) {
    const CompressEvent& event = work.events[static_cast<size_t>(item)];
    const int32_t* sources = work.event_sources.data() + item * num_sources;
    std::array<const float*, kMaxPooledRows> kv{};
    std::array<const float*, kMaxPooledRows> score{};
    int64_t num_rows = 0;
    for (int64_t i = 0; i < num_sources; ++i) {
      if (sources[i] == -1) continue;  // a block before the first counts nothing
      const float* row = sources[i] >= 0
                             ? PoolRow<const float>(inputs.state, state_kind, sources[i])
                             : inputs.new_state.row(-2 - sources[i]);
      // CSA pools the front half of the block before, then the back half of its own.
      const int64_t half = overlap && i >= kCsaRatio ? kHeadDim : 0;
      kv[static_cast<size_t>(num_rows)] = row + half;
      score[static_cast<size_t>(num_rows)] = row + lanes + half;
      ++num_rows;
    }
    alignas(kBufferAlignment) std::array<float, kHeadDim> pooled;
    PoolRows({.kv = kv.data(),
              .score = score.data(),
              .num_rows = num_rows,
              .num_lanes = kHeadDim,
              .out = pooled.data()});
    KvNormRope({.x = pooled.data(),
                .weight = inputs.norm.data,
                .cos = inputs.rope.cos.row(item),
                .sin = inputs.rope.sin.row(item),
                .out = PoolRow<Bf16>(main, main_kind, event.main_write_row),
                .eps = config.rms_eps});
    CountsOf(context, thread, event.request).events += 1;
  });
  return {};
}

}  // namespace millipede
