// ScaleGroup and SumGroups against plain C++, which they equal bit for bit, on every target.
#include "kernels/output_sum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/row_data.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

TEST(OutputSumTest, ScaleGroupEqualsPlainCode) {
  ForEachTarget(OutputSumTargetName, [] {
    std::mt19937_64 random(11);
    std::uniform_int_distribution<int32_t> uniform(std::numeric_limits<int32_t>::min(),
                                                   std::numeric_limits<int32_t>::max());
    constexpr int64_t kRows = 5;
    for (const int64_t cols : {1, 3, 31, 33, 64, 256}) {
      PoisonedRows<int32_t> sums(cols, kRows);
      PoisonedRows<float> scale(1, kRows);
      PoisonedRows<float> out(cols, kRows);
      for (int64_t r = 0; r < kRows; ++r) {
        *scale.row(r) = RandomFloats(random, 1, 1e-4F, 1.0F)[0];
        for (int64_t i = 0; i < cols; ++i) sums.row(r)[i] = uniform(random);
      }
      *scale.row(3) = kNan;
      ScaleGroup({sums.data(), sums.stride(), scale.data(), scale.stride(), out.data(),
                  out.stride(), kRows, cols});
      EXPECT_TRUE(out.PoisonIntact());
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t i = 0; i < cols; ++i) {
          const float expected = static_cast<float>(sums.row(r)[i]) * *scale.row(r);
          if (r == 3) {
            ASSERT_TRUE(std::isnan(out.row(r)[i]));
          } else {
            ASSERT_EQ(out.row(r)[i], expected) << "row " << r << " column " << i;
          }
        }
      }
    }
  });
}

// Pairs level by level, an odd one carried up.
float TreeSum(std::vector<float> values) {
  while (values.size() > 1) {
    std::vector<float> sums;
    for (size_t i = 0; i + 1 < values.size(); i += 2) sums.push_back(values[i] + values[i + 1]);
    if (values.size() % 2 == 1) sums.push_back(values.back());
    values = sums;
  }
  return values[0];
}

void ExpectTreeSums(int64_t num_groups, int64_t rows, int64_t cols) {
  std::mt19937_64 random(static_cast<uint64_t>(num_groups * 1000 + cols));
  // Magnitudes far apart, so that another order of the additions shows in many results.
  PoisonedRows<float> groups(cols, num_groups * rows);
  std::uniform_real_distribution<float> exponent(-6.0F, 6.0F);
  for (int64_t r = 0; r < num_groups * rows; ++r) {
    for (int64_t i = 0; i < cols; ++i) {
      groups.row(r)[i] = RandomFloats(random, 1)[0] * std::exp2(exponent(random));
    }
  }
  PoisonedRows<float> scale(RandomFloats(random, cols, 0.1F, 2.0F));
  PoisonedRows<Bf16> out(cols, rows);
  SumGroups({groups.data(), rows * groups.stride(), groups.stride(), scale.data(), out.data(),
             out.stride(), num_groups, rows, cols});
  EXPECT_TRUE(out.PoisonIntact());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < cols; ++i) {
      std::vector<float> values;
      for (int64_t g = 0; g < num_groups; ++g) values.push_back(groups.row(g * rows + r)[i]);
      const Bf16 expected = FloatToBf16(TreeSum(values) * scale.data()[i]);
      ASSERT_EQ(out.row(r)[i].bits, expected.bits)
          << num_groups << " groups, row " << r << " column " << i;
    }
  }
}

TEST(OutputSumTest, SumGroupsIsTheBalancedTree) {
  ForEachTarget(OutputSumTargetName, [] {
    for (int64_t groups = 1; groups <= 33; ++groups) ExpectTreeSums(groups, 3, 64);
    for (const int64_t cols : {1, 3, 17, 31, 33, 256}) ExpectTreeSums(7, 2, cols);
    ExpectTreeSums(kMaxOutputGroups, 1, 5);
    ExpectTreeSums(kMaxOutputGroups - 1, 1, 5);
  });
}

// bf16 hides most differences of order, so the order is also shown by values that cancel: with
// a = 2^40 and (a + 1) - a = 0 in float32, each tree position of the 1 gives another result.
TEST(OutputSumTest, TheOrderOfAdditionsShows) {
  ForEachTarget(OutputSumTargetName, [] {
    constexpr float kBig = 1099511627776.0F;
    for (size_t n = 2; n <= 20; ++n) {
      for (size_t big = 0; big < n; ++big) {
        for (size_t minus = 0; minus < n; ++minus) {
          if (big == minus) continue;
          std::vector<float> values(n, 1.0F);
          values[big] = kBig;
          values[minus] = -kBig;
          const float one = 1.0F;
          Bf16 out;
          SumGroups({values.data(), 1, 1, &one, &out, 1, static_cast<int64_t>(n), 1, 1});
          ASSERT_EQ(Bf16ToFloat(out), TreeSum(values)) << n << " " << big << " " << minus;
        }
      }
    }
  });
}

TEST(OutputSumTest, NotFiniteValuesAreNotHidden) {
  ForEachTarget(OutputSumTargetName, [] {
    for (const float special : {kNan, kInf}) {
      std::vector<float> values(size_t{5} * 33, 1.0F);
      values[2 * 33 + 32] = special;
      const std::vector<float> scale(33, 2.0F);
      std::vector<Bf16> out(33);
      SumGroups({values.data(), 33, 33, scale.data(), out.data(), 33, 5, 1, 33});
      for (size_t i = 0; i < 32; ++i) EXPECT_EQ(Bf16ToFloat(out[i]), 10.0F);
      EXPECT_FALSE(std::isfinite(Bf16ToFloat(out[32])));
      EXPECT_EQ(std::isnan(Bf16ToFloat(out[32])), std::isnan(special));
    }
  });
}

}  // namespace
}  // namespace millipede
