// What decode and stack say after a run, as text and as JSON.
#ifndef MILLIPEDE_TOOLS_REPORT_H_
#define MILLIPEDE_TOOLS_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "millipede/executor.h"
#include "millipede/plan.h"
#include "millipede/status.h"
#include "tools/arguments.h"
#include "tools/command.h"
#include "tools/rule_table.h"

namespace millipede::tools {

// One request's work: as the plan has it, or as the runtime counted it. Counts that the kind has no
// part in are 0.
struct RequestWork {
  int64_t tokens = 0;
  int64_t window_rows = 0;         // summed over its tokens
  int64_t raw_rows_written = 0;    // when every token is accepted
  int64_t raw_pages_touched = 0;   // distinct pages read or written
  int64_t compressed_rows = 0;     // attended, summed over its tokens
  int64_t events = 0;              // compressed rows emitted
  int64_t state_rows_written = 0;  // to all state rings, when every token is accepted
  int64_t shards = 0;              // HCA, summed over its tokens
  int64_t candidates = 0;          // CSA, scored, summed over its tokens
  int64_t leaves = 0;              // CSA, summed over its tokens
  int64_t merges = 0;              // CSA, summed over its tokens

  bool operator==(const RequestWork&) const = default;
  RequestWork& operator+=(const RequestWork& other);
};

// The counts by the names that JSON has, in order.
struct WorkCount {
  const char* name;
  int64_t RequestWork::*count;
};
std::span<const WorkCount> WorkCounts();

RequestWork PlannedWork(const Plan& plan, int64_t index_topk, int64_t request);
RequestWork CountedWork(const WorkCounters& counters);

// One line saying that what was counted is not what was planned; nothing if they are equal.
// `request` is -1 for the sum over all.
std::optional<std::string> WorkDifference(int64_t request, const RequestWork& planned,
                                          const RequestWork& counted);

// A stretch of time with a name.
struct Phase {
  std::string name;
  double seconds = 0;
};

struct DecodeReport {
  StepArguments arguments;
  std::vector<RequestWork> requests;  // counted; empty with --output-only
  RequestWork total;                  // counted over all requests
  std::vector<Phase> phases;          // in order; "run" is the sum of what the regions are part of
  std::vector<RegionStats> regions;   // the parallel regions of run
  int64_t workspace_bytes = 0;
  int64_t overlay_bytes = 0;
  int64_t weight_bytes = 0;       // packed
  int64_t peak_memory_bytes = 0;  // of the process, 0 if the system does not tell
  std::optional<RuleTable> check;
  std::string coverage;  // of the check: which tokens it judged

  std::string Text() const;

  // Keys: command, attention, preset, seed, threads, max_context, batch, seq, output_only; requests
  // [{request, start_pos, and WorkCounts}] and total (WorkCounts), neither with --output-only;
  // phases [{name, ms}]; regions [{name, calls, items, ms}]; workspace_bytes, overlay_bytes,
  // weight_bytes, peak_memory_bytes; check: see CheckJson, or null.
  nlohmann::json Json() const;
};

// Lists of {name, ms} and {name, calls, items, ms}.
nlohmann::json PhasesJson(const std::vector<Phase>& phases);
nlohmann::json RegionsJson(const std::vector<RegionStats>& regions);

// The counts by their names.
nlohmann::json WorkJson(const RequestWork& work);

// {ok, coverage, values, rules: see RuleTable::Json}.
nlohmann::json CheckJson(const RuleTable& check, const std::string& coverage);

// The table, and a line that sums it up.
std::string CheckText(const RuleTable& check, const std::string& coverage);

// The most resident memory this process has had, in bytes; 0 if the system does not tell.
int64_t PeakMemoryBytes();

// Where --json goes: opened before the long work, so that a bad path is refused early.
class JsonOutput {
 public:
  // `path` is a file, "-" for standard output, or empty for none. kInvalidArgument naming a path
  // that cannot be written.
  static Result<JsonOutput> Open(const std::string& path);

  bool to_stdout() const { return path_ == "-"; }

  // Writes one JSON text and a newline; nothing if there is no path.
  Status Write(const std::string& text, const Streams& streams);

 private:
  std::string path_;
};

// Whether a file can be written, found without changing what is there.
bool CanWrite(const std::string& path);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_REPORT_H_
