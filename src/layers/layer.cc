#include "millipede/layer.h"

#include <algorithm>
#include <utility>

#include "layers/checks.h"
#include "layers/layer_run.h"
#include "layers/plan_checks.h"
#include "layers/scratch_bytes.h"
#include "millipede/trace.h"
#include "pages/view_checks.h"
#include "plan/plan_state.h"
#include "plan/step_layout.h"
#include "plan/validate.h"
#include "runtime/context.h"

namespace millipede {

int64_t StageScratchBytes(const ModelConfig& config, int64_t num_tokens, int num_threads) {
  if (!TakesScratch(config, num_threads) || num_tokens < 0 || num_tokens > kMaxWorkItems) {
    return kNoScratch;
  }
  int64_t most = 0;
  for (const AttentionKind kind : {AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa}) {
    most = std::max(most, LayOutWorkspace(config, kind, num_tokens, num_threads).scratch_bytes);
  }
  return most;
}

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

Status PlaceActivations(const ModelConfig& config, AttentionKind kind, int64_t num_tokens,
                        const StepActivations& given, std::span<std::byte> workspace,
                        const WorkspaceLayout& layout, StepActivations& placed) {
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
  if (kind == AttentionKind::kCsa) {
    const int64_t index_heads = config.num_index_heads;
    MILLIPEDE_RETURN_IF_ERROR(Place("activations.idx_q", given.idx_q, workspace, layout.idx_q,
                                    {num_tokens, index_heads, kIndexDim}, placed.idx_q));
    MILLIPEDE_RETURN_IF_ERROR(Place("activations.idx_q_scale", given.idx_q_scale, workspace,
                                    layout.idx_q_scale, {num_tokens, index_heads},
                                    placed.idx_q_scale));
    MILLIPEDE_RETURN_IF_ERROR(Place("activations.idx_weights", given.idx_weights, workspace,
                                    layout.idx_weights, {num_tokens, index_heads},
                                    placed.idx_weights));
    MILLIPEDE_RETURN_IF_ERROR(Place("activations.topk_idx", given.topk_idx, workspace,
                                    layout.topk_idx, {num_tokens, config.index_topk},
                                    placed.topk_idx));
    MILLIPEDE_RETURN_IF_ERROR(Place("activations.topk_score", given.topk_score, workspace,
                                    layout.topk_score, {num_tokens, config.index_topk},
                                    placed.topk_score));
  }
  MILLIPEDE_RETURN_IF_ERROR(Place("activations.heads", given.heads, workspace, layout.heads,
                                  {num_tokens, heads, kHeadDim}, placed.heads));
  return Place("activations.attn_out", given.attn_out, workspace, layout.attn_out,
               {num_tokens, hidden}, placed.attn_out);
}

// A compressor's weights as a caller gives them; `prefix` is "cmp" or "idx_cmp".
struct CompressorViews {
  const char* prefix;
  TensorView<const Bf16, 2> wkv;
  TensorView<const Bf16, 2> wgate;
  TensorView<const float, 2> ape;
  TensorView<const float, 1> norm;
};

// A compressor of `lanes` kv lanes and `ratio` tokens per row, which has `width` lanes.
Status PackCompressor(const ModelConfig& config, const CompressorViews& views, int64_t ratio,
                      int64_t lanes, int64_t width, CompressorWeights& to) {
  const auto name = [&](const char* weight) { return fmt::format("{}_{}", views.prefix, weight); };
  const std::string wkv = name("wkv");
  const std::string wgate = name("wgate");
  MILLIPEDE_RETURN_IF_ERROR(CheckView(wkv.c_str(), views.wkv, {lanes, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView(wgate.c_str(), views.wgate, {lanes, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView(name("ape").c_str(), views.ape, {ratio, lanes}));
  MILLIPEDE_RETURN_IF_ERROR(CopyVector(name("norm").c_str(), views.norm, width, to.norm));
  MILLIPEDE_RETURN_IF_ERROR(Take(wkv.c_str(), MatrixBf16::Pack(views.wkv), to.wkv));
  MILLIPEDE_RETURN_IF_ERROR(Take(wgate.c_str(), MatrixBf16::Pack(views.wgate), to.wgate));
  to.ape.resize(static_cast<size_t>(ratio * lanes));
  for (int64_t row = 0; row < ratio; ++row) {
    std::copy_n(views.ape.row(row), lanes, to.ape.begin() + row * lanes);
  }
  return {};
}

Status PackIndexer(const ModelConfig& config, const LayerWeights& weights, IndexerWeights& to) {
  const int64_t num_heads = config.num_index_heads;
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("idx_wq_b", weights.idx_wq_b, {num_heads * kIndexDim, config.q_rank}));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("idx_weights_proj", weights.idx_weights_proj, {num_heads, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(
      Take("idx_wq_b", MatrixInt8::Pack(weights.idx_wq_b, weights.idx_wq_b_scale), to.wq_b));
  MILLIPEDE_RETURN_IF_ERROR(
      Take("idx_weights_proj", MatrixBf16::Pack(weights.idx_weights_proj), to.weights_proj));
  return PackCompressor(config,
                        {"idx_cmp", weights.idx_cmp_wkv, weights.idx_cmp_wgate, weights.idx_cmp_ape,
                         weights.idx_cmp_norm},
                        kCsaRatio, int64_t{2} * kIndexDim, kIndexDim, to.compressor);
}

// The pools that a kind's layer reads and writes beside the raw one.
Status CheckCompressedPools(AttentionKind kind, const KindSpaces& spaces, const LayerPools& pools) {
  const bool csa = kind == AttentionKind::kCsa;
  MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(pools.main, csa ? PoolKind::kCsaMain : PoolKind::kHcaMain,
                                          spaces.main.num_pages, "pools.main"));
  MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(pools.state,
                                          csa ? PoolKind::kCsaState : PoolKind::kHcaState,
                                          spaces.state.num_pages, "pools.state"));
  if (!csa) return {};
  MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(pools.inner_state, PoolKind::kCsaInnerState,
                                          spaces.inner_state.num_pages, "pools.inner_state"));
  MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(pools.index_rows, PoolKind::kCsaIndexRows,
                                          spaces.index.num_pages, "pools.index_rows"));
  return CheckPoolView(pools.index_scales, PoolKind::kCsaIndexScales, spaces.index.num_pages,
                       "pools.index_scales");
}

}  // namespace

Layer::Layer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Layer::Layer(Layer&&) noexcept = default;
Layer& Layer::operator=(Layer&&) noexcept = default;
Layer::~Layer() = default;

AttentionKind Layer::kind() const { return state_->kind; }
OutputShard Layer::shard() const { return state_->shard; }

Result<Layer> Layer::Create(const ModelConfig& config, AttentionKind kind,
                            const LayerWeights& weights, OutputShard shard) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckKind(kind));
  const Result<RowRange> groups = GroupsOf(config, shard);
  if (!groups) return tl::make_unexpected(groups.error());
  auto state = std::make_unique<State>();
  state->config = config;
  state->kind = kind;
  state->shard = shard;

  const int64_t hidden = config.hidden;
  const int64_t query_outputs = int64_t{config.num_heads} * kHeadDim;
  const int64_t group_inputs = int64_t{config.heads_per_group()} * kHeadDim;
  const int64_t num_groups = groups->end - groups->begin;
  const int64_t rank = config.o_rank;
  MILLIPEDE_RETURN_IF_ERROR(CheckView("hc_fn", weights.hc_fn, {kHcMixes, kHcStreams * hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wq_a", weights.wq_a, {config.q_rank, hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wkv", weights.wkv, {kHeadDim, hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wq_b", weights.wq_b, {query_outputs, config.q_rank}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wo_a", weights.wo_a, {num_groups, rank, group_inputs}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("wo_b", weights.wo_b, {hidden, num_groups * rank}));
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
  state->output.wo_a.resize(static_cast<size_t>(num_groups));
  state->output.wo_b.resize(static_cast<size_t>(num_groups));
  for (int64_t g = 0; g < num_groups; ++g) {
    const auto group = static_cast<size_t>(g);
    const TensorView<const Bf16, 2> wo_a{weights.wo_a.row(g), {rank, group_inputs}, group_inputs};
    const TensorView<const int8_t, 2> wo_b{
        weights.wo_b.data + g * rank, {hidden, rank}, weights.wo_b.stride0};
    MILLIPEDE_RETURN_IF_ERROR(Take("wo_a", MatrixBf16::Pack(wo_a), state->output.wo_a[group]));
    MILLIPEDE_RETURN_IF_ERROR(
        Take("wo_b", MatrixInt8::Pack(wo_b, weights.wo_b_scale), state->output.wo_b[group]));
  }
  if (kind != AttentionKind::kSwa) {
    const bool csa = kind == AttentionKind::kCsa;
    MILLIPEDE_RETURN_IF_ERROR(PackCompressor(
        config, {"cmp", weights.cmp_wkv, weights.cmp_wgate, weights.cmp_ape, weights.cmp_norm},
        csa ? kCsaRatio : kHcaRatio, csa ? int64_t{2} * kHeadDim : kHeadDim, kHeadDim,
        state->compressor));
    if (csa) MILLIPEDE_RETURN_IF_ERROR(PackIndexer(config, weights, state->indexer));
  }
  return Layer(std::move(state));
} catch (const std::bad_alloc&) {
  return OutOfMemory("weights", "what is packed of them");
}

Result<LayerWeights> WeightsOfShard(const ModelConfig& config, const LayerWeights& weights,
                                    OutputShard shard) try {
  const Result<RowRange> groups = GroupsOf(config, shard);
  if (!groups) return tl::make_unexpected(groups.error());
  const int64_t group_inputs = int64_t{config.heads_per_group()} * kHeadDim;
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("wo_a", weights.wo_a, {config.o_groups, config.o_rank, group_inputs}));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("wo_b", weights.wo_b, {config.hidden, int64_t{config.o_groups} * config.o_rank}));
  const int64_t num_groups = groups->end - groups->begin;
  LayerWeights part = weights;
  part.wo_a.data = weights.wo_a.row(groups->begin);
  part.wo_a.shape[0] = num_groups;
  part.wo_b.data = weights.wo_b.data + groups->begin * config.o_rank;
  part.wo_b.shape[1] = num_groups * config.o_rank;
  return part;
} catch (const std::bad_alloc&) {
  return OutOfMemory("shard", "an error message");
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
  const IndexerWeights& indexer = state_->indexer;
  const CompressorWeights* const compressors[] = {&state_->compressor, &indexer.compressor};
  for (const CompressorWeights* compressor : compressors) {
    sum += bf16_bytes(compressor->wkv) + bf16_bytes(compressor->wgate) +
           static_cast<int64_t>((compressor->ape.size() + compressor->norm.size()) * sizeof(float));
  }
  sum += int8_bytes(indexer.wq_b) + bf16_bytes(indexer.weights_proj);
  return sum;
}

