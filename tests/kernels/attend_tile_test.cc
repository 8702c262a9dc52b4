// AttendTile on every target against plain double.
#include "kernels/attend_tile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/attend_cases.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

TEST(AttendTile, MatchesDouble) {
  const auto rows = RandomBf16(128, 1);
  auto q = RandomBf16(16, 2);
  for (size_t i = 0; i < kDim; ++i) {  // sharp softmax for some heads
    for (const size_t head : {5, 11}) {
      q[head * kDim + i] = FloatToBf16(8.0F * Bf16ToFloat(q[head * kDim + i]));
    }
  }
  for (const int64_t num_rows : kRowCounts) {
    std::vector<ExpectedPartial> expected;
    for (size_t head = 0; head < kBlock; ++head) {
      expected.push_back(ExpectTile(&q[head * kDim], rows.data(), static_cast<size_t>(num_rows)));
    }
    ForEachTarget(AttendTarget, [&] {
      const Floats kv = Widened(rows, 135, 0);
      const Partial actual = RunTile(TransposedQ(q, 16), kv, 0, num_rows);
      for (size_t head = 0; head < kBlock; ++head) {
        EXPECT_EQ(Compare(actual.view, head, expected[head]), "") << num_rows << " rows";
      }
    });
  }
}

// The score of a single row is its maximum: the bits show the order of the sum.
TEST(AttendTile, DotsSumInAscendingOrder) {
  const auto rows = RandomBf16(128, 3);
  const auto q = RandomBf16(16, 4);
  ForEachTarget(AttendTarget, [&] {
    const std::string target = AttendTarget();
    const bool fused = target != "SSE4" && target != "SSSE3";
    const Floats kv = Widened(rows, 128, 0);
    const Floats q_t = TransposedQ(q, 16);
    for (int64_t row = 0; row < 128; row += 9) {
      const Partial actual = RunTile(q_t, kv, row, 1);
      for (size_t head = 0; head < kBlock; ++head) {
        float dot = 0;
        for (size_t i = 0; i < kDim; ++i) {
          const float a = Bf16ToFloat(q[head * kDim + i]);
          const float b = Bf16ToFloat(rows[static_cast<size_t>(row) * kDim + i]);
          dot = fused ? std::fma(a, b, dot) : dot + a * b;
        }
        ASSERT_EQ(actual.view.max[head], dot * 0.044194173824159216F);
        ASSERT_EQ(actual.view.sum[head], 1.0F);
      }
    }
  });
}

// A zero query gives every row probability 1: the bits show the order over rows.
TEST(AttendTile, RowsSumInAscendingOrder) {
  const auto rows = RandomBf16(128, 5, 100.0F);
  ForEachTarget(AttendTarget, [&] {
    const Floats kv = Widened(rows, 129, 0);
    const Floats q_t = TransposedQ(std::vector<Bf16>(kDim * kBlock), 16);
    for (const int64_t num_rows : kRowCounts) {
      const Partial actual = RunTile(q_t, kv, 0, num_rows);
      for (size_t i = 0; i < kDim; ++i) {
        float sum = 0;
        for (size_t r = 0; r < static_cast<size_t>(num_rows); ++r) {
          sum += Bf16ToFloat(rows[r * kDim + i]);
        }
        ASSERT_EQ(actual.view.out_t[i * kBlock + 2], sum) << "dim " << i;
      }
      EXPECT_EQ(actual.view.sum[2], static_cast<float>(num_rows));
      EXPECT_EQ(actual.view.max[2], 0.0F);
    }
  });
}

// Eight tokens attend to sub-ranges of one union of rows; nothing outside the range counts.
TEST(AttendTile, ReadsOnlyItsRangeOfRows) {
  const auto rows = RandomBf16(135, 6);
  const auto q = RandomBf16(16, 7);
  ForEachTarget(AttendTarget, [&] {
    const Floats q_t = TransposedQ(q, 16);
    const Floats all = Widened(rows, 135, 0);
    for (const int64_t num_rows : kRowCounts) {
      for (const int64_t first : {0, 1, 5, 7}) {
        const auto begin = rows.begin() + first * kHeadDim;
        const std::vector<Bf16> range(begin, begin + num_rows * kHeadDim);
        // Only the range is not NaN here, and the panels have another size.
        const Floats alone = Widened(range, 151, 13);
        const Partial a = RunTile(q_t, all, first, num_rows);
        const Partial b = RunTile(q_t, alone, 13, num_rows);
        for (size_t head = 0; head < kBlock; ++head) {
          ASSERT_TRUE(SameLane(a.view, head, b.view, head));
          ASSERT_TRUE(std::isfinite(a.view.sum[head]));
        }
      }
    }
  });
}

