#include "tools/trace_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "millipede/plan.h"
#include "tools/batch.h"

namespace millipede::testing {
namespace {

using Json = nlohmann::json;
using Lane = std::pair<int64_t, int64_t>;  // pid, tid

constexpr double kHalfNanosecond = 0.0005;  // in microseconds

std::string Brief(const Json& event) { return event.dump().substr(0, 160); }

bool IsCount(const Json& event, const char* key) {
  return event.contains(key) && event[key].is_number_integer() && event[key].get<int64_t>() >= 0;
}
int64_t Count(const Json& event, const char* key) { return event[key].get<int64_t>(); }
bool IsTime(const Json& event, const char* key) {
  return event.contains(key) && event[key].is_number() && event[key].get<double>() >= 0;
}
bool IsText(const Json& event, const char* key) {
  return event.contains(key) && event[key].is_string() && !event[key].get<std::string>().empty();
}

// What a trace has of one kind of event so far.
class FormatCheck {
 public:
  std::vector<std::string> faults;

  void Look(const Json& event) {
    if (!event.is_object() || !IsText(event, "ph") || !IsText(event, "name") ||
        !IsCount(event, "pid") || event["pid"] == 0 || !event.contains("args") ||
        !event["args"].is_object()) {
      faults.push_back("no ph, name, pid or args: " + Brief(event));
      return;
    }
    const std::string phase = event["ph"];
    if (phase == "X") {
      LookAtSpan(event);
    } else if (phase == "M") {
      LookAtMetadata(event);
    } else if (phase == "C") {
      LookAtCounter(event);
    } else {
      faults.push_back("phase " + phase);
    }
  }

  void Finish(int num_threads, int num_processes) {
    std::set<Lane> lanes;
    for (int64_t process = 1; process <= num_processes; ++process) {
      if (!named_processes_.contains(process)) {
        faults.push_back(fmt::format("process {} has no name", process));
      }
      for (int64_t lane = 1; lane <= num_threads + 1; ++lane) lanes.insert({process, lane});
    }
    for (const Lane& lane : lanes) {
      if (!named_lanes_.contains(lane)) {
        faults.push_back(fmt::format("lane {} of process {} has no name", lane.second, lane.first));
      }
    }
    for (const auto& [lane, open] : open_) {
      if (!lanes.contains(lane)) {
        faults.push_back(fmt::format("no such lane: {} of process {}", lane.second, lane.first));
      }
    }
    for (const char* name : {"rows", "bytes"}) {
      for (int64_t process = 1; process <= num_processes; ++process) {
        if (!counters_.contains({process, name})) {
          faults.push_back(fmt::format("process {} has no counter {}", process, name));
        }
      }
    }
  }

 private:
  void LookAtSpan(const Json& event) {
    if (!IsCount(event, "tid") || event["tid"] == 0 || !IsText(event, "cat") ||
        !IsTime(event, "ts") || !IsTime(event, "dur")) {
      faults.push_back("no tid, cat, ts or dur: " + Brief(event));
      return;
    }
    const double begin = event["ts"];
    const double end = begin + event["dur"].get<double>();
    const Lane lane{Count(event, "pid"), Count(event, "tid")};
    if (begin < last_begin_[lane] - kHalfNanosecond) {
      faults.push_back("begins before the one before it: " + Brief(event));
    }
    last_begin_[lane] = begin;
    std::vector<double>& open = open_[lane];  // ends of those it may lie in
    while (!open.empty() && open.back() <= begin + kHalfNanosecond) open.pop_back();
    if (!open.empty() && end > open.back() + kHalfNanosecond) {
      faults.push_back("overlaps the one it begins in: " + Brief(event));
    }
    open.push_back(end);
  }

  void LookAtMetadata(const Json& event) {
    const std::string name = event["name"];
    const Json& args = event["args"];
    if (!IsCount(event, "tid")) {
      faults.push_back("no tid: " + Brief(event));
    } else if (name == "process_name" || name == "thread_name") {
      if (!IsText(args, "name")) faults.push_back("no name: " + Brief(event));
      if (name == "process_name") named_processes_.insert(Count(event, "pid"));
      if (name == "thread_name") named_lanes_.emplace(Count(event, "pid"), Count(event, "tid"));
    } else if (name == "process_sort_index" || name == "thread_sort_index") {
      if (!IsCount(args, "sort_index")) faults.push_back("no sort_index: " + Brief(event));
    } else {
      faults.push_back("unknown metadata: " + Brief(event));
    }
  }

