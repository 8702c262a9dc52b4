#include "tools/rank_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace millipede::tools {
namespace {

constexpr double kMsPerSecond = 1e3;

int64_t NumTokens(const RankReport& rank) { return rank.report.arguments.num_tokens(); }

std::vector<int64_t> RequestIds(const RankReport& rank) {
  std::vector<int64_t> ids;
  for (int64_t r = 0; r < rank.report.arguments.batch; ++r) {
    ids.push_back(rank.report.arguments.request_id(static_cast<size_t>(r)));
  }
  return ids;
}

RequestWork WorkFromJson(const nlohmann::json& json) {
  RequestWork work;
  for (const WorkCount& item : WorkCounts()) work.*item.count = json.at(item.name);
  return work;
}

// Puts the longer of two things of one name in place, or adds it. Both have seconds.
template <typename Item>
void KeepLonger(const Item& item, std::vector<Item>& items) {
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const Item& other) { return other.name == item.name; });
  if (found == items.end()) {
    items.push_back(item);
  } else if (item.seconds > found->seconds) {
    *found = item;
  }
}

DecodeReport Merge(const StepArguments& whole, const std::vector<RankReport>& ranks) {
  DecodeReport merged;
  merged.arguments = whole;
  if (!whole.output_only) merged.requests.resize(static_cast<size_t>(whole.batch));
  for (size_t i = 0; i < ranks.size(); ++i) {
    const DecodeReport& report = ranks[i].report;
    for (size_t r = 0; r < report.requests.size(); ++r) {
      merged.requests[static_cast<size_t>(report.arguments.request_id(r))] = report.requests[r];
    }
    merged.total += report.total;
    for (const Phase& phase : report.phases) KeepLonger(phase, merged.phases);
    for (const RegionStats& region : report.regions) KeepLonger(region, merged.regions);
    const auto keep_most = [&](int64_t DecodeReport::*bytes) {
      merged.*bytes = std::max(merged.*bytes, report.*bytes);
    };
    keep_most(&DecodeReport::workspace_bytes);
    keep_most(&DecodeReport::overlay_bytes);
    keep_most(&DecodeReport::weight_bytes);
    keep_most(&DecodeReport::peak_memory_bytes);
    if (!report.check) continue;
    if (!merged.check) merged.check.emplace();
    merged.check->Merge(*report.check, fmt::format("rank {}: ", i));
    merged.coverage += fmt::format("{}rank {}: {}", i == 0 ? "" : "; ", i, report.coverage);
  }
  return merged;
}

}  // namespace

StepArguments DealTo(const StepArguments& whole, int32_t rank) {
  StepArguments own = whole;
  own.start_pos.clear();
  for (int64_t r = rank; r < whole.batch; r += whole.tp) {
    own.requests.push_back(r);
    if (!whole.start_pos.empty()) own.start_pos.push_back(whole.start_pos[static_cast<size_t>(r)]);
  }
  own.batch = static_cast<int64_t>(own.requests.size());
  return own;
}

nlohmann::json ToJson(const RankReport& report) {
  return {{"report", report.report.Json()},
          {"bytes_sent", report.bytes_sent},
          {"counter_differences", report.counter_differences}};
}

RankReport RankReportFromJson(const nlohmann::json& json, const StepArguments& whole,
                              int32_t rank) {
  const nlohmann::json& from = json.at("report");
  RankReport result;
  result.bytes_sent = json.at("bytes_sent");
  result.counter_differences = json.at("counter_differences");
  DecodeReport& report = result.report;
  report.arguments = DealTo(whole, rank);
  if (!whole.output_only) {
    for (const nlohmann::json& request : from.at("requests")) {
      report.requests.push_back(WorkFromJson(request));
    }
    report.total = WorkFromJson(from.at("total"));
  }
  for (const nlohmann::json& phase : from.at("phases")) {
    report.phases.push_back({phase.at("name"), phase.at("ms").get<double>() / kMsPerSecond});
  }
  for (const nlohmann::json& region : from.at("regions")) {
    report.regions.push_back({region.at("name").get_ref<const std::string&>(), region.at("calls"),
                              region.at("items"), region.at("ms").get<double>() / kMsPerSecond});
  }
  report.workspace_bytes = from.at("workspace_bytes");
  report.overlay_bytes = from.at("overlay_bytes");
  report.weight_bytes = from.at("weight_bytes");
  report.peak_memory_bytes = from.at("peak_memory_bytes");
  if (const nlohmann::json& check = from.at("check"); !check.is_null()) {
    report.check = RuleTable::FromJson(check.at("rules"));
    report.coverage = check.at("coverage");
  }
  return result;
}