Status Layer::Run(Context& context, const Plan& plan, int32_t layer_index, const LayerPools& pools,
                  const StepTensors& tensors, std::span<std::byte> workspace,
                  std::span<std::byte> overlay, const StepActivations& activations) const try {
  if (state_->shard.degree != 1) {
    return MakeError(ErrorCode::kInvalidArgument, "layer",
                     "a shard, {} of {}; allowed: a layer of all output groups, or "
                     "TensorParallel::Run",
                     state_->shard.rank, state_->shard.degree);
  }
  Result<LayerRun> run = PrepareRun(*state_, context.num_threads(), plan, layer_index, pools,
                                    tensors, workspace, overlay, activations);
  if (!run) return tl::make_unexpected(std::move(run).error());
  const TraceCall traced(context, "run", state_->kind, layer_index, &plan.work());
  MILLIPEDE_RETURN_IF_ERROR(RunHeads(context, *state_, *run));
  MILLIPEDE_RETURN_IF_ERROR(ProjectOutput(context, state_->config, state_->output, run->step.heads,
                                          run->step.attn_out, run->scratch));
  return FinishRun(context, *state_, *run);
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

Result<LayerRun> PrepareRun(const Layer::State& layer, int num_threads, const Plan& plan,
                            int32_t layer_index, const LayerPools& pools,
                            const StepTensors& tensors, std::span<std::byte> workspace,
                            std::span<std::byte> overlay, const StepActivations& activations) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckNumThreads(num_threads));
  const ModelConfig& config = layer.config;
  Plan::State& plan_state = *plan.state();
  const int64_t num_tokens = plan.num_tokens();
  if (plan.kind() != layer.kind) {
    return MakeError(ErrorCode::kPlanMismatch, "plan", "kind {}; allowed: {}",
                     KindName(plan.kind()), KindName(layer.kind));
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckPlanConfig(plan_state, config));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("tensors.x", tensors.x, {num_tokens, kHcStreams, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckView("tensors.x_out", tensors.x_out, {num_tokens, kHcStreams, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckRope("rope", tensors.rope, num_tokens));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckPoolView(pools.raw, PoolKind::kRaw, plan_state.spaces.raw.num_pages, "pools.raw"));
  const bool csa = layer.kind == AttentionKind::kCsa;
  if (layer.kind != AttentionKind::kSwa) {
    MILLIPEDE_RETURN_IF_ERROR(CheckCompressedPools(layer.kind, plan_state.spaces, pools));
    MILLIPEDE_RETURN_IF_ERROR(CheckRope("event_rope", tensors.event_rope,
                                        static_cast<int64_t>(plan.work().events.size())));
  }
  if (csa && !tensors.selection.empty()) {
    MILLIPEDE_RETURN_IF_ERROR(
        CheckView("tensors.selection", tensors.selection, {num_tokens, config.index_topk}));
  }
  const WorkspaceLayout layout = LayOutWorkspace(config, layer.kind, num_tokens, num_threads);
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("workspace", workspace, layout.total_bytes));
  const OverlayLayout overlay_layout = LayOutOverlay(layer.kind, num_tokens);
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("overlay", overlay, overlay_layout.total_bytes));
  LayerRun run{.plan = &plan,
               .layer_index = layer_index,
               .pools = pools,
               .tensors = tensors,
               .overlay = overlay,
               .step = {},
               .scratch = workspace.subspan(static_cast<size_t>(layout.scratch),
                                            static_cast<size_t>(layout.scratch_bytes))};
  MILLIPEDE_RETURN_IF_ERROR(
      PlaceActivations(config, layer.kind, num_tokens, activations, workspace, layout, run.step));
  MILLIPEDE_RETURN_IF_ERROR(BeginRun(plan_state, layer_index));
  return run;
} catch (const std::bad_alloc&) {
  return OutOfMemory("plan", "the step's list of pages");
}

