// Each stage alone, on the inputs that a file stores.
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "fixtures/formula.h"
#include "millipede/stages.h"
#include "tools/activations.h"
#include "tools/batch.h"
#include "tools/buffers.h"
#include "tools/caches.h"
#include "tools/errors.h"
#include "tools/vector_run.h"

namespace millipede::tools {
namespace {

using fixtures::SafetensorsFile;

// A probe token: which request's, and its place in the step that all requests' new tokens make.
struct Probe {
  size_t request;  // index in VectorCase::requests
  int64_t row;     // in tensors of kProbe
  int64_t token;   // of the request's new tokens
  int64_t query;   // of that step
};

std::vector<Probe> ListProbes(const VectorCase& vectors) {
  std::vector<Probe> probes;
  int64_t first_query = 0;
  for (size_t i = 0; i < vectors.requests.size(); ++i) {
    const RequestCase& request = vectors.requests[i];
    for (size_t row = 0; row < request.probe.size(); ++row) {
      const int64_t token = request.probe[row];
      probes.push_back({i, static_cast<int64_t>(row), token, first_query + token});
    }
    first_query += request.num_new;
  }
  return probes;
}

// Tensors with a row for every token of a step, which probes do not have.
bool IsOfTheStep(std::string_view tensor) {
  return tensor == "kv" || tensor == "state_rows" || tensor == "inner_state_rows";
}

// One file's stages: what is stored, what is made from it, and the step that all new tokens make.
class Stages {
 public:
  Stages(const VectorWeights& weights, const VectorCase& vectors, const SafetensorsFile& file,
         Context& context, OwnValues& own)
      : weights_(weights),
        plain_(weights.fixture.views()),
        vectors_(vectors),
        config_(vectors.config),
        file_(file),
        context_(context),
        own_(own),
        probes_(ListProbes(vectors)),
        given_(config_, vectors.kind, num_probes()),
        made_(config_, vectors.kind, num_probes()) {}

  Status Run() {
    ReadProbes();
    if (auto status = RunEarly(); !status) return status;
    const bool csa = vectors_.kind == AttentionKind::kCsa;
    if (csa || vectors_.one_step()) {
      if (auto status = MakeStep(); !status) return status;
    }
    if (vectors_.one_step() && vectors_.kind != AttentionKind::kSwa) {
      if (auto status = RunCompressor(); !status) return status;
    }
    PutStoredRows();
    if (csa) {
      if (auto status = RunSelection(); !status) return status;
    }
    if (vectors_.one_step()) {
      if (auto status = RunLate(); !status) return status;
    }
    KeepProbes();
    return {};
  }

 private:
  int64_t num_probes() const { return static_cast<int64_t>(probes_.size()); }
  bool compressed() const { return vectors_.kind != AttentionKind::kSwa; }

  // The stored values of the probe tokens, their x and their stored RoPE rows.
  void ReadProbes() {
    const auto rules = TensorRulesOf(vectors_.kind);
    for (const NamedActivation& activation : given_.named()) {
      if (IsOfTheStep(activation.name)) continue;
      const auto rule = std::find_if(rules.begin(), rules.end(), [&](const TensorRule& candidate) {
        return candidate.name == activation.name;
      });
      for (size_t i = 0; i < probes_.size(); ++i) {
        const RequestCase& request = vectors_.requests[probes_[i].request];
        const int64_t row = rule->rows == TensorRows::kStored
                                ? request.StoredRowOf(probes_[i].token)
                                : probes_[i].row;
        CopyStoredRow(file_, request.TensorName(activation.name), row,
                      activation.row(static_cast<int64_t>(i)));
      }
    }
    const auto width = static_cast<size_t>(kHcStreams) * static_cast<size_t>(config_.hidden);
    inputs_.x.resize(probes_.size() * width);
    for (size_t i = 0; i < probes_.size(); ++i) {
      const RequestCase& request = vectors_.requests[probes_[i].request];
      inputs_.request.push_back(request.request);
      inputs_.position.push_back(request.start_pos + probes_[i].token);
      const fixtures::RequestFixture fixture(config_, vectors_.seed, request.request);
      fixture.X(probes_[i].token, std::span(inputs_.x).subspan(i * width, width));
    }
    inputs_.rope_cos.resize(probes_.size() * kRopePairs);
    inputs_.rope_sin.resize(probes_.size() * kRopePairs);
    TakeStoredRope(file_, vectors_, inputs_);
  }

