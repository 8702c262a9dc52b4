#include "tools/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "tools/errors.h"
#include "tools/report.h"

namespace millipede::tools {
namespace {

constexpr int kCallsLane = 1;
constexpr int kFirstThreadLane = 2;

// Microseconds with all digits of a nanosecond.
std::string Microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

// The model's layer of an event; -1 if no layer is named.
int64_t LayerOf(const TraceEvent& event, const TraceProcess& process) {
  const std::vector<int32_t>& layers = process.layers[static_cast<size_t>(event.kind)];
  if (event.layer < 0 || layers.empty()) return event.layer;
  return layers[static_cast<size_t>(event.layer)];
}

// What the index of a task is of, in `args`.
const char* IndexName(TraceTask task) {
  switch (task) {
    case TraceTask::kRegion:
      return "items";
    case TraceTask::kItem:
      return "item";
    case TraceTask::kShard:
      return "shard";
    case TraceTask::kSelected:
      return "tile";
    case TraceTask::kLeafScores:
    case TraceTask::kLeaf:
      return "leaf";
    case TraceTask::kMerge:
      return "merge";
    case TraceTask::kEvent:
    case TraceTask::kIndexEvent:
      return "row";
    case TraceTask::kCall:
    case TraceTask::kWiden:
    case TraceTask::kWindow:
    case TraceTask::kCommit:
      return nullptr;
  }
  return nullptr;
}

void WriteEvent(const TraceEvent& event, const TraceProcess& process, int lane, std::string& text) {
  const int64_t layer = LayerOf(event, process);
  const auto out = std::back_inserter(text);
  fmt::format_to(out, R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":{},"ts":{},"dur":{},)",
                 TraceEventName(event, layer), TraceTaskName(event.task), process.rank + 1, lane,
                 Microseconds(event.begin_ns - process.origin_ns),
                 Microseconds(event.end_ns - event.begin_ns));
  text += R"("args":{)";
  const size_t begin = text.size();
  const auto add = [&](const char* name, int64_t value) {
    fmt::format_to(out, R"({}"{}":{})", text.size() == begin ? "" : ",", name, value);
  };
  if (layer >= 0) {
    fmt::format_to(out, R"("kind":"{}")", KindName(event.kind));
    add("layer", layer);
  }
  if (event.request >= 0) {
    const auto request = static_cast<size_t>(event.request);
    add("request", process.requests.empty() ? event.request : process.requests[request]);
  }
  if (event.first_query >= 0 && event.num_queries > 0) {
    add("query", event.first_query);
    if (event.num_queries > 1) add("queries", event.num_queries);
  }
  const char* const index = IndexName(event.task);
  if (index != nullptr) add(index, event.index);
  if (event.task != TraceTask::kRegion) add("rows", event.rows);
  if (event.bytes > 0) add("bytes", event.bytes);
  text += "}}";
}

void WriteMetadata(const TraceProcess& process, int lane, const char* what, const std::string& args,
                   std::string& text) {
  fmt::format_to(std::back_inserter(text),
                 R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{{}}}}})", what,
                 process.rank + 1, lane, args);
}

void WriteLane(const TraceProcess& process, int lane, const std::string& name, std::string& text) {
  text += ",\n";
  WriteMetadata(process, lane, "thread_name", fmt::format(R"("name":"{}")", name), text);
  text += ",\n";
  WriteMetadata(process, lane, "thread_sort_index", fmt::format(R"("sort_index":{})", lane), text);
}

// Rows and bytes that tasks have been through.
struct Totals {
  int64_t window_rows = 0;
  int64_t compressed_rows = 0;
  int64_t candidates = 0;
  int64_t emitted_rows = 0;
  int64_t committed_rows = 0;
  int64_t cache_bytes = 0;
  int64_t weight_bytes = 0;

  void Add(const TraceEvent& event) {
    switch (event.task) {
      case TraceTask::kCall:
      case TraceTask::kRegion:
        return;
      case TraceTask::kItem:
        weight_bytes += event.bytes;
        return;
      case TraceTask::kWindow:
        window_rows += event.rows;
        break;
      case TraceTask::kShard:
      case TraceTask::kSelected:
        compressed_rows += event.rows;
        break;
      case TraceTask::kLeaf:
        candidates += event.rows;
        break;
      case TraceTask::kEvent:
        emitted_rows += 1;
        break;
      case TraceTask::kCommit:
        committed_rows += event.rows;
        break;
      case TraceTask::kWiden:
      case TraceTask::kLeafScores:
      case TraceTask::kMerge:
      case TraceTask::kIndexEvent:
        break;
    }
    cache_bytes += event.bytes;
  }
};

void WriteCounters(const Totals& totals, const TraceProcess& process, int64_t time_ns,
                   std::string& text) {
  const auto out = std::back_inserter(text);
  const std::string time = Microseconds(time_ns - process.origin_ns);
  fmt::format_to(out,
                 ",\n"
                 R"({{"ph":"C","name":"rows","pid":{},"ts":{},"args":{{)",
                 process.rank + 1, time);
  fmt::format_to(out,
                 R"("window":{},"compressed":{},"candidates":{},"emitted":{},"committed":{}}}}})",
                 totals.window_rows, totals.compressed_rows, totals.candidates, totals.emitted_rows,
                 totals.committed_rows);
  fmt::format_to(out,
                 ",\n"
                 R"({{"ph":"C","name":"bytes","pid":{},"ts":{},"args":{{)",
                 process.rank + 1, time);
  fmt::format_to(out, R"("caches":{},"weights":{}}}}})", totals.cache_bytes, totals.weight_bytes);
}

}  // namespace

