// One step of one layer from arguments alone: made by formula, planned, run and committed.
#ifndef MILLIPEDE_TOOLS_DECODE_STEP_H_
#define MILLIPEDE_TOOLS_DECODE_STEP_H_

#include <optional>
#include <string>
#include <vector>

#include "fixtures/formula.h"
#include "millipede/status.h"
#include "millipede/trace.h"
#include "tools/arguments.h"
#include "tools/check.h"
#include "tools/progress.h"
#include "tools/report.h"

namespace millipede::tools {

struct DecodeStep {
  DecodeReport report;                           // without a check
  std::vector<std::string> counter_differences;  // a line per counter that is not the plan's count
  // With arguments.check, what CheckStep needs.
  std::optional<StepRecord> record;
  std::optional<fixtures::LayerFixture> weights;
};

// Errors are the library's. Run and commit go to `trace` unless it is null.
Result<DecodeStep> ExecuteDecodeStep(const StepArguments& arguments, Progress& progress,
                                     Trace* trace = nullptr);

// ProjectOutput and HcPost alone, on heads made by formula.
struct OutputStep {
  DecodeReport report;  // without a check
  OutputRecord record;
  fixtures::LayerFixture weights;
};

// The run goes to `trace` unless it is null.
Result<OutputStep> ExecuteOutputStep(const StepArguments& arguments, Progress& progress,
                                     Trace* trace = nullptr);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_DECODE_STEP_H_
