#include "kernels/index_score.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/index_score.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "millipede/config.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace {

// Vectors of 32-bit lanes, one per head.
using ScoreTag = hn::CappedTag<float, kIndexPanelHeads>;
using ScoreVec = hn::Vec<ScoreTag>;
using SumTag = hn::RebindToSigned<ScoreTag>;
using PairTag = hn::RepartitionToNarrow<SumTag>;
constexpr int64_t kLanes = hn::MaxLanes(ScoreTag());
constexpr int64_t kPanelVectors = kIndexPanelHeads / kLanes;
static_assert(kLanes >= 4, "pairs of int16 are multiplied within 32-bit lanes");

constexpr int64_t kPairs = kIndexDim / 2;
constexpr int64_t kPanelCodes = kIndexPanelHeads * kIndexDim;

// A register tile: this many vectors of heads by this many candidates. x86 before AVX-512 has 16
// registers, which must also hold the codes of the heads, a broadcast pair and a product. Other
// targets may need two sums per accumulator.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
constexpr int kTileVectors = 2;
constexpr int kTileCandidates = 6;
#elif HWY_ARCH_X86
constexpr int kTileVectors = 4;
constexpr int kTileCandidates = 4;
#else
constexpr int kTileVectors = 4;
constexpr int kTileCandidates = 3;
#endif

// Candidates whose widened keys stay in the first cache beside one query, for all queries.
constexpr int64_t kBlockCandidates = 48;
static_assert(kBlockCandidates % kTileCandidates == 0);

// Where a packed query keeps its parts.
struct PackedQuery {
  const int16_t* codes;  // [head panel][64][16][2]
  const float* scales;   // [padded heads]
  const float* weights;  // [padded heads]
};

PackedQuery PackedQueryAt(const void* packed, int64_t padded_heads) {
  const auto* codes = static_cast<const int16_t*>(packed);
  const auto* scales = reinterpret_cast<const float*>(codes + padded_heads * kIndexDim);
  return {codes, scales, scales + padded_heads};
}

// Two neighbouring codes of a key in every 32-bit lane.
HWY_INLINE hn::Vec<PairTag> BroadcastPair(const int16_t* key) {
  int32_t pair;
  std::memcpy(&pair, key, sizeof(pair));
  return hn::BitCast(PairTag(), hn::Set(SumTag(), pair));
}

// Adds to sums [kTileCandidates][kLanes] what head vectors [vector, vector + kVectors) give for the
// candidates of `keys` [kTileCandidates, 128]. Accumulator i is vector i % kVectors of candidate
// i / kVectors. The loops over pairs of accumulators (kI) and vectors (kV) are unrolled here, so
// that the arrays become registers.
template <int kVectors, int... kI, int... kV>
HWY_INLINE void AddHeads(std::integer_sequence<int, kI...> /*pairs of accumulators*/,
                         std::integer_sequence<int, kV...> /*vectors*/, const PackedQuery& query,
                         int64_t vector, const int16_t* HWY_RESTRICT keys,
                         float* HWY_RESTRICT sums) {
  const ScoreTag d;
  const SumTag d32;
  const PairTag d16;
  constexpr size_t kAccumulators = size_t{2} * sizeof...(kI);
  static_assert(kAccumulators == size_t{kVectors} * kTileCandidates);
  const int16_t* HWY_RESTRICT codes =
      query.codes + vector / kPanelVectors * kPanelCodes + vector % kPanelVectors * kLanes * 2;

  // The second dots stay zero, and unused, where one instruction adds the products of a pair.
  hn::Vec<SumTag> dots[kAccumulators];
  hn::Vec<SumTag> second_dots[kAccumulators];
  ((dots[2 * kI] = dots[2 * kI + 1] = hn::Zero(d32)), ...);
  ((second_dots[2 * kI] = second_dots[2 * kI + 1] = hn::Zero(d32)), ...);
  for (int64_t pair = 0; pair < kPairs; ++pair) {
    const hn::Vec<PairTag> heads[kVectors] = {hn::Load(
        d16, codes + kV / kPanelVectors * kPanelCodes + kV % kPanelVectors * kLanes * 2)...};
    const auto multiply = [&](size_t i) HWY_ATTR {
      return hn::ReorderWidenMulAccumulate(
          d32, heads[i % kVectors],
          BroadcastPair(keys + static_cast<int64_t>(i / kVectors) * kIndexDim), hn::Zero(d32),
          second_dots[i]);
    };
    // Two products, then their two sums: one by one, the sums take turns away from the products.
    hn::Vec<SumTag> even;
    hn::Vec<SumTag> odd;
    ((even = multiply(2 * kI), odd = multiply(2 * kI + 1),
      dots[2 * kI] = hn::Add(dots[2 * kI], even),
      dots[2 * kI + 1] = hn::Add(dots[2 * kI + 1], odd)),
     ...);
    codes += kIndexPanelHeads * 2;
    keys += 2;
  }

  const ScoreVec scales[kVectors] = {hn::Load(d, query.scales + (vector + kV) * kLanes)...};
  const ScoreVec weights[kVectors] = {hn::Load(d, query.weights + (vector + kV) * kLanes)...};
  const auto finish = [&](size_t i) HWY_ATTR {
    const auto dot = hn::RearrangeToOddPlusEven(dots[i], second_dots[i]);
    const ScoreVec product = hn::Mul(hn::ConvertTo(d, dot), scales[i % kVectors]);
    const ScoreVec positive = hn::IfThenZeroElse(hn::Lt(product, hn::Zero(d)), product);
    float* sum = sums + static_cast<int64_t>(i / kVectors) * kLanes;
    hn::Store(hn::MulAdd(positive, weights[i % kVectors], hn::Load(d, sum)), d, sum);
  };
  // The vectors of a candidate in ascending order.
  ((finish(2 * kI), finish(2 * kI + 1)), ...);
}

