#include "kernels/attend_merge.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend_merge.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attend_scales-inl.h"
#include "kernels/attend_vector-inl.h"
#include "kernels/bf16-inl.h"
#include "kernels/exp-inl.h"
#include "millipede/rope.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {

void AttendMerge(const AttendMergeArgs& args) {
  const HeadTag d;
  for (size_t lane = 0; lane < static_cast<size_t>(kHeadBlock); lane += kHeadLanes) {
    const MergeScales scales =
        ScalesOf(hn::Load(d, args.from.max + lane), hn::Load(d, args.into.max + lane));
    const auto merge = [&](const float* HWY_RESTRICT from, float* HWY_RESTRICT into) HWY_ATTR {
      hn::Store(Merged(hn::Load(d, from), scales.from, hn::Load(d, into), scales.into), d, into);
    };
    hn::Store(scales.max, d, args.into.max + lane);
    merge(args.from.sum + lane, args.into.sum + lane);
    for (size_t i = 0; i < static_cast<size_t>(kHeadDim); ++i) {
      merge(args.from.out_t + i * kHeadBlock + lane, args.into.out_t + i * kHeadBlock + lane);
    }
  }
}

// Writes four pairs of dimensions, from `dim` on, of the heads in one vector: pairs[i] holds, in
// each lane, the bf16 of dimensions dim + 2i and dim + 2i + 1.
HWY_INLINE void StoreHeads(PairVec* HWY_RESTRICT pairs, const AttendFinishArgs& args, size_t lane,
                           int64_t dim) {
  const hn::FixedTag<uint32_t, 4> block_tag;
  const hn::Repartition<uint16_t, decltype(block_tag)> block_tag16;
  TransposeBlocks(pairs[0], pairs[1], pairs[2], pairs[3]);
  for (size_t i = 0; i < 4; ++i) {
    ToBlocks(PairTag(), pairs[i], 0, [&](size_t block, hn::Vec<decltype(block_tag)> v) HWY_ATTR {
      const auto head = static_cast<int64_t>(lane + 4 * block + i);
      if (head >= args.num_heads) return;
      Bf16* to = args.heads + head * args.head_stride + dim;
      hn::StoreU(hn::BitCast(block_tag16, v), block_tag16, &to->bits);
    });
  }
}

void AttendFinish(const AttendFinishArgs& args) {
  const HeadTag d;
  const PairTag du;
  const PairVec upper = hn::Set(du, 0xFFFF0000U);
  const HeadVec lowest = MinusInfinity();
  HWY_ALIGN float sinks[kHeadBlock];
  std::fill_n(sinks, kHeadBlock, -std::numeric_limits<float>::infinity());
  std::copy_n(args.sink, args.num_heads, sinks);

  const int64_t rotated_dim = args.cos == nullptr ? kHeadDim : kHeadDim - kRopeLanes;
  for (size_t lane = 0; lane < static_cast<size_t>(args.num_heads); lane += kHeadLanes) {
    const HeadVec sink = hn::Load(d, sinks + lane);
    const HeadVec max = hn::Load(d, args.partial.max + lane);
    const HeadVec sink_term = hn::IfThenZeroElse(hn::Eq(sink, lowest), Exp(d, hn::Sub(sink, max)));
    const HeadVec denominator = hn::Add(hn::Load(d, args.partial.sum + lane), sink_term);
    const HeadVec inverse = hn::IfThenZeroElse(hn::Eq(denominator, hn::Zero(d)),
                                               hn::Div(hn::Set(d, 1.0F), denominator));
    const float* HWY_RESTRICT out_t = args.partial.out_t + lane;
    const auto load = [&](int64_t dim) HWY_ATTR {
      return hn::Mul(hn::Load(d, out_t + dim * kHeadBlock), inverse);
    };
    const auto pack = [&](HeadVec even, HeadVec odd) HWY_ATTR {
      return hn::Or(hn::ShiftRight<16>(RoundedBf16Bits(d, even)),
                    hn::And(RoundedBf16Bits(d, odd), upper));
    };
    int64_t dim = 0;
    for (; dim < rotated_dim; dim += 8) {
      PairVec pairs[4];
      for (int64_t i = 0; i < 4; ++i) pairs[i] = pack(load(dim + 2 * i), load(dim + 2 * i + 1));
      StoreHeads(pairs, args, lane, dim);
    }
    for (; dim < kHeadDim; dim += 8) {
      PairVec pairs[4];
      for (int64_t i = 0; i < 4; ++i) {
        const int64_t angle = (dim + 2 * i - rotated_dim) / 2;
        const HeadVec c = hn::Set(d, args.cos[angle]);
        const HeadVec s = hn::Set(d, args.sin[angle]);
        const HeadVec x0 = load(dim + 2 * i);
        const HeadVec x1 = load(dim + 2 * i + 1);
        pairs[i] =
            pack(hn::Add(hn::Mul(x0, c), hn::Mul(x1, s)), hn::Sub(hn::Mul(x1, c), hn::Mul(x0, s)));
      }
      StoreHeads(pairs, args, lane, dim);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(AttendMerge);
HWY_EXPORT(AttendFinish);

void AttendMerge(const AttendMergeArgs& args) { HWY_DYNAMIC_DISPATCH(AttendMerge)(args); }

void AttendFinish(const AttendFinishArgs& args) {
  HWY_DYNAMIC_DISPATCH(AttendFinish)(args);
  if (args.log_sum_exp == nullptr) return;
  for (int64_t head = 0; head < args.num_heads; ++head) {
    args.log_sum_exp[head] = static_cast<float>(double{args.partial.max[head]} +
                                                std::log(double{args.partial.sum[head]}));
  }
}

}  // namespace millipede
#endif  // HWY_ONCE