int64_t TraceOrigin(const Trace& trace) {
  int64_t origin = std::numeric_limits<int64_t>::max();
  const auto look = [&](std::span<const TraceEvent> events) {
    if (!events.empty()) origin = std::min(origin, events.front().begin_ns);
  };
  look(trace.calls());
  for (int thread = 0; thread < trace.num_threads(); ++thread) look(trace.events(thread));
  return origin == std::numeric_limits<int64_t>::max() ? 0 : origin;
}

std::string TraceEventName(const TraceEvent& event, int64_t layer) {
  switch (event.task) {
    case TraceTask::kCall:
      return fmt::format("{} layer {} ({})", event.name, layer, KindName(event.kind));
    case TraceTask::kRegion:
    case TraceTask::kItem:
      return event.name;
    case TraceTask::kWiden:
      return "widen rows";
    case TraceTask::kWindow:
      return "window";
    case TraceTask::kShard:
      return fmt::format("hca shard {}", event.index);
    case TraceTask::kSelected:
      return fmt::format("csa tile {}", event.index);
    case TraceTask::kLeafScores:
      return fmt::format("csa scores {}", event.index);
    case TraceTask::kLeaf:
      return fmt::format("csa leaf {}", event.index);
    case TraceTask::kMerge:
      return "csa merge";
    case TraceTask::kEvent:
      return "event/compress";
    case TraceTask::kIndexEvent:
      return "event/compress index";
    case TraceTask::kCommit:
      return "commit rows";
  }
  return event.name;
}

std::string_view TraceTaskName(TraceTask task) {
  constexpr std::string_view kNames[] = {"call",  "region",      "item",   "widen", "window",
                                         "shard", "tile",        "scores", "leaf",  "merge",
                                         "event", "index event", "commit"};
  return kNames[static_cast<size_t>(task)];
}

void WriteTraceEvents(const Trace& trace, const TraceProcess& process, std::ostream& out) {
  std::string text;
  WriteMetadata(process, kCallsLane, "process_name", fmt::format(R"("name":"{}")", process.name),
                text);
  text += ",\n";
  WriteMetadata(process, kCallsLane, "process_sort_index",
                fmt::format(R"("sort_index":{})", process.rank), text);
  WriteLane(process, kCallsLane, "calls", text);
  for (int thread = 0; thread < trace.num_threads(); ++thread) {
    WriteLane(process, kFirstThreadLane + thread, fmt::format("thread {}", thread), text);
  }
  out << text;

  std::vector<const TraceEvent*> tasks;  // of all threads
  const auto write_lane = [&](std::span<const TraceEvent> events, int lane) {
    for (const TraceEvent& event : events) {
      text = ",\n";
      WriteEvent(event, process, lane, text);
      out << text;
    }
  };
  write_lane(trace.calls(), kCallsLane);
  for (int thread = 0; thread < trace.num_threads(); ++thread) {
    const std::span<const TraceEvent> events = trace.events(thread);
    write_lane(events, kFirstThreadLane + thread);
    for (const TraceEvent& event : events) tasks.push_back(&event);
  }

  std::sort(tasks.begin(), tasks.end(),
            [](const TraceEvent* a, const TraceEvent* b) { return a->end_ns < b->end_ns; });
  Totals totals;
  size_t next = 0;
  text.clear();
  WriteCounters(totals, process, process.origin_ns, text);
  for (const TraceEvent& region : trace.calls()) {
    if (region.task != TraceTask::kRegion) continue;
    for (; next < tasks.size() && tasks[next]->end_ns <= region.end_ns; ++next) {
      totals.Add(*tasks[next]);
    }
    WriteCounters(totals, process, region.end_ns, text);
  }
  out << text;
}

void WriteTraceFile(const std::vector<std::string_view>& processes, int64_t num_dropped,
                    std::ostream& out) {
  out << "{\"displayTimeUnit\":\"ns\",\n";
  out << fmt::format("\"otherData\":{{\"dropped_events\":{}}},\n", num_dropped);
  out << "\"traceEvents\":[\n";
  for (size_t i = 0; i < processes.size(); ++i) out << (i == 0 ? "" : ",\n") << processes[i];
  out << "\n]}\n" << std::flush;
}

Result<TraceOutput> TraceOutput::Open(const std::string& path, int num_threads, int rank) {
  TraceOutput output;
  output.path_ = path;
  if (path.empty()) return output;
  if (rank == 0) {
    if (!CanWrite(path)) return BadValue("--trace", path, "a file that can be written");
  }
  auto trace = Trace::Create(num_threads);
  if (!trace) return ErrorOf(trace);
  output.trace_ = *std::move(trace);
  return output;
}

Status TraceOutput::Write(TraceProcess process) {
  if (!trace_) return {};
  process.origin_ns = TraceOrigin(*trace_);
  std::ostringstream events;
  WriteTraceEvents(*trace_, process, events);
  return Write({events.view()}, trace_->num_dropped());
}

Status TraceOutput::Write(const std::vector<std::string_view>& processes, int64_t num_dropped) {
  std::ofstream file(path_);
  WriteTraceFile(processes, num_dropped, file);
  if (!file) return BadValue("--trace", path_, "a file that can be written");
  if (num_dropped > 0) {
    return BadValue("--trace", fmt::format("{} events more than are kept", num_dropped),
                    fmt::format("{} of each thread, all in the file", Trace::kDefaultMaxEvents));
  }
  return {};
}

}  // namespace millipede::tools