  // What files of any number of steps are judged by, of probe tokens.
  Status RunEarly() {
    const AlignedBuffer buffer(StageScratchBytes(config_, num_probes(), context_.num_threads()));
    const Scratch scratch = buffer.span();
    const StepActivations from = given_.views();
    const StepActivations to = made_.views();
    auto status = HcPre(context_, config_, weights_.hc, inputs_.XView(config_), to.x_mixed, to.post,
                        to.comb, scratch);
    if (!status) return status;
    status = AttnNorm(context_, config_, plain_.attn_norm, from.x_mixed, to.xn);
    if (!status) return status;
    status = ProjectLatent(context_, config_, weights_.wq_a, plain_.q_norm, from.xn, to.qr,
                           to.qr_scale, scratch);
    if (!status || vectors_.kind != AttentionKind::kCsa) return status;
    return ProjectIndexQuery(context_, config_, weights_.indexer, from.qr, from.qr_scale, from.xn,
                             inputs_.rope(), {to.idx_q, to.idx_q_scale, to.idx_weights}, scratch);
  }

  // The step of all new tokens, from the history by formula.
  Status MakeStep() {
    std::vector<int64_t> num_new = vectors_.tokens_per_step;
    for (int64_t& n : num_new) n *= vectors_.steps;
    auto batch = Batch::Create({&vectors_.kind, 1}, vectors_.start_pos, num_new);
    if (!batch) return ErrorOf(batch);
    batch_.emplace(*std::move(batch));
    auto caches = LayerCaches::Create(config_, *batch_, vectors_.kind, vectors_.seed);
    if (!caches) return ErrorOf(caches);
    caches_ = *std::move(caches);
    auto inputs =
        MakeStepInputs(config_, vectors_.kind, vectors_.seed, vectors_.start_pos, num_new);
    if (!inputs) return ErrorOf(inputs);
    step_ = *std::move(inputs);
    TakeStoredRope(file_, vectors_, step_);
    auto plan = Plan::Create(config_, vectors_.kind, /*num_layers=*/1,
                             batch_->spaces(vectors_.kind), batch_->Step(vectors_.kind, num_new));
    if (!plan) return ErrorOf(plan);
    plan_ = *std::move(plan);
    return {};
  }

  // All rows of a stored tensor of the step, in step order.
  template <typename T>
  std::vector<T> ReadStepRows(std::string_view name) const {
    std::vector<T> rows;
    for (const RequestCase& request : vectors_.requests) {
      const auto values = file_.Values<T>(request.TensorName(name));
      rows.insert(rows.end(), values->begin(), values->end());
    }
    return rows;
  }

  // Rows made for all tokens or events of the step, to each request.
  template <typename T>
  void KeepStepRows(std::string_view name, TensorRows rows, const std::vector<T>& made,
                    int64_t width) {
    const T* from = made.data();
    for (size_t i = 0; i < vectors_.requests.size(); ++i) {
      const int64_t num_rows = vectors_.requests[i].NumRows(rows);
      OwnTensor& tensor =
          own_.requests[i].stage.Make(name, fixtures::DTypeOf<T>(), width, num_rows);
      const auto bytes = std::as_bytes(std::span(from, static_cast<size_t>(num_rows * width)));
      std::copy(bytes.begin(), bytes.end(), tensor.bytes.begin());
      from += num_rows * width;
    }
  }

  // State rows from the stored xn, and compressed rows and keys from the stored state rows.
  Status RunCompressor() {
    const std::vector<Bf16> xn = ReadStepRows<Bf16>("xn");
    Activations made(config_, vectors_.kind, step_.num_tokens(), step_.num_events());
    auto status = ProjectRows(weights_.compressor, xn, made.state);
    if (!status) return status;
    const auto state_width = static_cast<int64_t>(made.state.size()) / step_.num_tokens();
    KeepStepRows("state_rows", TensorRows::kLast, made.state, state_width);
    const LayerPools pools = caches_->views();
    const std::vector<float> state = ReadStepRows<float>("state_rows");
    status =
        Compress(context_, config_, *plan_,
                 CompressFrom(pools.state, state, weights_.compressor, state_width), pools.main);
    if (!status) return status;
    if (vectors_.kind == AttentionKind::kCsa) {
      constexpr int64_t kInnerWidth = int64_t{4} * kIndexDim;
      status = ProjectRows(weights_.indexer.compressor, xn, made.inner_state);
      if (!status) return status;
      KeepStepRows("inner_state_rows", TensorRows::kLast, made.inner_state, kInnerWidth);
      const std::vector<float> inner = ReadStepRows<float>("inner_state_rows");
      status = CompressIndex(
          context_, config_, *plan_,
          CompressFrom(pools.inner_state, inner, weights_.indexer.compressor, kInnerWidth),
          pools.index_rows, pools.index_scales);
      if (!status) return status;
    }
    made.TakeEvents(*batch_, *caches_, step_.events);
    KeepStepRows("cmp_rows", TensorRows::kEvent, made.cmp_rows, kHeadDim);
    if (vectors_.kind != AttentionKind::kCsa) return {};
    KeepStepRows("idx_rows", TensorRows::kEvent, made.idx_rows, kIndexDim);
    KeepStepRows("idx_scales", TensorRows::kEvent, made.idx_scales, 1);
    return {};
  }

