// stack at the real shapes: all 43 layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tools/command.h"
#include "tools/command_line.h"

namespace millipede::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(StackFlashTest, EveryLayerHolds) {
  const CommandResult result = RunLine("stack --start-pos 4100 --seq 8 --check");
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.out << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(result.out, HasSubstr("stack of 43 layers (2 swa, 21 csa, 20 hca)"));
  EXPECT_THAT(result.out, HasSubstr("check of 43 layers, all 8 tokens in full"));
  EXPECT_THAT(result.out, HasSubstr("end to end, all sets together"));
}

TEST(StackFlashTest, AMillionTokensOnOneAndTwoThreads) {
  const auto run = [](const std::string& threads) {
    const CommandResult result =
        RunLine("stack --start-pos 1048568 --seq 1 --weight-sets 1 --json - --threads " + threads);
    EXPECT_EQ(result.exit_code, tools::kExitOk) << result.err;
    return nlohmann::json::parse(result.out);
  };
  const nlohmann::json one = run("1");
  EXPECT_EQ(one["num_layers"], 43);
  EXPECT_EQ(one["checksum"], run("2")["checksum"]);
  EXPECT_LT(one["peak_memory_bytes"], int64_t{24} << 30);
  // Main rows and index keys of 21 CSA layers, main rows of 20 HCA layers, and rings.
  EXPECT_GT(one["requests"][0]["cache_bytes"], int64_t{21} * 262'142 * (1024 + 128 + 4));
  EXPECT_LT(one["requests"][0]["cache_bytes"], int64_t{7} << 30);
}

}  // namespace
}  // namespace millipede::testing
