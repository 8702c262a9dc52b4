// bfloat16 in vectors of float32: widening, and rounding to nearest even. Per-target include: no
// plain guard.
#if defined(MILLIPEDE_KERNELS_BF16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLIPEDE_KERNELS_BF16_INL_H_
#undef MILLIPEDE_KERNELS_BF16_INL_H_
#else
#define MILLIPEDE_KERNELS_BF16_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "millipede/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Lanes(d) bf16 values from `from`, any alignment, as float32.
template <class D>
HWY_INLINE hn::Vec<D> LoadBf16(D d, const Bf16* HWY_RESTRICT from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, &from->bits))));
}

// The bits of every float32 lane rounded to bf16, to nearest even: the bf16 is the upper half, the
// lower half holds leftovers. A NaN stays a NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> RoundedBf16Bits(D /*d*/, V v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1U));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFU)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x400000U));
  return hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
}

// Every lane rounded to the nearest float32 that bf16 can hold.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V RoundToBf16(D d, V v) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::And(RoundedBf16Bits(d, v), hn::Set(du, 0xFFFF0000U)));
}

// Stores Lanes(d) values rounded to bf16 at `to`, any alignment.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void StoreBf16(D d, V v, Bf16* HWY_RESTRICT to) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  // At most 0xFFFF after the shift, so that the saturating demotion is exact.
  const auto upper = hn::BitCast(di, hn::ShiftRight<16>(RoundedBf16Bits(d, v)));
  hn::StoreU(hn::DemoteTo(d16, upper), d16, &to->bits);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#endif  // MILLIPEDE_KERNELS_BF16_INL_H_
