// The trace of a decode step of several ranks, which the command wrote: a process per rank, and in
// each every task of the rank's own requests.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tools/rank_report.h"
#include "tools/trace_checker.h"

namespace millipede::testing {
namespace {

using ::testing::IsEmpty;
using Json = nlohmann::json;

constexpr int kRanks = 2;
constexpr int kThreads = 2;

Json ReadTrace(const char* variable) {
  const char* const path = std::getenv(variable);
  if (path == nullptr) throw std::runtime_error(variable);
  std::ifstream file(path);
  return Json::parse(file);
}

// A rank's events, with the requests counted among its own.
Json EventsOf(const Json& trace, int rank) {
  Json events = Json::array();
  for (Json event : trace["traceEvents"]) {
    if (event["pid"] != rank + 1) continue;
    Json& args = event["args"];
    if (args.contains("request")) {
      const int64_t request = args["request"];
      EXPECT_EQ(request % kRanks, rank);
      args["request"] = request / kRanks;
    }
    events.push_back(std::move(event));
  }
  return {{"traceEvents", std::move(events)}};
}

int64_t CountOf(const Json& trace, const std::string& category, const std::string& name) {
  return std::count_if(
      trace["traceEvents"].begin(), trace["traceEvents"].end(), [&](const Json& event) {
        return event["ph"] == "X" && event["cat"] == category && event["name"] == name;
      });
}

TEST(TraceRanksTest, EveryRankHasItsTasks) {
  const Json trace = ReadTrace("MILLIPEDE_TRACE");
  EXPECT_THAT(FormatFaults(trace, kThreads, kRanks), IsEmpty());
  tools::StepWords words;
  words.preset = "tiny";
  words.attention = "csa";
  words.start_pos = "126,20000,2051";
  words.seq = "4";
  words.tp = std::to_string(kRanks);
  const tools::StepArguments whole = *tools::ParseStepArguments(words);
  for (int rank = 0; rank < kRanks; ++rank) {
    SCOPED_TRACE(rank);
    const Json own = EventsOf(trace, rank);
    EXPECT_THAT(
        Differences(PlannedTasks(tools::DealTo(whole, rank), whole.kind, {0}), TracedTasks(own)),
        IsEmpty());
    for (const char* region : {"exchange heads", "exchange partials", "output sum"}) {
      EXPECT_EQ(CountOf(own, "region", region), 1) << region;
    }
  }
}

TEST(TraceRanksTest, OutputHalfOfEveryRank) {
  const Json trace = ReadTrace("MILLIPEDE_OUTPUT_TRACE");
  EXPECT_THAT(FormatFaults(trace, kThreads, kRanks), IsEmpty());
  for (int rank = 0; rank < kRanks; ++rank) {
    const Json own = EventsOf(trace, rank);
    EXPECT_EQ(CountOf(own, "call", "run output half of layer 0 (swa)"), 1);
    EXPECT_EQ(CountOf(own, "region", "exchange heads"), 1);
    EXPECT_EQ(CountOf(own, "item", "output sum"), rank == 0 ? 6 : 3);  // of its own tokens
    EXPECT_EQ(CountOf(own, "item", "hc_post"), rank == 0 ? 6 : 3);
  }
}

}  // namespace
}  // namespace millipede::testing
