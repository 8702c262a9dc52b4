// What two partials are scaled by when they become one. Per-target include: no plain guard.
#if defined(MILLIPEDE_KERNELS_ATTEND_SCALES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLIPEDE_KERNELS_ATTEND_SCALES_INL_H_
#undef MILLIPEDE_KERNELS_ATTEND_SCALES_INL_H_
#else
#define MILLIPEDE_KERNELS_ATTEND_SCALES_INL_H_
#endif

#include <hwy/highway.h>

#include <limits>

#include "kernels/attend_vector-inl.h"
#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {

inline HeadVec MinusInfinity() {
  return hn::Set(HeadTag(), -std::numeric_limits<float>::infinity());
}

// `max`, but 0 where it is -inf: -inf less -inf would be NaN, and less 0 it is a probability of 0.
HWY_INLINE HeadVec SafeShift(HeadVec max) {
  return hn::IfThenZeroElse(hn::Eq(max, MinusInfinity()), max);
}

struct MergeScales {
  HeadVec max;   // of both
  HeadVec from;  // for sums and outputs of the rows that follow
  HeadVec into;  // for those of the rows before
};

HWY_INLINE MergeScales ScalesOf(HeadVec from_max, HeadVec into_max) {
  const HeadTag d;
  const HeadVec max = hn::Max(into_max, from_max);
  const HeadVec shift = SafeShift(max);
  return {.max = max,
          .from = Exp(d, hn::Sub(from_max, shift)),
          .into = Exp(d, hn::Sub(into_max, shift))};
}

HWY_INLINE HeadVec Merged(HeadVec from, HeadVec from_scale, HeadVec into, HeadVec into_scale) {
  return hn::MulAdd(into, into_scale, hn::Mul(from, from_scale));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#endif  // MILLIPEDE_KERNELS_ATTEND_SCALES_INL_H_
