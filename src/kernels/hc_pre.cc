#include "kernels/hc_pre.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hc_pre.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "kernels/exp-inl.h"
#include "kernels/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace {

constexpr size_t kMixes = kHcMixes;
constexpr size_t kBlock = kHcInputBlock;
constexpr size_t kMaxRows = kHcTileRows;

// With many rows, inputs go in chunks of this many blocks, whose weights (12 KiB) stay in the first
// cache while pairs of rows use them.
constexpr size_t kChunkBlocks = 8;

// Mixes whose sums are kept in registers side by side, for one row and for a pair of rows.
constexpr size_t kMixesOfOneRow = HWY_MAX_BYTES == 64 ? 24 : 12;
constexpr size_t kMixesOfTwoRows = HWY_MAX_BYTES == 64 ? 12 : 6;

// Blocks from one that is multiplied to one that is asked of memory meanwhile, with one row: its
// products take less time than the weights take to come. 12 KiB; fewer bytes are late, more no
// earlier.
constexpr size_t kBlocksAhead = 8;

template <size_t kOuts>
HWY_INLINE void PrefetchBlock(const float* fn) {
  for (size_t m = 0; m < kOuts; ++m) {
    __builtin_prefetch(fn + m * kBlock, /*rw=*/0, /*locality=*/2);
  }
}

// Lane sums of the mixes of one row, [24][lanes].
struct HWY_ALIGN_MAX LaneSums {
  float values[kMixes * kBlock];
};

// Adds to kOuts mixes of kRows rows the products of num_blocks blocks of inputs: one chain of
// fused additions per row, mix and lane, whatever rows and mixes stand beside it.
template <size_t kRows, size_t kOuts>
HWY_INLINE void AddBlocks(const float* HWY_RESTRICT x, size_t x_stride,
                          const float* HWY_RESTRICT fn, size_t num_blocks, size_t first_mix,
                          LaneSums* HWY_RESTRICT sums) {
  const hn::CappedTag<float, kBlock> d;
  using V = hn::Vec<decltype(d)>;
  const size_t lanes = hn::Lanes(d);
  V sum[kRows][kOuts];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t m = 0; m < kOuts; ++m) {
      sum[r][m] = hn::Load(d, sums[r].values + (first_mix + m) * lanes);
    }
  }
  fn += first_mix * kBlock;
  for (size_t block = 0; block < num_blocks; ++block, fn += kMixes * kBlock) {
    if constexpr (kRows == 1) PrefetchBlock<kOuts>(fn + kBlocksAhead * kMixes * kBlock);
    for (size_t k = 0; k < kBlock; k += lanes) {
      V row[kRows];
      for (size_t r = 0; r < kRows; ++r) {
        row[r] = hn::LoadU(d, x + r * x_stride + block * kBlock + k);
      }
      for (size_t m = 0; m < kOuts; ++m) {
        const V weights = hn::Load(d, fn + m * kBlock + k);
        for (size_t r = 0; r < kRows; ++r) sum[r][m] = hn::MulAdd(row[r], weights, sum[r][m]);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t m = 0; m < kOuts; ++m) {
      hn::Store(sum[r][m], d, sums[r].values + (first_mix + m) * lanes);
    }
  }
}

// AddBlocks of all mixes of num_rows rows.
void AddBlocksOfRows(const float* x, size_t x_stride, const float* fn, size_t num_blocks,
                     size_t num_rows, LaneSums* sums) {
  size_t row = 0;
  for (; row + 2 <= num_rows; row += 2) {
    for (size_t mix = 0; mix < kMixes; mix += kMixesOfTwoRows) {
      AddBlocks<2, kMixesOfTwoRows>(x + row * x_stride, x_stride, fn, num_blocks, mix, sums + row);
    }
  }
  if (row < num_rows) {
    for (size_t mix = 0; mix < kMixes; mix += kMixesOfOneRow) {
      AddBlocks<1, kMixesOfOneRow>(x + row * x_stride, x_stride, fn, num_blocks, mix, sums + row);
    }
  }
}

