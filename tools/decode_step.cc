#include "tools/decode_step.h"

#include <algorithm>
#include <utility>

#include "millipede/layer.h"
#include "tools/batch.h"
#include "tools/buffers.h"
#include "tools/caches.h"
#include "tools/errors.h"
#include "tools/executor.h"
#include "tools/stopwatch.h"

namespace millipede::tools {
namespace {

// Everything between the arguments and the results.
class Execution {
 public:
  Execution(const StepArguments& arguments, Progress& progress, Trace* trace, const RankPart* part)
      : arguments_(arguments), progress_(progress), trace_(trace), part_(part) {
    step_.report.arguments = arguments;
    num_tokens_.assign(static_cast<size_t>(arguments.batch), arguments.seq);
  }

  Result<DecodeStep> Execute() {
    if (auto status = MakeLayer(); !status) return ErrorOf(status);
    if (auto status = MakeData(); !status) return ErrorOf(status);
    if (auto status = MakePlan(); !status) return ErrorOf(status);
    auto executor = MakeExecutor(arguments_.threads);
    if (!executor) return ErrorOf(executor);
    Context context(**executor);
    if (trace_ != nullptr) {
      if (auto status = context.StartTrace(*trace_); !status) return ErrorOf(status);
    }
    if (auto status = RunAndCommit(context); !status) return ErrorOf(status);
    CompareCounters(context);
    step_.report.peak_memory_bytes = PeakMemoryBytes();
    progress_.Finish();
    return std::move(step_);
  }

 private:
  Status MakeLayer() {
    progress_.Start("making weights");
    Stopwatch watch;
    step_.weights = fixtures::MakeLayerFixture(arguments_.config, arguments_.kind, arguments_.seed);
    AddPhase("weights", watch);
    progress_.Start("packing weights");
    const OutputShard shard = part_ == nullptr ? OutputShard{} : part_->shard;
    auto weights = WeightsOfShard(arguments_.config, step_.weights->views(), shard);
    if (!weights) return ErrorOf(weights);
    auto layer = Layer::Create(arguments_.config, arguments_.kind, *weights, shard);
    if (!layer) return ErrorOf(layer);
    layer_ = *std::move(layer);
    step_.report.weight_bytes = layer_->weight_bytes();
    if (!arguments_.check) step_.weights.reset();
    AddPhase("packing", watch);
    return {};
  }

  Status MakeData() {
    progress_.Start("making inputs and histories");
    Stopwatch watch;
    auto batch = Batch::Create({&arguments_.kind, 1}, arguments_.start_pos, num_tokens_,
                               arguments_.requests);
    if (!batch) return ErrorOf(batch);
    batch_.emplace(*std::move(batch));
    auto caches = LayerCaches::Create(arguments_.config, *batch_, arguments_.kind, arguments_.seed);
    if (!caches) return ErrorOf(caches);
    caches_ = *std::move(caches);
    auto inputs =
        MakeStepInputs(arguments_.config, arguments_.kind, arguments_.seed, arguments_.start_pos,
                       num_tokens_, /*step=*/0, arguments_.requests);
    if (!inputs) return ErrorOf(inputs);
    inputs_ = *std::move(inputs);
    x_out_.resize(inputs_.x.size());
    AddPhase("inputs and histories", watch);
    return {};
  }

  Status MakePlan() {
    Stopwatch watch;
    auto plan =
        Plan::Create(arguments_.config, arguments_.kind, /*num_layers=*/1,
                     batch_->spaces(arguments_.kind), batch_->Step(arguments_.kind, num_tokens_));
    if (!plan) return ErrorOf(plan);
    plan_ = *std::move(plan);
    AddPhase("plan", watch);
    step_.report.workspace_bytes = plan_->workspace_bytes(arguments_.threads);
    step_.report.overlay_bytes = plan_->overlay_bytes();
    return {};
  }

