#include "tools/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tools/batch.h"
#include "tools/errors.h"

namespace millipede::tools {
namespace {

constexpr double kMsPerSecond = 1e3;

double Ms(double seconds) { return seconds * kMsPerSecond; }

constexpr WorkCount kWorkCounts[] = {{"tokens", &RequestWork::tokens},
                                     {"window_rows", &RequestWork::window_rows},
                                     {"raw_rows_written", &RequestWork::raw_rows_written},
                                     {"raw_pages_touched", &RequestWork::raw_pages_touched},
                                     {"compressed_rows", &RequestWork::compressed_rows},
                                     {"events", &RequestWork::events},
                                     {"state_rows_written", &RequestWork::state_rows_written},
                                     {"shards", &RequestWork::shards},
                                     {"candidates", &RequestWork::candidates},
                                     {"leaves", &RequestWork::leaves},
                                     {"merges", &RequestWork::merges}};

// Columns of the table of requests.
struct Column {
  const char* title;
  int64_t RequestWork::*count;
};
constexpr Column kColumns[] = {{"tokens", &RequestWork::tokens},
                               {"window rows", &RequestWork::window_rows},
                               {"pages touched", &RequestWork::raw_pages_touched}};
constexpr Column kCompressedColumns[] = {{"events", &RequestWork::events},
                                         {"compressed rows", &RequestWork::compressed_rows}};
constexpr Column kHcaColumns[] = {{"shards", &RequestWork::shards}};
constexpr Column kCsaColumns[] = {{"candidates", &RequestWork::candidates},
                                  {"leaves", &RequestWork::leaves},
                                  {"merges", &RequestWork::merges}};

std::vector<Column> ColumnsOf(AttentionKind kind) {
  std::vector<Column> columns(std::begin(kColumns), std::end(kColumns));
  const auto add = [&](std::span<const Column> more) {
    columns.insert(columns.end(), more.begin(), more.end());
  };
  if (kind != AttentionKind::kSwa) add(kCompressedColumns);
  if (kind == AttentionKind::kHca) add(kHcaColumns);
  if (kind == AttentionKind::kCsa) add(kCsaColumns);
  return columns;
}

// The entries of offsets [T + 1] that belong to query t.
template <typename Entry>
std::span<const Entry> EntriesOf(const std::vector<int32_t>& offsets,
                                 const std::vector<Entry>& entries, size_t t) {
  if (offsets.empty()) return {};
  const auto begin = static_cast<size_t>(offsets[t]);
  return std::span(entries).subspan(begin, static_cast<size_t>(offsets[t + 1]) - begin);
}

// Rows of `num_tokens` accepted tokens that a ring keeps.
int64_t RowsKept(PoolKind pool, int64_t num_tokens) {
  return std::min<int64_t>(num_tokens, FormatOf(pool).ring_rows());
}

}  // namespace

RequestWork& RequestWork::operator+=(const RequestWork& other) {
  for (const WorkCount& item : kWorkCounts) this->*item.count += other.*item.count;
  return *this;
}

std::span<const WorkCount> WorkCounts() { return kWorkCounts; }

RequestWork PlannedWork(const Plan& plan, int64_t index_topk, int64_t request) {
  const PackedWork& work = plan.work();
  const PlannedRequest& planned = work.requests[static_cast<size_t>(request)];
  RequestWork sum;
  sum.tokens = planned.num_tokens;
  std::set<int32_t> pages;
  for (int32_t i = 0; i < planned.num_tokens; ++i) {
    const auto t = static_cast<size_t>(planned.first_query + i);
    const QueryToken& query = work.queries[t];
    sum.window_rows += query.window_rows;
    pages.insert(query.raw_write_row / kPageRows);
    for (int32_t w = 0; w < query.window_rows; ++w) {
      const int32_t source = work.window_sources[t * kWindowRows + static_cast<size_t>(w)];
      if (source >= 0) pages.insert(source / kPageRows);
    }
    for (const HcaShard& shard : EntriesOf(work.shard_offsets, work.shards, t)) {
      sum.shards += 1;
      sum.compressed_rows += shard.num_rows;
    }
    int64_t candidates = 0;
    for (const CsaLeaf& leaf : EntriesOf(work.leaf_offsets, work.leaves, t)) {
      sum.leaves += 1;
      candidates += leaf.num_candidates;
    }
    sum.candidates += candidates;
    sum.compressed_rows += std::min(candidates, index_topk);
    sum.merges += static_cast<int64_t>(EntriesOf(work.merge_offsets, work.merges, t).size());
  }
  sum.raw_pages_touched = static_cast<int64_t>(pages.size());
  sum.raw_rows_written = RowsKept(PoolKind::kRaw, planned.num_tokens);
  if (plan.kind() == AttentionKind::kHca) {
    sum.state_rows_written = RowsKept(PoolKind::kHcaState, planned.num_tokens);
  } else if (plan.kind() == AttentionKind::kCsa) {
    sum.state_rows_written = RowsKept(PoolKind::kCsaState, planned.num_tokens) +
                             RowsKept(PoolKind::kCsaInnerState, planned.num_tokens);
  }
  for (const CompressEvent& event : work.events) sum.events += event.request == request ? 1 : 0;
  return sum;
}

RequestWork CountedWork(const WorkCounters& counters) {
  RequestWork work;
  work.tokens = counters.query_tokens;
  work.window_rows = counters.window_rows;
  work.raw_rows_written = counters.raw_rows_written;
  work.raw_pages_touched = counters.raw_pages_touched;
  work.compressed_rows = counters.compressed_rows;
  work.events = counters.events;
  work.state_rows_written = counters.state_rows_written;
  work.shards = counters.shards;
  work.candidates = counters.candidates;
  work.leaves = counters.leaves;
  work.merges = counters.merges;
  return work;
}

std::optional<std::string> WorkDifference(int64_t request, const RequestWork& planned,
                                          const RequestWork& counted) {
  if (planned == counted) return std::nullopt;
  std::string actual;
  std::string allowed;
  for (const WorkCount& item : kWorkCounts) {
    if (planned.*item.count == counted.*item.count) continue;
    actual += fmt::format("{}{} {}", actual.empty() ? "" : ", ", item.name, counted.*item.count);
    allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", planned.*item.count);
  }
  return fmt::format("counters{}: {}; allowed: the plan's {}",
                     request < 0 ? "" : fmt::format(" of request {}", request), actual, allowed);
}

std::string DecodeReport::Text() const {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{}{}, preset {}, seed {}, {} threads, ceiling {} tokens\n",
                 KindName(arguments.kind), arguments.output_only ? " output half" : "",
                 arguments.preset, arguments.seed, arguments.threads,
                 arguments.config.max_context_tokens);
  if (arguments.output_only) {
    fmt::format_to(out, "{} requests, {} tokens each, {} tokens in all\n", arguments.batch,
                   arguments.seq, arguments.num_tokens());
  } else {
    const std::vector<Column> columns = ColumnsOf(arguments.kind);
    fmt::format_to(out, "{:>8} {:>10}", "request", "start");
    for (const Column& column : columns) fmt::format_to(out, "  {:>9}", column.title);
    const auto counts = [&](const RequestWork& work) {
      for (const Column& column : columns) {
        fmt::format_to(out, "  {:>{}}", work.*column.count,
                       std::max<size_t>(9, std::string_view(column.title).size()));
      }
    };
    for (size_t r = 0; r < requests.size(); ++r) {
      fmt::format_to(out, "\n{:>8} {:>10}", arguments.request_id(r), arguments.start_pos[r]);
      counts(requests[r]);
    }
    fmt::format_to(out, "\n{:>8} {:>10}", "total", "");
    counts(total);
    fmt::format_to(out, "\n");
  }

