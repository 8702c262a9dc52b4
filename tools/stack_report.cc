#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "tools/stack_step.h"

namespace millipede::tools {
namespace {

constexpr double kMsPerSecond = 1e3;

std::string LayersText(const std::vector<KindReport>& kinds) {
  std::string text;
  for (const KindReport& kind : kinds) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind.num_layers, KindName(kind.kind));
  }
  return text;
}

void AppendKinds(const StackReport& report, std::string& text) {
  const auto out = std::back_inserter(text);
  const auto tokens = static_cast<double>(report.arguments.num_tokens());
  fmt::format_to(out, "\n{:<24} {:>8} {:>12} {:>12} {:>14} {:>12}\n", "kind, region", "layers",
                 "run ms", "commit ms", "ms per layer", "tokens/s");
  double run = 0;
  double commit = 0;
  for (const KindReport& kind : report.kinds) {
    const auto layers = static_cast<double>(kind.num_layers);
    fmt::format_to(out, "{:<24} {:>8} {:>12.3f} {:>12.3f} {:>14.3f} {:>12.1f}\n",
                   KindName(kind.kind), kind.num_layers, kind.run_seconds * kMsPerSecond,
                   kind.commit_seconds * kMsPerSecond, kind.seconds() * kMsPerSecond / layers,
                   tokens / kind.seconds());
    for (const RegionStats& region : kind.regions) {
      fmt::format_to(out, "  {:<22} {:>8} {:>12.3f}\n", region.name, "",
                     region.seconds * kMsPerSecond);
    }
    run += kind.run_seconds;
    commit += kind.commit_seconds;
  }
  fmt::format_to(out, "{:<24} {:>8} {:>12.3f} {:>12.3f} {:>14.3f} {:>12.1f}\n", "all",
                 report.num_layers, run * kMsPerSecond, commit * kMsPerSecond,
                 (run + commit) * kMsPerSecond / static_cast<double>(report.num_layers),
                 report.tokens_per_second());
}

}  // namespace

double StackReport::tokens_per_second() const {
  double seconds = 0;
  for (const KindReport& kind : kinds) seconds += kind.seconds();
  return static_cast<double>(arguments.num_tokens()) / seconds;
}

std::string StackReport::Text() const {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "stack of {} layers ({}), weight sets {}, preset {}, seed {}, {} threads, ",
                 num_layers, LayersText(kinds), arguments.weight_sets, arguments.preset,
                 arguments.seed, arguments.threads);
  fmt::format_to(out, "ceiling {} tokens\n", arguments.config.max_context_tokens);
  constexpr const char* kRow = "{:>8} {:>10} {:>8} {:>14}\n";
  fmt::format_to(out, fmt::runtime(kRow), "request", "start", "tokens", "cache bytes");
  for (size_t r = 0; r < cache_bytes.size(); ++r) {
    fmt::format_to(out, fmt::runtime(kRow), r, arguments.start_pos[r], arguments.seq,
                   cache_bytes[r]);
  }
  fmt::format_to(out, fmt::runtime(kRow), "total", "", arguments.num_tokens(),
                 std::accumulate(cache_bytes.begin(), cache_bytes.end(), int64_t{0}));
  AppendKinds(*this, text);

  fmt::format_to(out, "\n{:<24} {:>12}\n", "phase", "ms");
  for (const Phase& phase : phases) {
    fmt::format_to(out, "{:<24} {:>12.3f}\n", phase.name, phase.seconds * kMsPerSecond);
  }
  int64_t workspace = 0;
  int64_t overlays = 0;
  for (const KindReport& kind : kinds) {
    workspace = std::max(workspace, kind.workspace_bytes);
    overlays += kind.num_layers * kind.overlay_bytes;
  }
  fmt::format_to(out, "\nworkspace {} bytes, overlays {} bytes, packed weights {} bytes\n",
                 workspace, overlays, weight_bytes);
  fmt::format_to(out, "peak memory {} bytes\n", peak_memory_bytes);
  fmt::format_to(out, "{:.1f} tokens per second of attention\n", tokens_per_second());
  fmt::format_to(out, "checksum of the streams {:016x}\n", checksum);
  if (check) text += CheckText(*check, coverage);
  return text;
}

nlohmann::json StackReport::Json() const {
  nlohmann::json json{
      {"command", "stack"},
      {"preset", arguments.preset},
      {"seed", arguments.seed},
      {"threads", arguments.threads},
      {"max_context", arguments.config.max_context_tokens},
      {"batch", arguments.batch},
      {"seq", arguments.seq},
      {"weight_sets", arguments.weight_sets},
      {"num_layers", num_layers},
      {"tokens_per_second", tokens_per_second()},
      {"checksum", fmt::format("{:016x}", checksum)},
      {"weight_bytes", weight_bytes},
      {"cache_bytes", std::accumulate(cache_bytes.begin(), cache_bytes.end(), int64_t{0})},
      {"peak_memory_bytes", peak_memory_bytes},
      {"phases", PhasesJson(phases)},
      {"check", nullptr}};
  json["requests"] = nlohmann::json::array();
  for (size_t r = 0; r < cache_bytes.size(); ++r) {
    json["requests"].push_back(
        {{"request", r}, {"start_pos", arguments.start_pos[r]}, {"cache_bytes", cache_bytes[r]}});
  }
  json["kinds"] = nlohmann::json::array();
  for (const KindReport& kind : kinds) {
    json["kinds"].push_back({{"kind", KindName(kind.kind)},
                             {"num_layers", kind.num_layers},
                             {"run_ms", kind.run_seconds * kMsPerSecond},
                             {"commit_ms", kind.commit_seconds * kMsPerSecond},
                             {"total", WorkJson(kind.total)},
                             {"regions", RegionsJson(kind.regions)},
                             {"workspace_bytes", kind.workspace_bytes},
                             {"overlay_bytes", kind.overlay_bytes}});
  }
  if (check) json["check"] = CheckJson(*check, coverage);
  return json;
}

}  // namespace millipede::tools
