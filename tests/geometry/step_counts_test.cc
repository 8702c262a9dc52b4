#include "geometry/step_counts.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace millipede {
namespace {

constexpr auto kSwa = AttentionKind::kSwa;
constexpr auto kHca = AttentionKind::kHca;
constexpr auto kCsa = AttentionKind::kCsa;

// Token by token.
StepCounts Count(AttentionKind kind, int64_t start, int64_t num_tokens) {
  StepCounts counts;
  for (int64_t p = start; p < start + num_tokens; ++p) {
    ++counts.tokens;
    if (kind == kSwa) continue;
    if (IsBoundary(kind, p)) ++counts.events;
    const int64_t rows = (p + 1) / (kind == kHca ? 128 : 4);
    const int64_t piece = kind == kHca ? 128 : 2048;
    const int64_t pieces = (rows + piece - 1) / piece;
    counts.pieces += pieces;
    if (kind == kCsa && pieces > 0) counts.merges += pieces - 1;
    counts.ragged_pages = (rows + 31) / 32;
  }
  return counts;
}

void ExpectEqual(AttentionKind kind, int64_t start, int64_t num_tokens) {
  SCOPED_TRACE(::testing::Message() << KindName(kind) << " " << start << " + " << num_tokens);
  const StepCounts actual = CountStep(kind, start, num_tokens);
  const StepCounts expected = Count(kind, start, num_tokens);
  EXPECT_EQ(actual.tokens, expected.tokens);
  EXPECT_EQ(actual.events, expected.events);
  EXPECT_EQ(actual.pieces, expected.pieces);
  EXPECT_EQ(actual.merges, expected.merges);
  EXPECT_EQ(actual.ragged_pages, expected.ragged_pages);
  EXPECT_EQ(actual.work_items(),
            expected.tokens + expected.events + expected.pieces + expected.merges);
}

TEST(StepCounts, AgreeWithCountingTokenByToken) {
  std::mt19937_64 random(9);
  for (const auto kind : {kSwa, kHca, kCsa}) {
    for (int64_t start = 0; start < 300; ++start) {
      for (const int64_t num_tokens : {0, 1, 2, 8, 130}) ExpectEqual(kind, start, num_tokens);
    }
    for (int i = 0; i < 200; ++i) {
      const auto num_tokens = static_cast<int64_t>(random() % 20'000);
      const auto room = static_cast<uint64_t>(kMaxContextTokens - num_tokens + 1);
      ExpectEqual(kind, static_cast<int64_t>(random() % room), num_tokens);
    }
    ExpectEqual(kind, 0, kMaxContextTokens);
    ExpectEqual(kind, kMaxContextTokens - 1, 1);
  }
}

}  // namespace
}  // namespace millipede
