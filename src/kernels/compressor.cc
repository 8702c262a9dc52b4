#include "kernels/compressor.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/compressor.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/exp-inl.h"
#include "kernels/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void AddRow(const AddRowArgs& args) {
  const hn::ScalableTag<float> d;
  const auto n = static_cast<size_t>(args.num_values);
  for (size_t i = 0; i < n; i += hn::Lanes(d)) {
    StoreUpTo(d, hn::Add(LoadUpTo(d, args.row + i, n - i), LoadUpTo(d, args.addend + i, n - i)),
              args.row + i, n - i);
  }
}

void PoolRows(const PoolRowsArgs& args) {
  const hn::ScalableTag<float> d;
  const auto num_lanes = static_cast<size_t>(args.num_lanes);
  for (size_t i = 0; i < num_lanes; i += hn::Lanes(d)) {
    const size_t count = num_lanes - i;
    auto max = LoadUpTo(d, args.score[0] + i, count);
    for (int64_t r = 1; r < args.num_rows; ++r) {
      max = hn::Max(max, LoadUpTo(d, args.score[r] + i, count));
    }
    auto sum = hn::Zero(d);
    auto weighted = hn::Zero(d);
    for (int64_t r = 0; r < args.num_rows; ++r) {
      const auto weight = Exp(d, hn::Sub(LoadUpTo(d, args.score[r] + i, count), max));
      sum = hn::Add(sum, weight);
      weighted = hn::MulAdd(weight, LoadUpTo(d, args.kv[r] + i, count), weighted);
    }
    StoreUpTo(d, hn::Div(weighted, sum), args.out + i, count);
  }
}

const char* CompressorTargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(AddRow);
HWY_EXPORT(PoolRows);
HWY_EXPORT(CompressorTargetName);

void AddRow(const AddRowArgs& args) { HWY_DYNAMIC_DISPATCH(AddRow)(args); }
void PoolRows(const PoolRowsArgs& args) { HWY_DYNAMIC_DISPATCH(PoolRows)(args); }
const char* CompressorTargetName() { return HWY_DYNAMIC_DISPATCH(CompressorTargetName)(); }

}  // namespace millipede
#endif  // HWY_ONCE
