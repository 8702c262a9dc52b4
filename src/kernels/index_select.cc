#include "kernels/index_select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/index_select.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "kernels/row-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace {

using ScoreTag = hn::ScalableTag<float>;
using RankTag = hn::RebindToSigned<ScoreTag>;
constexpr size_t kMaxCandidates = kLeafCandidates;

// A rank is the upper half of a key, its top bit flipped, as a signed number.
constexpr int32_t kLeastRank = std::numeric_limits<int32_t>::min();

constexpr int32_t RankOfKey(uint64_t key) {
  return static_cast<int32_t>(static_cast<uint32_t>(key >> 32) ^ 0x80000000U);
}

struct RankRange {
  int32_t min;
  int32_t max;
};

// Writes the ranks of n >= 1 scores and kLeastRank behind them, to whole vectors. The range holds
// all n ranks; it may be wider.
RankRange RankScores(const float* HWY_RESTRICT scores, size_t n, int32_t* HWY_RESTRICT ranks) {
  const ScoreTag d;
  const RankTag di;
  const size_t lanes = hn::Lanes(d);
  auto min = hn::Set(di, std::numeric_limits<int32_t>::max());
  auto max = hn::Set(di, kLeastRank);
  for (size_t i = 0; i < n; i += lanes) {
    // Adding zero makes -0 a +0.
    const auto score = hn::Add(LoadUpTo(d, scores + i, n - i), hn::Zero(d));
    const auto bits = hn::BitCast(di, score);
    const auto magnitude = hn::And(hn::BroadcastSignBit(bits), hn::Set(di, 0x7FFFFFFF));
    const auto rank = hn::IfThenElse(hn::RebindMask(di, hn::IsNaN(score)), hn::Set(di, kLeastRank),
                                     hn::Xor(bits, magnitude));
    min = hn::Min(min, rank);
    max = hn::Max(max, rank);
    hn::Store(rank, di, ranks + i);
  }
  std::fill(ranks + n, ranks + hwy::RoundUpTo(n, lanes), kLeastRank);
  return {hn::GetLane(hn::MinOfLanes(di, min)), hn::GetLane(hn::MaxOfLanes(di, max))};
}

// How many of the ranks are above `bound`.
int64_t CountAbove(const int32_t* HWY_RESTRICT ranks, size_t n, int32_t bound) {
  const RankTag di;
  const size_t lanes = hn::Lanes(di);
  const auto bounds = hn::Set(di, bound);
  auto count0 = hn::Zero(di);
  auto count1 = count0;
  size_t i = 0;
  for (; i + lanes < n; i += 2 * lanes) {
    count0 = hn::Sub(count0, hn::VecFromMask(di, hn::Gt(hn::Load(di, ranks + i), bounds)));
    count1 = hn::Sub(count1, hn::VecFromMask(di, hn::Gt(hn::Load(di, ranks + i + lanes), bounds)));
  }
  if (i < n) {
    count0 = hn::Sub(count0, hn::VecFromMask(di, hn::Gt(hn::Load(di, ranks + i), bounds)));
  }
  return hn::GetLane(hn::SumOfLanes(di, hn::Add(count0, count1)));
}

// The best candidates are those with a rank above `rank`, `num_above` <= k of them, and if these
// are fewer than k, the first ones of those at it.
struct Threshold {
  int64_t rank;
  int64_t num_above;
};

// Halves the ranks between two bounds: more than k are above `low`, at most k above `high`.
Threshold FindThreshold(const int32_t* ranks, size_t n, int64_t k, int64_t low, int64_t high) {
  int64_t num_above = 0;
  while (high - low > 1 && num_above != k) {
    const int64_t middle = low + (high - low) / 2;
    const int64_t count = CountAbove(ranks, n, static_cast<int32_t>(middle));
    if (count > k) {
      low = middle;
    } else {
      high = middle;
      num_above = count;
    }
  }
  return {high, num_above};
}

// Entries are complemented keys: they sort ascending.
constexpr uint64_t Entry(int32_t rank, int64_t index) {
  return uint64_t{~(static_cast<uint32_t>(rank) ^ 0x80000000U)} << 32 |
         static_cast<uint64_t>(index);
}

// Appends the candidates [begin, end) with a rank above `bound` to `entries` at `count`; returns
// the new count. One entry more than that may be written.
size_t AppendAbove(const IndexSelectLeafArgs& args, const int32_t* HWY_RESTRICT ranks, size_t begin,
                   size_t end, int64_t bound, uint64_t* HWY_RESTRICT entries, size_t count) {
  for (size_t i = begin; i < end; ++i) {
    entries[count] = Entry(ranks[i], args.first_candidate + static_cast<int64_t>(i));
    count += ranks[i] > bound ? 1 : 0;
  }
  return count;
}

