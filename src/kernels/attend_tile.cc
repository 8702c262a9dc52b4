#include "kernels/attend_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attend_tile.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <utility>

#include "kernels/attend_scales-inl.h"
#include "kernels/attend_vector-inl.h"
#include "kernels/bf16-inl.h"
#include "kernels/exp-inl.h"
#include "kernels/row_prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {

// Rows of scores (or dimensions of output) whose sums over all sixteen heads stay in registers:
// with kHeadVecs vectors of heads and one broadcast, 18 of 32 registers where a head block is one
// vector, 15 of 16 where it is two, 13 where it is four.
inline constexpr size_t kRegisterRows = kHeadVecs == 1 ? 16 : kHeadVecs == 2 ? 6 : 2;

// Panels whose products with all rows are summed before the next ones: their part of q_t stays in
// the first-level cache while the rows stream past.
inline constexpr int64_t kPanelsPerPass = 4;
static_assert(kKvPanels % kPanelsPerPass == 0);

// Adds to the scores of kRows rows the products over kPanelsPerPass panels of 16 dimensions.
template <size_t kRows>
HWY_INLINE void AddScores(const float* HWY_RESTRICT q_t, const float* HWY_RESTRICT kv,
                          int64_t panel_floats, bool first_pass, float* HWY_RESTRICT scores) {
  const HeadTag d;
  HeadVec sums[kRows][kHeadVecs];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kHeadVecs; ++v) {
      sums[r][v] = first_pass
                       ? hn::Zero(d)
                       : hn::Load(d, scores + r * static_cast<size_t>(kHeadBlock) + v * kHeadLanes);
    }
  }
  for (int64_t panel = 0; panel < kPanelsPerPass; ++panel) {
    for (int64_t dim = 0; dim < kKvPanelDims; ++dim) {
      HeadVec q[kHeadVecs];
      for (size_t v = 0; v < kHeadVecs; ++v) q[v] = hn::Load(d, q_t + v * kHeadLanes);
      for (size_t r = 0; r < kRows; ++r) {
        const HeadVec k = hn::Set(d, kv[r * static_cast<size_t>(kKvPanelDims) + dim]);
        for (size_t v = 0; v < kHeadVecs; ++v) sums[r][v] = hn::MulAdd(q[v], k, sums[r][v]);
      }
      q_t += kHeadBlock;
    }
    kv += panel_floats;
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kHeadVecs; ++v) {
      hn::Store(sums[r][v], d, scores + r * static_cast<size_t>(kHeadBlock) + v * kHeadLanes);
    }
  }
}

// What the tile and the rows before are scaled by.
struct HWY_ALIGN_MAX OutputScales {
  float tile[kHeadBlock];
  float before[kHeadBlock];
};

// Sums probability times value over rows, for kDims dimensions of the output: overwrites them, or
// merges into them if there are `scales`.
template <size_t kDims>
HWY_INLINE void SumValues(const float* HWY_RESTRICT probabilities, const float* HWY_RESTRICT kv,
                          int64_t num_rows, const OutputScales* scales, float* HWY_RESTRICT out_t) {
  const HeadTag d;
  HeadVec sums[kDims][kHeadVecs];
  for (size_t i = 0; i < kDims; ++i) {
    for (size_t v = 0; v < kHeadVecs; ++v) sums[i][v] = hn::Zero(d);
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    HeadVec p[kHeadVecs];
    for (size_t v = 0; v < kHeadVecs; ++v) p[v] = hn::Load(d, probabilities + v * kHeadLanes);
    for (size_t i = 0; i < kDims; ++i) {
      const HeadVec value = hn::Set(d, kv[i]);
      for (size_t v = 0; v < kHeadVecs; ++v) sums[i][v] = hn::MulAdd(p[v], value, sums[i][v]);
    }
    probabilities += kHeadBlock;
    kv += kKvPanelDims;
  }
  for (size_t i = 0; i < kDims; ++i) {
    for (size_t v = 0; v < kHeadVecs; ++v) {
      float* out = out_t + i * static_cast<size_t>(kHeadBlock) + v * kHeadLanes;
      HeadVec sum = sums[i][v];
      if (scales != nullptr) {
        sum = Merged(sum, hn::Load(d, scales->tile + v * kHeadLanes), hn::Load(d, out),
                     hn::Load(d, scales->before + v * kHeadLanes));
      }
      hn::Store(sum, d, out);
    }
  }
}

inline int64_t NumRegisterBlocks(int64_t num) {
  return CeilDiv(num, static_cast<int64_t>(kRegisterRows));
}

