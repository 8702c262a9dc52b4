#include "tools/stack_step.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "fixtures/formula.h"
#include "millipede/layer.h"
#include "tools/batch.h"
#include "tools/buffers.h"
#include "tools/caches.h"
#include "tools/check.h"
#include "tools/errors.h"
#include "tools/executor.h"
#include "tools/stopwatch.h"

namespace millipede::tools {
namespace {

// FNV-1a, 64 bits.
uint64_t ChecksumOf(std::span<const float> values) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const std::byte byte : std::as_bytes(values)) {
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001B3;
  }
  return hash;
}

// One set of weights, packed and, for a check, plain.
struct WeightSet {
  Layer layer;
  std::optional<fixtures::LayerFixture> plain;
};

// What the layers of a kind share.
struct KindStep {
  KindReport report;
  std::vector<WeightSet> weights;
  StepInputs inputs;  // without x
  std::optional<Plan> plan;
  std::unique_ptr<Context> context;  // counts this kind's work
};

// One layer's own.
struct StackLayer {
  AttentionKind kind = AttentionKind::kSwa;
  int32_t index = 0;  // among the layers of its kind
  LayerCaches caches;
  AlignedBuffer overlay;
};

class Execution {
 public:
  Execution(const StepArguments& arguments, Progress& progress, Trace* trace)
      : arguments_(arguments), config_(arguments.config), progress_(progress), trace_(trace) {
    report().arguments = arguments;
    num_tokens_.assign(static_cast<size_t>(arguments.batch), arguments.seq);
  }

  Result<StackStep> Execute() {
    if (auto status = ListKinds(); !status) return ErrorOf(status);
    if (auto status = MakeWeights(); !status) return ErrorOf(status);
    if (auto status = MakeInputs(); !status) return ErrorOf(status);
    if (auto status = MakePlans(); !status) return ErrorOf(status);
    if (auto status = MakeLayers(); !status) return ErrorOf(status);
    if (auto status = RunAll(); !status) return ErrorOf(status);
    FinishReport();
    progress_.Finish();
    return std::move(step_);
  }

 private:
  StackReport& report() { return step_.report; }
  int64_t num_layers() const { return static_cast<int64_t>(config_.layer_ratios.size()); }
  KindStep& StepOf(AttentionKind kind) {
    return *std::find_if(kinds_.begin(), kinds_.end(),
                         [kind](const KindStep& step) { return step.report.kind == kind; });
  }

  Status ListKinds() {
    auto executor = MakeExecutor(arguments_.threads);
    if (!executor) return ErrorOf(executor);
    executor_ = *std::move(executor);
    for (int32_t i = 0; i < num_layers(); ++i) {
      auto kind = KindOfLayer(config_, i);
      if (!kind) return ErrorOf(kind);
      auto found = std::find_if(kinds_.begin(), kinds_.end(),
                                [&](const KindStep& step) { return step.report.kind == *kind; });
      if (found == kinds_.end()) {
        kinds_.emplace_back();
        found = kinds_.end() - 1;
        found->report.kind = *kind;
        found->context = std::make_unique<Context>(*executor_);
        if (trace_ != nullptr) {
          if (auto status = found->context->StartTrace(*trace_); !status) return status;
        }
      }
      found->report.num_layers += 1;
    }
    report().num_layers = num_layers();
    return {};
  }

  Status MakeWeights() {
    Stopwatch watch;
    for (KindStep& step : kinds_) {
      const AttentionKind kind = step.report.kind;
      const int64_t sets = std::min(arguments_.weight_sets, step.report.num_layers);
      progress_.Start("making weights of " + std::string(KindName(kind)) + " layers", sets);
      for (int64_t set = 0; set < sets; ++set) {
        auto plain =
            fixtures::MakeLayerFixture(config_, kind, arguments_.seed + static_cast<uint64_t>(set));
        auto layer = Layer::Create(config_, kind, plain.views());
        if (!layer) return ErrorOf(layer);
        report().weight_bytes += layer->weight_bytes();
        step.weights.push_back({*std::move(layer), std::nullopt});
        if (arguments_.check) step.weights.back().plain = std::move(plain);
        progress_.Tick();
      }
    }
    AddPhase("weights", watch);
    return {};
  }

