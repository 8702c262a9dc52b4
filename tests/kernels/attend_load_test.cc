// AttendWiden and AttendTransposeQ on every target.
#include "kernels/attend_load.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/attend_cases.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

TEST(AttendWiden, PutsEveryValueInItsPanelAndTouchesNoOtherRow) {
  ForEachTarget(AttendTarget, [] {
    for (const int64_t num_rows : kRowCounts) {
      for (const int64_t first_row : {0, 1, 7}) {
        const int64_t panel_rows = num_rows + 9;
        const auto rows = RandomBf16(static_cast<size_t>(num_rows), 1);
        const Floats kv = Widened(rows, panel_rows, first_row);
        for (int64_t r = 0; r < panel_rows; ++r) {
          for (int64_t i = 0; i < kHeadDim; ++i) {
            const float value = kv[static_cast<size_t>(
                (i / kKvPanelDims * panel_rows + r) * kKvPanelDims + i % kKvPanelDims)];
            const int64_t source = r - first_row;
            if (source < 0 || source >= num_rows) {
              ASSERT_TRUE(std::isnan(value)) << "row " << r << " dim " << i;
            } else {
              ASSERT_EQ(value, Bf16ToFloat(rows[static_cast<size_t>(source * kHeadDim + i)]));
            }
          }
        }
      }
    }
  });
}

TEST(AttendWiden, GathersScatteredUnalignedRows) {
  ForEachTarget(AttendTarget, [] {
    const auto pool = RandomBf16(11, 2);
    const std::vector<const Bf16*> rows = {&pool[7 * kDim + 3], &pool[1], &pool[7 * kDim + 3],
                                           &pool[4 * kDim + 5]};
    Floats kv(rows.size() * kDim);
    AttendWiden({.rows = {.rows = rows.data(), .num_rows = 4},
                 .kv = kv.data(),
                 .panel_rows = 4,
                 .first_row = 0});
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t i = 0; i < kDim; ++i) {
        ASSERT_EQ(kv[(i / 16 * 4 + r) * 16 + i % 16], Bf16ToFloat(rows[r][i]));
      }
    }
  });
}

TEST(AttendTransposeQ, PutsHeadsSideBySideAndZeroesTheRest) {
  ForEachTarget(AttendTarget, [] {
    for (const int64_t num_heads : {0, 1, 2, 3, 4, 5, 8, 11, 15, 16}) {
      const int64_t stride = kHeadDim + 3;  // unaligned heads
      const auto values = RandomBf16(17, 3);
      // Heads past num_heads lie outside the allocation, so that a sanitizer sees them read.
      const std::vector<Bf16> q(
          values.begin(),
          values.begin() + std::max<int64_t>(0, (num_heads - 1) * stride + kHeadDim));
      Floats q_t(kDim * kBlock);
      AttendTransposeQ(
          {.q = q.data(), .head_stride = stride, .num_heads = num_heads, .q_t = q_t.data()});
      for (int64_t i = 0; i < kHeadDim; ++i) {
        for (int64_t head = 0; head < kHeadBlock; ++head) {
          const float expected =
              head < num_heads ? Bf16ToFloat(q[static_cast<size_t>(head * stride + i)]) : 0.0F;
          ASSERT_EQ(q_t[static_cast<size_t>(i * kHeadBlock + head)], expected)
              << "head " << head << " of " << num_heads << ", dim " << i;
        }
      }
    }
  });
}

TEST(AttendTransposeQ, KeepsNanAndInfinityInTheirPlaces) {
  ForEachTarget(AttendTarget, [] {
    auto q = RandomBf16(16, 4);
    q[3 * kDim + 100] = FloatToBf16(kNan);
    q[9 * kDim + 511] = FloatToBf16(-kInfinity);
    const Floats q_t = TransposedQ(q, 16);
    for (size_t i = 0; i < kDim; ++i) {
      for (size_t head = 0; head < kBlock; ++head) {
        const float value = q_t[i * kBlock + head];
        EXPECT_EQ(std::isnan(value), head == 3 && i == 100);
        EXPECT_EQ(std::isinf(value), head == 9 && i == 511);
      }
    }
  });
}

}  // namespace
}  // namespace millipede
