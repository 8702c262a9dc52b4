// Exp against std::exp in double, on every target.
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/exp_test.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {

// n must be a multiple of 64.
void ExpAll(const float* x, float* y, size_t n) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(Exp(d, hn::LoadU(d, x + i)), d, y + i);
  }
}

const char* ExpTarget() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/targets.h"

namespace millipede {
namespace {

HWY_EXPORT(ExpAll);
HWY_EXPORT(ExpTarget);

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const char* Ran() { return HWY_DYNAMIC_DISPATCH(ExpTarget)(); }

// Exp of each value, through whole vectors of it and its neighbours.
std::vector<float> ExpOf(std::vector<float> x) {
  const size_t n = x.size();
  x.resize((n + 63) / 64 * 64, 0.0F);
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(ExpAll)(x.data(), y.data(), x.size());
  y.resize(n);
  return y;
}

// The distance from float32 `actual` to `expected`, in units of the last place of `expected`.
double UlpError(float actual, double expected) {
  const double magnitude = std::max(expected, double{std::numeric_limits<float>::min()});
  const double ulp = std::ldexp(1.0, std::ilogb(magnitude) - 23);
  return std::abs(double{actual} - expected) / ulp;
}

struct Worst {
  double ulp = 0;
  float x = 0;
};

// Checks the finite, normal results and the two ends of a batch of inputs.
void Check(const std::vector<float>& x, Worst& worst) {
  const std::vector<float> y = ExpOf(x);
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      ASSERT_TRUE(std::isnan(y[i])) << "exp(NaN) = " << y[i];
      continue;
    }
    const double expected = std::exp(double{x[i]});
    if (static_cast<float>(expected) == kInfinity) {
      ASSERT_EQ(y[i], kInfinity) << "x = " << x[i];
    } else if (expected < double{std::numeric_limits<float>::min()}) {
      ASSERT_EQ(y[i], 0.0F) << "x = " << x[i];
    } else {
      ASSERT_TRUE(std::isfinite(y[i])) << "x = " << x[i];
      const double ulp = UlpError(y[i], expected);
      if (ulp > worst.ulp) worst = {ulp, x[i]};
    }
  }
}

TEST(Exp, AccurateOverTheWholeFloatRange) {
  ForEachTarget(Ran, [] {
    Worst worst;
    constexpr uint64_t kStep = 509;  // prime, so that every low bit pattern occurs
    std::vector<float> x;
    for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += kStep) {
      x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
      if (x.size() == 1 << 16) {
        Check(x, worst);
        x.clear();
      }
    }
    Check(x, worst);
    EXPECT_LT(worst.ulp, 1.0) << "x = " << worst.x;
  });
}

TEST(Exp, AccurateAroundEveryReductionBoundary) {
  ForEachTarget(Ran, [] {
    Worst worst;
    for (int half = -252; half <= 256; ++half) {
      std::vector<float> x;
      float at = static_cast<float>(half * 0.34657359027997264);
      for (int i = 0; i < 100; ++i) at = std::nextafter(at, -kInfinity);
      for (int i = 0; i < 200; ++i, at = std::nextafter(at, kInfinity)) x.push_back(at);
      Check(x, worst);
    }
    EXPECT_LT(worst.ulp, 1.0) << "x = " << worst.x;
  });
}

TEST(Exp, SpecialValues) {
  ForEachTarget(Ran, [] {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float big = std::numeric_limits<float>::max();
    const float tiny = std::numeric_limits<float>::denorm_min();
    const std::vector<float> y =
        ExpOf({0.0F, -0.0F, -kInfinity, kInfinity, -big, big, nan, -nan, tiny, -tiny, -5e5F, -1e6F,
               88.72283F, 88.72284F, -87.33654F, -87.33656F, -103.0F, -200.0F});
    EXPECT_EQ(y[0], 1.0F);
    EXPECT_EQ(y[1], 1.0F);
    EXPECT_EQ(y[2], 0.0F);
    EXPECT_FALSE(std::signbit(y[2]));
    EXPECT_EQ(y[3], kInfinity);
    EXPECT_EQ(y[4], 0.0F);
    EXPECT_EQ(y[5], kInfinity);
    EXPECT_TRUE(std::isnan(y[6]));
    EXPECT_TRUE(std::isnan(y[7]));
    EXPECT_EQ(y[8], 1.0F);
    EXPECT_EQ(y[9], 1.0F);
    EXPECT_EQ(y[10], 0.0F);
    EXPECT_EQ(y[11], 0.0F);
    EXPECT_GT(y[12], 3.4e38F);
    EXPECT_TRUE(std::isfinite(y[12]));
    EXPECT_EQ(y[13], kInfinity);
    EXPECT_GE(y[14], std::numeric_limits<float>::min());
    EXPECT_EQ(y[15], 0.0F);
    EXPECT_EQ(y[16], 0.0F);
    EXPECT_EQ(y[17], 0.0F);
  });
}

TEST(Exp, LaneDependsOnItsOwnInputOnly) {
  ForEachTarget(Ran, [] {
    const float hostile[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 1e30F};
    const float expected = ExpOf({-1.7F})[0];
    for (size_t lane = 0; lane < 64; ++lane) {
      std::vector<float> x(64);
      for (size_t i = 0; i < x.size(); ++i) x[i] = hostile[(i * 7 + lane) % 4];
      x[lane] = -1.7F;
      EXPECT_EQ(ExpOf(x)[lane], expected) << "lane " << lane;
    }
  });
}

}  // namespace
}  // namespace millipede
#endif  // HWY_ONCE
