// millipede decode, whole or the output half alone: execute, check, report.
#include <fmt/format.h>
#include <unistd.h>

#include "tools/batch.h"
#include "tools/commands.h"
#include "tools/decode_step.h"
#include "tools/errors.h"
#include "tools/progress.h"
#include "tools/report.h"
#include "tools/stopwatch.h"
#include "tools/trace_file.h"

namespace millipede::tools {
namespace {

Result<int> Finish(const DecodeReport& report, bool holds, JsonOutput& json, TraceOutput& trace,
                   const Streams& streams) {
  if (!json.to_stdout()) streams.out << report.Text();
  auto status = json.Write(report.Json().dump(2), streams);
  if (!status) return ErrorOf(status);
  if (status = trace.Write({.name = "millipede decode"}); !status) return ErrorOf(status);
  return holds && (!report.check || report.check->ok()) ? kExitOk : kExitViolation;
}

}  // namespace

int64_t BytesPerToken(const StepArguments& arguments) {
  const ModelConfig& config = arguments.config;
  const int64_t streams = 2 * int64_t{kHcStreams} * config.hidden * 4;  // x and x_out
  const int64_t heads = 2 * int64_t{config.num_heads} * kHeadDim * 2;   // q and heads
  const int64_t sources = int64_t{kWindowRows} * 4;
  return streams + heads * (arguments.check ? 2 : 1) + sources;
}

Status CheckMemory(const StepArguments& arguments, int64_t bytes) {
  const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  if (bytes <= memory) return {};
  return BadValue(
      "--seq",
      fmt::format("{} in each of {} requests, {} bytes", arguments.seq, arguments.batch, bytes),
      fmt::format("what fits in this machine's memory of {} bytes", memory));
}

Status CheckDecodeMemory(const StepArguments& arguments, int64_t copies) {
  int64_t cache_bytes = 0;
  for (const int64_t start : arguments.start_pos) {
    cache_bytes += CacheBytes(arguments.kind, start + arguments.seq);
  }
  return CheckMemory(arguments,
                     arguments.num_tokens() * BytesPerToken(arguments) + cache_bytes * copies);
}

Result<int> Decode(const StepArguments& arguments, const Streams& streams) {
  // The pools, and with a check three copies of them.
  if (auto status = CheckDecodeMemory(arguments, arguments.check ? 4 : 1); !status) {
    return ErrorOf(status);
  }
  auto json = JsonOutput::Open(arguments.json);
  if (!json) return ErrorOf(json);
  auto trace = TraceOutput::Open(arguments.trace, arguments.threads);
  if (!trace) return ErrorOf(trace);
  Progress progress(streams);
  auto step = ExecuteDecodeStep(arguments, progress, trace->trace());
  if (!step) return ErrorOf(step);
  if (step->record) {
    Stopwatch watch;
    step->report.check = CheckStep(*step->record, *step->weights, arguments.threads, progress);
    step->report.coverage = CoverageOf(*step->record);
    step->report.phases.push_back({"check", watch.Restart()});
  }
  for (const std::string& difference : step->counter_differences) {
    streams.err << "millipede decode: " << difference << '\n';
  }
  return Finish(step->report, step->counter_differences.empty(), *json, *trace, streams);
}

Result<int> DecodeOutputOnly(const StepArguments& arguments, const Streams& streams) {
  auto status = CheckMemory(arguments, arguments.num_tokens() * BytesPerToken(arguments));
  if (!status) return ErrorOf(status);
  auto json = JsonOutput::Open(arguments.json);
  if (!json) return ErrorOf(json);
  auto trace = TraceOutput::Open(arguments.trace, arguments.threads);
  if (!trace) return ErrorOf(trace);
  Progress progress(streams);
  auto step = ExecuteOutputStep(arguments, progress, trace->trace());
  if (!step) return ErrorOf(step);
  if (arguments.check) {
    Stopwatch watch;
    step->report.check = CheckOutput(step->record, step->weights, arguments.threads, progress);
    step->report.coverage = fmt::format("all {} tokens", arguments.num_tokens());
    step->report.phases.push_back({"check", watch.Restart()});
  }
  return Finish(step->report, /*holds=*/true, *json, *trace, streams);
}

}  // namespace millipede::tools
