// RmsNorm and RmsNormQuantize against plain C++ in double, on every target.
#include "kernels/norm_rows.h"

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

constexpr float kEps = 1e-6F;
constexpr double kRelative = 1e-6;  // of float32 arithmetic with a few roundings

std::vector<Bf16> RunNorm(const std::vector<Bf16>& values, const std::vector<float>& weights) {
  const auto n = static_cast<int64_t>(values.size());
  PoisonedRows<Bf16> x(values);
  PoisonedRows<float> weight(weights);
  PoisonedRows<Bf16> out(n);
  RmsNorm({x.data(), weight.data(), out.data(), n, kEps});
  EXPECT_TRUE(out.PoisonIntact());
  return out.values();
}

struct Quantized {
  std::vector<int8_t> codes;
  float scale = 0;
};

Quantized RunQuantize(const std::vector<float>& values, const std::vector<float>& weights) {
  const auto n = static_cast<int64_t>(values.size());
  PoisonedRows<float> x(values);
  PoisonedRows<float> weight(weights);
  PoisonedRows<int8_t> codes(n);
  PoisonedRows<float> scale(1);
  RmsNormQuantize({x.data(), weight.data(), codes.data(), scale.data(), n, kEps});
  EXPECT_TRUE(codes.PoisonIntact());
  EXPECT_TRUE(scale.PoisonIntact());
  return {codes.values(), *scale.data()};
}

TEST(NormRowsTest, RmsNormEqualsDouble) {
  ForEachTarget(NormRowsTargetName, [] {
    std::mt19937_64 random(1);
    for (const int64_t n : kRowLengths) {
      for (const float magnitude : {1.0F, 1e-3F, 1e-40F, 1e15F}) {
        const std::vector<Bf16> x = ToBf16(RandomFloats(random, n, -magnitude, magnitude));
        const std::vector<float> weight = RandomFloats(random, n, -2.0F, 2.0F);
        const std::vector<Bf16> out = RunNorm(x, weight);
        std::vector<float> wide;
        for (const Bf16 value : x) wide.push_back(Bf16ToFloat(value));
        const double inverse = InverseRmsOf(wide, kEps);
        for (size_t i = 0; i < out.size(); ++i) {
          const double expected = wide[i] * inverse * weight[i];
          // The absolute part is a few steps of the smallest float32 numbers.
          ASSERT_TRUE(IsBf16Of(out[i], expected, kRelative * std::fabs(expected) + 1e-44))
              << "length " << n << " lane " << i << " magnitude " << magnitude;
        }
      }
    }
  });
}

TEST(NormRowsTest, RmsNormOfSpecialRows) {
  ForEachTarget(NormRowsTargetName, [] {
    for (const size_t n : {1U, 3U, 31U, 33U, 256U}) {
      const std::vector<float> weight(n, 1.5F);
      for (const Bf16 value : RunNorm(ToBf16(std::vector<float>(n, 0.0F)), weight)) {
        EXPECT_EQ(value.bits, 0);
      }
      // The squares overflow: everything goes to 0, which is what the formula says.
      for (const Bf16 value : RunNorm(ToBf16(std::vector<float>(n, 3e38F)), weight)) {
        EXPECT_EQ(value.bits, 0);
      }
      std::vector<float> x(n, 1.0F);
      x[n - 1] = kNan;
      for (const Bf16 value : RunNorm(ToBf16(x), weight)) {
        EXPECT_TRUE(std::isnan(Bf16ToFloat(value)));
      }
      x[n - 1] = -kInf;
      const std::vector<Bf16> out = RunNorm(ToBf16(x), weight);
      for (size_t i = 0; i + 1 < n; ++i) EXPECT_EQ(out[i].bits, 0);
      EXPECT_TRUE(std::isnan(Bf16ToFloat(out[n - 1])));
    }
  });
}

TEST(NormRowsTest, RmsNormQuantizeEqualsDouble) {
  ForEachTarget(NormRowsTargetName, [] {
    std::mt19937_64 random(2);
    for (const int64_t n : kRowLengths) {
      for (const float magnitude : {1.0F, 1e-3F, 1e-9F, 1e15F}) {
        const std::vector<float> x = RandomFloats(random, n, -magnitude, magnitude);
        const std::vector<float> weight = RandomFloats(random, n, -2.0F, 2.0F);
        const Quantized actual = RunQuantize(x, weight);
        const double inverse = InverseRmsOf(x, kEps);
        double amax = 1e-4;
        for (size_t i = 0; i < x.size(); ++i) {
          amax = std::max(amax, std::fabs(x[i] * inverse * weight[i]));
        }
        ASSERT_NEAR(actual.scale, amax / 127, kRelative * amax / 127);
        for (size_t i = 0; i < x.size(); ++i) {
          const double expected = x[i] * inverse * weight[i] * 127 / amax;
          ASSERT_NEAR(actual.codes[i], expected, 0.5 + 2 * kRelative * 127)
              << "length " << n << " lane " << i << " magnitude " << magnitude;
        }
      }
    }
  });
}

TEST(NormRowsTest, RmsNormQuantizeOfSpecialRows) {
  ForEachTarget(NormRowsTargetName, [] {
    for (const size_t n : {1U, 3U, 31U, 33U, 256U}) {
      const std::vector<float> weight(n, -1.5F);
      const std::vector<int8_t> zeros(n, 0);
      for (const float value : {0.0F, 3e38F}) {  // of which the latter's squares overflow
        const Quantized flat = RunQuantize(std::vector<float>(n, value), weight);
        EXPECT_EQ(flat.codes, zeros);
        EXPECT_EQ(flat.scale, 1e-4F / 127.0F);
      }
      for (const float special : {kNan, kInf, -kInf}) {
        std::vector<float> x(n, 1.0F);
        x[n / 2] = special;
        const Quantized actual = RunQuantize(x, weight);
        EXPECT_EQ(actual.codes, zeros);
        EXPECT_TRUE(std::isnan(actual.scale));  // infinity times its rsqrt 0 is NaN
      }
    }
  });
}

}  // namespace
}  // namespace millipede
