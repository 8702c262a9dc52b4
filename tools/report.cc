#include "tools/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "tools/batch.h"
#include "tools/errors.h"

namespace millipede::tools {
namespace {

constexpr double kMsPerSecond = 1e3;

double Ms(double seconds) { return seconds * kMsPerSecond; }

nlohmann::json WorkJson(const RequestWork& work) {
  return {{"tokens", work.tokens},
          {"window_rows", work.window_rows},
          {"raw_rows_written", work.raw_rows_written},
          {"raw_pages_touched", work.raw_pages_touched}};
}

}  // namespace

RequestWork PlannedWork(const PackedWork& work, int64_t request) {
  const PlannedRequest& planned = work.requests[static_cast<size_t>(request)];
  RequestWork sum;
  sum.tokens = planned.num_tokens;
  sum.raw_rows_written = std::min<int64_t>(planned.num_tokens, kRingRows);
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
  }
  sum.raw_pages_touched = static_cast<int64_t>(pages.size());
  return sum;
}

RequestWork CountedWork(const WorkCounters& counters) {
  return {counters.query_tokens, counters.window_rows, counters.raw_rows_written,
          counters.raw_pages_touched};
}

std::optional<std::string> WorkDifference(int64_t request, const RequestWork& planned,
                                          const RequestWork& counted) {
  if (planned == counted) return std::nullopt;
  const auto text = [](const RequestWork& work) {
    return fmt::format("{} tokens, {} window rows, {} rows written, {} pages touched", work.tokens,
                       work.window_rows, work.raw_rows_written, work.raw_pages_touched);
  };
  return fmt::format("counters{}: {}; allowed: the plan's {}",
                     request < 0 ? "" : fmt::format(" of request {}", request), text(counted),
                     text(planned));
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
    constexpr const char* kRow = "{:>8} {:>10} {:>8} {:>12} {:>14}\n";
    fmt::format_to(out, fmt::runtime(kRow), "request", "start", "tokens", "window rows",
                   "pages touched");
    for (size_t r = 0; r < requests.size(); ++r) {
      fmt::format_to(out, fmt::runtime(kRow), r, arguments.start_pos[r], requests[r].tokens,
                     requests[r].window_rows, requests[r].raw_pages_touched);
    }
    fmt::format_to(out, fmt::runtime(kRow), "total", "", total.tokens, total.window_rows,
                   total.raw_pages_touched);
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
  if (check) {
    fmt::format_to(out, "\n{}\ncheck: {} values judged, {}\n", check->Text(), check->num_values(),
                   check->ok() ? "every rule holds" : "VIOLATED");
  }
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
      request["request"] = r;
      request["start_pos"] = arguments.start_pos[r];
      json["requests"].push_back(std::move(request));
    }
  }
  json["phases"] = nlohmann::json::array();
  for (const Phase& phase : phases) {
    json["phases"].push_back({{"name", phase.name}, {"ms", Ms(phase.seconds)}});
  }
  json["regions"] = nlohmann::json::array();
  for (const RegionStats& region : regions) {
    json["regions"].push_back({{"name", region.name},
                               {"calls", region.num_calls},
                               {"items", region.num_items},
                               {"ms", Ms(region.seconds)}});
  }
  if (check) {
    json["check"] = {
        {"ok", check->ok()}, {"values", check->num_values()}, {"rules", check->Json()}};
  }
  return json;
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

Result<JsonOutput> JsonOutput::Open(const std::string& path) {
  JsonOutput output;
  output.path_ = path;
  if (path.empty() || path == "-") return output;
  output.file_ = std::make_unique<std::ofstream>(path);
  if (!*output.file_) return BadValue("--json", path, "a file that can be written, or -");
  return output;
}

Status JsonOutput::Write(const std::string& text, const Streams& streams) {
  if (path_.empty()) return {};
  std::ostream& stream = file_ ? *file_ : streams.out;
  stream << text << '\n' << std::flush;
  if (!stream) return BadValue("--json", path_, "a file that can be written, or -");
  return {};
}

}  // namespace millipede::tools
