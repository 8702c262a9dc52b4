// Quantize against plain C++, which it equals bit for bit, on every target.
#include "kernels/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/row_data.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

struct Quantized {
  std::vector<int8_t> codes;
  float scale = 0;
};

Quantized QuantizeRow(const std::vector<float>& values) {
  PoisonedRows<float> x(values);
  PoisonedRows<int8_t> codes(static_cast<int64_t>(values.size()));
  PoisonedRows<float> scale(1);
  Quantize({x.data(), codes.data(), scale.data(), static_cast<int64_t>(values.size())});
  EXPECT_TRUE(codes.PoisonIntact());
  EXPECT_TRUE(scale.PoisonIntact());
  return {codes.values(), *scale.data()};
}

Quantized Expected(const std::vector<float>& x) {
  float amax = 1e-4F;
  for (const float value : x) amax = std::max(amax, std::fabs(value));
  Quantized expected;
  const float factor = 127.0F / amax;
  for (const float value : x) {
    expected.codes.push_back(static_cast<int8_t>(std::nearbyint(value * factor)));
  }
  expected.scale = amax / 127.0F;
  return expected;
}

void ExpectEqual(const std::vector<float>& x) {
  const Quantized actual = QuantizeRow(x);
  const Quantized expected = Expected(x);
  EXPECT_EQ(actual.codes, expected.codes) << "length " << x.size();
  EXPECT_EQ(actual.scale, expected.scale) << "length " << x.size();
}

TEST(QuantizeTest, EqualsPlainCode) {
  ForEachTarget(QuantizeTargetName, [] {
    std::mt19937_64 random(7);
    for (const int64_t n : kRowLengths) {
      for (const float magnitude : {1.0F, 1e-7F, 1e-4F, 3e-42F, 1e30F, 3.4e38F}) {
        ExpectEqual(RandomFloats(random, n, -magnitude, magnitude));
      }
      ExpectEqual(std::vector<float>(static_cast<size_t>(n), 0.0F));
      ExpectEqual(std::vector<float>(static_cast<size_t>(n), -0.0F));
    }
  });
}

TEST(QuantizeTest, TheGreatestMagnitudeIsFoundAnywhere) {
  ForEachTarget(QuantizeTargetName, [] {
    for (size_t n : {1U, 3U, 31U, 33U, 64U}) {
      for (size_t i = 0; i < n; ++i) {
        for (const float value : {5.0F, -5.0F}) {
          std::vector<float> x(n, 1.0F);
          x[i] = value;
          const Quantized actual = QuantizeRow(x);
          EXPECT_EQ(actual.scale, 5.0F / 127.0F);
          EXPECT_EQ(actual.codes[i], value > 0 ? 127 : -127);
        }
      }
    }
  });
}

TEST(QuantizeTest, HalvesGoToEven) {
  ForEachTarget(QuantizeTargetName, [] {
    const Quantized actual = QuantizeRow({127.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 126.5F});
    EXPECT_EQ(actual.codes, (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2, 126}));
    EXPECT_EQ(actual.scale, 1.0F);
  });
}

TEST(QuantizeTest, NotFiniteIsSeenInTheScaleAndGivesZeroCodes) {
  ForEachTarget(QuantizeTargetName, [] {
    std::mt19937_64 random(8);
    for (const size_t n : {1U, 3U, 31U, 33U, 256U}) {
      for (const size_t i : {size_t{0}, n / 2, n - 1}) {
        std::vector<float> x = RandomFloats(random, static_cast<int64_t>(n), -1e38F, 1e38F);
        for (const float special : {kInf, -kInf}) {
          x[i] = special;
          const Quantized actual = QuantizeRow(x);
          EXPECT_EQ(actual.scale, kInf);
          EXPECT_EQ(actual.codes, std::vector<int8_t>(n, 0));
        }
        for (const float special : {kNan, -kNan}) {
          x[n / 3] = kInf;
          x[i] = special;
          const Quantized actual = QuantizeRow(x);
          EXPECT_TRUE(std::isnan(actual.scale));
          EXPECT_EQ(actual.codes, std::vector<int8_t>(n, 0));
        }
      }
    }
  });
}

}  // namespace
}  // namespace millipede
