// --trace at tiny shapes: the files are what viewers read, and hold every task of the plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/command.h"
#include "tools/command_line.h"
#include "tools/trace_checker.h"
#include "tools/trace_file.h"

namespace millipede::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using Json = nlohmann::json;

// Every tail: no compressed rows yet, boundary tokens, two leaves and more, windows not yet full.
constexpr const char* kMixed = "0,126,2051,16384,20000";

struct Traced {
  Json trace;
  Json report;
};

Traced RunTraced(const std::string& line) {
  const TemporaryFolder folder;
  const std::string path = folder.File("trace.json");
  const CommandResult result = RunLine(line + " --json - --trace " + path);
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.err;
  std::ifstream file(path);
  return {Json::parse(file), Json::parse(result.out)};
}

tools::StepArguments ArgumentsOf(const std::string& start_pos, const std::string& seq) {
  tools::StepWords words;
  words.preset = "tiny";
  words.start_pos = start_pos;
  words.seq = seq;
  return *tools::ParseStepArguments(words);
}

// The last values of a counter.
Json LastCounter(const Json& trace, const std::string& name) {
  Json last;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "C" && event["name"] == name) last = event["args"];
  }
  return last;
}

std::string DecodeLine(AttentionKind kind, const std::string& start_pos, int threads) {
  return "decode --preset tiny --attention " + std::string(KindName(kind)) + " --start-pos " +
         start_pos + " --seq 8 --threads " + std::to_string(threads);
}

std::string KindTestName(const ::testing::TestParamInfo<AttentionKind>& kind) {
  return std::string(KindName(kind.param));
}

class TraceKindTest : public ::testing::TestWithParam<AttentionKind> {};

TEST_P(TraceKindTest, HoldsEveryTaskOfThePlan) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    const Traced traced = RunTraced(DecodeLine(GetParam(), kMixed, threads));
    EXPECT_THAT(FormatFaults(traced.trace, threads), IsEmpty());
    const auto planned = PlannedTasks(ArgumentsOf(kMixed, "8"), GetParam(), {0});
    EXPECT_GT(planned.size(), 40U);
    EXPECT_THAT(Differences(planned, TracedTasks(traced.trace)), IsEmpty());
    EXPECT_THAT(RegionFaults(traced.trace, traced.report["regions"]), IsEmpty());
    EXPECT_EQ(traced.trace["otherData"]["dropped_events"], 0);
  }
}

TEST_P(TraceKindTest, CountersEndAtTheReportsCounts) {
  const Traced traced = RunTraced(DecodeLine(GetParam(), kMixed, 2));
  const Json rows = LastCounter(traced.trace, "rows");
  const Json& total = traced.report["total"];
  EXPECT_EQ(rows["window"], total["window_rows"]);
  EXPECT_EQ(rows["compressed"], total["compressed_rows"]);
  EXPECT_EQ(rows["candidates"], total["candidates"]);
  EXPECT_EQ(rows["emitted"], total["events"]);
  EXPECT_EQ(rows["committed"],
            total["raw_rows_written"].get<int64_t>() + total["state_rows_written"].get<int64_t>());
  // Queries of a request share what they read, so all that is sure is a full window.
  const Json bytes = LastCounter(traced.trace, "bytes");
  EXPECT_GE(bytes["caches"], 1024 * (128 + total["raw_rows_written"].get<int64_t>()));
  EXPECT_GT(bytes["weights"], 0);
}

TEST_P(TraceKindTest, ADroppedEventIsSeen) {
  const Traced traced = RunTraced(DecodeLine(GetParam(), kMixed, 2));
  const auto planned = PlannedTasks(ArgumentsOf(kMixed, "8"), GetParam(), {0});
  std::set<std::string> tasks_seen;
  for (size_t i = 0; i < traced.trace["traceEvents"].size(); ++i) {
    const Json& event = traced.trace["traceEvents"][i];
    if (event["ph"] != "X" || !tasks_seen.insert(event["cat"]).second) continue;
    Json less = traced.trace;
    less["traceEvents"].erase(i);
    const bool is_task = event["cat"] != "call" && event["cat"] != "region" &&
                         event["cat"] != "item" && event["cat"] != "scores" &&
                         event["cat"] != "widen";
    if (is_task) {
      EXPECT_THAT(Differences(planned, TracedTasks(less)), Contains(HasSubstr("is missing")))
          << event.dump();
      Json more = traced.trace;
      more["traceEvents"].push_back(event);
      EXPECT_THAT(Differences(planned, TracedTasks(more)), Contains(HasSubstr("is not planned")));
    } else if (event["cat"] == "region" || event["cat"] == "item") {
      EXPECT_THAT(RegionFaults(less, traced.report["regions"]), Not(IsEmpty())) << event.dump();
    }
  }
  EXPECT_THAT(tasks_seen, Contains("window"));
  EXPECT_GE(tasks_seen.size(), 5U);
}

