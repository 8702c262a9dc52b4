// What the matrix kernels share, per SIMD target: the walk over input blocks, panels and row tiles.

#if defined(MILLIPEDE_KERNELS_MATMUL_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MILLIPEDE_KERNELS_MATMUL_LOOP_INL_H_
#undef MILLIPEDE_KERNELS_MATMUL_LOOP_INL_H_
#else
#define MILLIPEDE_KERNELS_MATMUL_LOOP_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "base/checked.h"
#include "geometry/tiles.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of 32-bit lanes, one per output; a panel is kPanelVectors of them.
using MatmulD32 = hn::CappedTag<int32_t, kPanelOutputs>;
inline constexpr int kPanelVectors = static_cast<int>(kPanelOutputs / hn::MaxLanes(MatmulD32()));

// Accumulators of one register tile. x86 before AVX-512 has 16 registers, which must also hold
// weights, a broadcast activation and a mask; four-lane tiles need four registers for the weights.
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3
inline constexpr int kAccumulators = kPanelVectors == 2 ? 12 : 8;
#else
inline constexpr int kAccumulators = 24;
#endif

// Tiles of so few rows only stream the weights, and what streams best is one panel after the other,
// left to the hardware's prefetching. With more rows there is time to fetch what comes next.
inline constexpr int kStreamingRows = 2;

// Panels side by side in a register tile of `rows` rows: where a panel is one vector, two, so that
// a broadcast activation feeds two products.
constexpr int TilePanels(int rows) { return kPanelVectors == 1 && rows > kStreamingRows ? 2 : 1; }

// Most rows of a register tile.
inline constexpr int kMaxTileRows =
    std::max(1, kAccumulators / (kPanelVectors == 1 ? 2 : kPanelVectors));

// One register tile's work in one input block. X is what activations are widened to.
template <typename X, typename W, typename Out>
struct TileArgs {
  const X* x = nullptr;        // [rows, 2 * num_pairs], rows at multiples of the kernel's kXStride
  const W* weights = nullptr;  // [panels][num_pairs][16][2]
  int64_t num_pairs = 0;
  Out* out = nullptr;  // [rows, panels * 16]
  int64_t out_stride = 0;
  bool accumulate = false;  // add to what out holds

  // The weights multiplied next: one line is fetched per pair and panel, prefetch_stride bytes
  // apart. Addresses past the weights are harmless.
  const char* prefetch = nullptr;
  int64_t prefetch_stride = 0;
};

// Fetches a line per panel into the second-level cache; the first holds what is in use.
template <int kPanels>
HWY_INLINE void PrefetchNext(int64_t stride, const char*& next) {
  for (int panel = 0; panel < kPanels; ++panel) {
    __builtin_prefetch(next, /*rw=*/0, /*locality=*/2);
    next += stride;
  }
}

// A Kernel has types X, W and Out, kXStride (elements between widened rows), a function template
// MultiplyTile<rows, panels>(const TileArgs<X, W, Out>&), and WidenRow(const W* x, n, X* to).
template <class Kernel>
using KernelTileArgs = TileArgs<typename Kernel::X, typename Kernel::W, typename Kernel::Out>;

// Any number of panels, by register tiles of kPanels and then of fewer.
template <class Kernel, int kRows, int kPanels>
void MultiplyRows(KernelTileArgs<Kernel> tile, int64_t num_panels) {
  for (; num_panels >= kPanels; num_panels -= kPanels) {
    Kernel::template MultiplyTile<kRows, kPanels>(tile);
    tile.weights += kPanels * tile.num_pairs * kPanelOutputs * 2;
    tile.out += kPanels * kPanelOutputs;
    tile.prefetch += kPanels * tile.num_pairs * tile.prefetch_stride;
  }
  if constexpr (kPanels > 1) {
    if (num_panels > 0) MultiplyRows<Kernel, kRows, kPanels / 2>(tile, num_panels);
  }
}

template <class Kernel, size_t... kIndices>
constexpr auto MultiplyRowsTable(std::index_sequence<kIndices...>) {
  return std::array{
      &MultiplyRows<Kernel, static_cast<int>(kIndices) + 1, TilePanels(kIndices + 1)>...};
}

// Calls the instance for `rows` rows.
template <class Kernel>
void MultiplyRowTile(int64_t rows, const KernelTileArgs<Kernel>& tile, int64_t num_panels) {
  static constexpr auto kTable =
      MultiplyRowsTable<Kernel>(std::make_index_sequence<kMaxTileRows>());
  kTable[static_cast<size_t>(rows - 1)](tile, num_panels);
}