  fmt::format_to(out, "\n{:<24} {:>8} {:>8} {:>12}\n", "phase", "calls", "items", "ms");
  for (const Phase& phase : phases) {
    fmt::format_to(out, "{:<24} {:>8} {:>8} {:>12.3f}\n", phase.name, "", "", Ms(phase.seconds));
    if (phase.name != "run") continue;
    for (const RegionStats& region : regions) {
      fmt::format_to(out, "  {:<22} {:>8} {:>8} {:>12.3f}\n", region.name, region.num_calls,
                     region.num_items, Ms(region.seconds));
    }
  }
  fmt::format_to(out, "\nworkspace {} bytes, overlay {} bytes, packed weights {} bytes\n",
                 workspace_bytes, overlay_bytes, weight_bytes);
  fmt::format_to(out, "peak memory {} bytes\n", peak_memory_bytes);
  if (check) text += CheckText(*check, coverage);
  return text;
}

nlohmann::json DecodeReport::Json() const {
  nlohmann::json json{{"command", "decode"},
                      {"attention", KindName(arguments.kind)},
                      {"preset", arguments.preset},
                      {"seed", arguments.seed},
                      {"threads", arguments.threads},
                      {"max_context", arguments.config.max_context_tokens},
                      {"batch", arguments.batch},
                      {"seq", arguments.seq},
                      {"output_only", arguments.output_only},
                      {"workspace_bytes", workspace_bytes},
                      {"overlay_bytes", overlay_bytes},
                      {"weight_bytes", weight_bytes},
                      {"peak_memory_bytes", peak_memory_bytes},
                      {"check", nullptr}};
  if (!arguments.output_only) {
    json["total"] = WorkJson(total);
    json["requests"] = nlohmann::json::array();
    for (size_t r = 0; r < requests.size(); ++r) {
      nlohmann::json request = WorkJson(requests[r]);
      request["request"] = arguments.request_id(r);
      request["start_pos"] = arguments.start_pos[r];
      json["requests"].push_back(std::move(request));
    }
  }
  json["phases"] = PhasesJson(phases);
  json["regions"] = RegionsJson(regions);
  if (check) json["check"] = CheckJson(*check, coverage);
  return json;
}

