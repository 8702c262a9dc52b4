#include "geometry/rings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>

#include "geometry/events.h"

namespace millipede {
namespace {

constexpr auto kSwa = AttentionKind::kSwa;
constexpr auto kHca = AttentionKind::kHca;
constexpr auto kCsa = AttentionKind::kCsa;
constexpr PoolKind kRings[] = {PoolKind::kRaw, PoolKind::kHcaState, PoolKind::kCsaState,
                               PoolKind::kCsaInnerState};

TEST(Rings, ConsecutivePositionsFillPagesInOrder) {
  for (const PoolKind kind : kRings) {
    const PoolFormat format = FormatOf(kind);
    int32_t page = 0;
    int32_t slot = 0;
    for (int64_t p = 0; p < 3 * format.ring_rows() + 5; ++p) {
      EXPECT_EQ(RingPage(format, p), page);
      EXPECT_EQ(RingSlot(format, p), slot);
      EXPECT_EQ(RingOffset(format, p), int64_t{page} * format.rows_per_page + slot);
      if (++slot == format.rows_per_page) {
        slot = 0;
        if (++page == format.ring_pages) page = 0;
      }
    }
  }
}

TEST(Rings, RawRolloverAndPageBoundaries) {
  const PoolFormat raw = FormatOf(PoolKind::kRaw);
  EXPECT_EQ(RingOffset(raw, 127), 127);
  EXPECT_EQ(RingOffset(raw, 128), 0);
  EXPECT_EQ(RingOffset(raw, 129), 1);
  EXPECT_EQ(RingPage(raw, 31), 0);
  EXPECT_EQ(RingPage(raw, 32), 1);
  EXPECT_EQ(RingOffset(raw, 1'048'575), 127);
}

TEST(Rings, RawRowsReadAreTheUnionOfAllWindows) {
  for (const int64_t start : {0, 1, 2, 126, 127, 128, 129, 500, 1'048'575}) {
    std::set<int64_t> read;
    for (int64_t p = start; p < start + 200; ++p) {
      for (int64_t q = p - 127 < 0 ? 0 : p - 127; q < start; ++q) read.insert(q);
    }
    const RowRange range = RawRowsRead(start);
    EXPECT_EQ(range.end - range.begin, static_cast<int64_t>(read.size()));
    EXPECT_EQ(range.end, start);
    if (!read.empty()) {
      EXPECT_EQ(range.begin, *read.begin());
    }
  }
}

// The state rows held are those of old positions that an event at or after the start may pool.
TEST(Rings, StateRowsHeldAreWhatLaterEventsPool) {
  for (int64_t start = 0; start < 600; ++start) {
    for (const auto kind : {kHca, kCsa}) {
      int64_t first = start;
      const int64_t next_row = CompressedRows(kind, start);
      for (int64_t row = next_row; row < next_row + 3; ++row) {
        const PooledPositions pooled = PooledBy(kind, row);
        for (const RowRange& part : {pooled.front, pooled.back}) {
          for (int64_t p = part.begin; p < part.end; ++p) first = p < first ? p : first;
        }
      }
      const RowRange held = StateRowsHeld(kind, start);
      EXPECT_EQ(held.begin, first) << start;
      EXPECT_EQ(held.end, start);
      const PoolKind pool = kind == kHca ? PoolKind::kHcaState : PoolKind::kCsaState;
      EXPECT_LE(held.end - held.begin, FormatOf(pool).ring_rows());
    }
  }
  EXPECT_EQ(StateRowsHeld(kSwa, 100).end, 0);
}

TEST(Rings, EarliestStartsAreTheFirstWhoseRowsAreHeld) {
  for (int64_t begin = 0; begin < 400; ++begin) {
    int64_t raw = 0;
    while (RawRowsRead(raw).begin < begin) ++raw;
    EXPECT_EQ(EarliestRawStart(begin), raw) << begin;
    for (const auto kind : {kHca, kCsa}) {
      int64_t state = 0;
      while (StateRowsHeld(kind, state).begin < begin) ++state;
      EXPECT_EQ(EarliestStateStart(kind, begin), state) << begin;
    }
  }
}

// A ring that has just been filled by decoding holds what one token less needs.
TEST(Rings, OneTokenBackIsAlwaysHeld) {
  for (int64_t end = 1; end < 700; ++end) {
    EXPECT_LE(EarliestRawStart(std::max<int64_t>(0, end - 128)), end - 1);
    EXPECT_LE(EarliestStateStart(kHca, std::max<int64_t>(0, end - 128)), end - 1);
    EXPECT_LE(EarliestStateStart(kCsa, std::max<int64_t>(0, end - 8)), end - 1);
  }
}

}  // namespace
}  // namespace millipede
