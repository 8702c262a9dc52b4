#include "kernels/matmul_int8.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_int8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/matmul_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {

struct Int8Kernel {
  using X = int16_t;
  using W = int8_t;
  using Out = int32_t;
  // A line more than the block, so that the same input of all rows of a tile does not compete for
  // one set of the cache.
  static constexpr int64_t kXStride = kInputBlock + 32;

  static void WidenRow(const int8_t* HWY_RESTRICT x, int64_t n, int16_t* HWY_RESTRICT to) {
    const hn::ScalableTag<int16_t> d16;
    const hn::Rebind<int8_t, decltype(d16)> d8;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d16));
    int64_t k = 0;
    for (; k + lanes <= n; k += lanes) {
      hn::StoreU(hn::PromoteTo(d16, hn::LoadU(d8, x + k)), d16, to + k);
    }
    for (; k < n; ++k) to[k] = x[k];
    if (n % 2 != 0) to[n] = 0;
  }

#if HWY_TARGET == HWY_SCALAR

  // One-lane vectors have no pairs.
  template <int kRows, int kPanels>
  static void MultiplyTile(const TileArgs<int16_t, int8_t, int32_t>& tile) {
    for (int r = 0; r < kRows; ++r) {
      for (int64_t n = 0; n < kPanels * kPanelOutputs; ++n) {
        const int16_t* x = tile.x + r * kXStride;
        const int8_t* weights = tile.weights +
                                n / kPanelOutputs * tile.num_pairs * kPanelOutputs * 2 +
                                n % kPanelOutputs * 2;
        int32_t* out = tile.out + r * tile.out_stride + n;
        int32_t sum = tile.accumulate ? *out : 0;
        for (int64_t pair = 0; pair < tile.num_pairs; ++pair) {
          sum += x[2 * pair] * weights[0] + x[2 * pair + 1] * weights[1];
          weights += kPanelOutputs * 2;
        }
        *out = sum;
      }
    }
  }

#else

  template <int kRows, int kPanels>
  static void MultiplyTile(const TileArgs<int16_t, int8_t, int32_t>& tile) {
    MultiplyVectors<kRows, kPanels * kPanelVectors>(
        std::make_integer_sequence<int, kRows * kPanels * kPanelVectors>(),
        std::make_integer_sequence<int, kPanels * kPanelVectors>(), tile);
  }

 private:
  using D = MatmulD32;
  using D16 = hn::RepartitionToNarrow<D>;
  using V = hn::Vec<D>;

  // Two neighbouring inputs in every 32-bit lane.
  static hn::Vec<D16> BroadcastPair(const int16_t* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof(pair));
    return hn::BitCast(D16(), hn::Set(D(), pair));
  }

  // Accumulator i is vector i % kVectors of row i / kVectors. The loops over accumulators (kI) and
  // vectors (kV) are unrolled here, so that the arrays become registers.
  template <int kRows, int kVectors, int... kI, int... kV>
  static void MultiplyVectors(std::integer_sequence<int, kI...> /*accumulators*/,
                              std::integer_sequence<int, kV...> /*vectors*/,
                              const TileArgs<int16_t, int8_t, int32_t>& tile) {
    const D d32;
    const D16 d16;
    const hn::Rebind<int8_t, D16> d8;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d32));
    const int64_t panel_weights = tile.num_pairs * kPanelOutputs * 2;
    int32_t* HWY_RESTRICT out = tile.out;
    const int64_t out_stride = tile.out_stride;

    // The second sums stay zero, and unused, where one instruction adds the products of a pair.
    V sums[kRows * kVectors];
    V second_sums[kRows * kVectors];
    ((sums[kI] = second_sums[kI] = hn::Zero(d32)), ...);

    const int8_t* HWY_RESTRICT weights = tile.weights;
    const int16_t* HWY_RESTRICT x = tile.x;
    const char* prefetch = tile.prefetch;
    for (int64_t pair = 0; pair < tile.num_pairs; ++pair) {
      const hn::Vec<D16> wide[kVectors] = {
          hn::PromoteTo(d16, hn::LoadU(d8, weights + kV / kPanelVectors * panel_weights +
                                               kV % kPanelVectors * lanes * 2))...};
      ((sums[kI] = hn::ReorderWidenMulAccumulate(d32, wide[kI % kVectors],
                                                 BroadcastPair(x + kI / kVectors * kXStride),
                                                 sums[kI], second_sums[kI])),
       ...);
      if constexpr (kRows > kStreamingRows) {
        PrefetchNext<kVectors / kPanelVectors>(tile.prefetch_stride, prefetch);
      }
      weights += kPanelOutputs * 2;
      x += 2;
    }

    ((sums[kI] = hn::RearrangeToOddPlusEven(sums[kI], second_sums[kI])), ...);
    if (tile.accumulate) {
      ((sums[kI] = hn::Add(
            sums[kI], hn::LoadU(d32, out + kI / kVectors * out_stride + kI % kVectors * lanes))),
       ...);
    }
    (hn::StoreU(sums[kI], d32, out + kI / kVectors * out_stride + kI % kVectors * lanes), ...);
  }

#endif  // HWY_TARGET == HWY_SCALAR
};

void MultiplyInt8(const MatmulInt8Args& args) { MatmulLoop<Int8Kernel>(args); }

const char* Int8TargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(MultiplyInt8);
HWY_EXPORT(Int8TargetName);

void MatmulInt8(const MatmulInt8Args& args) { HWY_DYNAMIC_DISPATCH(MultiplyInt8)(args); }

const char* MatmulInt8TargetName() { return HWY_DYNAMIC_DISPATCH(Int8TargetName)(); }

}  // namespace millipede
#endif  // HWY_ONCE
