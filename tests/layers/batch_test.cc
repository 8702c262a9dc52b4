// A full batch: 64 requests of 8 tokens each, lengths from 1 to a million, every one bit-equal to
// its solo run.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/decode_world.h"

namespace millipede {
namespace {

using testing::DecodeWorld;
using testing::EntryResult;
using testing::SameBits;
using testing::StepEntry;

class BatchTest : public ::testing::TestWithParam<AttentionKind> {};

TEST_P(BatchTest, SixtyFourMixedRequestsEqualTheirSoloRuns) {
  const auto executor = MakeTbbExecutor(2).value();
  Context context(*executor);
  const ModelConfig config = ModelConfig::Tiny();
  DecodeWorld batch(config, GetParam(), 2048);
  std::vector<StepEntry> entries;
  const auto start_of = [](int64_t id) {
    // Evenly on a logarithmic scale, the last one at the ceiling.
    const double last = static_cast<double>(kMaxContextTokens) - 8;
    return static_cast<int64_t>(std::pow(last, static_cast<double>(id) / 63));
  };
  for (int64_t id = 0; id < 64; ++id) {
    batch.Add(id, start_of(id));
    entries.push_back({.id = id, .num_tokens = 8});
  }
  const auto together = batch.Step(context, entries);
  ASSERT_EQ(together.size(), 64U);
  EXPECT_EQ(context.counters().query_tokens, 64 * 8);
  for (int64_t id = 0; id < 64; ++id) {
    SCOPED_TRACE(start_of(id));
    batch.Remove(id);  // solo runs reuse nothing of the batch
    DecodeWorld solo(config, GetParam(), 2048, 3);
    solo.Add(id, start_of(id));
    const EntryResult alone = solo.Step(context, {{.id = id, .num_tokens = 8}}).at(id);
    EXPECT_TRUE(SameBits(alone, together.at(id)));
    for (const float value : alone.x_out) ASSERT_TRUE(std::isfinite(value));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BatchTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         testing::KindTestName);

}  // namespace
}  // namespace millipede
