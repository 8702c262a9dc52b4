// A trace of the mixed CSA step at the real shapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tools/command.h"
#include "tools/command_line.h"
#include "tools/trace_checker.h"

namespace millipede::testing {
namespace {

using ::testing::IsEmpty;

TEST(TraceFlashTest, MixedStepOfTheCompressedKind) {
  constexpr const char* kStarts = "16384,16384,131072,524288";
  const TemporaryFolder folder;
  const std::string path = folder.File("trace.json");
  const CommandResult result =
      RunLine("decode --attention csa --start-pos " + std::string(kStarts) +
              " --seq 8 --threads 2 --json - --trace " + path);
  ASSERT_EQ(result.exit_code, tools::kExitOk) << result.err;
  std::ifstream file(path);
  const nlohmann::json trace = nlohmann::json::parse(file);
  EXPECT_THAT(FormatFaults(trace, 2), IsEmpty());
  tools::StepWords words;
  words.start_pos = kStarts;
  words.seq = "8";
  EXPECT_THAT(Differences(PlannedTasks(*tools::ParseStepArguments(words), AttentionKind::kCsa, {0}),
                          TracedTasks(trace)),
              IsEmpty());
  EXPECT_THAT(RegionFaults(trace, nlohmann::json::parse(result.out)["regions"]), IsEmpty());
}

}  // namespace
}  // namespace millipede::testing
