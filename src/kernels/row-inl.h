// Per-target helpers of kernels that walk a row of any length: whole vectors, then a part of one
// through a small buffer, so that nothing beyond the row is read or written.
#if defined(MILLIPEDE_KERNELS_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLIPEDE_KERNELS_ROW_INL_H_
#undef MILLIPEDE_KERNELS_ROW_INL_H_
#else
#define MILLIPEDE_KERNELS_ROW_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/bf16-inl.h"
#include "millipede/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The first min(count, Lanes(d)) elements at `from`, zeros in the lanes after them. count >= 1.
template <class D>
HWY_INLINE hn::Vec<D> LoadUpTo(D d, const hn::TFromD<D>* from, size_t count) {
  if (HWY_LIKELY(count >= hn::Lanes(d))) return hn::LoadU(d, from);
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, from, count * sizeof(lanes[0]));
  return hn::Load(d, lanes);
}

// Stores the first min(count, Lanes(d)) lanes. count >= 1.
template <class D>
HWY_INLINE void StoreUpTo(D d, hn::Vec<D> v, hn::TFromD<D>* to, size_t count) {
  if (HWY_LIKELY(count >= hn::Lanes(d))) {
    hn::StoreU(v, d, to);
    return;
  }
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  std::memcpy(to, lanes, count * sizeof(lanes[0]));
}

// As LoadUpTo, widening bf16 to the float32 lanes of d.
template <class D>
HWY_INLINE hn::Vec<D> LoadBf16UpTo(D d, const Bf16* from, size_t count) {
  if (HWY_LIKELY(count >= hn::Lanes(d))) return LoadBf16(d, from);
  Bf16 lanes[hn::MaxLanes(d)] = {};
  std::memcpy(lanes, from, count * sizeof(lanes[0]));
  return LoadBf16(d, lanes);
}

// As StoreUpTo, rounding the float32 lanes to bf16.
template <class D>
HWY_INLINE void StoreBf16UpTo(D d, hn::Vec<D> v, Bf16* to, size_t count) {
  if (HWY_LIKELY(count >= hn::Lanes(d))) {
    StoreBf16(d, v, to);
    return;
  }
  Bf16 lanes[hn::MaxLanes(d)];
  StoreBf16(d, v, lanes);
  std::memcpy(to, lanes, count * sizeof(lanes[0]));
}

// Sum of the squares of a row of n values, of which load(i) gives those from i on, zeros past the
// end. Four interleaved sums, then a tree: the order follows from n alone.
template <class D, class Load>
HWY_INLINE float SumOfSquares(D d, size_t n, const Load& load) {
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = sum0;
  auto sum2 = sum0;
  auto sum3 = sum0;
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const auto v0 = load(i);
    const auto v1 = load(i + lanes);
    const auto v2 = load(i + 2 * lanes);
    const auto v3 = load(i + 3 * lanes);
    sum0 = hn::MulAdd(v0, v0, sum0);
    sum1 = hn::MulAdd(v1, v1, sum1);
    sum2 = hn::MulAdd(v2, v2, sum2);
    sum3 = hn::MulAdd(v3, v3, sum3);
  }
  for (; i < n; i += lanes) {
    const auto v = load(i);
    sum0 = hn::MulAdd(v, v, sum0);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3))));
}

// rsqrt(mean + eps), with IEEE square root and division.
HWY_INLINE float InverseRms(float sum_of_squares, size_t n, float eps) {
  return 1.0F / std::sqrt(sum_of_squares / static_cast<float>(n) + eps);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#endif  // MILLIPEDE_KERNELS_ROW_INL_H_
