// The vectors of a head block, and moving 128-bit blocks between rows and lanes. Per-target
// include: no plain guard.
#if defined(MILLIPEDE_KERNELS_ATTEND_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLIPEDE_KERNELS_ATTEND_VECTOR_INL_H_
#undef MILLIPEDE_KERNELS_ATTEND_VECTOR_INL_H_
#else
#define MILLIPEDE_KERNELS_ATTEND_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/attend_layout.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using HeadTag = hn::CappedTag<float, kHeadBlock>;
using HeadVec = hn::Vec<HeadTag>;
inline constexpr size_t kHeadLanes = hn::MaxLanes(HeadTag());
inline constexpr size_t kHeadVecs = static_cast<size_t>(kHeadBlock) / kHeadLanes;
static_assert(kHeadLanes % 4 == 0, "transposes work on 128-bit blocks");

// Two bf16 dimensions of a head, side by side in one lane.
using PairTag = hn::RebindToUnsigned<HeadTag>;
using PairVec = hn::Vec<PairTag>;

// The vector whose 128-bit block b is get(first_block + b).
template <class D, class Get>
HWY_INLINE hn::Vec<D> FromBlocks(D d, size_t first_block, const Get& get) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return get(first_block);
  } else {
    const hn::Half<D> half;
    const size_t upper_block = first_block + hn::MaxLanes(half) / 4;
    return hn::Combine(d, FromBlocks(half, upper_block, get), FromBlocks(half, first_block, get));
  }
}

// Calls put(first_block + b, block b of v).
template <class D, class Put>
HWY_INLINE void ToBlocks(D /*d*/, hn::Vec<D> v, size_t first_block, const Put& put) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    put(first_block, v);
  } else {
    const hn::Half<D> half;
    ToBlocks(half, hn::LowerHalf(half, v), first_block, put);
    ToBlocks(half, hn::UpperHalf(half, v), first_block + hn::MaxLanes(half) / 4, put);
  }
}

// Transposes the 4x4 matrix that each 128-bit block of the four vectors makes.
HWY_INLINE void TransposeBlocks(PairVec& v0, PairVec& v1, PairVec& v2, PairVec& v3) {
  const PairTag d;
  const hn::Repartition<uint64_t, PairTag> d64;
  const auto lower01 = hn::BitCast(d64, hn::InterleaveLower(d, v0, v1));
  const auto lower23 = hn::BitCast(d64, hn::InterleaveLower(d, v2, v3));
  const auto upper01 = hn::BitCast(d64, hn::InterleaveUpper(d, v0, v1));
  const auto upper23 = hn::BitCast(d64, hn::InterleaveUpper(d, v2, v3));
  v0 = hn::BitCast(d, hn::InterleaveLower(d64, lower01, lower23));
  v1 = hn::BitCast(d, hn::InterleaveUpper(d64, lower01, lower23));
  v2 = hn::BitCast(d, hn::InterleaveLower(d64, upper01, upper23));
  v3 = hn::BitCast(d, hn::InterleaveUpper(d64, upper01, upper23));
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#endif  // MILLIPEDE_KERNELS_ATTEND_VECTOR_INL_H_