  Status MakeInputs() {
    Stopwatch watch;
    std::vector<AttentionKind> kinds;
    for (const KindStep& step : kinds_) kinds.push_back(step.report.kind);
    auto batch = Batch::Create(kinds, arguments_.start_pos, num_tokens_);
    if (!batch) return ErrorOf(batch);
    batch_.emplace(*std::move(batch));
    auto inputs =
        MakeStepInputs(config_, kinds.front(), arguments_.seed, arguments_.start_pos, num_tokens_);
    if (!inputs) return ErrorOf(inputs);
    step_.x_out = std::move(inputs->x);
    inputs->x.clear();
    for (KindStep& step : kinds_) {
      step.inputs = *inputs;
      if (auto status = SetRope(step.report.kind, step.inputs); !status) return status;
    }
    AddPhase("inputs", watch);
    return {};
  }

  Status MakePlans() {
    Stopwatch watch;
    for (KindStep& step : kinds_) {
      const AttentionKind kind = step.report.kind;
      auto plan = Plan::Create(config_, kind, static_cast<int32_t>(step.report.num_layers),
                               batch_->spaces(kind), batch_->Step(kind, num_tokens_));
      if (!plan) return ErrorOf(plan);
      step.plan = *std::move(plan);
      step.report.workspace_bytes = step.plan->workspace_bytes(arguments_.threads);
      step.report.overlay_bytes = step.plan->overlay_bytes();
    }
    AddPhase("plans", watch);
    return {};
  }

  Status MakeLayers() {
    Stopwatch watch;
    progress_.Start("making histories", num_layers());
    std::map<AttentionKind, int32_t> counts;
    for (int32_t i = 0; i < num_layers(); ++i) {
      const AttentionKind kind = *KindOfLayer(config_, i);
      auto caches = LayerCaches::Create(config_, *batch_, kind, HistorySeed(i));
      if (!caches) return ErrorOf(caches);
      layers_.push_back({kind, counts[kind]++, *std::move(caches),
                         AlignedBuffer(StepOf(kind).report.overlay_bytes)});
      progress_.Tick();
    }
    AddPhase("histories", watch);
    return {};
  }

  uint64_t HistorySeed(size_t layer) const { return arguments_.seed + layer; }

  Status RunAll() {
    int64_t workspace_bytes = 0;
    for (const KindStep& step : kinds_) {
      workspace_bytes = std::max(workspace_bytes, step.report.workspace_bytes);
    }
    const AlignedBuffer workspace(workspace_bytes);
    if (arguments_.check) return RunAndCheck(workspace.span());
    progress_.Start("running layers", num_layers());
    for (StackLayer& layer : layers_) {
      if (auto status = RunLayer(layer, workspace.span(), {}); !status) return status;
      progress_.Tick();
    }
    for (StackLayer& layer : layers_) {
      if (auto status = CommitLayer(layer); !status) return status;
    }
    return {};
  }

  Status RunAndCheck(std::span<std::byte> workspace) {
    report().check.emplace();
    Stopwatch watch;
    for (size_t i = 0; i < layers_.size(); ++i) {
      StackLayer& layer = layers_[i];
      const KindStep& step = StepOf(layer.kind);
      StepRecord record{
          config_,
          ProfileOf(arguments_),
          layer.kind,
          HistorySeed(i),
          step.inputs,
          Activations(config_, layer.kind, step.inputs.num_tokens(), step.inputs.num_events()),
          RecordBefore(*batch_, layer.kind, layer.caches, num_tokens_)};
      record.inputs.x = step_.x_out;
      record.caches.is_last_commit = layer.index + 1 == step.report.num_layers;
      auto status = RunLayer(layer, workspace, record.values.views());
      if (!status) return status;
      record.values.x_out = step_.x_out;
      RecordAfterRun(layer.caches, record.caches);
      record.values.TakeOverlay(*step.plan, layer.overlay.span());
      record.values.TakeEvents(*batch_, layer.caches, record.inputs.events);
      if (layer.kind == AttentionKind::kCsa) {
        status = SelectWide(*executor_, *step.plan, layer.caches.views(), record.values);
        if (!status) return status;
      }
      if (status = CommitLayer(layer); !status) return status;
      RecordAfterCommit(*batch_, layer.caches, record.caches);
      const WeightSet& weights = WeightsOf(layer);
      report().check->Merge(CheckStep(record, *weights.plain, arguments_.threads, progress_),
                            fmt::format("layer {} ({}), ", i, KindName(layer.kind)));
      report().coverage = fmt::format("{} layers, {}", layers_.size(), CoverageOf(record));
    }
    AddPhase("layers and check", watch);
    return {};
  }