// One row tile of a panel that has fewer outputs than lanes: whole vectors go to a buffer, and only
// the outputs that exist to out.
template <class Kernel>
void MultiplyPartialPanel(int64_t rows, const KernelTileArgs<Kernel>& tile, int64_t num_outputs) {
  typename Kernel::Out buffer[kMaxTileRows * kPanelOutputs] = {};
  for (int64_t row = 0; tile.accumulate && row < rows; ++row) {
    std::copy_n(tile.out + row * tile.out_stride, num_outputs, buffer + row * kPanelOutputs);
  }
  KernelTileArgs<Kernel> buffered = tile;
  buffered.out = buffer;
  buffered.out_stride = kPanelOutputs;
  MultiplyRowTile<Kernel>(rows, buffered, 1);
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(buffer + row * kPanelOutputs, num_outputs, tile.out + row * tile.out_stride);
  }
}

template <class Kernel, class Args>
void MatmulLoop(const Args& args) {
  auto* scratch = static_cast<typename Kernel::X*>(args.scratch);
  static_assert(kTileRows * Kernel::kXStride * static_cast<int64_t>(sizeof(*scratch)) <=
                kMatmulScratchBytes);

  // Rows are spread evenly over the fewest register tiles: the first `num_taller` have one more.
  const int64_t num_tiles = CeilDiv(args.num_rows, kMaxTileRows);
  const int64_t rows_per_tile = args.num_rows / num_tiles;
  const int64_t num_taller = args.num_rows % num_tiles;
  // All row tiles take a group of panels in turn, so that its weights come from memory once.
  const int64_t group = TilePanels(static_cast<int>(rows_per_tile + (num_taller > 0 ? 1 : 0)));

  const int64_t padded_outputs = NumPanels(args.num_outputs) * kPanelOutputs;
  const int64_t num_full_panels = args.num_outputs / kPanelOutputs;

  for (int64_t input = 0; input < args.num_inputs; input += kInputBlock) {
    const int64_t block_inputs = std::min(kInputBlock, args.num_inputs - input);
    for (int64_t row = 0; row < args.num_rows; ++row) {
      Kernel::WidenRow(args.x + row * args.x_stride + input, block_inputs,
                       scratch + row * Kernel::kXStride);
    }
    const int64_t num_pairs = CeilDiv(block_inputs, 2);
    const int64_t panel_weights = num_pairs * kPanelOutputs * 2;
    const auto* block_weights = args.weights + input * padded_outputs;

    for (int64_t panel = args.panel_begin; panel < args.panel_end;) {
      const bool partial = panel >= num_full_panels;
      const int64_t num_panels =
          partial ? 1 : std::min(group, std::min(args.panel_end, num_full_panels) - panel);
      KernelTileArgs<Kernel> tile;
      tile.x = scratch;
      tile.weights = block_weights + panel * panel_weights;
      tile.num_pairs = num_pairs;
      tile.out = args.out + (panel - args.panel_begin) * kPanelOutputs;
      tile.out_stride = args.out_stride;
      tile.accumulate = input > 0;
      // Each row tile fetches its share of the weights that follow: more panels of this block, or
      // the first ones of the next.
      const bool last = panel + num_panels >= args.panel_end;
      tile.prefetch = reinterpret_cast<const char*>(
          last ? block_weights + NumPanels(args.num_outputs) * panel_weights +
                     args.panel_begin * panel_weights
               : tile.weights + num_panels * panel_weights);
      tile.prefetch_stride =
          CeilDiv(kPanelOutputs * 2 * static_cast<int64_t>(sizeof(*tile.weights)), num_tiles);
      for (int64_t i = 0; i < num_tiles; ++i) {
        const int64_t rows = rows_per_tile + (i < num_taller ? 1 : 0);
        if (partial) {
          MultiplyPartialPanel<Kernel>(rows, tile, args.num_outputs % kPanelOutputs);
        } else {
          MultiplyRowTile<Kernel>(rows, tile, num_panels);
        }
        tile.x += rows * Kernel::kXStride;
        tile.out += rows * tile.out_stride;
        tile.prefetch += num_panels * num_pairs * tile.prefetch_stride;
      }
      panel += num_panels;
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#endif  // include guard