// Sorts the entries, given by ascending index, by their upper halves and writes them as keys.
// Four stable passes over a byte each, `entries` and `keys` taking turns.
void SortEntries(uint64_t* HWY_RESTRICT entries, size_t count, uint64_t* HWY_RESTRICT keys) {
  constexpr size_t kPasses = 4;
  constexpr size_t kDigits = 256;
  uint32_t starts[kPasses][kDigits] = {};
  const auto digit = [](uint64_t entry, size_t pass) {
    return static_cast<size_t>(entry >> (32 + 8 * pass)) % kDigits;
  };
  for (size_t i = 0; i < count; ++i) {
    for (size_t pass = 0; pass < kPasses; ++pass) ++starts[pass][digit(entries[i], pass)];
  }
  uint32_t next[kPasses] = {};
  for (size_t value = 0; value < kDigits; ++value) {
    for (size_t pass = 0; pass < kPasses; ++pass) {
      const uint32_t size = starts[pass][value];
      starts[pass][value] = next[pass];
      next[pass] += size;
    }
  }
  uint64_t* from = entries;
  uint64_t* to = keys;
  for (size_t pass = 0; pass < kPasses; ++pass) {
    for (size_t i = 0; i < count; ++i) to[starts[pass][digit(from[i], pass)]++] = from[i];
    std::swap(from, to);
  }
  for (size_t i = 0; i < count; ++i) keys[i] = ~entries[i];
}

}  // namespace

int64_t IndexSelectLeaf(const IndexSelectLeafArgs& args) {
  if (args.num_candidates == 0) return 0;
  const auto n = static_cast<size_t>(args.num_candidates);
  HWY_ALIGN int32_t ranks[kMaxCandidates];
  const RankRange range = RankScores(args.scores, n, ranks);

  // At the floor or above it.
  Threshold threshold{int64_t{RankOfKey(args.floor)} - 1, args.num_candidates};
  if (threshold.rank >= range.min) {
    threshold.num_above = CountAbove(ranks, n, static_cast<int32_t>(threshold.rank));
  }
  size_t ties_end = 0;
  if (threshold.num_above > args.k) {
    const int64_t low = std::max(threshold.rank, int64_t{range.min} - 1);
    threshold = FindThreshold(ranks, n, args.k, low, range.max);
    for (int64_t ties = args.k - threshold.num_above; ties > 0; ++ties_end) {
      ties -= ranks[ties_end] == threshold.rank ? 1 : 0;
    }
  }

  uint64_t entries[kMaxCandidates + 1];
  size_t count = AppendAbove(args, ranks, 0, ties_end, threshold.rank - 1, entries, 0);
  count = AppendAbove(args, ranks, ties_end, n, threshold.rank, entries, count);
  SortEntries(entries, count, args.keys);
  return static_cast<int64_t>(count);
}

const char* IndexSelectTargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(IndexSelectLeaf);
int64_t IndexSelectLeaf(const IndexSelectLeafArgs& args) {
  return HWY_DYNAMIC_DISPATCH(IndexSelectLeaf)(args);
}

HWY_EXPORT(IndexSelectTargetName);
const char* IndexSelectTargetName() { return HWY_DYNAMIC_DISPATCH(IndexSelectTargetName)(); }

namespace {

// How many keys of `left` are among the best `num_keys` of both selections, which hold that many.
int64_t KeysFromLeft(const IndexMergeArgs& args, int64_t num_keys) {
  int64_t low = std::max<int64_t>(0, num_keys - args.right_count);
  int64_t high = std::min(num_keys, args.left_count);
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    // If left[middle] is better than the last one taken from the right, it belongs to the best.
    if (args.left[middle] > args.right[num_keys - middle - 1]) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace

int64_t IndexMerge(const IndexMergeArgs& args) {
  const int64_t num_keys = std::min(args.k, args.left_count + args.right_count);
  int64_t num_left = KeysFromLeft(args, num_keys);
  int64_t num_right = num_keys - num_left;
  // From the back: the place written is never before the last key of the left still to be read.
  while (num_left > 0 && num_right > 0) {
    const uint64_t left = args.left[num_left - 1];
    const uint64_t right = args.right[num_right - 1];
    args.left[num_left + num_right - 1] = std::min(left, right);
    num_left -= left < right ? 1 : 0;
    num_right -= left < right ? 0 : 1;
  }
  std::copy_n(args.right, num_right, args.left);
  return num_keys;
}

void IndexUnpack(const IndexUnpackArgs& args) {
  for (int64_t i = 0; i < args.count; ++i) args.indices[i] = SelectionIndex(args.keys[i]);
  std::fill(args.indices + args.count, args.indices + args.k, -1);
  if (args.scores == nullptr) return;
  for (int64_t i = 0; i < args.count; ++i) args.scores[i] = SelectionScore(args.keys[i]);
  std::fill(args.scores + args.count, args.scores + args.k, -FLT_MAX);
}

}  // namespace millipede
#endif
