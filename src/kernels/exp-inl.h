// exp of float32 vectors, for every kernel that needs one. Per-target include: no plain guard.
#if defined(MILLIPEDE_KERNELS_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLIPEDE_KERNELS_EXP_INL_H_
#undef MILLIPEDE_KERNELS_EXP_INL_H_
#else
#define MILLIPEDE_KERNELS_EXP_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x of every lane, below 1 ulp of error wherever the result is a normal number. Exp(0) is
// exactly 1; from 88.72284 up +inf; results below the smallest normal number are 0, so Exp(-inf) is
// 0; a NaN stays a NaN. A lane depends on nothing but its own input. Rounding must be to nearest.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;

  // e^x = 2^n * e^r with n = round(x / ln 2). Adding 1.5 * 2^23 rounds to an integer and leaves n
  // in the low mantissa bits.
  const V magic = hn::Set(d, 12582912.0F);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504F), magic);
  const V n = hn::Sub(shifted, magic);
  // ln 2 in two parts; the first has 9 bits, so that n times it is exact.
  const V r =
      hn::NegMulAdd(n, hn::Set(d, -2.12194442e-4F), hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x));

  // e^r = 1 + r + r^2 * p(r), p of least relative error (2^-34) for |r| <= 0.347.
  V p = hn::Set(d, 1.97902176e-4F);
  p = hn::MulAdd(p, r, hn::Set(d, 1.39447837e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 8.33349768e-3F));
  p = hn::MulAdd(p, r, hn::Set(d, 4.16662917e-2F));
  p = hn::MulAdd(p, r, hn::Set(d, 1.66666657e-1F));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5F));
  const V y = hn::Add(hn::Set(d, 1.0F), hn::MulAdd(hn::Mul(r, r), p, r));

  // The shift drops all of `shifted` but n; the sum is right while the exponent stays in range,
  // which it does between the two bounds.
  const V scaled =
      hn::BitCast(d, hn::Add(hn::BitCast(di, y), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
  // Past the upper bound, and for a NaN, adding infinity gives what is due.
  const V infinity = hn::BitCast(d, hn::Set(di, 0x7F800000));
  const V high = hn::IfThenElse(hn::Le(x, hn::Set(d, 88.7228317F)), scaled, hn::Add(x, infinity));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3365402F)), high);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#endif  // MILLIPEDE_KERNELS_EXP_INL_H_