  void LookAtCounter(const Json& event) {
    if (!IsTime(event, "ts") || event["args"].empty()) {
      faults.push_back("no ts or values: " + Brief(event));
      return;
    }
    for (const auto& value : event["args"].items()) {
      if (!IsCount(event["args"], value.key().c_str())) {
        faults.push_back("no number: " + Brief(event));
        return;
      }
    }
    Json& last = counters_[{Count(event, "pid"), event["name"].get<std::string>()}];
    if (!last.is_null()) {
      if (event["ts"] < last["ts"]) faults.push_back("counter goes back in time: " + Brief(event));
      for (const auto& value : event["args"].items()) {
        if (value.value() < last["args"].value(value.key(), int64_t{0})) {
          faults.push_back("counter falls: " + Brief(event));
        }
      }
    }
    last = event;
  }

  std::set<int64_t> named_processes_;
  std::set<Lane> named_lanes_;
  std::map<Lane, double> last_begin_;
  std::map<Lane, std::vector<double>> open_;
  std::map<std::pair<int64_t, std::string>, Json> counters_;
};

std::string TaskLine(std::string_view kind, int64_t layer, std::string_view task, int64_t request,
                     int64_t query, int64_t index, int64_t rows) {
  return fmt::format("layer {} ({}), {}: request {}, query {}, index {}, rows {}", layer, kind,
                     task, request, query, index, rows);
}

// The lines of one layer.
class LayerTasks {
 public:
  LayerTasks(const Plan& plan, int64_t index_topk, int64_t layer)
      : work_(plan.work()), kind_(plan.kind()), index_topk_(index_topk), layer_(layer) {}

  std::multiset<std::string> List() {
    for (size_t t = 0; t < work_.queries.size(); ++t) ListQuery(t);
    for (const CompressEvent& event : work_.events) {
      const auto query = static_cast<size_t>(event.query);
      // Rows pooled: a block, and for CSA the block before it, if there is one.
      const bool csa = kind_ == AttentionKind::kCsa;
      const int64_t rows = csa ? (event.row == 0 ? kCsaRatio : 2 * kCsaRatio) : kHcaRatio;
      Add("event", query, event.row, rows);
      if (csa) Add("index event", query, event.row, rows);
    }
    return std::move(lines_);
  }

 private:
  void ListQuery(size_t t) {
    Add("window", t, -1, work_.queries[t].window_rows);
    if (kind_ == AttentionKind::kHca) {
      const int32_t begin = work_.shard_offsets[t];
      for (int32_t i = begin; i < work_.shard_offsets[t + 1]; ++i) {
        Add("shard", t, i - begin, work_.shards[static_cast<size_t>(i)].num_rows);
      }
    }
    if (kind_ != AttentionKind::kCsa) return;
    const int32_t begin = work_.leaf_offsets[t];
    int64_t candidates = 0;
    for (int32_t i = begin; i < work_.leaf_offsets[t + 1]; ++i) {
      const int64_t rows = work_.leaves[static_cast<size_t>(i)].num_candidates;
      Add("leaf", t, i - begin, rows);
      candidates += rows;
    }
    for (int32_t i = work_.merge_offsets[t]; i < work_.merge_offsets[t + 1]; ++i) {
      Add("merge", t, i - work_.merge_offsets[t], -1);
    }
    const int64_t selected = std::min(candidates, index_topk_);
    for (int64_t first = 0; first < selected; first += 128) {
      Add("tile", t, first / 128, std::min<int64_t>(128, selected - first));
    }
  }

  void Add(std::string_view task, size_t query, int64_t index, int64_t rows) {
    lines_.insert(TaskLine(KindName(kind_), layer_, task, work_.queries[query].request,
                           static_cast<int64_t>(query), index, rows));
  }