  Status ProjectRows(const CompressorWeights& weights, const std::vector<Bf16>& xn,
                     std::vector<float>& state) {
    const int64_t num_tokens = step_.num_tokens();
    const AlignedBuffer scratch(StageScratchBytes(config_, num_tokens, context_.num_threads()));
    return ProjectState(
        context_, config_, *plan_, weights, MakeView(xn.data(), num_tokens, config_.hidden),
        MakeView(state.data(), num_tokens, 2 * weights.wkv.num_outputs()), scratch.span());
  }

  CompressInputs CompressFrom(const PoolView& ring, const std::vector<float>& state,
                              const CompressorWeights& weights, int64_t width) const {
    return {.state = ring,
            .new_state = MakeView(state.data(), step_.num_tokens(), width),
            .norm = MakeView(weights.norm.data(), weights.norm.size()),
            .rope = step_.event_rope()};
  }

  // The stored compressed rows and keys of the step's events, where the step writes them.
  void PutStoredRows() {
    if (!plan_) return;
    for (const StepEvent& event : step_.events) {
      const auto request = std::find_if(
          vectors_.requests.begin(), vectors_.requests.end(),
          [&](const RequestCase& candidate) { return candidate.request == event.request; });
      const auto put = [&](PoolKind pool, std::string_view name) {
        const int64_t row =
            PoolRowOf(pool, batch_->Pages(vectors_.kind, pool, event.request), event.row);
        CopyStoredRow(file_, request->TensorName(name), event.row - request->first_row,
                      caches_->Row(pool, row));
      };
      const bool csa = vectors_.kind == AttentionKind::kCsa;
      put(csa ? PoolKind::kCsaMain : PoolKind::kHcaMain, "cmp_rows");
      if (!csa) continue;
      put(PoolKind::kCsaIndexRows, "idx_rows");
      put(PoolKind::kCsaIndexScales, "idx_scales");
    }
  }

  // A tensor of probe tokens spread over the tokens of the step; the others' rows are zero.
  template <typename T>
  std::vector<T> Spread(const std::vector<T>& probe_rows) const {
    const auto width = static_cast<int64_t>(probe_rows.size()) / num_probes();
    std::vector<T> rows(static_cast<size_t>(step_.num_tokens() * width));
    for (int64_t i = 0; i < num_probes(); ++i) {
      std::copy_n(probe_rows.begin() + i * width, width,
                  rows.begin() + probes_[static_cast<size_t>(i)].query * width);
    }
    return rows;
  }

  // The other way.
  template <typename T>
  void Gather(const std::vector<T>& rows, std::vector<T>& probe_rows) const {
    const auto width = static_cast<int64_t>(probe_rows.size()) / num_probes();
    for (int64_t i = 0; i < num_probes(); ++i) {
      std::copy_n(rows.begin() + probes_[static_cast<size_t>(i)].query * width, width,
                  probe_rows.begin() + i * width);
    }
  }

  // Selection over the whole step with the stored keys and the stored queries of the probe tokens.
  Status RunSelection() {
    Activations step(config_, vectors_.kind, step_.num_tokens());
    step.idx_q = Spread(given_.idx_q);
    step.idx_q_scale = Spread(given_.idx_q_scale);
    step.idx_weights = Spread(given_.idx_weights);
    auto status = SelectWide(context_.executor(), *plan_, caches_->views(), step);
    if (!status) return status;
    const int64_t topk = config_.index_topk;
    for (int64_t t = 0; t < step_.num_tokens(); ++t) {
      std::copy_n(step.wide_idx.begin() + t * (topk + 1), topk, step.topk_idx.begin() + t * topk);
      std::copy_n(step.wide_score.begin() + t * (topk + 1), topk,
                  step.topk_score.begin() + t * topk);
    }
    Gather(step.topk_idx, made_.topk_idx);
    Gather(step.topk_score, made_.topk_score);
    Gather(step.topk_next, made_.topk_next);
    return {};
  }