TEST(AttendTile, RowsThatAreNextLeaveNoTrace) {
  const auto rows = RandomBf16(135, 10);
  const auto q = RandomBf16(16, 11);
  const std::vector<Bf16> nan_row(kDim, Bf16{0x7FC0});
  const std::vector<const Bf16*> next(128, nan_row.data());
  ForEachTarget(AttendTarget, [&] {
    const Floats kv = Widened(rows, 135, 0);
    const Floats q_t = TransposedQ(q, 16);
    for (const int64_t num_rows : {0, 1, 17, 128}) {
      const Partial alone = RunTile(q_t, kv, 0, num_rows);
      for (const int64_t num_next : {1, 5, 128}) {
        const Partial partial;
        RunTileInto(partial, false, q_t, kv, 0, num_rows,
                    {.rows = next.data(), .num_rows = num_next});
        for (size_t head = 0; head < kBlock; ++head) {
          ASSERT_TRUE(SameLane(partial.view, head, alone.view, head));
        }
      }
    }
  });
}

TEST(AttendTile, HeadBitsDependOnNeitherLaneNorOtherHeads) {
  const auto rows = RandomBf16(128, 8);
  const auto q = RandomBf16(16, 9);
  ForEachTarget(AttendTarget, [&] {
    for (const int64_t num_rows : {1, 6, 33, 127, 128}) {
      const Floats kv = Widened(rows, 128, 0);
      const Partial base = RunTile(TransposedQ(q, 16), kv, 0, num_rows);
      for (const int64_t num_heads : kHeadCounts) {
        const Partial fewer = RunTile(TransposedQ(q, num_heads), kv, 0, num_rows);
        for (size_t head = 0; head < static_cast<size_t>(num_heads); ++head) {
          ASSERT_TRUE(SameLane(fewer.view, head, base.view, head)) << num_heads << " heads";
        }
      }
      // Each head alone in each lane, the other lanes full of NaN and infinity.
      const Floats full = TransposedQ(q, 16);
      for (size_t lane = 0; lane < kBlock; ++lane) {
        const size_t head = (lane * 5 + 3) % kBlock;
        Floats q_t(kDim * kBlock);
        for (size_t i = 0; i < q_t.size(); ++i) q_t[i] = i % 3 == 0 ? kInfinity : kNan;
        for (size_t i = 0; i < kDim; ++i) q_t[i * kBlock + lane] = full[i * kBlock + head];
        const Partial alone = RunTile(q_t, kv, 0, num_rows);
        ASSERT_TRUE(SameLane(alone.view, lane, base.view, head)) << "lane " << lane;
      }
    }
  });
}

TEST(AttendTile, NoRowsOrOnlyMinusInfinityLeaveNothing) {
  auto rows = RandomBf16(3, 10);
  for (size_t r = 0; r < 3; ++r) rows[r * kDim] = FloatToBf16(1e38F);
  std::vector<Bf16> q(kDim * kBlock);
  for (size_t head = 0; head < kBlock; ++head) q[head * kDim] = FloatToBf16(-1e38F);
  ForEachTarget(AttendTarget, [&] {
    const Floats kv = Widened(rows, 3, 0);
    for (const int64_t num_rows : {0, 3}) {
      const Partial actual = RunTile(TransposedQ(q, 16), kv, 0, num_rows);
      for (size_t head = 0; head < kBlock; ++head) {
        EXPECT_EQ(actual.view.max[head], -kInfinity);
        EXPECT_EQ(actual.view.sum[head], 0.0F);
        for (size_t i = 0; i < kDim; ++i) ASSERT_EQ(actual.view.out_t[i * kBlock + head], 0.0F);
      }
    }
  });
}

TEST(AttendTile, NanStaysInItsTileAndHead) {
  const auto clean = RandomBf16(20, 11);
  const auto q = RandomBf16(16, 12);
  ForEachTarget(AttendTarget, [&] {
    const Floats clean_kv = Widened(clean, 20, 0);
    const Floats q_t = TransposedQ(q, 16);
    const Partial before = RunTile(q_t, clean_kv, 0, 20);
    for (const size_t row : {0, 7, 19}) {
      auto rows = clean;
      rows[row * kDim + 77] = FloatToBf16(kNan);
      Partial partial;
      Floats scores(static_cast<size_t>(kAttendRows) * kBlock);
      AttendTileArgs args{.q_t = q_t.data(),
                          .kv = nullptr,
                          .panel_rows = 20,
                          .first_row = 0,
                          .num_rows = 20,
                          .scores = scores.data(),
                          .out = partial.view};
      const Floats dirty_kv = Widened(rows, 20, 0);
      args.kv = dirty_kv.data();
      AttendTile(args);
      for (size_t head = 0; head < kBlock; ++head) EXPECT_TRUE(AllNan(partial.view, head));
      args.kv = clean_kv.data();  // the same scratch again
      AttendTile(args);
      for (size_t head = 0; head < kBlock; ++head) {
        EXPECT_TRUE(SameLane(partial.view, head, before.view, head));
      }
    }
    auto dirty_q = q;
    dirty_q[4 * kDim + 500] = FloatToBf16(kNan);
    const Partial one_head = RunTile(TransposedQ(dirty_q, 16), clean_kv, 0, 20);
    for (size_t head = 0; head < kBlock; ++head) {
      EXPECT_EQ(AllNan(one_head.view, head), head == 4);
      EXPECT_EQ(SameLane(one_head.view, head, before.view, head), head != 4);
    }
  });
}

}  // namespace
}  // namespace millipede