  Status RunAndCommit(Context& context) {
    progress_.Start("running");
    const AlignedBuffer workspace(step_.report.workspace_bytes);
    const AlignedBuffer overlay(step_.report.overlay_bytes);
    const LayerPools pools = caches_->views();
    StepActivations activations;
    if (arguments_.check) {
      step_.record.emplace(
          StepRecord{arguments_.config,
                     ProfileOf(arguments_),
                     arguments_.kind,
                     arguments_.seed,
                     {},
                     Activations(arguments_.config, arguments_.kind, inputs_.num_tokens(),
                                 inputs_.num_events()),
                     RecordBefore(*batch_, arguments_.kind, *caches_, num_tokens_)});
      activations = step_.record->values.views();
    }
    Stopwatch watch;
    const StepTensors tensors{.x = inputs_.XView(arguments_.config),
                              .rope = inputs_.rope(),
                              .event_rope = inputs_.event_rope(),
                              .x_out = MakeView(x_out_.data(), inputs_.num_tokens(), kHcStreams,
                                                arguments_.config.hidden),
                              .selection = {}};
    auto status = part_ == nullptr
                      ? layer_->Run(context, *plan_, 0, pools, tensors, workspace.span(),
                                    overlay.span(), activations)
                      : part_->run_layer(context, *layer_, *plan_, pools, tensors, workspace.span(),
                                         overlay.span(), activations);
    if (!status) return status;
    AddPhase("run", watch);
    step_.report.regions = context.regions();
    if (arguments_.check) {
      if (status = RecordRun(context, pools, overlay.span()); !status) return status;
    }

    watch.Restart();
    auto ranges = Commit(context, *plan_, 0, pools, overlay.span(), num_tokens_);
    if (!ranges) return ErrorOf(ranges);
    AddPhase("commit", watch);
    if (!arguments_.check) return {};
    RecordAfterCommit(*batch_, *caches_, step_.record->caches);
    step_.record->values.x_out = std::move(x_out_);
    step_.record->inputs = std::move(inputs_);
    return {};
  }

  Status RecordRun(Context& context, const LayerPools& pools, std::span<const std::byte> overlay) {
    RecordAfterRun(*caches_, step_.record->caches);
    Activations& values = step_.record->values;
    values.TakeOverlay(*plan_, overlay);
    values.TakeEvents(*batch_, *caches_, inputs_.events);
    if (arguments_.kind != AttentionKind::kCsa) return {};
    return SelectWide(context.executor(), *plan_, pools, values);
  }

  void CompareCounters(const Context& context) {
    RequestWork planned_total;
    const auto compare = [&](int64_t request, const RequestWork& planned,
                             const RequestWork& counted) {
      if (auto difference = WorkDifference(request, planned, counted)) {
        step_.counter_differences.push_back(*std::move(difference));
      }
    };
    for (int64_t r = 0; r < batch_->size(); ++r) {
      const RequestWork planned = PlannedWork(*plan_, arguments_.config.index_topk, r);
      planned_total += planned;
      step_.report.requests.push_back(CountedWork(context.counters(r)));
      compare(r, planned, step_.report.requests.back());
    }
    step_.report.total = CountedWork(context.counters());
    compare(-1, planned_total, step_.report.total);
  }

  void AddPhase(const char* name, Stopwatch& watch) {
    step_.report.phases.push_back({name, watch.Restart()});
  }

  const StepArguments& arguments_;
  Progress& progress_;
  Trace* trace_;
  const RankPart* part_;             // null if the step is this process's alone
  std::vector<int64_t> num_tokens_;  // [requests]
  std::optional<Layer> layer_;
  std::optional<Batch> batch_;
  std::optional<LayerCaches> caches_;
  StepInputs inputs_;
  std::vector<float> x_out_;
  std::optional<Plan> plan_;
  DecodeStep step_;
};

}  // namespace

Result<DecodeStep> ExecuteDecodeStep(const StepArguments& arguments, Progress& progress,
                                     Trace* trace, const RankPart* part) {
  return Execution(arguments, progress, trace, part).Execute();
}

}  // namespace millipede::tools
