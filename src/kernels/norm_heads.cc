#include "kernels/norm_heads.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm_heads.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/bf16-inl.h"
#include "kernels/rope-inl.h"
#include "kernels/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace {

// Rotates the last 64 lanes of a head and rounds all of it to bf16.
void RotateAndRound(const float* cos, const float* sin, float* HWY_RESTRICT head,
                    Bf16* HWY_RESTRICT out) {
  const hn::CappedTag<float, kHeadDim> d;
  RotateRopeLanes</*kInverse=*/false>(cos, sin, head + kHeadDim - kRopeLanes);
  for (size_t i = 0; i < static_cast<size_t>(kHeadDim); i += hn::Lanes(d)) {
    StoreBf16(d, hn::Load(d, head + i), out + i);
  }
}

}  // namespace

void HeadNormRope(const HeadNormRopeArgs& args) {
  const hn::CappedTag<float, kHeadDim> d;
  const hn::RebindToSigned<decltype(d)> di;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float head[kHeadDim];
  const auto row_scale = hn::Set(d, args.row_scale);
  for (size_t i = 0; i < kHeadDim; i += lanes) {
    const auto sums = hn::ConvertTo(d, hn::LoadU(di, args.sums + i));
    const auto scale = hn::LoadU(d, args.output_scale + i);
    hn::Store(hn::Mul(hn::Mul(sums, row_scale), scale), d, head + i);
  }
  const auto load = [&](size_t i) HWY_ATTR { return hn::Load(d, head + i); };
  const auto inverse = hn::Set(d, InverseRms(SumOfSquares(d, kHeadDim, load), kHeadDim, args.eps));
  for (size_t i = 0; i < kHeadDim; i += lanes) {
    hn::Store(hn::Mul(hn::Load(d, head + i), inverse), d, head + i);
  }
  RotateAndRound(args.cos, args.sin, head, args.out);
}

void KvNormRope(const KvNormRopeArgs& args) {
  const hn::CappedTag<float, kHeadDim> d;
  HWY_ALIGN float head[kHeadDim];
  const auto load = [&](size_t i) HWY_ATTR { return hn::LoadU(d, args.x + i); };
  const auto inverse = hn::Set(d, InverseRms(SumOfSquares(d, kHeadDim, load), kHeadDim, args.eps));
  for (size_t i = 0; i < kHeadDim; i += hn::Lanes(d)) {
    const auto weight = hn::LoadU(d, args.weight + i);
    hn::Store(hn::Mul(hn::Mul(load(i), inverse), weight), d, head + i);
  }
  RotateAndRound(args.cos, args.sin, head, args.out);
}

const char* NormHeadsTargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(HeadNormRope);
HWY_EXPORT(KvNormRope);
void HeadNormRope(const HeadNormRopeArgs& args) { HWY_DYNAMIC_DISPATCH(HeadNormRope)(args); }
void KvNormRope(const KvNormRopeArgs& args) { HWY_DYNAMIC_DISPATCH(KvNormRope)(args); }

HWY_EXPORT(NormHeadsTargetName);
const char* NormHeadsTargetName() { return HWY_DYNAMIC_DISPATCH(NormHeadsTargetName)(); }

}  // namespace millipede
#endif
