// Index keys and index query heads against plain C++ in double, on every target.
#include "kernels/index_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "kernels/row_data.h"
#include "kernels/targets.h"
#include "millipede/config.h"
#include "millipede/rope.h"

namespace millipede {
namespace {

constexpr size_t kDim = kIndexDim;

struct IndexRow {
  std::vector<int8_t> codes;
  float scale = 0;
};

struct Rope {
  explicit Rope(std::mt19937_64& random) {
    for (const float angle : RandomFloats(random, kRopePairs, -100.0F, 100.0F)) {
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
  }
  std::vector<float> cos;
  std::vector<float> sin;
};

double RoundedToBf16(double value) { return Bf16ToFloat(FloatToBf16(static_cast<float>(value))); }

// Rotates the last 64 lanes, rounds to bf16 and multiplies by the matrix, summed as it is defined.
std::vector<double> RotatedTimesHadamard(std::vector<double> x, const Rope& rope) {
  for (size_t i = 0; i < kRopePairs; ++i) {
    double& x0 = x[kDim - kRopeLanes + 2 * i];
    double& x1 = x[kDim - kRopeLanes + 2 * i + 1];
    const double y0 = x0 * rope.cos[i] - x1 * rope.sin[i];
    x1 = x0 * rope.sin[i] + x1 * rope.cos[i];
    x0 = y0;
  }
  std::vector<double> y(kDim, 0.0);
  for (size_t out = 0; out < kDim; ++out) {
    for (size_t in = 0; in < kDim; ++in) {
      const double value = RoundedToBf16(x[in]);
      y[out] += std::popcount(out & in) % 2 == 0 ? value : -value;
    }
    y[out] *= static_cast<double>(static_cast<float>(1.0 / std::sqrt(128.0)));
  }
  return y;
}

IndexRow Quantized(const std::vector<double>& y) {
  double amax = 1e-4;
  for (const double value : y) amax = std::max(amax, std::fabs(value));
  IndexRow row;
  for (const double value : y) {
    row.codes.push_back(static_cast<int8_t>(std::nearbyint(value * (127.0 / amax))));
  }
  row.scale = static_cast<float>(amax / 127.0);
  return row;
}

IndexRow ExpectedKey(const std::vector<float>& pooled, const std::vector<float>& weight,
                     const Rope& rope, double eps) {
  const double inverse = InverseRmsOf(pooled, eps);
  std::vector<double> x;
  for (size_t i = 0; i < kDim; ++i) x.push_back(pooled[i] * inverse * weight[i]);
  std::vector<double> y = RotatedTimesHadamard(x, rope);
  for (double& value : y) value = RoundedToBf16(value);
  return Quantized(y);
}

IndexRow ExpectedHead(const std::vector<int32_t>& sums, double row_scale,
                      const std::vector<float>& output_scale, const Rope& rope) {
  std::vector<double> x;
  for (size_t i = 0; i < kDim; ++i) x.push_back(sums[i] * row_scale * output_scale[i]);
  return Quantized(RotatedTimesHadamard(x, rope));
}

IndexRow RunKey(const std::vector<float>& pooled, const std::vector<float>& weight,
                const Rope& rope, float eps) {
  PoisonedRows<float> pooled_rows(pooled);
  PoisonedRows<float> weight_rows(weight);
  PoisonedRows<float> cos(rope.cos);
  PoisonedRows<float> sin(rope.sin);
  PoisonedRows<int8_t> codes(kDim);
  PoisonedRows<float> scale(1);
  IndexKeyRow({.pooled = pooled_rows.data(),
               .weight = weight_rows.data(),
               .cos = cos.data(),
               .sin = sin.data(),
               .codes = codes.data(),
               .scale = scale.data(),
               .eps = eps});
  EXPECT_TRUE(codes.PoisonIntact());
  EXPECT_TRUE(scale.PoisonIntact());
  return {codes.values(), *scale.data()};
}

IndexRow RunHead(const std::vector<int32_t>& sums, float row_scale,
                 const std::vector<float>& output_scale, const Rope& rope) {
  PoisonedRows<int32_t> sum_rows(sums);
  PoisonedRows<float> scale_rows(output_scale);
  PoisonedRows<float> cos(rope.cos);
  PoisonedRows<float> sin(rope.sin);
  PoisonedRows<int8_t> codes(kDim);
  PoisonedRows<float> scale(1);
  IndexQueryHead({.sums = sum_rows.data(),
                  .row_scale = row_scale,
                  .output_scale = scale_rows.data(),
                  .cos = cos.data(),
                  .sin = sin.data(),
                  .codes = codes.data(),
                  .scale = scale.data()});
  EXPECT_TRUE(codes.PoisonIntact());
  EXPECT_TRUE(scale.PoisonIntact());
  return {codes.values(), *scale.data()};
}

// How many codes differ; every one by at most 1.
int64_t DifferentCodes(const IndexRow& actual, const IndexRow& expected) {
  int64_t different = 0;
  for (size_t i = 0; i < kDim; ++i) {
    const int difference = std::abs(actual.codes[i] - expected.codes[i]);
    EXPECT_LE(difference, 1) << "lane " << i;
    different += difference != 0 ? 1 : 0;
  }
  return different;
}

std::vector<int32_t> RandomSums(std::mt19937_64& random, int32_t magnitude) {
  std::uniform_int_distribution<int32_t> uniform(-magnitude, magnitude);
  std::vector<int32_t> sums(kDim);
  for (int32_t& sum : sums) sum = uniform(random);
  return sums;
}

TEST(IndexRowsTest, KeysEqualDouble) {
  ForEachTarget(IndexRowsTargetName, [] {
    std::mt19937_64 random(21);
    int64_t different = 0;
    constexpr int64_t kRows = 200;
    for (int64_t r = 0; r < kRows; ++r) {
      const float magnitude = r % 2 == 0 ? 1.0F : 1e-3F;
      const std::vector<float> pooled = RandomFloats(random, kDim, -magnitude, magnitude);
      const std::vector<float> weight = RandomFloats(random, kDim, 0.5F, 1.5F);
      const Rope rope(random);
      const IndexRow actual = RunKey(pooled, weight, rope, 1e-6F);
      const IndexRow expected = ExpectedKey(pooled, weight, rope, 1e-6);
      // A lane that rounds to the other bf16 moves some codes of its row.
      const int64_t row_different = DifferentCodes(actual, expected);
      EXPECT_LE(row_different, 12);
      EXPECT_NEAR(actual.scale, expected.scale, 1e-2F * expected.scale);
      different += row_different;
    }
    EXPECT_LE(different, kRows * static_cast<int64_t>(kDim) / 200);
  });
}

TEST(IndexRowsTest, QueryHeadsEqualDouble) {
  ForEachTarget(IndexRowsTargetName, [] {
    std::mt19937_64 random(22);
    int64_t different = 0;
    constexpr int64_t kRows = 200;
    for (int64_t r = 0; r < kRows; ++r) {
      const std::vector<int32_t> sums = RandomSums(random, r % 2 == 0 ? 1 << 20 : 16'000'000);
      const std::vector<float> output_scale = RandomFloats(random, kDim, 1e-3F, 2e-3F);
      const Rope rope(random);
      const IndexRow actual = RunHead(sums, 3e-4F, output_scale, rope);
      const IndexRow expected = ExpectedHead(sums, double{3e-4F}, output_scale, rope);
      const int64_t row_different = DifferentCodes(actual, expected);
      EXPECT_LE(row_different, 3);
      EXPECT_NEAR(actual.scale, expected.scale, 2e-3F * expected.scale);
      different += row_different;
    }
    EXPECT_LE(different, kRows * static_cast<int64_t>(kDim) / 500);
  });
}

// One lane that is not rotated gives a row of the matrix.
TEST(IndexRowsTest, TheMatrixIsSylvesters) {
  ForEachTarget(IndexRowsTargetName, [] {
    std::mt19937_64 random(23);
    const Rope rope(random);
    const std::vector<float> ones(kDim, 1.0F);
    for (size_t lane = 0; lane < kDim - kRopeLanes; ++lane) {
      std::vector<int32_t> sums(kDim, 0);
      sums[lane] = 64;
      const IndexRow actual = RunHead(sums, 0.5F, ones, rope);
      for (size_t i = 0; i < kDim; ++i) {
        EXPECT_EQ(actual.codes[i], std::popcount(i & lane) % 2 == 0 ? 127 : -127);
      }
      EXPECT_EQ(actual.scale, 32 * 0.08838834764831845F / 127.0F);
    }
  });
}

TEST(IndexRowsTest, ZerosHaveTheSmallestScale) {
  ForEachTarget(IndexRowsTargetName, [] {
    std::mt19937_64 random(24);
    const Rope rope(random);
    const std::vector<float> ones(kDim, 1.0F);
    const IndexRow key = RunKey(std::vector<float>(kDim, 0.0F), ones, rope, 1e-6F);
    const IndexRow head = RunHead(std::vector<int32_t>(kDim, 0), 1.0F, ones, rope);
    for (const IndexRow& row : {key, head}) {
      EXPECT_EQ(row.codes, std::vector<int8_t>(kDim, 0));
      EXPECT_EQ(row.scale, 1e-4F / 127.0F);
    }
  });
}

TEST(IndexRowsTest, ANanReachesTheScale) {
  ForEachTarget(IndexRowsTargetName, [] {
    std::mt19937_64 random(25);
    const Rope rope(random);
    for (const size_t lane : {size_t{0}, size_t{63}, size_t{64}, kDim - 1}) {
      std::vector<float> values = RandomFloats(random, kDim);
      values[lane] = kNan;
      const IndexRow key = RunKey(values, std::vector<float>(kDim, 1.0F), rope, 1e-6F);
      const IndexRow head = RunHead(RandomSums(random, 1000), 1.0F, values, rope);
      for (const IndexRow& row : {key, head}) {
        EXPECT_EQ(row.codes, std::vector<int8_t>(kDim, 0));
        EXPECT_TRUE(std::isnan(row.scale));
      }
    }
  });
}

}  // namespace
}  // namespace millipede
