#include "geometry/events.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

namespace millipede {
namespace {

constexpr auto kSwa = AttentionKind::kSwa;
constexpr auto kHca = AttentionKind::kHca;
constexpr auto kCsa = AttentionKind::kCsa;

TEST(Events, OnePerFinishedBlock) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 500; ++i) {
    const auto start = static_cast<int64_t>(random() % 1'048'000);
    const auto num_tokens = static_cast<int64_t>(random() % 400);
    for (const auto kind : {kHca, kCsa}) {
      const int64_t ratio = kind == kHca ? 128 : 4;
      std::vector<int64_t> rows;
      for (int64_t p = start; p < start + num_tokens; ++p) {
        EXPECT_EQ(IsBoundary(kind, p), (p + 1) % ratio == 0);
        if ((p + 1) % ratio == 0) rows.push_back(p / ratio);
      }
      const RowRange events = EventRows(kind, start, num_tokens);
      ASSERT_EQ(events.end - events.begin, static_cast<int64_t>(rows.size()));
      for (size_t e = 0; e < rows.size(); ++e) {
        const int64_t row = events.begin + static_cast<int64_t>(e);
        EXPECT_EQ(row, rows[e]);
        EXPECT_TRUE(IsBoundary(kind, BoundaryToken(kind, row)));
        EXPECT_EQ(BoundaryToken(kind, row) / ratio, row);
        EXPECT_EQ(RopePosition(kind, row), BoundaryToken(kind, row) - (ratio - 1));
      }
    }
    EXPECT_EQ(EventRows(kSwa, start, num_tokens).end, 0);
  }
  EXPECT_FALSE(IsBoundary(kSwa, 127));
}

TEST(Events, KnownBoundaries) {
  EXPECT_EQ(EventRows(kCsa, 2055, 1).begin, 513);
  EXPECT_EQ(RopePosition(kCsa, 513), 2052);
  EXPECT_EQ(EventRows(kHca, 383, 1).begin, 2);
  EXPECT_EQ(RopePosition(kHca, 2), 256);
  EXPECT_EQ(BoundaryToken(kHca, 8190), 1'048'447);
  EXPECT_EQ(BoundaryToken(kCsa, 262'142), 1'048'571);
}

TEST(Events, HcaPoolsItsBlock) {
  for (const int64_t row : {0, 1, 2, 8191}) {
    const PooledPositions pooled = PooledBy(kHca, row);
    EXPECT_EQ(pooled.front.begin, pooled.front.end);
    EXPECT_EQ(pooled.back.begin, row * 128);
    EXPECT_EQ(pooled.back.end, BoundaryToken(kHca, row) + 1);
  }
}

TEST(Events, CsaPoolsTheBlockBeforeToo) {
  const PooledPositions first = PooledBy(kCsa, 0);
  EXPECT_EQ(first.front.begin, first.front.end);
  EXPECT_EQ(first.back.begin, 0);
  EXPECT_EQ(first.back.end, 4);
  for (const int64_t row : {1, 2, 513, 262'143}) {
    const PooledPositions pooled = PooledBy(kCsa, row);
    EXPECT_EQ(pooled.front.begin, 4 * (row - 1));
    EXPECT_EQ(pooled.front.end, 4 * row);
    EXPECT_EQ(pooled.back.begin, 4 * row);
    EXPECT_EQ(pooled.back.end, 4 * row + 4);
  }
}

}  // namespace
}  // namespace millipede
