#include "kernels/attend_load.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend_load.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "kernels/attend_vector-inl.h"
#include "kernels/bf16-inl.h"
#include "kernels/row_prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {

void AttendWiden(const AttendWidenArgs& args) {
  const hn::CappedTag<float, kKvPanelDims> d;
  const int64_t panel_floats = args.panel_rows * kKvPanelDims;
  // Rows come from anywhere in memory: each is asked for while those before it are widened.
  constexpr int64_t kRowsAhead = 8;
  for (int64_t r = -kRowsAhead; r < args.rows.num_rows; ++r) {
    if (r + kRowsAhead < args.rows.num_rows) PrefetchRow(args.rows.rows[r + kRowsAhead]);
    if (r < 0) continue;
    const Bf16* HWY_RESTRICT row = args.rows.rows[r];
    float* HWY_RESTRICT to = args.kv + (args.first_row + r) * kKvPanelDims;
    for (int64_t panel = 0; panel < kKvPanels; ++panel) {
      for (size_t i = 0; i < static_cast<size_t>(kKvPanelDims); i += hn::Lanes(d)) {
        hn::Store(LoadBf16(d, row + i), d, to + i);
      }
      row += kKvPanelDims;
      to += panel_floats;
    }
  }
}

void AttendTransposeQ(const AttendTransposeQArgs& args) {
  const PairTag d;
  const HeadTag df;
  const hn::FixedTag<uint32_t, 4> block_tag;
  const hn::Repartition<uint16_t, decltype(block_tag)> block_tag16;
  const PairVec upper = hn::Set(d, 0xFFFF0000U);

  RowPrefetch next(args.next, static_cast<int64_t>(kHeadVecs) * kHeadDim / 8);
  for (size_t lane = 0; lane < static_cast<size_t>(kHeadBlock); lane += kHeadLanes) {
    for (int64_t dim = 0; dim < kHeadDim; dim += 8) {
      next.Step();
      // Of every fourth head from `lane + first` on, four pairs of dimensions.
      const auto load = [&](size_t first) HWY_ATTR {
        return FromBlocks(d, 0, [&](size_t block) HWY_ATTR {
          const auto head = static_cast<int64_t>(lane + 4 * block + first);
          if (head >= args.num_heads) return hn::Zero(block_tag);
          const Bf16* from = args.q + head * args.head_stride + dim;
          return hn::BitCast(block_tag, hn::LoadU(block_tag16, &from->bits));
        });
      };
      PairVec pairs[4] = {load(0), load(1), load(2), load(3)};
      TransposeBlocks(pairs[0], pairs[1], pairs[2], pairs[3]);
      float* HWY_RESTRICT to = args.q_t + dim * kHeadBlock + lane;
      for (const PairVec& pair : pairs) {
        hn::Store(hn::BitCast(df, hn::ShiftLeft<16>(pair)), df, to);
        hn::Store(hn::BitCast(df, hn::And(pair, upper)), df, to + kHeadBlock);
        to += 2 * kHeadBlock;
      }
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(AttendWiden);
HWY_EXPORT(AttendTransposeQ);

void AttendWiden(const AttendWidenArgs& args) { HWY_DYNAMIC_DISPATCH(AttendWiden)(args); }
void AttendTransposeQ(const AttendTransposeQArgs& args) {
  HWY_DYNAMIC_DISPATCH(AttendTransposeQ)(args);
}

}  // namespace millipede
#endif  // HWY_ONCE
