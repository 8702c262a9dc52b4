// What the ranks of a job are dealt, and what they say together.
#include "tools/rank_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace millipede::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using tools::RankReport;
using tools::StepArguments;

StepArguments Arguments(const std::string& starts, const std::string& tp) {
  tools::StepWords words;
  words.preset = "tiny";
  words.start_pos = starts;
  words.seq = "3";
  words.threads = "2";
  words.tp = tp;
  return tools::ParseStepArguments(words).value();
}

json ErrorOfRank(const char* code, const char* message) {
  return {{"error", {{"code", code}, {"message", message}}}};
}

TEST(DealTest, RequestRGoesToRankRModN) {
  const StepArguments whole = Arguments("10,11,12,13,14", "4");
  std::vector<std::vector<int64_t>> requests;
  for (int32_t rank = 0; rank < 4; ++rank) {
    const StepArguments own = tools::DealTo(whole, rank);
    EXPECT_EQ(own.batch, static_cast<int64_t>(own.requests.size()));
    EXPECT_EQ(own.num_tokens(), 3 * own.batch);
    for (size_t i = 0; i < own.requests.size(); ++i) {
      EXPECT_EQ(own.start_pos[i], 10 + own.requests[i]);
      EXPECT_EQ(own.request_id(i), own.requests[i]);
    }
    requests.push_back(own.requests);
  }
  EXPECT_EQ(requests, (std::vector<std::vector<int64_t>>{{0, 4}, {1}, {2}, {3}}));
  EXPECT_EQ(tools::DealTo(Arguments("7", "2"), 1).batch, 0);
}

TEST(FirstErrorTest, NamesTheCauseAndItsRank) {
  const json fine = json::object();
  EXPECT_EQ(tools::FirstError({fine, fine}), std::nullopt);
  EXPECT_EQ(tools::FirstError({ErrorOfRank("RankFailed", "rank 1: no memory"),
                               ErrorOfRank("OutOfMemory", "no memory")}),
            "rank 1: no memory");
  EXPECT_EQ(tools::FirstError({fine, fine, ErrorOfRank("OutOfMemory", "none")}), "rank 2: none");
  EXPECT_EQ(tools::FirstError({ErrorOfRank("RanksDisagree", "degree: 2 on rank 0, 4 on rank 1"),
                               ErrorOfRank("RanksDisagree", "degree: 2 on rank 0, 4 on rank 1")}),
            "degree: 2 on rank 0, 4 on rank 1");
  EXPECT_EQ(tools::FirstError({ErrorOfRank("A", "first"), ErrorOfRank("A", "second")}),
            "rank 0: first");
  // None but consequences: better one of them than nothing.
  EXPECT_EQ(tools::FirstError({fine, ErrorOfRank("RankFailed", "rank 0: x")}), "rank 1: rank 0: x");
}

TEST(ArgumentDifferenceTest, NamesTheFirstThatDiffers) {
  const StepArguments arguments = Arguments("10,11", "2");
  const json own = tools::ComparedArguments(arguments);
  EXPECT_EQ(tools::ArgumentDifference({own, own, own}), std::nullopt);
  StepArguments other = arguments;
  other.threads = 1;
  EXPECT_EQ(tools::ArgumentDifference({own, tools::ComparedArguments(other)}), std::nullopt);
  other.start_pos[1] = 12;
  EXPECT_EQ(tools::ArgumentDifference({own, own, tools::ComparedArguments(other)}),
            "--start-pos: [10,11] on rank 0, [10,12] on rank 2; allowed: the same on every rank");
  const auto change = [&](const auto& edit) {
    StepArguments changed = arguments;
    edit(changed);
    return tools::ArgumentDifference({own, tools::ComparedArguments(changed)}).value_or("");
  };
  EXPECT_THAT(change([](auto& a) { a.seed = 2; }), HasSubstr("--seed: 1 on rank 0, 2 on rank 1"));
  EXPECT_THAT(change([](auto& a) { a.kind = AttentionKind::kCsa; }), HasSubstr("--attention"));
  EXPECT_THAT(change([](auto& a) { a.preset = "pro"; }), HasSubstr("--preset"));
  EXPECT_THAT(change([](auto& a) { a.seq = 4; }), HasSubstr("--seq"));
  EXPECT_THAT(change([](auto& a) { a.batch = 3; }), HasSubstr("--batch"));
  EXPECT_THAT(change([](auto& a) { a.tp = 4; }), HasSubstr("--tp"));
  EXPECT_THAT(change([](auto& a) { a.check = true; }), HasSubstr("--check"));
  EXPECT_THAT(change([](auto& a) { a.output_only = true; }), HasSubstr("--output-only"));
  EXPECT_THAT(change([](auto& a) { a.trace = "file"; }), HasSubstr("--trace"));
  EXPECT_THAT(change([](auto& a) { a.config.max_context_tokens = 99; }),
              HasSubstr("--max-context"));
}

