#include "kernels/quantize.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/quantize-inl.h"
#include "kernels/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void Quantize(const QuantizeArgs& args) {
  const hn::ScalableTag<float> d;
  const auto n = static_cast<size_t>(args.num_values);
  const auto load = [&](size_t i) HWY_ATTR { return LoadUpTo(d, args.x + i, n - i); };
  *args.scale = QuantizeValues(d, n, load, args.codes);
}

const char* QuantizeTargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(Quantize);
void Quantize(const QuantizeArgs& args) { HWY_DYNAMIC_DISPATCH(Quantize)(args); }

HWY_EXPORT(QuantizeTargetName);
const char* QuantizeTargetName() { return HWY_DYNAMIC_DISPATCH(QuantizeTargetName)(); }

}  // namespace millipede
#endif
