// HeadNormRope and KvNormRope against plain C++ in double, on every target.
#include "kernels/norm_heads.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/row_data.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

constexpr float kEps = 1e-6F;
constexpr size_t kPlain = kHeadDim - kRopeLanes;  // lanes that are not rotated

// Rotations that bf16 cannot hold and that are no unit circle points, so that a swapped pair, a
// rounded factor or a sign shows.
struct Rotation {
  explicit Rotation(std::mt19937_64& random)
      : cos(RandomFloats(random, kRopePairs)), sin(RandomFloats(random, kRopePairs, -3.0F, 3.0F)) {}
  PoisonedRows<float> cos;
  PoisonedRows<float> sin;
};

// `head` normalized, before rotation.
void ExpectRotated(std::vector<Bf16> actual, const std::vector<double>& head, Rotation& rotation) {
  for (size_t i = 0; i < kPlain; ++i) {
    ASSERT_TRUE(IsBf16Of(actual[i], head[i], 1e-6 * std::fabs(head[i]) + 1e-44)) << "lane " << i;
  }
  for (size_t i = 0; i < static_cast<size_t>(kRopePairs); ++i) {
    const double x0 = head[kPlain + 2 * i];
    const double x1 = head[kPlain + 2 * i + 1];
    const double c = rotation.cos.data()[i];
    const double s = rotation.sin.data()[i];
    const double tolerance = 1e-6 * std::hypot(x0, x1) * std::hypot(c, s) + 1e-44;
    ASSERT_TRUE(IsBf16Of(actual[kPlain + 2 * i], x0 * c - x1 * s, tolerance)) << "pair " << i;
    ASSERT_TRUE(IsBf16Of(actual[kPlain + 2 * i + 1], x0 * s + x1 * c, tolerance)) << "pair " << i;
  }
}

std::vector<Bf16> RunHead(const std::vector<int32_t>& sum_values, float row_scale,
                          const std::vector<float>& scale_values, Rotation& rotation) {
  PoisonedRows<int32_t> sums(sum_values);
  PoisonedRows<float> scale(scale_values);
  PoisonedRows<Bf16> out(kHeadDim);
  HeadNormRope({sums.data(), row_scale, scale.data(), rotation.cos.data(), rotation.sin.data(),
                out.data(), kEps});
  EXPECT_TRUE(out.PoisonIntact());
  return out.values();
}

std::vector<Bf16> RunKv(const std::vector<float>& values, const std::vector<float>& weights,
                        Rotation& rotation) {
  PoisonedRows<float> x(values);
  PoisonedRows<float> weight(weights);
  PoisonedRows<Bf16> out(kHeadDim);
  KvNormRope({x.data(), weight.data(), rotation.cos.data(), rotation.sin.data(), out.data(), kEps});
  EXPECT_TRUE(out.PoisonIntact());
  return out.values();
}

TEST(NormHeadsTest, HeadEqualsDouble) {
  ForEachTarget(NormHeadsTargetName, [] {
    std::mt19937_64 random(3);
    Rotation rotation(random);
    for (const int32_t magnitude : {0, 1, 3000, 16'646'144, 2'147'483'647}) {
      for (const float row_scale : {0.01F, 1e-6F, 1e-30F}) {
        std::uniform_int_distribution<int32_t> uniform(-magnitude, magnitude);
        std::vector<int32_t> sums(kHeadDim);
        for (int32_t& sum : sums) sum = uniform(random);
        const std::vector<float> scale = RandomFloats(random, kHeadDim, 1e-5F, 3e-5F);
        std::vector<double> head;
        for (size_t i = 0; i < kHeadDim; ++i) {
          head.push_back(static_cast<double>(sums[i]) * row_scale * scale[i]);
        }
        const double inverse = InverseRmsOf(head, kEps);
        for (double& lane : head) lane *= inverse;
        ExpectRotated(RunHead(sums, row_scale, scale, rotation), head, rotation);
      }
    }
  });
}

TEST(NormHeadsTest, KvEqualsDouble) {
  ForEachTarget(NormHeadsTargetName, [] {
    std::mt19937_64 random(4);
    Rotation rotation(random);
    for (const float magnitude : {0.0F, 1.0F, 1e-3F, 1e-40F, 1e15F}) {
      const std::vector<float> x = RandomFloats(random, kHeadDim, -magnitude, magnitude);
      const std::vector<float> weight = RandomFloats(random, kHeadDim, -2.0F, 2.0F);
      const double inverse = InverseRmsOf(x, kEps);
      std::vector<double> head;
      for (size_t i = 0; i < kHeadDim; ++i) head.push_back(x[i] * inverse * weight[i]);
      ExpectRotated(RunKv(x, weight, rotation), head, rotation);
    }
  });
}

TEST(NormHeadsTest, NotFiniteValuesAreNotHidden) {
  ForEachTarget(NormHeadsTargetName, [] {
    std::mt19937_64 random(5);
    Rotation rotation(random);
    for (const size_t lane : {size_t{0}, size_t{300}, kPlain + 5, size_t{kHeadDim - 1}}) {
      std::vector<float> x(kHeadDim, 1.0F);
      const std::vector<float> weight(kHeadDim, 1.0F);
      x[lane] = kNan;
      for (const Bf16 value : RunKv(x, weight, rotation)) {
        EXPECT_TRUE(std::isnan(Bf16ToFloat(value)));
      }
      x[lane] = kInf;  // its rsqrt is 0
      const std::vector<Bf16> out = RunKv(x, weight, rotation);
      for (size_t i = 0; i < kHeadDim; ++i) {
        const bool spoiled = i == lane || (i >= kPlain && (i ^ 1U) == lane);
        EXPECT_EQ(std::isnan(Bf16ToFloat(out[i])), spoiled) << "lane " << i;
      }
    }
    for (const Bf16 value : RunHead(std::vector<int32_t>(kHeadDim, 9), kNan,
                                    std::vector<float>(kHeadDim, 1.0F), rotation)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(value)));
    }
  });
}

}  // namespace
}  // namespace millipede
