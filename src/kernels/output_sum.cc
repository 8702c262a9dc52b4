#include "kernels/output_sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/output_sum.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void ScaleGroup(const ScaleGroupArgs& args) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto n = static_cast<size_t>(args.num_cols);
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const int32_t* sums = args.sums + row * args.sums_stride;
    float* out = args.out + row * args.out_stride;
    const auto scale = hn::Set(d, args.row_scale[row * args.row_scale_stride]);
    for (size_t i = 0; i < n; i += hn::Lanes(d)) {
      const auto value = hn::ConvertTo(d, LoadUpTo(di, sums + i, n - i));
      StoreUpTo(d, hn::Mul(value, scale), out + i, n - i);
    }
  }
}

void SumGroups(const SumGroupsArgs& args) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto n = static_cast<size_t>(args.num_cols);
  const auto num_groups = static_cast<size_t>(args.num_groups);
  constexpr size_t kMaxSubtrees = std::bit_width(static_cast<uint64_t>(kMaxOutputGroups));
  // The finished subtrees left of the present group, largest first: one for each 1 bit of the
  // number of groups so far.
  HWY_ALIGN float subtrees[kMaxSubtrees * hn::MaxLanes(d)];
  for (int64_t row = 0; row < args.num_rows; ++row) {
    for (size_t i = 0; i < n; i += lanes) {
      const float* values = args.groups + row * args.row_stride + i;
      size_t num_subtrees = 0;
      for (size_t g = 0; g < num_groups; ++g, values += args.group_stride) {
        auto sum = LoadUpTo(d, values, n - i);
        for (size_t carry = g; (carry & 1) != 0; carry >>= 1) {
          sum = hn::Add(hn::Load(d, subtrees + --num_subtrees * lanes), sum);
        }
        hn::Store(sum, d, subtrees + num_subtrees++ * lanes);
      }
      auto sum = hn::Load(d, subtrees + --num_subtrees * lanes);
      while (num_subtrees > 0) {
        sum = hn::Add(hn::Load(d, subtrees + --num_subtrees * lanes), sum);
      }
      const auto scale = LoadUpTo(d, args.scale + i, n - i);
      StoreBf16UpTo(d, hn::Mul(sum, scale), args.out + row * args.out_stride + i, n - i);
    }
  }
}

const char* OutputSumTargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(ScaleGroup);
HWY_EXPORT(SumGroups);
void ScaleGroup(const ScaleGroupArgs& args) { HWY_DYNAMIC_DISPATCH(ScaleGroup)(args); }
void SumGroups(const SumGroupsArgs& args) { HWY_DYNAMIC_DISPATCH(SumGroups)(args); }

HWY_EXPORT(OutputSumTargetName);
const char* OutputSumTargetName() { return HWY_DYNAMIC_DISPATCH(OutputSumTargetName)(); }

}  // namespace millipede
#endif
