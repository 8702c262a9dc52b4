// Traces as files: the JSON that Perfetto and chrome://tracing open.
#ifndef MILLIPEDE_TOOLS_TRACE_FILE_H_
#define MILLIPEDE_TOOLS_TRACE_FILE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "millipede/config.h"
#include "millipede/status.h"
#include "millipede/trace.h"

namespace millipede::tools {

// How one process of a trace is shown.
struct TraceProcess {
  std::string name = "millipede";
  int rank = 0;
  int64_t origin_ns = 0;  // of std::chrono::steady_clock: what the file calls 0

  // By kind: the model's layer of each of the plan's; a plan whose kind has none is of layer 0 on.
  std::array<std::vector<int32_t>, 3> layers;

  std::vector<int64_t> requests;  // the numbers that requests are shown by; empty for 0, 1, ...
};

// The begin of the first event; 0 if there is none.
int64_t TraceOrigin(const Trace& trace);

// "csa leaf 3"
std::string TraceEventName(const TraceEvent& event, int64_t layer);

// What a kind of event is called in the file's `cat`: "leaf".
std::string_view TraceTaskName(TraceTask task);

// The events of one process, comma-separated without one in front: names of its lanes, one complete
// event per TraceEvent, and counters of rows and bytes so far at the end of each region. Process
// ids begin at 1, as do those of lanes, 1 being the calls: viewers take 0 for the idle process.
void WriteTraceEvents(const Trace& trace, const TraceProcess& process, std::ostream& out);

// What --trace makes. The file is opened before the long work, so that a bad path is refused early.
class TraceOutput {
 public:
  // `path` is a file, or empty for none; of several ranks, the first writes it. kInvalidArgument
  // naming a path that cannot be written; the errors of Trace::Create.
  static Result<TraceOutput> Open(const std::string& path, int num_threads, int rank = 0);

  Trace* trace() { return trace_ ? &*trace_ : nullptr; }  // null if there is no path

  // Writes the file of one process; nothing if there is no path. Errors as below.
  Status Write(TraceProcess process);

  // Writes the file of several, each as WriteTraceEvents has it; the first rank's call.
  // kInvalidArgument if it cannot be written, and if events were dropped, when what there is has
  // been written.
  Status Write(const std::vector<std::string_view>& processes, int64_t num_dropped);

 private:
  std::string path_;
  std::optional<Trace> trace_;
};

// The file around the events of its processes.
void WriteTraceFile(const std::vector<std::string_view>& processes, int64_t num_dropped,
                    std::ostream& out);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_TRACE_FILE_H_
