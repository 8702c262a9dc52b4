// millipede stack: all attention layers of a model on one set of requests.
#include <algorithm>

#include "tools/batch.h"
#include "tools/commands.h"
#include "tools/errors.h"
#include "tools/progress.h"
#include "tools/report.h"
#include "tools/stack_step.h"
#include "tools/trace_file.h"

namespace millipede::tools {
namespace {

// What the caches take, and what a check's copies of the largest layer do.
int64_t StackBytes(const StepArguments& arguments) {
  constexpr int64_t kCopies = 3;
  int64_t bytes = arguments.num_tokens() * BytesPerToken(arguments);
  int64_t largest = 0;
  for (const int32_t ratio : arguments.config.layer_ratios) {
    int64_t layer = 0;
    for (const int64_t start : arguments.start_pos) {
      layer += CacheBytes(*KindOfRatio(ratio), start + arguments.seq);
    }
    largest = std::max(largest, layer);
    bytes += layer;
  }
  return bytes + (arguments.check ? kCopies * largest : 0);
}

TraceProcess StackProcess(const ModelConfig& config) {
  TraceProcess process{.name = "millipede stack"};
  for (size_t layer = 0; layer < config.layer_ratios.size(); ++layer) {
    const AttentionKind kind = *KindOfRatio(config.layer_ratios[layer]);
    process.layers[static_cast<size_t>(kind)].push_back(static_cast<int32_t>(layer));
  }
  return process;
}

}  // namespace

Result<int> Stack(const StepArguments& arguments, const Streams& streams) {
  if (auto status = CheckMemory(arguments, StackBytes(arguments)); !status) return ErrorOf(status);
  auto json = JsonOutput::Open(arguments.json);
  if (!json) return ErrorOf(json);
  auto trace = TraceOutput::Open(arguments.trace, arguments.threads);
  if (!trace) return ErrorOf(trace);
  Progress progress(streams);
  auto step = ExecuteStackStep(arguments, progress, trace->trace());
  if (!step) return ErrorOf(step);
  const StackReport& report = step->report;
  for (const std::string& difference : report.differences) {
    streams.err << "millipede stack: " << difference << '\n';
  }
  if (!json->to_stdout()) streams.out << report.Text();
  auto status = json->Write(report.Json().dump(2), streams);
  if (!status) return ErrorOf(status);
  if (status = trace->Write(StackProcess(arguments.config)); !status) return ErrorOf(status);
  const bool holds = report.differences.empty() && (!report.check || report.check->ok());
  return holds ? kExitOk : kExitViolation;
}

}  // namespace millipede::tools
