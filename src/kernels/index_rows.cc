#include "kernels/index_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/index_rows.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <cstddef>

#include "kernels/bf16-inl.h"
#include "kernels/quantize-inl.h"
#include "kernels/rope-inl.h"
#include "kernels/row-inl.h"
#include "millipede/config.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace {

using IndexTag = hn::CappedTag<float, kIndexDim>;
constexpr size_t kDim = kIndexDim;
constexpr float kHadamardEntry = 0.08838834764831845F;  // 128^-1/2

// row * Hadamard. Each round transforms the top bit of the lane number and moves it to the bottom,
// so that after one round per bit every lane is back in its place.
void MultiplyHadamard(float* HWY_RESTRICT row) {
  const IndexTag d;
  static_assert(kDim == 128);
  constexpr int kRounds = 7;
  HWY_ALIGN float other[kDim];
  float* from = row;
  float* to = other;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kDim / 2; i += hn::Lanes(d)) {
      const auto low = hn::Load(d, from + i);
      const auto high = hn::Load(d, from + kDim / 2 + i);
      hn::StoreInterleaved2(hn::Add(low, high), hn::Sub(low, high), d, to + 2 * i);
    }
    float* const swapped = from;
    from = to;
    to = swapped;
  }
  for (size_t i = 0; i < kDim; i += hn::Lanes(d)) {
    hn::Store(hn::Mul(hn::Load(d, from + i), hn::Set(d, kHadamardEntry)), d, row + i);
  }
}

void RoundRow(float* row) {
  const IndexTag d;
  for (size_t i = 0; i < kDim; i += hn::Lanes(d)) {
    hn::Store(RoundToBf16(d, hn::Load(d, row + i)), d, row + i);
  }
}

float QuantizeIndexRow(const float* row, int8_t* codes) {
  const IndexTag d;
  const auto load = [=](size_t i) HWY_ATTR { return hn::Load(d, row + i); };
  return QuantizeValues(d, kDim, load, codes);
}

}  // namespace

void IndexKeyRow(const IndexKeyRowArgs& args) {
  const IndexTag d;
  HWY_ALIGN float row[kDim];
  const auto load = [&](size_t i) HWY_ATTR { return hn::LoadU(d, args.pooled + i); };
  const auto inverse = hn::Set(d, InverseRms(SumOfSquares(d, kDim, load), kDim, args.eps));
  for (size_t i = 0; i < kDim; i += hn::Lanes(d)) {
    hn::Store(hn::Mul(hn::Mul(load(i), inverse), hn::LoadU(d, args.weight + i)), d, row + i);
  }
  RotateRopeLanes</*kInverse=*/false>(args.cos, args.sin, row + kDim - kRopeLanes);
  RoundRow(row);
  MultiplyHadamard(row);
  RoundRow(row);
  *args.scale = QuantizeIndexRow(row, args.codes);
}

void IndexQueryHead(const IndexQueryHeadArgs& args) {
  const IndexTag d;
  const hn::RebindToSigned<IndexTag> di;
  HWY_ALIGN float row[kDim];
  const auto row_scale = hn::Set(d, args.row_scale);
  for (size_t i = 0; i < kDim; i += hn::Lanes(d)) {
    const auto sums = hn::ConvertTo(d, hn::LoadU(di, args.sums + i));
    const auto scale = hn::LoadU(d, args.output_scale + i);
    hn::Store(hn::Mul(hn::Mul(sums, row_scale), scale), d, row + i);
  }
  RotateRopeLanes</*kInverse=*/false>(args.cos, args.sin, row + kDim - kRopeLanes);
  RoundRow(row);
  MultiplyHadamard(row);
  *args.scale = QuantizeIndexRow(row, args.codes);
}

const char* IndexRowsTargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(IndexKeyRow);
HWY_EXPORT(IndexQueryHead);
void IndexKeyRow(const IndexKeyRowArgs& args) { HWY_DYNAMIC_DISPATCH(IndexKeyRow)(args); }
void IndexQueryHead(const IndexQueryHeadArgs& args) { HWY_DYNAMIC_DISPATCH(IndexQueryHead)(args); }

HWY_EXPORT(IndexRowsTargetName);
const char* IndexRowsTargetName() { return HWY_DYNAMIC_DISPATCH(IndexRowsTargetName)(); }

}  // namespace millipede
#endif
