#include "kernels/norm_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/norm_rows.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/quantize-inl.h"
#include "kernels/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void RmsNorm(const RmsNormArgs& args) {
  const hn::ScalableTag<float> d;
  const auto n = static_cast<size_t>(args.num_values);
  const auto load = [&](size_t i) HWY_ATTR { return LoadBf16UpTo(d, args.x + i, n - i); };
  const auto inverse = hn::Set(d, InverseRms(SumOfSquares(d, n, load), n, args.eps));
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto weight = LoadUpTo(d, args.weight + i, n - i);
    StoreBf16UpTo(d, hn::Mul(hn::Mul(load(i), inverse), weight), args.out + i, n - i);
  }
}

void RmsNormQuantize(const RmsNormQuantizeArgs& args) {
  const hn::ScalableTag<float> d;
  const auto n = static_cast<size_t>(args.num_values);
  const auto load = [&](size_t i) HWY_ATTR { return LoadUpTo(d, args.x + i, n - i); };
  const auto inverse = hn::Set(d, InverseRms(SumOfSquares(d, n, load), n, args.eps));
  // Computed twice rather than kept, so that rows of any length need no buffer.
  const auto normalized = [&](size_t i) HWY_ATTR {
    return hn::Mul(hn::Mul(load(i), inverse), LoadUpTo(d, args.weight + i, n - i));
  };
  *args.scale = QuantizeValues(d, n, normalized, args.codes);
}

const char* NormRowsTargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(RmsNormQuantize);
void RmsNorm(const RmsNormArgs& args) { HWY_DYNAMIC_DISPATCH(RmsNorm)(args); }
void RmsNormQuantize(const RmsNormQuantizeArgs& args) {
  HWY_DYNAMIC_DISPATCH(RmsNormQuantize)(args);
}

HWY_EXPORT(NormRowsTargetName);
const char* NormRowsTargetName() { return HWY_DYNAMIC_DISPATCH(NormRowsTargetName)(); }

}  // namespace millipede
#endif