// Head vectors [vector, num_vectors), by kVectors and then by fewer.
template <int kVectors>
HWY_INLINE void AddHeadsFrom(const PackedQuery& query, int64_t vector, int64_t num_vectors,
                             const int16_t* keys, float* sums) {
  for (; vector + kVectors <= num_vectors; vector += kVectors) {
    AddHeads<kVectors>(std::make_integer_sequence<int, kVectors * kTileCandidates / 2>(),
                       std::make_integer_sequence<int, kVectors>(), query, vector, keys, sums);
  }
  if constexpr (kVectors > kPanelVectors) {
    AddHeadsFrom<kVectors / 2>(query, vector, num_vectors, keys, sums);
  }
}

const int8_t* RowOf(const IndexPage* pages, int64_t candidate) {
  return pages[candidate / kPageRows].rows + candidate % kPageRows * kIndexDim;
}

// Widens the keys of candidates [begin, begin + count) to [count, 128], zeros behind them up to
// whole tiles.
void WidenKeys(const IndexPage* pages, int64_t begin, int64_t count, int16_t* HWY_RESTRICT to) {
  const hn::CappedTag<int16_t, kIndexDim> d16;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d16));
  for (int64_t c = begin; c < begin + count; ++c) {
    const int8_t* HWY_RESTRICT row = RowOf(pages, c);
    for (int64_t i = 0; i < kIndexDim; i += lanes) {
      hn::Store(hn::PromoteTo(d16, hn::LoadU(d8, row + i)), d16, to + i);
    }
    to += kIndexDim;
  }
  std::fill_n(to, (RoundUp(count, kTileCandidates) - count) * kIndexDim, int16_t{0});
}

// Asks for the keys and scales of kTileCandidates candidates from `candidate` on, as far as there
// are any.
HWY_INLINE void PrefetchKeys(const IndexScoreArgs& args, int64_t candidate) {
  const int64_t end = std::min(candidate + kTileCandidates, args.num_candidates);
  for (; candidate < end; ++candidate) {
    const int8_t* row = RowOf(args.pages, candidate);
    hwy::Prefetch(row);
    hwy::Prefetch(row + kIndexDim / 2);
    hwy::Prefetch(args.pages[candidate / kPageRows].scales + candidate % kPageRows);
  }
}

}  // namespace

void IndexPackQuery(const IndexPackQueryArgs& args) {
  const int64_t padded_heads = PaddedIndexHeads(args.num_heads);
  const PackedQuery query = PackedQueryAt(args.packed, padded_heads);
  auto* codes = const_cast<int16_t*>(query.codes);
  std::memset(args.packed, 0, static_cast<size_t>(PackedIndexQueryBytes(args.num_heads)));
  for (int64_t head = 0; head < args.num_heads; ++head) {
    const int8_t* from = args.codes + head * kIndexDim;
    int16_t* to = codes + head / kIndexPanelHeads * kPanelCodes + head % kIndexPanelHeads * 2;
    for (int64_t pair = 0; pair < kPairs; ++pair) {
      to[pair * kIndexPanelHeads * 2] = from[2 * pair];
      to[pair * kIndexPanelHeads * 2 + 1] = from[2 * pair + 1];
    }
  }
  std::copy_n(args.scales, args.num_heads, const_cast<float*>(query.scales));
  std::copy_n(args.weights, args.num_heads, const_cast<float*>(query.weights));
}

void IndexScore(const IndexScoreArgs& args) {
  const ScoreTag d;
  const int64_t padded_heads = PaddedIndexHeads(args.num_heads);
  HWY_ALIGN int16_t keys[kBlockCandidates * kIndexDim];
  HWY_ALIGN float sums[kTileCandidates * kLanes];
  for (int64_t begin = 0; begin < args.num_candidates; begin += kBlockCandidates) {
    const int64_t count = std::min(kBlockCandidates, args.num_candidates - begin);
    WidenKeys(args.pages, begin, count, keys);
    for (int64_t q = 0; q < args.num_queries; ++q) {
      const PackedQuery query = PackedQueryAt(args.queries[q], padded_heads);
      for (int64_t tile = 0; tile < count; tile += kTileCandidates) {
        if (q == 0) PrefetchKeys(args, begin + kBlockCandidates + tile);
        std::fill_n(sums, kTileCandidates * kLanes, 0.0F);
        AddHeadsFrom<kTileVectors>(query, 0, padded_heads / kLanes, keys + tile * kIndexDim, sums);
        const int64_t tile_count = std::min<int64_t>(kTileCandidates, count - tile);
        for (int64_t i = 0; i < tile_count; ++i) {
          const int64_t c = begin + tile + i;
          const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sums + i * kLanes)));
          args.scores[q][c] = args.pages[c / kPageRows].scales[c % kPageRows] * sum;
        }
      }
    }
  }
}

const char* IndexScoreTargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(IndexPackQuery);
HWY_EXPORT(IndexScore);
void IndexPackQuery(const IndexPackQueryArgs& args) { HWY_DYNAMIC_DISPATCH(IndexPackQuery)(args); }
void IndexScore(const IndexScoreArgs& args) { HWY_DYNAMIC_DISPATCH(IndexScore)(args); }

HWY_EXPORT(IndexScoreTargetName);
const char* IndexScoreTargetName() { return HWY_DYNAMIC_DISPATCH(IndexScoreTargetName)(); }

}  // namespace millipede
#endif
