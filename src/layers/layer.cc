#include "millipede/layer.h"

#include <algorithm>
#include <utility>

#include "layers/checks.h"
#include "layers/plan_checks.h"
#include "pages/view_checks.h"
#include "plan/plan_state.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {

int64_t StageScratchBytes(const ModelConfig& config, int64_t num_tokens, int num_threads) {
  int64_t most = 0;
  for (const AttentionKind kind : {AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa}) {
    most = std::max(most, LayOutWorkspace(config, kind, num_tokens, num_threads).scratch_bytes);
  }
  return most;
}

struct Layer::State {
  ModelConfig config;
  AttentionKind kind = AttentionKind::kSwa;
  HcWeights hc;
  std::vector<float> attn_norm;  // [D]
  std::vector<float> q_norm;     // [q_rank]
  std::vector<float> kv_norm;    // [512]
  std::vector<float> sink;       // [H]
  MatrixBf16 wq_a;
  MatrixBf16 wkv;
  MatrixInt8 wq_b;
  OutputWeights output;
  CompressorWeights compressor;  // HCA
};

namespace {

// Unwraps a packed matrix into `to`, naming the weight in an error.
template <typename T>
Status Take(const char* name, Result<T> packed, T& to) {
  if (!packed) {
    Error error = std::move(packed).error();
    return MakeError(error.code, name, "{}", error.message);
  }
  to = std::move(packed).value();
  return {};
}

Status CopyVector(const char* name, const TensorView<const float, 1>& view, int64_t size,
                  std::vector<float>& to) {
  MILLIPEDE_RETURN_IF_ERROR(CheckView(name, view, {size}));
  to.resize(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) to[static_cast<size_t>(i)] = *view.row(i);
  return {};
}

TensorView<const float, 1> ViewOf(const std::vector<float>& values) {
  return MakeView(values.data(), values.size());
}

// A dense view of workspace memory, or the caller's own if it gave one.
template <typename T, int kRank>
Status Place(const char* name, const TensorView<T, kRank>& given, std::span<std::byte> workspace,
             int64_t offset, const std::array<int64_t, static_cast<size_t>(kRank)>& shape,
             TensorView<T, kRank>& placed) {
  if (!given.empty()) {
    placed = given;
    return CheckView(name, given, shape);
  }
  placed.data = PartOf<T>(workspace, offset);
  placed.shape = shape;
  placed.stride0 = 1;
  for (size_t i = 1; i < shape.size(); ++i) placed.stride0 *= shape[i];
  return {};
}

Status PlaceActivations(const ModelConfig& config, int64_t num_tokens, const StepActivations& given,
                        std::span<std::byte> workspace, const WorkspaceLayout& layout,
                        StepActivations& placed) {
  const int64_t hidden = config.hidden;
  const int64_t heads = config.num_heads;
  MILLIPEDE_RETURN_IF_ERROR(Place("activations.x_mixed", given.x_mixed, workspace, layout.x_mixed,
                                  {num_tokens, hidden}, placed.x_mixed));
  MILLIPEDE_RETURN_IF_ERROR(Place("activations.post", given.post, workspace, layout.post,
                                  {num_tokens, kHcStreams}, placed.post));
  MILLIPEDE_RETURN_IF_ERROR(Place("activations.comb", given.comb, workspace, layout.comb,
                                  {num_tokens, kHcStreams, kHcStreams}, placed.comb));
  MILLIPEDE_RETURN_IF_ERROR(
      Place("activations.xn", given.xn, workspace, layout.xn, {num_tokens, hidden}, placed.xn));
  MILLIPEDE_RETURN_IF_ERROR(Place("activations.qr", given.qr, workspace, layout.qr,
                                  {num_tokens, config.q_rank}, placed.qr));
  MILLIPEDE_RETURN_IF_ERROR(Place("activations.qr_scale", given.qr_scale, workspace,
                                  layout.qr_scale, {num_tokens}, placed.qr_scale));
  MILLIPEDE_RETURN_IF_ERROR(Place("activations.q", given.q, workspace, layout.q,
                                  {num_tokens, heads, kHeadDim}, placed.q));
  MILLIPEDE_RETURN_IF_ERROR(Place("activations.heads", given.heads, workspace, layout.heads,
                                  {num_tokens, heads, kHeadDim}, placed.heads));
  return Place("activations.attn_out", given.attn_out, workspace, layout.attn_out,
               {num_tokens, hidden}, placed.attn_out);
}

// The main compressor of a kind with `ratio` tokens per row.
Status PackCompressor(const ModelConfig& config, const LayerWeights& weights, int64_t ratio,
                      CompressorWeights& to) {
  const int64_t lanes = ratio == kCsaRatio ? 2 * kHeadDim : kHeadDim;
  MILLIPEDE_RETURN_IF_ERROR(CheckView("cmp_wkv", weights.cmp_wkv, {lanes, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("cmp_wgate", weights.cmp_wgate, {lanes, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("cmp_ape", weights.cmp_ape, {ratio, lanes}));
  MILLIPEDE_RETURN_IF_ERROR(CopyVector("cmp_norm", weights.cmp_norm, kHeadDim, to.norm));
  MILLIPEDE_RETURN_IF_ERROR(Take("cmp_wkv", MatrixBf16::Pack(weights.cmp_wkv), to.wkv));
  MILLIPEDE_RETURN_IF_ERROR(Take("cmp_wgate", MatrixBf16::Pack(weights.cmp_wgate), to.wgate));
  to.ape.resize(static_cast<size_t>(ratio * lanes));
  for (int64_t row = 0; row < ratio; ++row) {
    std::copy_n(weights.cmp_ape.row(row), lanes, to.ape.begin() + row * lanes);
  }
  return {};
}

}  // namespace

Layer::Layer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Layer::Layer(Layer&&) noexcept = default;
Layer& Layer::operator=(Layer&&) noexcept = default;
Layer::~Layer() = default;

AttentionKind Layer::kind() const { return state_->kind; }

Result<Layer> Layer::Create(const ModelConfig& config, AttentionKind kind,
                            const LayerWeights& weights) {
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  if (kind == AttentionKind::kCsa) {
    return MakeError(ErrorCode::kInvalidArgument, "kind", "{}; allowed: swa or hca",
                     KindName(kind));
  }
  auto state = std::make_unique<State>();
  state->config = config;
  state->kind = kind;

  const int64_t hidden = config.hidden;
  const int64_t query_outputs = int64_t{config.num_heads} * kHeadDim;
  const int64_t group_inputs = int64_t{config.heads_per_group()} * kHeadDim;
  const int64_t rank = config.o_rank;
  MILLIPEDE_RETURN_IF_ERROR(CheckView("hc_fn", weights.hc_fn, {kHcMixes, kHcStreams * hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wq_a", weights.wq_a, {config.q_rank, hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wkv", weights.wkv, {kHeadDim, hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wq_b", weights.wq_b, {query_outputs, config.q_rank}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wo_a", weights.wo_a, {config.o_groups, rank, group_inputs}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wo_b", weights.wo_b, {hidden, config.o_groups * rank}));
  MILLIPEDE_RETURN_IF_ERROR(CopyVector("attn_norm", weights.attn_norm, hidden, state->attn_norm));
  MILLIPEDE_RETURN_IF_ERROR(CopyVector("q_norm", weights.q_norm, config.q_rank, state->q_norm));
  MILLIPEDE_RETURN_IF_ERROR(CopyVector("kv_norm", weights.kv_norm, kHeadDim, state->kv_norm));
  MILLIPEDE_RETURN_IF_ERROR(
      CopyVector("attn_sink", weights.attn_sink, config.num_heads, state->sink));

  MILLIPEDE_RETURN_IF_ERROR(
      Take("hc_fn", HcWeights::Pack(weights.hc_fn, weights.hc_scale, weights.hc_base), state->hc));
  MILLIPEDE_RETURN_IF_ERROR(Take("wq_a", MatrixBf16::Pack(weights.wq_a), state->wq_a));
  MILLIPEDE_RETURN_IF_ERROR(Take("wkv", MatrixBf16::Pack(weights.wkv), state->wkv));
  MILLIPEDE_RETURN_IF_ERROR(
      Take("wq_b", MatrixInt8::Pack(weights.wq_b, weights.wq_b_scale), state->wq_b));
  state->output.wo_a.resize(static_cast<size_t>(config.o_groups));
  state->output.wo_b.resize(static_cast<size_t>(config.o_groups));
  for (int64_t g = 0; g < config.o_groups; ++g) {
    const auto group = static_cast<size_t>(g);
    const TensorView<const Bf16, 2> wo_a{weights.wo_a.row(g), {rank, group_inputs}, group_inputs};
    const TensorView<const int8_t, 2> wo_b{
        weights.wo_b.data + g * rank, {hidden, rank}, weights.wo_b.stride0};
    MILLIPEDE_RETURN_IF_ERROR(Take("wo_a", MatrixBf16::Pack(wo_a), state->output.wo_a[group]));
    MILLIPEDE_RETURN_IF_ERROR(
        Take("wo_b", MatrixInt8::Pack(wo_b, weights.wo_b_scale), state->output.wo_b[group]));
  }
  if (kind == AttentionKind::kHca) {
    MILLIPEDE_RETURN_IF_ERROR(PackCompressor(config, weights, kHcaRatio, state->compressor));
  }
  return Layer(std::move(state));
}

int64_t Layer::weight_bytes() const {
  const auto bf16_bytes = [](const MatrixBf16& matrix) {
    return PackedElements(matrix.num_outputs(), matrix.num_inputs()) * int64_t{sizeof(Bf16)};
  };
  const auto int8_bytes = [](const MatrixInt8& matrix) {
    return PackedElements(matrix.num_outputs(), matrix.num_inputs()) +
           matrix.num_outputs() * int64_t{sizeof(float)};
  };
  const size_t num_floats = state_->attn_norm.size() + state_->q_norm.size() +
                            state_->kv_norm.size() + state_->sink.size();
  int64_t sum = (static_cast<int64_t>(num_floats) + state_->hc.num_inputs() * kHcMixes) *
                int64_t{sizeof(float)};
  sum += bf16_bytes(state_->wq_a) + bf16_bytes(state_->wkv) + int8_bytes(state_->wq_b);
  for (const MatrixBf16& wo_a : state_->output.wo_a) sum += bf16_bytes(wo_a);
  for (const MatrixInt8& wo_b : state_->output.wo_b) sum += int8_bytes(wo_b);
  const CompressorWeights& compressor = state_->compressor;
  sum += bf16_bytes(compressor.wkv) + bf16_bytes(compressor.wgate) +
         static_cast<int64_t>((compressor.ape.size() + compressor.norm.size()) * sizeof(float));
  return sum;
}

Status Layer::Run(Context& context, const Plan& plan, int32_t layer_index, const LayerPools& pools,
                  const StepTensors& tensors, std::span<std::byte> workspace,
                  std::span<std::byte> overlay, const StepActivations& activations) const {
  const ModelConfig& config = state_->config;
  Plan::State& plan_state = *plan.state();
  const int64_t num_tokens = plan.num_tokens();
  if (plan.kind() != state_->kind) {
    return MakeError(ErrorCode::kPlanMismatch, "plan", "kind {}; allowed: {}",
                     KindName(plan.kind()), KindName(state_->kind));
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckPlanConfig(plan_state, config));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("tensors.x", tensors.x, {num_tokens, kHcStreams, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("tensors.x_out", tensors.x_out, {num_tokens, kHcStreams, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckRope("rope", tensors.rope, num_tokens));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckPoolView(pools.raw, PoolKind::kRaw, plan_state.spaces.raw.num_pages, "pools.raw"));
  if (state_->kind == AttentionKind::kHca) {
    MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(pools.main, PoolKind::kHcaMain,
                                            plan_state.spaces.main.num_pages, "pools.main"));
    MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(pools.state, PoolKind::kHcaState,
                                            plan_state.spaces.state.num_pages, "pools.state"));
    MILLIPEDE_RETURN_IF_ERROR(CheckRope("event_rope", tensors.event_rope,
                                        static_cast<int64_t>(plan.work().events.size())));
  }
  const WorkspaceLayout layout =
      LayOutWorkspace(config, state_->kind, num_tokens, context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("workspace", workspace, layout.total_bytes));
  const OverlayLayout overlay_layout = LayOutOverlay(state_->kind, num_tokens);
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("overlay", overlay, overlay_layout.total_bytes));
  StepActivations step;
  MILLIPEDE_RETURN_IF_ERROR(
      PlaceActivations(config, num_tokens, activations, workspace, layout, step));
  MILLIPEDE_RETURN_IF_ERROR(BeginRun(plan_state, layer_index));

  const Scratch scratch = workspace.subspan(static_cast<size_t>(layout.scratch),
                                            static_cast<size_t>(layout.scratch_bytes));
  const TensorView<Bf16, 2> new_kv =
      MakeView(PartOf<Bf16>(overlay, overlay_layout.kv), num_tokens, kHeadDim);

  MILLIPEDE_RETURN_IF_ERROR(
      HcPre(context, config, state_->hc, tensors.x, step.x_mixed, step.post, step.comb, scratch));
  MILLIPEDE_RETURN_IF_ERROR(
      AttnNorm(context, config, ViewOf(state_->attn_norm), step.x_mixed, step.xn));
  MILLIPEDE_RETURN_IF_ERROR(ProjectLatent(context, config, state_->wq_a, ViewOf(state_->q_norm),
                                          step.xn, step.qr, step.qr_scale, scratch));
  MILLIPEDE_RETURN_IF_ERROR(ProjectQuery(context, config, state_->wq_b, step.qr, step.qr_scale,
                                         tensors.rope, step.q, scratch));
  MILLIPEDE_RETURN_IF_ERROR(ProjectKv(context, config, state_->wkv, ViewOf(state_->kv_norm),
                                      step.xn, tensors.rope, new_kv, scratch));
  if (state_->kind == AttentionKind::kHca) {
    const TensorView<float, 2> new_state =
        MakeView(PartOf<float>(overlay, overlay_layout.state), num_tokens, 2 * kHeadDim);
    MILLIPEDE_RETURN_IF_ERROR(
        ProjectState(context, config, plan, state_->compressor, step.xn, new_state, scratch));
    MILLIPEDE_RETURN_IF_ERROR(Compress(context, config, plan,
                                       {.state = pools.state,
                                        .new_state = new_state,
                                        .norm = ViewOf(state_->compressor.norm),
                                        .rope = tensors.event_rope},
                                       pools.main));
  }
  MILLIPEDE_RETURN_IF_ERROR(Attend(context, config, plan,
                                   {.q = step.q,
                                    .sink = ViewOf(state_->sink),
                                    .rope = tensors.rope,
                                    .raw = pools.raw,
                                    .new_kv = new_kv,
                                    .main = pools.main},
                                   {.heads = step.heads, .log_sum_exp = {}}, scratch));
  MILLIPEDE_RETURN_IF_ERROR(
      ProjectOutput(context, config, state_->output, step.heads, step.attn_out, scratch));
  MILLIPEDE_RETURN_IF_ERROR(
      HcPost(context, config, tensors.x, step.attn_out, step.post, step.comb, tensors.x_out));
  MarkRun(plan_state, layer_index);
  return {};
}

}  // namespace millipede