INSTANTIATE_TEST_SUITE_P(Kinds, TraceKindTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         KindTestName);

TEST(TraceTest, MixedStepOfTheCompressedKind) {
  constexpr const char* kStarts = "16384,16384,131072,524288";
  const Traced traced = RunTraced(DecodeLine(AttentionKind::kCsa, kStarts, 2));
  EXPECT_THAT(FormatFaults(traced.trace, 2), IsEmpty());
  EXPECT_THAT(Differences(PlannedTasks(ArgumentsOf(kStarts, "8"), AttentionKind::kCsa, {0}),
                          TracedTasks(traced.trace)),
              IsEmpty());
  std::set<std::string> names;
  for (const Json& event : traced.trace["traceEvents"]) names.insert(event["name"]);
  for (const char* name :
       {"run layer 0 (csa)", "commit layer 0 (csa)", "hc_pre mix", "q heads", "event/compress",
        "event/compress index", "csa scores 63", "csa leaf 63", "csa merge", "window", "csa tile 0",
        "output product", "hc_post", "commit rows"}) {
    EXPECT_THAT(names, Contains(name));
  }
}

TEST(TraceTest, OutputHalf) {
  for (const int threads : {1, 2}) {
    const Traced traced =
        RunTraced("decode --preset tiny --output-only --batch 5 --seq 3 --threads " +
                  std::to_string(threads));
    EXPECT_THAT(FormatFaults(traced.trace, threads), IsEmpty());
    EXPECT_EQ(traced.report["regions"].size(), 4U);
    EXPECT_THAT(RegionFaults(traced.trace, traced.report["regions"]), IsEmpty());
    EXPECT_THAT(TracedTasks(traced.trace), IsEmpty());
    int64_t rows = 0;
    for (const Json& event : traced.trace["traceEvents"]) {
      if (event["ph"] != "X") continue;
      EXPECT_EQ(event["args"]["layer"], 0);
      if (event["cat"] == "item" && event["name"] == "hc_post") {
        rows += event["args"]["rows"].get<int64_t>();
      }
    }
    EXPECT_EQ(rows, 15);
  }
}

TEST(TraceTest, StackNamesTheModelsLayers) {
  const tools::StepArguments arguments = ArgumentsOf("300,2060", "3");
  for (const int threads : {1, 2}) {
    const Traced traced = RunTraced("stack --preset tiny --start-pos 300,2060 --seq 3 --threads " +
                                    std::to_string(threads));
    EXPECT_THAT(FormatFaults(traced.trace, threads), IsEmpty());
    std::multiset<std::string> planned;
    Json regions = Json::array();
    for (const AttentionKind kind :
         {AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa}) {
      std::vector<int64_t> layers;
      for (size_t layer = 0; layer < arguments.config.layer_ratios.size(); ++layer) {
        if (*KindOfRatio(arguments.config.layer_ratios[layer]) == kind) {
          layers.push_back(static_cast<int64_t>(layer));
        }
      }
      ASSERT_THAT(layers, Not(IsEmpty()));
      planned.merge(PlannedTasks(arguments, kind, layers));
    }
    EXPECT_THAT(Differences(planned, TracedTasks(traced.trace)), IsEmpty());
    std::vector<std::string> calls;
    for (const Json& event : traced.trace["traceEvents"]) {
      if (event["ph"] == "X" && event["cat"] == "call") calls.push_back(event["name"]);
    }
    EXPECT_THAT(calls, ::testing::ElementsAre("run layer 0 (swa)", "run layer 1 (hca)",
                                              "run layer 2 (csa)", "commit layer 0 (swa)",
                                              "commit layer 1 (hca)", "commit layer 2 (csa)"));
  }
}

TEST(TraceTest, BitsAreThoseOfARunWithoutTrace) {
  const std::string line = "stack --preset tiny --start-pos 300,2060 --seq 3 --threads 2";
  EXPECT_EQ(RunTraced(line).report["checksum"],
            Json::parse(RunLine(line + " --json -").out)["checksum"]);
}