nlohmann::json WorkJson(const RequestWork& work) {
  nlohmann::json json = nlohmann::json::object();
  for (const WorkCount& item : kWorkCounts) json[item.name] = work.*item.count;
  return json;
}

nlohmann::json PhasesJson(const std::vector<Phase>& phases) {
  nlohmann::json json = nlohmann::json::array();
  for (const Phase& phase : phases) {
    json.push_back({{"name", phase.name}, {"ms", Ms(phase.seconds)}});
  }
  return json;
}

nlohmann::json RegionsJson(const std::vector<RegionStats>& regions) {
  nlohmann::json json = nlohmann::json::array();
  for (const RegionStats& region : regions) {
    json.push_back({{"name", region.name},
                    {"calls", region.num_calls},
                    {"items", region.num_items},
                    {"ms", Ms(region.seconds)}});
  }
  return json;
}

nlohmann::json CheckJson(const RuleTable& check, const std::string& coverage) {
  return {{"ok", check.ok()},
          {"coverage", coverage},
          {"values", check.num_values()},
          {"rules", check.Json()}};
}

std::string CheckText(const RuleTable& check, const std::string& coverage) {
  return fmt::format("\n{}\ncheck of {}: {} values judged, {}\n", check.Text(), coverage,
                     check.num_values(), check.ok() ? "every rule holds" : "VIOLATED");
}

int64_t PeakMemoryBytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  return 0;
}

bool CanWrite(const std::string& path) {
  std::error_code error;
  const bool existed = std::filesystem::exists(path, error);
  if (!std::ofstream(path, std::ios::app)) return false;
  if (!existed) std::filesystem::remove(path, error);
  return true;
}

Result<JsonOutput> JsonOutput::Open(const std::string& path) {
  JsonOutput output;
  output.path_ = path;
  if (path.empty() || path == "-") return output;
  if (!CanWrite(path)) return BadValue("--json", path, "a file that can be written, or -");
  return output;
}

Status JsonOutput::Write(const std::string& text, const Streams& streams) {
  if (path_.empty()) return {};
  std::ofstream file;
  if (!to_stdout()) file.open(path_);
  std::ostream& stream = to_stdout() ? streams.out : file;
  stream << text << '\n' << std::flush;
  if (!stream) return BadValue("--json", path_, "a file that can be written, or -");
  return {};
}

}  // namespace millipede::tools