// Calls body(begin, integral constant of the count) for even shares of [0, num), each at most
// kRegisterRows: even, because few sums at once leave the multipliers waiting.
template <class Body>
HWY_INLINE void ForRegisterBlocks(int64_t num_all, const Body& body) {
  const auto num = static_cast<size_t>(num_all);
  auto blocks = static_cast<size_t>(NumRegisterBlocks(num_all));
  for (size_t begin = 0; begin < num; --blocks) {
    const size_t count = (num - begin + blocks - 1) / blocks;
    [&]<size_t... kLess>(std::index_sequence<kLess...>) HWY_ATTR {
      (void)((count == kLess + 1 &&
              (body(begin, std::integral_constant<size_t, kLess + 1>()), true)) ||
             ...);
    }
    (std::make_index_sequence<kRegisterRows>());
    begin += count;
  }
}

HWY_NOINLINE void Scores(const AttendTileArgs& args) {
  const int64_t panel_floats = args.panel_rows * kKvPanelDims;
  const float* kv = args.kv + args.first_row * kKvPanelDims;
  RowPrefetch next_rows(args.next, kKvPanels / kPanelsPerPass * NumRegisterBlocks(args.num_rows));
  for (int64_t panel = 0; panel < kKvPanels; panel += kPanelsPerPass) {
    const float* q_t = args.q_t + panel * kKvPanelDims * kHeadBlock;
    const float* panel_kv = kv + panel * panel_floats;
    ForRegisterBlocks(args.num_rows, [&](size_t row, auto count) HWY_ATTR {
      AddScores<count()>(q_t, panel_kv + row * kKvPanelDims, panel_floats, panel == 0,
                         args.scores + row * kHeadBlock);
      next_rows.Step();
    });
  }
}

// Turns scores into bf16 probabilities in place, and yields their maximum and sum, merged already
// if the output is to be: `scales` are for it.
HWY_NOINLINE void Softmax(const AttendTileArgs& args, OutputScales& scales) {
  const HeadTag d;
  const HeadVec scale = hn::Set(d, 0.044194173824159216F);  // 512^-1/2
  const auto rows = static_cast<size_t>(args.num_rows);
  for (size_t lane = 0; lane < static_cast<size_t>(kHeadBlock); lane += kHeadLanes) {
    float* HWY_RESTRICT scores = args.scores + lane;
    HeadVec max = MinusInfinity();
    for (size_t r = 0; r < rows; ++r) {
      const HeadVec score = hn::Mul(hn::Load(d, scores + r * kHeadBlock), scale);
      hn::Store(score, d, scores + r * kHeadBlock);
      max = hn::Max(max, score);
    }
    const HeadVec shift = SafeShift(max);
    HeadVec sum = hn::Zero(d);
    for (size_t r = 0; r < rows; ++r) {
      const HeadVec p = Exp(d, hn::Sub(hn::Load(d, scores + r * kHeadBlock), shift));
      sum = hn::Add(sum, p);
      hn::Store(RoundToBf16(d, p), d, scores + r * kHeadBlock);
    }
    if (args.merge) {
      const MergeScales merge = ScalesOf(max, hn::Load(d, args.out.max + lane));
      max = merge.max;
      sum = Merged(sum, merge.from, hn::Load(d, args.out.sum + lane), merge.into);
      hn::Store(merge.from, d, scales.tile + lane);
      hn::Store(merge.into, d, scales.before + lane);
    }
    hn::Store(max, d, args.out.max + lane);
    hn::Store(sum, d, args.out.sum + lane);
  }
}

HWY_NOINLINE void Values(const AttendTileArgs& args, const OutputScales* scales) {
  const int64_t panel_floats = args.panel_rows * kKvPanelDims;
  const float* kv = args.kv + args.first_row * kKvPanelDims;
  float* out_t = args.out.out_t;
  for (int64_t panel = 0; panel < kKvPanels; ++panel) {
    ForRegisterBlocks(kKvPanelDims, [&](size_t dim, auto count) HWY_ATTR {
      SumValues<count()>(args.scores, kv + dim, args.num_rows, scales, out_t + dim * kHeadBlock);
    });
    kv += panel_floats;
    out_t += kKvPanelDims * kHeadBlock;
  }
}

void AttendTile(const AttendTileArgs& args) {
  OutputScales scales;
  Scores(args);
  Softmax(args, scales);
  Values(args, args.merge ? &scales : nullptr);
}

const char* AttendTarget() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(AttendTile);
HWY_EXPORT(AttendTarget);

void AttendTile(const AttendTileArgs& args) { HWY_DYNAMIC_DISPATCH(AttendTile)(args); }
const char* AttendTarget() { return HWY_DYNAMIC_DISPATCH(AttendTarget)(); }

}  // namespace millipede
#endif  // HWY_ONCE