  // What only files of one step are judged by.
  Status RunLate() {
    const int64_t num_tokens = step_.num_tokens();
    const AlignedBuffer buffer(StageScratchBytes(config_, num_tokens, context_.num_threads()));
    const Scratch scratch = buffer.span();
    const StepActivations from = given_.views();
    const StepActivations to = made_.views();
    auto status = ProjectQuery(context_, config_, weights_.wq_b, from.qr, from.qr_scale,
                               inputs_.rope(), to.q, scratch);
    if (!status) return status;
    const std::vector<Bf16> xn = ReadStepRows<Bf16>("xn");
    std::vector<Bf16> kv(static_cast<size_t>(num_tokens) * kHeadDim);
    status = ProjectKv(context_, config_, weights_.wkv, plain_.kv_norm,
                       MakeView(xn.data(), num_tokens, config_.hidden), step_.rope(),
                       MakeView(kv.data(), num_tokens, kHeadDim), scratch);
    if (!status) return status;
    KeepStepRows("kv", TensorRows::kNew, kv, kHeadDim);
    if (status = RunAttention(scratch); !status) return status;
    status = ProjectOutput(context_, config_, weights_.output, from.heads, to.attn_out, scratch);
    if (!status) return status;
    return HcPost(context_, config_, inputs_.XView(config_), from.attn_out, from.post, from.comb,
                  MakeView(made_.x_out.data(), num_probes(), kHcStreams, config_.hidden));
  }

  // Attention over the whole step with stored rows and selections and the stored queries of the
  // probe tokens.
  Status RunAttention(Scratch scratch) {
    const int64_t num_tokens = step_.num_tokens();
    const int64_t num_heads = config_.num_heads;
    const std::vector<Bf16> q = Spread(given_.q);
    const std::vector<Bf16> kv = ReadStepRows<Bf16>("kv");
    std::vector<int32_t> selection;
    std::vector<Bf16> heads(q.size());
    const LayerPools pools = caches_->views();
    AttendInputs inputs;
    inputs.q = MakeView(q.data(), num_tokens, num_heads, kHeadDim);
    inputs.sink = plain_.attn_sink;
    inputs.rope = step_.rope();
    inputs.raw = pools.raw;
    inputs.new_kv = MakeView(kv.data(), num_tokens, kHeadDim);
    inputs.main = pools.main;
    if (vectors_.kind == AttentionKind::kCsa) {
      selection = ReadStepRows<int32_t>("topk_idx");
      inputs.selection = MakeView(std::as_const(selection).data(), num_tokens, config_.index_topk);
    }
    AttendOutputs outputs;
    outputs.heads = MakeView(heads.data(), num_tokens, num_heads, kHeadDim);
    auto status = Attend(context_, config_, *plan_, inputs, outputs, scratch);
    if (!status) return status;
    Gather(heads, made_.heads);
    return {};
  }

  void KeepProbes() {
    for (const NamedActivation& activation : made_.named()) {
      if (IsOfTheStep(activation.name)) continue;
      for (size_t i = 0; i < vectors_.requests.size(); ++i) {
        own_.requests[i].stage.Make(activation.name, activation.dtype, activation.row_elements,
                                    vectors_.requests[i].NumRows(TensorRows::kProbe));
      }
      for (size_t i = 0; i < probes_.size(); ++i) {
        const auto row = activation.row(static_cast<int64_t>(i));
        OwnTensor& tensor = own_.requests[probes_[i].request].stage.at(activation.name);
        std::copy(row.begin(), row.end(), tensor.row(probes_[i].row));
      }
    }
  }

  const VectorWeights& weights_;
  LayerWeights plain_;
  const VectorCase& vectors_;
  const ModelConfig& config_;
  const SafetensorsFile& file_;
  Context& context_;
  OwnValues& own_;
  std::vector<Probe> probes_;
  Activations given_;  // as stored, of the probe tokens
  Activations made_;   // from them
  StepInputs inputs_;  // of the probe tokens

  StepInputs step_;
  std::optional<Batch> batch_;
  std::optional<LayerCaches> caches_;
  std::optional<Plan> plan_;
};

}  // namespace

Status RunStages(const VectorWeights& weights, const VectorCase& vectors,
                 const SafetensorsFile& file, Context& context, OwnValues& own) {
  return Stages(weights, vectors, file, context, own).Run();
}

}  // namespace millipede::tools