SharedReport::SharedReport(const StepArguments& whole, std::vector<RankReport> ranks)
    : ranks_(std::move(ranks)), merged_(Merge(whole, ranks_)) {}

bool SharedReport::holds() const {
  return counter_differences().empty() && (!merged_.check || merged_.check->ok());
}

std::vector<std::string> SharedReport::counter_differences() const {
  std::vector<std::string> all;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    for (const std::string& difference : ranks_[i].counter_differences) {
      all.push_back(fmt::format("rank {}: {}", i, difference));
    }
  }
  return all;
}

std::string SharedReport::Text() const {
  std::string text =
      fmt::format("{} ranks; times and bytes below are the largest of any\n", ranks_.size());
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{:>6} {:>8} {:>8} {:>20} {:>16} {:>18} {:>18}\n", "rank", "requests",
                 "tokens", "packed weight bytes", "bytes sent", "workspace bytes",
                 "peak memory bytes");
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const RankReport& rank = ranks_[i];
    fmt::format_to(out, "{:>6} {:>8} {:>8} {:>20} {:>16} {:>18} {:>18}\n", i,
                   rank.report.arguments.batch, NumTokens(rank), rank.report.weight_bytes,
                   rank.bytes_sent, rank.report.workspace_bytes, rank.report.peak_memory_bytes);
  }
  return text + "\n" + merged_.Text();
}

nlohmann::json SharedReport::Json() const {
  nlohmann::json json = merged_.Json();
  json["tp"] = merged_.arguments.tp;
  json["ranks"] = nlohmann::json::array();
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const DecodeReport& report = ranks_[i].report;
    json["ranks"].push_back({{"rank", i},
                             {"request_ids", RequestIds(ranks_[i])},
                             {"tokens", NumTokens(ranks_[i])},
                             {"weight_bytes", report.weight_bytes},
                             {"bytes_sent", ranks_[i].bytes_sent},
                             {"workspace_bytes", report.workspace_bytes},
                             {"overlay_bytes", report.overlay_bytes},
                             {"peak_memory_bytes", report.peak_memory_bytes},
                             {"phases", PhasesJson(report.phases)},
                             {"regions", RegionsJson(report.regions)}});
  }
  return json;
}

std::optional<std::string> FirstError(const std::vector<nlohmann::json>& ranks) {
  const auto has_error = [](const nlohmann::json& rank) { return rank.contains("error"); };
  const auto is_cause = [&](const nlohmann::json& rank) {
    return has_error(rank) && rank["error"]["code"] != ErrorCodeName(ErrorCode::kRankFailed);
  };
  auto first = std::find_if(ranks.begin(), ranks.end(), is_cause);
  if (first == ranks.end()) first = std::find_if(ranks.begin(), ranks.end(), has_error);
  if (first == ranks.end()) return std::nullopt;
  const std::string message = first->at("error").at("message");
  const bool all_say_so = std::all_of(ranks.begin(), ranks.end(), [&](const nlohmann::json& rank) {
    return has_error(rank) && rank["error"]["message"] == message;
  });
  if (all_say_so) return message;
  return fmt::format("rank {}: {}", first - ranks.begin(), message);
}

nlohmann::json ComparedArguments(const StepArguments& arguments) {
  return {{"--attention", KindName(arguments.kind)},
          {"--preset", arguments.preset},
          {"--seed", arguments.seed},
          {"--max-context", arguments.config.max_context_tokens},
          {"--start-pos", arguments.start_pos},
          {"--batch", arguments.batch},
          {"--seq", arguments.seq},
          {"--tp", arguments.tp},
          {"--check", arguments.check},
          {"--output-only", arguments.output_only},
          {"--trace", arguments.trace}};
}

std::optional<std::string> ArgumentDifference(const std::vector<nlohmann::json>& ranks) {
  for (size_t i = 1; i < ranks.size(); ++i) {
    for (const auto& item : ranks.front().items()) {
      const nlohmann::json& other = ranks[i].at(item.key());
      if (other == item.value()) continue;
      return fmt::format("{}: {} on rank 0, {} on rank {}; allowed: the same on every rank",
                         item.key(), item.value().dump(), other.dump(), i);
    }
  }
  return std::nullopt;
}

}  // namespace millipede::tools