// A rank's report with numbers that tell it from others, on its way through JSON.
RankReport Travelled(const StepArguments& whole, int32_t rank, bool holds) {
  RankReport made;
  made.report.arguments = tools::DealTo(whole, rank);
  for (const int64_t r : made.report.arguments.requests) {
    tools::RequestWork work;
    work.tokens = 3;
    work.window_rows = 100 + r;
    made.report.requests.push_back(work);
    made.report.total += work;
  }
  made.report.phases = {{"run", 1.0 + rank}, {"commit", 0.5 - 0.1 * rank}};
  made.report.regions = {{"attention", 1 + rank, 5, 0.25}};
  made.report.weight_bytes = 1000 - rank;
  made.report.peak_memory_bytes = 500 + rank;
  made.bytes_sent = 7 + rank;
  made.report.check.emplace();
  reference::Verdict verdict;
  verdict.ok = holds;
  verdict.worst = holds ? 0.5 : std::numeric_limits<double>::infinity();
  verdict.text = "far off";
  made.report.check->Add("q", "stage", 10, verdict, "request 1 position 2");
  made.report.coverage = "all of it";
  if (!holds) made.counter_differences = {"counters: 1; allowed: the plan's 2"};
  static std::vector<json> kept;  // region names are borrowed
  kept.reserve(100);
  kept.push_back(json::parse(ToJson(made).dump()));
  return tools::RankReportFromJson(kept.back(), whole, rank);
}

TEST(SharedReportTest, JoinsTheRanks) {
  const StepArguments whole = Arguments("10,11,12", "2");
  const tools::SharedReport report(whole, {Travelled(whole, 0, true), Travelled(whole, 1, true)});
  EXPECT_TRUE(report.holds());
  const json joined = report.Json();
  EXPECT_EQ(joined["tp"], 2);
  ASSERT_EQ(joined["requests"].size(), 3U);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(joined["requests"][r]["request"], r);
    EXPECT_EQ(joined["requests"][r]["start_pos"], 10 + r);
    EXPECT_EQ(joined["requests"][r]["window_rows"], 100 + r);
  }
  EXPECT_EQ(joined["total"]["window_rows"], 303);
  EXPECT_EQ(joined["total"]["tokens"], 9);
  EXPECT_EQ(joined["weight_bytes"], 1000);
  EXPECT_EQ(joined["peak_memory_bytes"], 501);
  EXPECT_EQ(joined["phases"][0]["ms"], 2000.0);
  EXPECT_EQ(joined["phases"][1]["ms"], 500.0);
  EXPECT_EQ(joined["check"]["values"], 20);
  EXPECT_EQ(joined["ranks"][0]["request_ids"], (std::vector<int>{0, 2}));
  EXPECT_EQ(joined["ranks"][1]["request_ids"], (std::vector<int>{1}));
  EXPECT_EQ(joined["ranks"][1]["bytes_sent"], 8);
  EXPECT_EQ(joined["ranks"][1]["weight_bytes"], 999);
  EXPECT_EQ(joined["ranks"][0]["tokens"], 6);
  EXPECT_EQ(joined["ranks"][1]["regions"][0]["calls"], 2);
  const std::string text = report.Text();
  EXPECT_THAT(text, HasSubstr("packed weight bytes"));
  EXPECT_THAT(text, HasSubstr("rank 0: all of it; rank 1: all of it"));
  EXPECT_THAT(text, HasSubstr("every rule holds"));
}

TEST(SharedReportTest, AViolationOfOneRankIsOneOfAll) {
  const StepArguments whole = Arguments("10,11,12", "2");
  const tools::SharedReport report(whole, {Travelled(whole, 0, true), Travelled(whole, 1, false)});
  EXPECT_FALSE(report.holds());
  EXPECT_EQ(report.counter_differences(),
            (std::vector<std::string>{"rank 1: counters: 1; allowed: the plan's 2"}));
  const json joined = report.Json();
  EXPECT_EQ(joined["check"]["ok"], false);
  EXPECT_EQ(joined["check"]["rules"][0]["violations"], 1);
  EXPECT_TRUE(joined["check"]["rules"][0]["worst"].is_null() ||
              joined["check"]["rules"][0]["worst"] == std::numeric_limits<double>::infinity());
  EXPECT_THAT(report.Text(), HasSubstr("rank 1: request 1 position 2: far off"));
  EXPECT_THAT(report.Text(), Not(HasSubstr("every rule holds")));
}

}  // namespace
}  // namespace millipede::testing