  const PackedWork& work_;
  AttentionKind kind_;
  int64_t index_topk_;
  int64_t layer_;
  std::multiset<std::string> lines_;
};

// Where a task's index stands in its args; null for one without.
const std::map<std::string, const char*>& IndexKeys() {
  static const std::map<std::string, const char*> keys = {
      {"window", nullptr}, {"shard", "shard"}, {"leaf", "leaf"},      {"merge", "merge"},
      {"tile", "tile"},    {"event", "row"},   {"index event", "row"}};
  return keys;
}

}  // namespace

std::vector<std::string> FormatFaults(const Json& trace, int num_threads, int num_processes) {
  if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array()) {
    return {"not an object with a list of traceEvents"};
  }
  FormatCheck check;
  for (const Json& event : trace["traceEvents"]) check.Look(event);
  check.Finish(num_threads, num_processes);
  return check.faults;
}

std::multiset<std::string> PlannedTasks(const tools::StepArguments& arguments, AttentionKind kind,
                                        const std::vector<int64_t>& layers) {
  const std::vector<int64_t> num_tokens(static_cast<size_t>(arguments.batch), arguments.seq);
  auto batch = tools::Batch::Create({&kind, 1}, arguments.start_pos, num_tokens);
  if (!batch) throw std::runtime_error(batch.error().message);
  auto plan =
      Plan::Create(arguments.config, kind, 1, batch->spaces(kind), batch->Step(kind, num_tokens));
  if (!plan) throw std::runtime_error(plan.error().message);
  std::multiset<std::string> lines;
  for (const int64_t layer : layers) {
    lines.merge(LayerTasks(*plan, arguments.config.index_topk, layer).List());
    for (int64_t r = 0; r < arguments.batch; ++r) {
      lines.insert(fmt::format("layer {} ({}), commit: request {}", layer, KindName(kind), r));
    }
  }
  return lines;
}

std::multiset<std::string> TracedTasks(const Json& trace) {
  std::multiset<std::string> lines;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const Json& args = event["args"];
    const std::string task = event["cat"];
    const auto value = [&](const char* key) { return args.value(key, int64_t{-1}); };
    const std::string kind = args.value("kind", "");
    if (task == "commit") {
      lines.insert(
          fmt::format("layer {} ({}), commit: request {}", value("layer"), kind, value("request")));
    }
    const auto key = IndexKeys().find(task);
    if (key == IndexKeys().end()) continue;
    // How many rows a merge goes through depends on data.
    lines.insert(TaskLine(kind, value("layer"), task, value("request"), value("query"),
                          key->second == nullptr ? -1 : value(key->second),
                          task == "merge" ? -1 : value("rows")));
  }
  return lines;
}

std::vector<std::string> Differences(const std::multiset<std::string>& planned,
                                     const std::multiset<std::string>& traced) {
  std::vector<std::string> missing;
  std::vector<std::string> extra;
  std::set_difference(planned.begin(), planned.end(), traced.begin(), traced.end(),
                      std::back_inserter(missing));
  std::set_difference(traced.begin(), traced.end(), planned.begin(), planned.end(),
                      std::back_inserter(extra));
  for (std::string& line : missing) line += " is missing";
  for (const std::string& line : extra) missing.push_back(line + " is not planned");
  return missing;
}

std::vector<std::string> RegionFaults(const Json& trace, const Json& regions) {
  // Regions whose items are tasks with names of their own.
  const std::map<std::string, std::string> tasks = {{"compress", "event"},
                                                    {"compress index", "index event"}};
  std::map<std::string, int64_t> calls;
  std::map<std::string, int64_t> items;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    if (event["cat"] == "region") calls[event["name"].get<std::string>()] += 1;
    items[event[event["cat"] == "item" ? "name" : "cat"].get<std::string>()] += 1;
  }
  std::vector<std::string> faults;
  for (const Json& region : regions) {
    const std::string name = region["name"];
    const auto task = tasks.find(name);
    if (calls[name] != region["calls"] ||
        items[task == tasks.end() ? name : task->second] != region["items"]) {
      faults.push_back("region " + region.dump());
    }
  }
  return faults;
}

}  // namespace millipede::testing