// HcPartial of at most kMaxRows rows.
void PartialTile(const HcPartialArgs& args, const float* x, size_t num_rows, float* partials) {
  const hn::CappedTag<float, kBlock> d;
  const size_t lanes = hn::Lanes(d);
  const auto x_stride = static_cast<size_t>(args.x_stride);
  const auto num_inputs = static_cast<size_t>(args.end - args.begin);
  const float* fn = args.packed_fn + args.begin * kHcMixes;
  x += args.begin;

  LaneSums sums[kMaxRows];
  for (size_t r = 0; r < num_rows; ++r) {
    std::memset(sums[r].values, 0, kMixes * lanes * sizeof(float));
  }
  const size_t num_blocks = num_inputs / kBlock;
  const size_t chunk_blocks = num_rows == 1 ? num_blocks : kChunkBlocks;
  for (size_t block = 0; block < num_blocks; block += chunk_blocks) {
    AddBlocksOfRows(x + block * kBlock, x_stride, fn + block * kBlock * kMixes,
                    std::min(chunk_blocks, num_blocks - block), num_rows, sums);
  }
  if (const size_t rest = num_inputs % kBlock; rest != 0) {
    HWY_ALIGN_MAX float last[kMaxRows][kBlock] = {};
    for (size_t r = 0; r < num_rows; ++r) {
      std::memcpy(last[r], x + r * x_stride + num_blocks * kBlock, rest * sizeof(float));
    }
    AddBlocksOfRows(last[0], kBlock, fn + num_blocks * kBlock * kMixes, 1, num_rows, sums);
  }

  for (size_t r = 0; r < num_rows; ++r) {
    const float* row = x + r * x_stride;
    float* partial = partials + static_cast<int64_t>(r) * args.partials_stride;
    for (size_t m = 0; m < kMixes; ++m) {
      partial[m] = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sums[r].values + m * lanes)));
    }
    const auto load = [&](size_t k) HWY_ATTR { return LoadUpTo(d, row + k, num_inputs - k); };
    partial[kMixes] = SumOfSquares(d, num_inputs, load);
    std::fill(partial + kMixes + 1, partial + kHcPartialFloats, 0.0F);
  }
}

}  // namespace

void HcPartial(const HcPartialArgs& args) {
  for (int64_t row = 0; row < args.num_rows; row += kHcTileRows) {
    PartialTile(args, args.x + row * args.x_stride,
                static_cast<size_t>(std::min(kHcTileRows, args.num_rows - row)),
                args.partials + row * args.partials_stride);
  }
}

namespace {

// The tree over the ranges, of lanes [lane, lane + Lanes(d)) of the partials.
template <class D>
HWY_INLINE hn::Vec<D> SumRanges(D d, const float* partials, size_t lane) {
  static_assert(kHcInputRanges == 8);
  const auto pair = [&](size_t p) HWY_ATTR {
    const float* from = partials + 2 * p * kHcPartialFloats + lane;
    return hn::Add(hn::LoadU(d, from), hn::LoadU(d, from + kHcPartialFloats));
  };
  return hn::Add(hn::Add(pair(0), pair(1)), hn::Add(pair(2), pair(3)));
}

using StreamTag = hn::CappedTag<float, 4>;  // one lane per stream
using StreamVec = hn::Vec<StreamTag>;

HWY_INLINE StreamVec Sigmoid(StreamVec v) {
  const StreamTag d;
  const StreamVec one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, Exp(d, hn::Neg(v))));
}

// The sum of the four lanes, (0+1)+(2+3), in each of them.
HWY_INLINE StreamVec SumOfStreams(StreamVec v) {
  const StreamVec pairs = hn::Add(v, hn::Shuffle2301(v));
  return hn::Add(pairs, hn::Shuffle1032(pairs));
}

HWY_INLINE StreamVec MaxOfStreams(StreamVec v) {
  const StreamVec pairs = hn::Max(v, hn::Shuffle2301(v));
  return hn::Max(pairs, hn::Shuffle1032(pairs));
}

}  // namespace

