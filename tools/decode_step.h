// One step of one layer from arguments alone: made by formula, planned, run and committed.
#ifndef MILLIPEDE_TOOLS_DECODE_STEP_H_
#define MILLIPEDE_TOOLS_DECODE_STEP_H_

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fixtures/formula.h"
#include "millipede/layer.h"
#include "millipede/status.h"
#include "millipede/trace.h"
#include "tools/arguments.h"
#include "tools/check.h"
#include "tools/progress.h"
#include "tools/report.h"

namespace millipede::tools {

// One rank's part in a step whose output groups are spread over processes: the arguments are of its
// own requests, and these calls are made with the other ranks.
struct RankPart {
  OutputShard shard;
  std::function<Status(Context& context, const Layer& layer, const Plan& plan,
                       const LayerPools& pools, const StepTensors& tensors,
                       std::span<std::byte> workspace, std::span<std::byte> overlay,
                       const StepActivations& activations)>
      run_layer;
  std::function<Status(Context& context, const OutputWeights& weights,
                       TensorView<const Bf16, 3> heads, TensorView<Bf16, 2> attn_out)>
      project_output;
};

struct DecodeStep {
  DecodeReport report;                           // without a check
  std::vector<std::string> counter_differences;  // a line per counter that is not the plan's count
  // With arguments.check, what CheckStep needs.
  std::optional<StepRecord> record;
  std::optional<fixtures::LayerFixture> weights;
};

// Errors are the library's. Run and commit go to `trace` unless it is null. Without a part the step
// is this process's alone.
Result<DecodeStep> ExecuteDecodeStep(const StepArguments& arguments, Progress& progress,
                                     Trace* trace = nullptr, const RankPart* part = nullptr);

// ProjectOutput and HcPost alone, on heads made by formula.
struct OutputStep {
  DecodeReport report;  // without a check
  OutputRecord record;
  fixtures::LayerFixture weights;
};

// The run goes to `trace` unless it is null.
Result<OutputStep> ExecuteOutputStep(const StepArguments& arguments, Progress& progress,
                                     Trace* trace = nullptr, const RankPart* part = nullptr);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_DECODE_STEP_H_
