// Short random histories of every kind, and that faults put in on purpose are found and cut down.
#include "life/random_life.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace millipede::testing {
namespace {

class RandomLife : public ::testing::TestWithParam<uint64_t> {};

TEST_P(RandomLife, EqualsTheModel) {
  const LifeReport report = RunHistory(GetParam(), 16, {});
  EXPECT_FALSE(report.failure) << report.failure->Text();
  EXPECT_EQ(report.num_steps, 16);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomLife, ::testing::Range<uint64_t>(1, 11));

TEST(RandomLifeFaults, AChangedByteIsFoundAndTheScriptIsShort) {
  for (const uint64_t seed : {4, 6}) {
    const LifeReport report = RunHistory(seed, 60, {}, Plant::kByte);
    ASSERT_TRUE(report.failure);
    // A request with a token and the byte would do; no call of what is left can be dropped.
    EXPECT_LE(report.failure->script.size(), 8U) << report.failure->Text();
    EXPECT_TRUE(std::ranges::any_of(report.failure->script, [](const Op& op) {
      return op.kind == OpKind::kFlipByte;
    })) << report.failure->Text();
  }
}

TEST(RandomLifeFaults, ACopyLeftOutIsFoundAndTheScriptIsShort) {
  const LifeReport report = RunHistory(6, 200, {}, Plant::kCopy);
  ASSERT_TRUE(report.failure);
  EXPECT_LE(report.failure->script.size(), 8U) << report.failure->Text();
}

}  // namespace
}  // namespace millipede::testing