void HcFinish(const HcFinishArgs& args) {
  static_assert(kHcStreams == 4);
  const StreamTag d;
  const StreamVec sums = SumRanges(d, args.partials, kMixes);
  const StreamVec inverse =
      hn::Set(d, InverseRms(hn::GetLane(sums), static_cast<size_t>(args.num_inputs), args.rms_eps));
  const StreamVec eps = hn::Set(d, args.hc_eps);
  const auto logits = [&](size_t mix, float scale) HWY_ATTR {
    const StreamVec m = hn::Mul(SumRanges(d, args.partials, mix), inverse);
    return hn::Add(hn::Mul(m, hn::Set(d, scale)), hn::LoadU(d, args.base + mix));
  };

  hn::StoreU(hn::Add(Sigmoid(logits(0, args.scale[0])), eps), d, args.pre);
  hn::StoreU(hn::Mul(hn::Set(d, 2.0F), Sigmoid(logits(4, args.scale[1]))), d, args.post);

  StreamVec comb[4];  // from stream; lanes are to streams
  for (size_t i = 0; i < 4; ++i) {
    const StreamVec logit = logits(8 + 4 * i, args.scale[2]);
    const StreamVec weight = Exp(d, hn::Sub(logit, MaxOfStreams(logit)));
    comb[i] = hn::Add(hn::Div(weight, SumOfStreams(weight)), eps);
  }
  const auto divide_by_sums_over_from = [&]() HWY_ATTR {
    const StreamVec sum =
        hn::Add(hn::Add(hn::Add(comb[0], comb[1]), hn::Add(comb[2], comb[3])), eps);
    for (auto& from : comb) from = hn::Div(from, sum);
  };
  divide_by_sums_over_from();
  for (int32_t round = 1; round < args.sinkhorn_rounds; ++round) {
    for (auto& from : comb) from = hn::Div(from, hn::Add(SumOfStreams(from), eps));
    divide_by_sums_over_from();
  }
  for (size_t i = 0; i < 4; ++i) hn::StoreU(comb[i], d, args.comb + 4 * i);
}

void HcCombine(const HcCombineArgs& args) {
  const hn::ScalableTag<float> d;
  const auto hidden = static_cast<size_t>(args.hidden);
  const auto pre0 = hn::Set(d, args.pre[0]);
  const auto pre1 = hn::Set(d, args.pre[1]);
  const auto pre2 = hn::Set(d, args.pre[2]);
  const auto pre3 = hn::Set(d, args.pre[3]);
  for (size_t k = 0; k < hidden; k += hn::Lanes(d)) {
    const size_t count = hidden - k;
    const auto x0 = LoadUpTo(d, args.x + k, count);
    const auto x1 = LoadUpTo(d, args.x + hidden + k, count);
    const auto x2 = LoadUpTo(d, args.x + 2 * hidden + k, count);
    const auto x3 = LoadUpTo(d, args.x + 3 * hidden + k, count);
    const auto low = hn::Add(hn::Mul(pre0, x0), hn::Mul(pre1, x1));
    const auto high = hn::Add(hn::Mul(pre2, x2), hn::Mul(pre3, x3));
    StoreBf16UpTo(d, hn::Add(low, high), args.x_mixed + k, count);
  }
}

const char* HcPreTargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

void PackHcFn(const PackHcFnArgs& args) {
  float* packed = args.packed;
  for (int64_t block = 0; block < args.num_inputs; block += kHcInputBlock) {
    const int64_t count = std::min(kHcInputBlock, args.num_inputs - block);
    for (int64_t mix = 0; mix < kHcMixes; ++mix, packed += kHcInputBlock) {
      std::copy_n(args.fn + mix * args.fn_stride + block, count, packed);
      std::fill(packed + count, packed + kHcInputBlock, 0.0F);
    }
  }
}

HWY_EXPORT(HcPartial);
HWY_EXPORT(HcFinish);
HWY_EXPORT(HcCombine);
void HcPartial(const HcPartialArgs& args) { HWY_DYNAMIC_DISPATCH(HcPartial)(args); }
void HcFinish(const HcFinishArgs& args) { HWY_DYNAMIC_DISPATCH(HcFinish)(args); }
void HcCombine(const HcCombineArgs& args) { HWY_DYNAMIC_DISPATCH(HcCombine)(args); }

HWY_EXPORT(HcPreTargetName);
const char* HcPreTargetName() { return HWY_DYNAMIC_DISPATCH(HcPreTargetName)(); }

}  // namespace millipede
#endif
