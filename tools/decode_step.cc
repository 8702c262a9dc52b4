#include "tools/decode_step.h"

#include <algorithm>
#include <utility>

#include "millipede/layer.h"
#include "tools/batch.h"
#include "tools/buffers.h"
#include "tools/errors.h"
#include "tools/executor.h"
#include "tools/stopwatch.h"

namespace millipede::tools {
namespace {

// Everything between the arguments and the results.
class Execution {
 public:
  Execution(const StepArguments& arguments, Progress& progress)
      : arguments_(arguments), progress_(progress) {
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
    auto layer = Layer::Create(arguments_.config, arguments_.kind, step_.weights->views());
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
    auto batch = Batch::Create(arguments_.start_pos);
    if (!batch) return ErrorOf(batch);
    batch_.emplace(*std::move(batch));
    auto pool = batch_->MakeRawPool(arguments_.config, arguments_.kind, arguments_.seed);
    if (!pool) return ErrorOf(pool);
    pool_ = *std::move(pool);
    auto inputs = MakeStepInputs(arguments_.config, arguments_.kind, arguments_.seed,
                                 arguments_.start_pos, num_tokens_);
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
    LayerPools pools;
    pools.raw = pool_->view();
    StepActivations activations;
    if (arguments_.check) {
      StartRecord();
      activations = step_.record->values.views();
    }
    Stopwatch watch;
    const StepTensors tensors{.x = inputs_.XView(arguments_.config),
                              .rope = inputs_.rope(),
                              .x_out = MakeView(x_out_.data(), inputs_.num_tokens(), kHcStreams,
                                                arguments_.config.hidden)};
    auto status = layer_->Run(context, *plan_, 0, pools, tensors, workspace.span(), overlay.span(),
                              activations);
    if (!status) return status;
    AddPhase("run", watch);
    step_.report.regions = context.regions();
    if (arguments_.check) RecordRun(OverlayKv(*plan_, overlay.span()));

    watch.Restart();
    auto ranges = Commit(context, *plan_, 0, pools, overlay.span(), num_tokens_);
    if (!ranges) return ErrorOf(ranges);
    AddPhase("commit", watch);
    if (arguments_.check) RecordCommit();
    return {};
  }

  void StartRecord() {
    step_.record.emplace(StepRecord{arguments_.config,
                                    ProfileOf(arguments_),
                                    arguments_.kind,
                                    arguments_.seed,
                                    {},
                                    Activations(arguments_.config, inputs_.num_tokens()),
                                    {}});
    RingRecord& rings = step_.record->rings;
    for (int64_t r = 0; r < batch_->size(); ++r) {
      rings.pages.push_back(batch_->RingPages(arguments_.kind, r));
    }
    rings.start_pos = arguments_.start_pos;
    rings.num_tokens = num_tokens_;
    rings.pool_before = CopyPool(pool_->view());
  }

  void RecordRun(TensorView<const Bf16, 2> overlay_kv) {
    step_.record->rings.pool_after_run = CopyPool(pool_->view());
    Activations& values = step_.record->values;
    for (int64_t t = 0; t < inputs_.num_tokens(); ++t) {
      std::copy_n(overlay_kv.row(t), kHeadDim, values.kv.begin() + t * kHeadDim);
    }
  }

  void RecordCommit() {
    RingRecord& rings = step_.record->rings;
    rings.pool_after_commit = CopyPool(pool_->view());
    for (int64_t r = 0; r < batch_->size(); ++r) {
      rings.end_pos.push_back(batch_->request(r).position(arguments_.kind));
    }
    step_.record->values.x_out = std::move(x_out_);
    step_.record->inputs = std::move(inputs_);
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
      const RequestWork planned = PlannedWork(plan_->work(), r);
      planned_total.tokens += planned.tokens;
      planned_total.window_rows += planned.window_rows;
      planned_total.raw_rows_written += planned.raw_rows_written;
      planned_total.raw_pages_touched += planned.raw_pages_touched;
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
  std::vector<int64_t> num_tokens_;  // [requests]
  std::optional<Layer> layer_;
  std::optional<Batch> batch_;
  std::optional<LayerPool> pool_;
  StepInputs inputs_;
  std::vector<float> x_out_;
  std::optional<Plan> plan_;
  DecodeStep step_;
};

}  // namespace

Result<DecodeStep> ExecuteDecodeStep(const StepArguments& arguments, Progress& progress) {
  return Execution(arguments, progress).Execute();
}

}  // namespace millipede::tools
