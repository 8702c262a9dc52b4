// Rotation of the RoPE lanes of a head, per target.
#if defined(MILLIPEDE_KERNELS_ROPE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLIPEDE_KERNELS_ROPE_INL_H_
#undef MILLIPEDE_KERNELS_ROPE_INL_H_
#else
#define MILLIPEDE_KERNELS_ROPE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>

#include "millipede/rope.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rotates the 32 pairs (lanes[2i], lanes[2i+1]) in place by (cos[i], sin[i]); kInverse turns back:
//   forward  y0 = x0 * cos - x1 * sin, y1 = x0 * sin + x1 * cos
//   inverse  y0 = x0 * cos + x1 * sin, y1 = x1 * cos - x0 * sin
// lanes is float [64], cos and sin are float [32]; none needs to be aligned.
template <bool kInverse>
HWY_INLINE void RotateRopeLanes(const float* cos, const float* sin, float* lanes) {
  const hn::CappedTag<float, kRopePairs> d;
  using V = hn::Vec<decltype(d)>;
  for (size_t i = 0; i < static_cast<size_t>(kRopePairs); i += hn::Lanes(d)) {
    V x0;
    V x1;
    hn::LoadInterleaved2(d, lanes + 2 * i, x0, x1);
    const V c = hn::LoadU(d, cos + i);
    const V s = hn::LoadU(d, sin + i);
    const V y0 = kInverse ? hn::Add(hn::Mul(x0, c), hn::Mul(x1, s))
                          : hn::Sub(hn::Mul(x0, c), hn::Mul(x1, s));
    const V y1 = kInverse ? hn::Sub(hn::Mul(x1, c), hn::Mul(x0, s))
                          : hn::Add(hn::Mul(x0, s), hn::Mul(x1, c));
    hn::StoreInterleaved2(y0, y1, d, lanes + 2 * i);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#endif  // MILLIPEDE_KERNELS_ROPE_INL_H_
