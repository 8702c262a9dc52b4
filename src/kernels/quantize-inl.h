// Symmetric int8 quantization of one row, per target.
#if defined(MILLIPEDE_KERNELS_QUANTIZE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLIPEDE_KERNELS_QUANTIZE_INL_H_
#undef MILLIPEDE_KERNELS_QUANTIZE_INL_H_
#else
#define MILLIPEDE_KERNELS_QUANTIZE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Quantizes a row of n >= 1 values, of which load(i) gives those from i on, zeros past the end;
// load is called twice for each i. Writes codes [n] and returns the scale:
//   amax = max(max|x|, 1e-4), code = round_half_even(x * (127 / amax)), scale = amax / 127.
// A row with a NaN has scale NaN, one with an infinity and no NaN scale infinity; either has codes
// 0.
template <class D, class Load>
HWY_INLINE float QuantizeValues(D d, size_t n, const Load& load, int8_t* codes) {
  const size_t lanes = hn::Lanes(d);
  // Magnitudes compare as their bit patterns do, and there NaN is above infinity, so the greatest
  // pattern tells all three cases apart. A float maximum would lose a NaN.
  const hn::RebindToSigned<D> di;
  auto max_bits = hn::Zero(di);
  for (size_t i = 0; i < n; i += lanes) {
    max_bits = hn::Max(max_bits, hn::BitCast(di, hn::Abs(load(i))));
  }
  float amax = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, max_bits)));
  if (amax < 1e-4F) amax = 1e-4F;  // false for NaN

  const auto factor = hn::Set(d, 127.0F / amax);
  const auto limit = hn::Set(d, 127.5F);
  const hn::Rebind<int8_t, D> d8;
  for (size_t i = 0; i < n; i += lanes) {
    const auto product = hn::Mul(load(i), factor);
    // Not finite, hence above the limit or unordered: 0, so that the conversion is always defined.
    const auto in_range = hn::IfThenElseZero(hn::Le(hn::Abs(product), limit), product);
    StoreUpTo(d8, hn::DemoteTo(d8, hn::NearestInt(in_range)), codes + i, n - i);
  }
  return amax / 127.0F;
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#endif  // MILLIPEDE_KERNELS_QUANTIZE_INL_H_
