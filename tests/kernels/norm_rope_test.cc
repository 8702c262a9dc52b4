// The rotation of RoPE lanes, forward and inverse, against plain C++ in double, on every target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm_rope_test.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/rope-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {

void Forward(const float* cos, const float* sin, float* lanes) {
  RotateRopeLanes<false>(cos, sin, lanes);
}
void Inverse(const float* cos, const float* sin, float* lanes) {
  RotateRopeLanes<true>(cos, sin, lanes);
}
const char* RopeTarget() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/row_data.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

HWY_EXPORT(Forward);
HWY_EXPORT(Inverse);
HWY_EXPORT(RopeTarget);

const char* Ran() { return HWY_DYNAMIC_DISPATCH(RopeTarget)(); }

TEST(NormRopeTest, EqualsDoubleBothWays) {
  ForEachTarget(Ran, [] {
    std::mt19937_64 random(6);
    PoisonedRows<float> cos(RandomFloats(random, kRopePairs));
    PoisonedRows<float> sin(RandomFloats(random, kRopePairs));
    const std::vector<float> x = RandomFloats(random, kRopeLanes);
    PoisonedRows<float> forward(x);
    PoisonedRows<float> inverse(x);
    HWY_DYNAMIC_DISPATCH(Forward)(cos.data(), sin.data(), forward.data());
    HWY_DYNAMIC_DISPATCH(Inverse)(cos.data(), sin.data(), inverse.data());
    EXPECT_TRUE(forward.PoisonIntact());
    EXPECT_TRUE(inverse.PoisonIntact());
    for (size_t i = 0; i < kRopePairs; ++i) {
      const double x0 = x[2 * i];
      const double x1 = x[2 * i + 1];
      const double c = cos.data()[i];
      const double s = sin.data()[i];
      EXPECT_NEAR(forward.data()[2 * i], x0 * c - x1 * s, 3e-7);
      EXPECT_NEAR(forward.data()[2 * i + 1], x0 * s + x1 * c, 3e-7);
      EXPECT_NEAR(inverse.data()[2 * i], x0 * c + x1 * s, 3e-7);
      EXPECT_NEAR(inverse.data()[2 * i + 1], x1 * c - x0 * s, 3e-7);
    }
  });
}

TEST(NormRopeTest, ANaNSpoilsItsPairAlone) {
  ForEachTarget(Ran, [] {
    const std::vector<float> ones(kRopePairs, 1.0F);
    for (size_t lane = 0; lane < kRopeLanes; ++lane) {
      std::vector<float> lanes(kRopeLanes, 1.0F);
      lanes[lane] = kNan;
      HWY_DYNAMIC_DISPATCH(Forward)(ones.data(), ones.data(), lanes.data());
      for (size_t i = 0; i < kRopeLanes; ++i) {
        EXPECT_EQ(std::isnan(lanes[i]), i / 2 == lane / 2) << "lane " << i;
      }
    }
  });
}

}  // namespace
}  // namespace millipede
#endif  // HWY_ONCE
