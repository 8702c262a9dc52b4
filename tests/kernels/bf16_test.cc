// The bf16 conversions of vectors against the scalar ones, on every target.
#include <cstddef>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bf16_test.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/bf16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {

// n must be a multiple of 64 in all three.
void WidenAll(const Bf16* x, float* y, size_t n) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(LoadBf16(d, x + i), d, y + i);
}

void NarrowAll(const float* x, Bf16* y, size_t n) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) StoreBf16(d, hn::LoadU(d, x + i), y + i);
}

void RoundAll(float* x, size_t n) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    hn::StoreU(RoundToBf16(d, hn::LoadU(d, x + i)), d, x + i);
  }
}

const char* Bf16Target() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/bf16.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

HWY_EXPORT(WidenAll);
HWY_EXPORT(NarrowAll);
HWY_EXPORT(RoundAll);
HWY_EXPORT(Bf16Target);

const char* Ran() { return HWY_DYNAMIC_DISPATCH(Bf16Target)(); }

TEST(Bf16, WidensEveryValue) {
  ForEachTarget(Ran, [] {
    std::vector<Bf16> x(1 << 16);
    for (size_t i = 0; i < x.size(); ++i) x[i].bits = static_cast<uint16_t>(i);
    std::vector<float> y(x.size());
    HWY_DYNAMIC_DISPATCH(WidenAll)(x.data(), y.data(), x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), static_cast<uint32_t>(i) << 16);
    }
  });
}

TEST(Bf16, RoundsToNearestEven) {
  // Every upper half with the lower halves around a tie, then bit patterns in prime steps.
  std::vector<float> x;
  for (uint32_t upper = 0; upper < 1U << 16; ++upper) {
    for (const uint32_t lower : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      x.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 65521) {
    x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  x.resize(x.size() / 64 * 64);
  ForEachTarget(Ran, [&] {
    std::vector<Bf16> y(x.size());
    HWY_DYNAMIC_DISPATCH(NarrowAll)(x.data(), y.data(), x.size());
    std::vector<float> rounded = x;
    HWY_DYNAMIC_DISPATCH(RoundAll)(rounded.data(), rounded.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const Bf16 expected = FloatToBf16(x[i]);
      ASSERT_EQ(y[i].bits, expected.bits) << std::hex << std::bit_cast<uint32_t>(x[i]);
      ASSERT_EQ(std::isnan(rounded[i]), std::isnan(x[i]));
      ASSERT_EQ(std::bit_cast<uint32_t>(rounded[i]), static_cast<uint32_t>(expected.bits) << 16);
    }
  });
}

}  // namespace
}  // namespace millipede
#endif  // HWY_ONCE
