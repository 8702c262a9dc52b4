#include "kernels/matmul_bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul_bf16.cc"
#include "base/bf16.h"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/matmul_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {

struct Bf16Kernel {
  using X = float;
  using W = Bf16;
  using Out = float;
  // A line more than the block, so that the same input of all rows of a tile does not compete for
  // one set of the cache.
  static constexpr int64_t kXStride = kInputBlock + 16;

  static void WidenRow(const Bf16* HWY_RESTRICT x, int64_t n, float* HWY_RESTRICT to) {
    const hn::ScalableTag<float> df;
    const hn::RebindToUnsigned<decltype(df)> du32;
    const hn::Rebind<uint16_t, decltype(df)> du16;
    const auto lanes = static_cast<int64_t>(hn::Lanes(df));
    const auto* bits = reinterpret_cast<const uint16_t*>(x);
    int64_t k = 0;
    for (; k + lanes <= n; k += lanes) {
      const auto wide = hn::PromoteTo(du32, hn::LoadU(du16, bits + k));
      hn::StoreU(hn::BitCast(df, hn::ShiftLeft<16>(wide)), df, to + k);
    }
    for (; k < n; ++k) to[k] = Bf16ToFloat(x[k]);
    if (n % 2 != 0) to[n] = 0;
  }

  template <int kRows, int kPanels>
  static void MultiplyTile(const TileArgs<float, Bf16, float>& tile) {
    MultiplyVectors<kRows, kPanels * kPanelVectors>(
        std::make_integer_sequence<int, kRows * kPanels * kPanelVectors>(),
        std::make_integer_sequence<int, kPanels * kPanelVectors>(), tile);
  }

 private:
  using D = hn::RebindToFloat<MatmulD32>;
  using V = hn::Vec<D>;

  // Accumulator i is vector i % kVectors of row i / kVectors. The loops over accumulators (kI) and
  // vectors (kV) are unrolled here, so that the arrays become registers.
  template <int kRows, int kVectors, int... kI, int... kV>
  static void MultiplyVectors(std::integer_sequence<int, kI...> /*accumulators*/,
                              std::integer_sequence<int, kV...> /*vectors*/,
                              const TileArgs<float, Bf16, float>& tile) {
    const D df;
    const hn::RebindToUnsigned<D> du32;
    const auto lanes = static_cast<int64_t>(hn::Lanes(df));
    const int64_t panel_words = tile.num_pairs * kPanelOutputs;
    float* HWY_RESTRICT out = tile.out;
    const int64_t out_stride = tile.out_stride;

    V sums[kRows * kVectors];
    if (tile.accumulate) {
      ((sums[kI] = hn::LoadU(df, out + kI / kVectors * out_stride + kI % kVectors * lanes)), ...);
    } else {
      ((sums[kI] = hn::Zero(df)), ...);
    }

    // One 32-bit word holds two inputs of an output, the even one in the lower half.
    const auto* HWY_RESTRICT words = reinterpret_cast<const uint32_t*>(tile.weights);
    const float* HWY_RESTRICT x = tile.x;
    const char* prefetch = tile.prefetch;
    const auto upper_half = hn::Set(du32, 0xFFFF0000U);
    for (int64_t pair = 0; pair < tile.num_pairs; ++pair) {
      const hn::Vec<decltype(du32)> word[kVectors] = {
          hn::Load(du32, words + kV / kPanelVectors * panel_words + kV % kPanelVectors * lanes)...};
      const V even[kVectors] = {hn::BitCast(df, hn::ShiftLeft<16>(word[kV]))...};
      ((sums[kI] =
            hn::MulAdd(hn::Set(df, x[kI / kVectors * kXStride]), even[kI % kVectors], sums[kI])),
       ...);
      const V odd[kVectors] = {hn::BitCast(df, hn::And(word[kV], upper_half))...};
      ((sums[kI] =
            hn::MulAdd(hn::Set(df, x[kI / kVectors * kXStride + 1]), odd[kI % kVectors], sums[kI])),
       ...);
      if constexpr (kRows > kStreamingRows) {
        PrefetchNext<kVectors / kPanelVectors>(tile.prefetch_stride, prefetch);
      }
      words += kPanelOutputs;
      x += 2;
    }

    (hn::StoreU(sums[kI], df, out + kI / kVectors * out_stride + kI % kVectors * lanes), ...);
  }
};

void MultiplyBf16(const MatmulBf16Args& args) { MatmulLoop<Bf16Kernel>(args); }

const char* Bf16TargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(MultiplyBf16);
HWY_EXPORT(Bf16TargetName);

void MatmulBf16(const MatmulBf16Args& args) { HWY_DYNAMIC_DISPATCH(MultiplyBf16)(args); }

const char* MatmulBf16TargetName() { return HWY_DYNAMIC_DISPATCH(Bf16TargetName)(); }

}  // namespace millipede
#endif  // HWY_ONCE
