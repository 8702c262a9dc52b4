// One step of all attention layers of a model: made by formula, planned once per kind, run and
// committed layer by layer.
#ifndef MILLIPEDE_TOOLS_STACK_STEP_H_
#define MILLIPEDE_TOOLS_STACK_STEP_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "millipede/config.h"
#include "millipede/executor.h"
#include "millipede/status.h"
#include "millipede/trace.h"
#include "tools/arguments.h"
#include "tools/progress.h"
#include "tools/report.h"
#include "tools/rule_table.h"

namespace millipede::tools {

// What all layers of one kind did.
struct KindReport {
  AttentionKind kind = AttentionKind::kSwa;
  int64_t num_layers = 0;
  double run_seconds = 0;     // of all its layers together
  double commit_seconds = 0;  // the same
  RequestWork total;          // counted, over all requests and layers
  std::vector<RegionStats> regions;
  int64_t workspace_bytes = 0;  // of a run call
  int64_t overlay_bytes = 0;    // of each layer

  double seconds() const { return run_seconds + commit_seconds; }
};

struct StackReport {
  StepArguments arguments;
  int64_t num_layers = 0;
  std::vector<KindReport> kinds;         // those of the model, in order of first use
  std::vector<int64_t> cache_bytes;      // [requests] pages held, of all layers
  std::vector<Phase> phases;             // in order
  int64_t weight_bytes = 0;              // packed, of all weight sets
  int64_t peak_memory_bytes = 0;         // as in DecodeReport
  uint64_t checksum = 0;                 // of the streams behind the last layer
  std::optional<RuleTable> check;        // of all layers; violations say which
  std::string coverage;                  // as in DecodeReport
  std::vector<std::string> differences;  // a line per counter that is not the plans' count

  double tokens_per_second() const;  // of attention: all runs and commits, nothing else

  std::string Text() const;

  // Keys: command, preset, seed, threads, max_context, batch, seq, weight_sets, num_layers;
  // requests [{request, start_pos, cache_bytes}]; kinds [{kind, num_layers, run_ms, commit_ms,
  // regions, workspace_bytes, overlay_bytes, total}]; phases, tokens_per_second, checksum (in
  // hexadecimal), weight_bytes, cache_bytes (of all requests), peak_memory_bytes; check as in
  // DecodeReport.
  nlohmann::json Json() const;
};

struct StackStep {
  StackReport report;
  std::vector<float> x_out;  // [T,4,D] behind the last layer
};

// The layers of arguments.config in order, on one set of requests. Layer i has the history of seed
// `seed + i`, pools and an overlay of its own; layer j of a kind has weights of seed
// `seed + j mod weight_sets`. All layers run, then all commit; with a check each layer is committed
// right after its run and judged, fed the streams that it was given. Errors are the library's. Runs
// and commits go to `trace` unless it is null.
Result<StackStep> ExecuteStackStep(const StepArguments& arguments, Progress& progress,
                                   Trace* trace = nullptr);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_STACK_STEP_H_