  Status RunLayer(StackLayer& layer, std::span<std::byte> workspace,
                  const StepActivations& activations) {
    KindStep& step = StepOf(layer.kind);
    const auto x =
        MakeView(step_.x_out.data(), step.inputs.num_tokens(), kHcStreams, config_.hidden);
    Stopwatch watch;
    auto status =
        WeightsOf(layer).layer.Run(*step.context, *step.plan, layer.index, layer.caches.views(),
                                   {.x = x,
                                    .rope = step.inputs.rope(),
                                    .event_rope = step.inputs.event_rope(),
                                    .x_out = x,
                                    .selection = {}},
                                   workspace, layer.overlay.span(), activations);
    step.report.run_seconds += watch.Restart();
    return status;
  }

  Status CommitLayer(StackLayer& layer) {
    KindStep& step = StepOf(layer.kind);
    Stopwatch watch;
    auto ranges = Commit(*step.context, *step.plan, layer.index, layer.caches.views(),
                         layer.overlay.span(), num_tokens_);
    if (!ranges) return ErrorOf(ranges);
    step.report.commit_seconds += watch.Restart();
    return {};
  }

  const WeightSet& WeightsOf(const StackLayer& layer) {
    const std::vector<WeightSet>& sets = StepOf(layer.kind).weights;
    return sets[static_cast<size_t>(layer.index) % sets.size()];
  }

  void FinishReport() {
    for (int64_t r = 0; r < batch_->size(); ++r) {
      int64_t bytes = 0;
      for (const KindStep& step : kinds_) {
        bytes += step.report.num_layers * batch_->BytesHeld(step.report.kind, r);
      }
      report().cache_bytes.push_back(bytes);
    }
    for (KindStep& step : kinds_) {
      for (int64_t r = 0; r < batch_->size(); ++r) {
        const RequestWork counted = CountedWork(step.context->counters(r));
        RequestWork planned = PlannedWork(*step.plan, config_.index_topk, r);
        const int64_t pages = planned.raw_pages_touched;  // the same ones in every layer
        for (const WorkCount& item : WorkCounts()) planned.*item.count *= step.report.num_layers;
        planned.raw_pages_touched = pages;
        step.report.total += counted;
        if (auto difference = WorkDifference(r, planned, counted)) {
          report().differences.push_back(std::string(KindName(step.report.kind)) + " " +
                                         *std::move(difference));
        }
      }
      step.report.regions = step.context->regions();
      report().kinds.push_back(step.report);
    }
    report().checksum = ChecksumOf(step_.x_out);
    report().peak_memory_bytes = PeakMemoryBytes();
  }

  void AddPhase(const char* name, Stopwatch& watch) {
    report().phases.push_back({name, watch.Restart()});
  }

  const StepArguments& arguments_;
  const ModelConfig& config_;
  Progress& progress_;
  Trace* trace_;
  std::vector<int64_t> num_tokens_;  // [requests]
  std::unique_ptr<Executor> executor_;
  std::optional<Batch> batch_;
  std::vector<KindStep> kinds_;
  std::vector<StackLayer> layers_;
  StackStep step_;  // x_out holds the streams between layers
};

}  // namespace

Result<StackStep> ExecuteStackStep(const StepArguments& arguments, Progress& progress,
                                   Trace* trace) {
  return Execution(arguments, progress, trace).Execute();
}

}  // namespace millipede::tools
