// decode and plan at tiny shapes: what they print, and that it is true.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/command.h"
#include "tools/command_line.h"
#include "tools/report.h"

namespace millipede::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

std::set<std::string> KeysOf(const nlohmann::json& object) {
  std::set<std::string> keys;
  for (const auto& item : object.items()) keys.insert(item.key());
  return keys;
}

nlohmann::json JsonOf(const std::string& line) {
  const CommandResult result = RunLine(line + " --json -");
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.err << result.out;
  EXPECT_THAT(result.err, IsEmpty());
  return nlohmann::json::parse(result.out);  // nothing but JSON
}

TEST(DecodeTest, ReportsEveryRequestAndPhase) {
  const CommandResult result = RunLine("decode --preset tiny --start-pos 0,300 --seq 3");
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.err;
  for (const char* part : {"request", "start", "tokens", "window rows", "pages touched", "weights",
                           "plan", "attention", "commit", "workspace", "overlay", "peak memory"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  EXPECT_THAT(result.out, Not(HasSubstr("check")));
}

TEST(DecodeTest, JsonHasTheDocumentedKeys) {
  const nlohmann::json json = JsonOf("decode --preset tiny --start-pos 0,300 --seq 3 --check");
  std::set<std::string> work;
  for (const tools::WorkCount& item : tools::WorkCounts()) work.insert(item.name);
  EXPECT_EQ(KeysOf(json),
            (std::set<std::string>{"command", "attention", "preset", "seed", "threads",
                                   "max_context", "batch", "seq", "output_only", "requests",
                                   "total", "phases", "regions", "workspace_bytes", "overlay_bytes",
                                   "weight_bytes", "peak_memory_bytes", "check"}));
  EXPECT_EQ(KeysOf(json["total"]), work);
  ASSERT_EQ(json["requests"].size(), 2U);
  for (const auto& request : json["requests"]) {
    std::set<std::string> keys = work;
    keys.insert({"request", "start_pos"});
    EXPECT_EQ(KeysOf(request), keys);
  }
  EXPECT_EQ(json["attention"], "swa");
  EXPECT_EQ(json["max_context"], 1048576);
  EXPECT_EQ(KeysOf(json["check"]), (std::set<std::string>{"ok", "coverage", "values", "rules"}));
  EXPECT_EQ(json["check"]["ok"], true);
  ASSERT_FALSE(json["check"]["rules"].empty());
  for (const auto& rule : json["check"]["rules"]) {
    EXPECT_EQ(KeysOf(rule), (std::set<std::string>{"tensor", "rule", "judged", "values", "out",
                                                   "worst", "ok", "violations", "details"}));
  }
  for (const auto& region : json["regions"]) {
    EXPECT_EQ(KeysOf(region), (std::set<std::string>{"name", "calls", "items", "ms"}));
  }
}

TEST(DecodeTest, CountsWhatEachRequestCanSee) {
  const nlohmann::json json = JsonOf("decode --preset tiny --start-pos 0,31,126,1048568 --seq 8");
  const auto request = [&](size_t r, const char* key) { return json["requests"][r][key]; };
  EXPECT_EQ(request(0, "window_rows"), 1 + 2 + 3 + 4 + 5 + 6 + 7 + 8);
  EXPECT_EQ(request(0, "raw_pages_touched"), 1);
  EXPECT_EQ(request(1, "window_rows"), 32 + 33 + 34 + 35 + 36 + 37 + 38 + 39);
  EXPECT_EQ(request(1, "raw_pages_touched"), 2);
  EXPECT_EQ(request(2, "window_rows"), 127 + 7 * 128);
  EXPECT_EQ(request(2, "raw_pages_touched"), 4);
  EXPECT_EQ(request(3, "window_rows"), 8 * 128);
  EXPECT_EQ(request(3, "raw_pages_touched"), 4);
  EXPECT_EQ(json["total"]["tokens"], 32);
  EXPECT_EQ(json["total"]["raw_rows_written"], 32);
}

TEST(DecodeTest, CountsCompressedWorkOfHca) {
  const nlohmann::json json =
      JsonOf("decode --preset tiny --attention hca --start-pos 100,127,16380 --seq 8");
  const auto request = [&](size_t r, const char* key) { return json["requests"][r][key]; };
  EXPECT_EQ(request(0, "events"), 0);
  EXPECT_EQ(request(0, "shards"), 0);
  EXPECT_EQ(request(0, "compressed_rows"), 0);
  EXPECT_EQ(request(0, "state_rows_written"), 8);
  EXPECT_EQ(request(1, "events"), 1);
  EXPECT_EQ(request(1, "shards"), 8);
  EXPECT_EQ(request(1, "compressed_rows"), 8);
  EXPECT_EQ(request(2, "events"), 1);
  EXPECT_EQ(request(2, "shards"), 8);
  EXPECT_EQ(request(2, "compressed_rows"), 3 * 127 + 5 * 128);
  for (const char* none : {"candidates", "leaves", "merges"}) EXPECT_EQ(json["total"][none], 0);
}

TEST(DecodeTest, CountsCompressedWorkOfCsa) {
  const nlohmann::json json =
      JsonOf("decode --preset tiny --attention csa --start-pos 0,8190,12000 --seq 8");
  const auto request = [&](size_t r, const char* key) { return json["requests"][r][key]; };
  EXPECT_EQ(request(0, "events"), 2);
  EXPECT_EQ(request(0, "leaves"), 5);
  EXPECT_EQ(request(0, "candidates"), 4 * 1 + 2);
  EXPECT_EQ(request(0, "compressed_rows"), 4 * 1 + 2);
  EXPECT_EQ(request(0, "merges"), 0);
  EXPECT_EQ(request(0, "state_rows_written"), 16);
  // 2,047 candidates, then 2,048, then 2,049: a second leaf.
  EXPECT_EQ(request(1, "candidates"), 2047 + 4 * 2048 + 3 * 2049);
  EXPECT_EQ(request(1, "leaves"), 5 + 3 * 2);
  EXPECT_EQ(request(1, "merges"), 3);
  EXPECT_EQ(request(1, "compressed_rows"), 8 * 512);
  EXPECT_EQ(request(2, "leaves"), 8 * 2);
  EXPECT_EQ(json["total"]["shards"], 0);
}

struct Step {
  const char* name;
  const char* line;
};
class CheckedStepTest : public ::testing::TestWithParam<Step> {};

TEST_P(CheckedStepTest, HoldsEveryRule) {
  const CommandResult result =
      RunLine(std::string("decode --preset tiny --check ") + GetParam().line);
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.err << result.out;
  EXPECT_THAT(result.out, HasSubstr("every rule holds"));
  EXPECT_THAT(result.out, Not(HasSubstr("VIOLATED")));
}

INSTANTIATE_TEST_SUITE_P(
    Command, CheckedStepTest,
    ::testing::Values(Step{"FirstToken", "--start-pos 0"}, Step{"LastToken", "--start-pos 1048575"},
                      Step{"LastTokenOfALowCeiling", "--start-pos 63 --max-context 64"},
                      Step{"Ragged", "--start-pos 0,1,31,32,127,128,4000 --seq 5 --seed 9"},
                      Step{"WiderThanTheRing", "--start-pos 100 --seq 300"},
                      Step{"WideFromNothing", "--start-pos 0,0 --seq 129 --threads 3"},
                      Step{"ManyOfOneLength", "--start-pos 77 --batch 33 --threads 1"},
                      Step{"LargestSeed", "--start-pos 5 --seed 18446744073709551615"},
                      Step{"HcaFirstToken", "--attention hca --start-pos 0"},
                      Step{"HcaLastTokens", "--attention hca --start-pos 1048568 --seq 8"},
                      Step{"HcaRagged", "--attention hca --start-pos 0,120,127,128,4090 --seq 9"},
                      Step{"HcaThreeEvents", "--attention hca --start-pos 100,383 --seq 300"},
                      Step{"HcaLowCeiling", "--attention hca --start-pos 127 --max-context 128"},
                      Step{"CsaFirstToken", "--attention csa --start-pos 0"},
                      Step{"CsaRagged", "--attention csa --start-pos 0,1,2,3,2044,8190 --seq 9"},
                      Step{"CsaWide", "--attention csa --start-pos 2,2049 --seq 130"},
                      Step{"CsaLongOneThread",
                           "--attention csa --start-pos 40000,7 --seq 4 --threads 1"},
                      Step{"OutputHalf", "--output-only"},
                      Step{"OutputHalfOfCsa", "--output-only --attention csa --seq 3"},
                      Step{"OutputHalfWide", "--output-only --batch 3 --seq 67"}),
    [](const ::testing::TestParamInfo<Step>& step) { return std::string(step.param.name); });

TEST(DecodeTest, OutputOnlyReportsItsHalf) {
  const nlohmann::json json = JsonOf("decode --preset tiny --output-only --batch 2 --seq 3");
  EXPECT_FALSE(json.contains("requests"));
  EXPECT_FALSE(json.contains("total"));
  EXPECT_EQ(json["output_only"], true);
  std::set<std::string> regions;
  for (const auto& region : json["regions"]) regions.insert(region["name"]);
  EXPECT_EQ(regions.count("attention"), 0U);
  EXPECT_EQ(regions.count("hc_post"), 1U);
}

TEST(DecodeTest, WritesJsonToAFile) {
  const TemporaryFolder folder;
  const CommandResult result = RunWords(
      {"decode", "--preset", "tiny", "--start-pos", "3", "--json", folder.File("report.json")});
  EXPECT_EQ(result.exit_code, tools::kExitOk);
  EXPECT_THAT(result.out, HasSubstr("request"));
  std::ifstream file(folder.File("report.json"));
  EXPECT_EQ(nlohmann::json::parse(file)["command"], "decode");
}

TEST(PlanTest, JsonHasTheDocumentedKeys) {
  const nlohmann::json json = JsonOf("plan --start-pos 16384,5 --seq 8");
  EXPECT_THAT(KeysOf(json),
              IsSupersetOf({"window_rows", "shards_per_query", "leaves_per_query", "merges",
                            "workspace_bytes", "overlay_bytes", "fingerprint", "requests"}));
  EXPECT_EQ(json["shards_per_query"], 0);
  EXPECT_EQ(json["merges"], 0);
}

TEST(PlanTest, ContextCostsNothing) {
  const nlohmann::json near = JsonOf("plan --start-pos 1000 --seq 8");
  const nlohmann::json far = JsonOf("plan --start-pos 1048568 --seq 8");
  EXPECT_EQ(near["workspace_bytes"], far["workspace_bytes"]);
  EXPECT_EQ(near["overlay_bytes"], far["overlay_bytes"]);
  EXPECT_EQ(near["raw_pages"], 4);
  EXPECT_EQ(far["raw_pages"], 4);
}

TEST(PlanTest, AgreesWithTheRun) {
  for (const char* kind : {"swa", "hca", "csa"}) {
    const std::string step = std::string(" --preset tiny --start-pos 0,31,4000 --seq 9 ") +
                             "--threads 2 --attention " + kind;
    const nlohmann::json plan = JsonOf("plan" + step);
    const nlohmann::json run = JsonOf("decode" + step);
    EXPECT_EQ(plan["window_rows"], run["total"]["window_rows"]);
    EXPECT_EQ(plan["raw_pages"], run["total"]["raw_pages_touched"]);
    EXPECT_EQ(plan["events"], run["total"]["events"]);
    EXPECT_EQ(plan["merges"], run["total"]["merges"]);
    EXPECT_EQ(plan["workspace_bytes"], run["workspace_bytes"]);
    EXPECT_EQ(plan["overlay_bytes"], run["overlay_bytes"]);
  }
}

TEST(PlanTest, ShardsAndLeavesFollowTheLength) {
  const auto pieces = [](const char* kind, const char* key, int64_t start) {
    return JsonOf(fmt::format("plan --attention {} --start-pos {}", kind, start))[key];
  };
  EXPECT_EQ(pieces("hca", "shards_per_query", 126), 0);
  EXPECT_EQ(pieces("hca", "shards_per_query", 127), 1);
  EXPECT_EQ(pieces("hca", "shards_per_query", 16383), 1);
  EXPECT_EQ(pieces("hca", "shards_per_query", 1048575), 64);
  EXPECT_EQ(pieces("hca", "leaves_per_query", 1048575), 0);
  EXPECT_EQ(pieces("csa", "leaves_per_query", 2), 0);
  EXPECT_EQ(pieces("csa", "leaves_per_query", 127), 1);
  EXPECT_EQ(pieces("csa", "leaves_per_query", 16383), 2);
  EXPECT_EQ(pieces("csa", "leaves_per_query", 1048575), 128);
  EXPECT_EQ(pieces("csa", "merges", 1048575), 127);
}

TEST(PlanTest, TextIsOneLinePerRequestAndMore) {
  const CommandResult result = RunLine("plan --start-pos 1000,7");
  EXPECT_EQ(result.exit_code, tools::kExitOk);
  EXPECT_THAT(result.out, HasSubstr("request 0"));
  EXPECT_THAT(result.out, HasSubstr("request 1"));
  EXPECT_THAT(result.out, HasSubstr("workspace"));
}

TEST(CounterTest, EveryDifferenceIsReported) {
  tools::RequestWork planned;
  planned.tokens = 8;
  EXPECT_FALSE(tools::WorkDifference(0, planned, planned));
  for (const tools::WorkCount& item : tools::WorkCounts()) {
    tools::RequestWork counted = planned;
    counted.*item.count += 1;
    const auto difference = tools::WorkDifference(2, planned, counted);
    ASSERT_TRUE(difference);
    EXPECT_THAT(*difference, HasSubstr("request 2"));
    EXPECT_THAT(*difference, HasSubstr(item.name));
  }
}

}  // namespace
}  // namespace millipede::testing