TEST(TraceTest, FormatFaultsAreSeen) {
  const Json good = RunTraced(DecodeLine(AttentionKind::kCsa, "300,20000", 2)).trace;
  ASSERT_THAT(FormatFaults(good, 2), IsEmpty());
  const auto first = [&](const char* phase, const char* name) {
    for (size_t i = 0; i < good["traceEvents"].size(); ++i) {
      const Json& event = good["traceEvents"][i];
      if (event["ph"] == phase && (*name == '\0' || event["name"] == name)) return i;
    }
    throw std::runtime_error(name);
  };
  const auto faults_with = [&](size_t i, const char* key, const Json& value) {
    Json bad = good;
    if (value.is_null()) {
      bad["traceEvents"][i].erase(key);
    } else {
      bad["traceEvents"][i][key] = value;
    }
    return FormatFaults(bad, 2);
  };
  const size_t span = first("X", "csa leaf 0");
  for (const char* key : {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}) {
    EXPECT_THAT(faults_with(span, key, nullptr), Not(IsEmpty())) << key;
  }
  EXPECT_THAT(faults_with(span, "ts", "1.5"), Not(IsEmpty()));
  EXPECT_THAT(faults_with(span, "ts", 0), Contains(HasSubstr("begins before")));
  EXPECT_THAT(faults_with(span, "dur", 1e9), Contains(HasSubstr("overlaps")));
  EXPECT_THAT(faults_with(span, "tid", 7), Contains(HasSubstr("no such lane")));
  EXPECT_THAT(faults_with(span, "tid", 0), Not(IsEmpty()));
  EXPECT_THAT(faults_with(span, "ph", "B"), Not(IsEmpty()));
  EXPECT_THAT(faults_with(first("M", "thread_name"), "args", Json::object()), Not(IsEmpty()));
  EXPECT_THAT(faults_with(first("M", "thread_name"), "name", "lane"), Not(IsEmpty()));
  const size_t counter = good["traceEvents"].size() - 1;
  EXPECT_THAT(faults_with(counter, "ts", 0), Contains(HasSubstr("goes back")));
  EXPECT_THAT(faults_with(counter, "args", {{"caches", 0}}), Contains(HasSubstr("falls")));
  EXPECT_THAT(FormatFaults(good, 3), Contains(HasSubstr("has no name")));
  EXPECT_THAT(FormatFaults(Json::array(), 2), Not(IsEmpty()));
}

TEST(TraceTest, ProcessesOfSeveralRanks) {
  const TemporaryFolder folder;
  const std::string path = folder.File("trace.json");
  const auto executor = MakeSerialExecutor();
  std::vector<std::string> events;
  auto first = tools::TraceOutput::Open(path, 1).value();
  auto second = tools::TraceOutput::Open(path, 1, /*rank=*/1).value();
  int rank = 0;
  for (tools::TraceOutput* output : {&first, &second}) {
    Context context(*executor);
    ASSERT_TRUE(context.StartTrace(*output->trace()));
    { const TraceCall call(context, "run", AttentionKind::kHca, 3); }
    std::ostringstream text;
    tools::WriteTraceEvents(*output->trace(),
                            {.name = "rank " + std::to_string(rank),
                             .rank = rank,
                             .origin_ns = tools::TraceOrigin(*first.trace())},
                            text);
    events.push_back(text.str());
    ++rank;
  }
  EXPECT_TRUE(first.Write({events[0], events[1]}, 0));
  std::ifstream file(path);
  const Json trace = Json::parse(file);
  EXPECT_THAT(FormatFaults(trace, 1, 2), IsEmpty());
  EXPECT_THAT(FormatFaults(trace, 1, 3), Not(IsEmpty()));
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    EXPECT_EQ(event["name"], "run layer 3 (hca)");
  }
  const Status dropped = first.Write({events[0]}, 7);
  ASSERT_FALSE(dropped);
  EXPECT_THAT(dropped.error().message, HasSubstr("7 events more than are kept"));
}

TEST(TraceTest, APathThatCannotBeWrittenIsRefused) {
  for (const char* command : {"decode", "stack"}) {
    for (const char* path : {"/nowhere/at/all.json", "-", ""}) {
      const CommandResult result =
          RunWords({command, "--preset", "tiny", "--start-pos", "5", "--trace", path});
      EXPECT_EQ(result.exit_code, tools::kExitUsage);
      EXPECT_THAT(result.err, HasSubstr("--trace: "));
      EXPECT_THAT(result.out, IsEmpty());
    }
  }
}

// What stood in a file stays there unless the step has run, and nothing new appears.
TEST(TraceTest, ARefusedCommandLeavesFilesAsTheyWere) {
  const TemporaryFolder folder;
  const std::string kept = folder.File("kept");
  std::ofstream(kept) << "keep";
  const auto run = [&](const std::string& json, const std::string& trace) {
    return RunWords(
        {"decode", "--preset", "tiny", "--start-pos", "5", "--json", json, "--trace", trace});
  };
  EXPECT_EQ(run(kept, folder.path()).exit_code, tools::kExitUsage);
  EXPECT_EQ(run(folder.File("new"), folder.path()).exit_code, tools::kExitUsage);
  const CommandResult same = run(kept, folder.path() + "/./kept");
  EXPECT_EQ(same.exit_code, tools::kExitUsage);
  EXPECT_THAT(same.err, HasSubstr("allowed: another file than --json's"));
  std::ifstream file(kept);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "keep");
  EXPECT_FALSE(std::filesystem::exists(folder.File("new")));
}

}  // namespace
}  // namespace millipede::testing