Status RunHeads(Context& context, const Layer::State& layer, const LayerRun& run) {
  const ModelConfig& config = layer.config;
  const Plan& plan = *run.plan;
  const LayerPools& pools = run.pools;
  const StepTensors& tensors = run.tensors;
  const StepActivations& step = run.step;
  const Scratch scratch = run.scratch;
  const int64_t num_tokens = plan.num_tokens();
  const bool csa = layer.kind == AttentionKind::kCsa;
  const OverlayLayout overlay_layout = LayOutOverlay(layer.kind, num_tokens);
  const std::span<std::byte> overlay = run.overlay;
  const TensorView<Bf16, 2> new_kv =
      MakeView(PartOf<Bf16>(overlay, overlay_layout.kv), num_tokens, kHeadDim);

  MILLIPEDE_RETURN_IF_ERROR(
      HcPre(context, config, layer.hc, tensors.x, step.x_mixed, step.post, step.comb, scratch));
  MILLIPEDE_RETURN_IF_ERROR(
      AttnNorm(context, config, ViewOf(layer.attn_norm), step.x_mixed, step.xn));
  MILLIPEDE_RETURN_IF_ERROR(ProjectLatent(context, config, layer.wq_a, ViewOf(layer.q_norm),
                                          step.xn, step.qr, step.qr_scale, scratch));
  MILLIPEDE_RETURN_IF_ERROR(ProjectQuery(context, config, layer.wq_b, step.qr, step.qr_scale,
                                         tensors.rope, step.q, scratch));
  MILLIPEDE_RETURN_IF_ERROR(ProjectKv(context, config, layer.wkv, ViewOf(layer.kv_norm), step.xn,
                                      tensors.rope, new_kv, scratch));
  TensorView<const int32_t, 2> selection;
  if (layer.kind != AttentionKind::kSwa) {
    const TensorView<float, 2> new_state = MakeView(PartOf<float>(overlay, overlay_layout.state),
                                                    num_tokens, (csa ? 4 : 2) * int64_t{kHeadDim});
    MILLIPEDE_RETURN_IF_ERROR(
        ProjectState(context, config, plan, layer.compressor, step.xn, new_state, scratch));
    MILLIPEDE_RETURN_IF_ERROR(Compress(context, config, plan,
                                       {.state = pools.state,
                                        .new_state = new_state,
                                        .norm = ViewOf(layer.compressor.norm),
                                        .rope = tensors.event_rope},
                                       pools.main));
  }
  if (csa) {
    const IndexerWeights& indexer = layer.indexer;
    const TensorView<float, 2> new_inner =
        MakeView(PartOf<float>(overlay, overlay_layout.inner_state), num_tokens, 4 * kIndexDim);
    MILLIPEDE_RETURN_IF_ERROR(
        ProjectState(context, config, plan, indexer.compressor, step.xn, new_inner, scratch));
    MILLIPEDE_RETURN_IF_ERROR(CompressIndex(context, config, plan,
                                            {.state = pools.inner_state,
                                             .new_state = new_inner,
                                             .norm = ViewOf(indexer.compressor.norm),
                                             .rope = tensors.event_rope},
                                            pools.index_rows, pools.index_scales));
    selection = tensors.selection;
    if (selection.empty()) {
      MILLIPEDE_RETURN_IF_ERROR(
          ProjectIndexQuery(context, config, indexer, step.qr, step.qr_scale, step.xn, tensors.rope,
                            {step.idx_q, step.idx_q_scale, step.idx_weights}, scratch));
      MILLIPEDE_RETURN_IF_ERROR(Select(context, config, plan,
                                       {.idx_q = step.idx_q,
                                        .idx_q_scale = step.idx_q_scale,
                                        .idx_weights = step.idx_weights,
                                        .index_rows = pools.index_rows,
                                        .index_scales = pools.index_scales},
                                       step.topk_idx, step.topk_score, scratch));
      selection = step.topk_idx;
    }
  }
  return Attend(context, config, plan,
                {.q = step.q,
                 .sink = ViewOf(layer.sink),
                 .rope = tensors.rope,
                 .raw = pools.raw,
                 .new_kv = new_kv,
                 .main = pools.main,
                 .selection = selection},
                {.heads = step.heads, .log_sum_exp = {}}, scratch);
}

Status FinishRun(Context& context, const Layer::State& layer, const LayerRun& run) {
  MILLIPEDE_RETURN_IF_ERROR(HcPost(context, layer.config, run.tensors.x, run.step.attn_out,
                                   run.step.post, run.step.comb, run.tensors.x_out));
  MarkRun(*run.plan->state(), run.layer_index);
  return {};
}

}  // namespace millipede
