// The sizes of packed weights and of kernel tiles: what packing, kernels, workspace layout and work
// splitting have to agree on.
#ifndef MILLIPEDE_GEOMETRY_TILES_H_
#define MILLIPEDE_GEOMETRY_TILES_H_

#include <cstdint>

#include "base/checked.h"
#include "millipede/config.h"

namespace millipede {

// Every buffer of the library starts at a multiple of this many bytes.
inline constexpr int64_t kBufferAlignment = 64;

// --- Matrix products -----------------------------------------------------------------------------
// Packed weights are [input block][panel of 16 outputs][input pair][16 outputs][2 inputs]: vectors
// run along the outputs, and two inputs of an output stand side by side (one 32-bit lane of bf16,
// one 16-bit lane of int8). Outputs and inputs are padded with zeros to whole panels and pairs.
inline constexpr int64_t kPanelOutputs = 16;
inline constexpr int64_t kInputBlock = 512;  // inputs per block, even
inline constexpr int64_t kTileRows = 64;     // most activation rows of one kernel call

constexpr int64_t NumPanels(int64_t num_outputs) { return CeilDiv(num_outputs, kPanelOutputs); }

// Elements of a packed matrix, padding included.
constexpr int64_t PackedElements(int64_t num_outputs, int64_t num_inputs) {
  return NumPanels(num_outputs) * kPanelOutputs * RoundUp(num_inputs, 2);
}

// Scratch of one matrix kernel call: a block of activations rearranged for the inner loop, float32
// or int16, rows padded to whole register tiles.
inline constexpr int64_t kMatmulScratchBytes = (kTileRows + 16) * kInputBlock * 4;

// --- Hyper-connection product --------------------------------------------------------------------
// The 4*D inputs are cut into this many equal ranges (the last ones shorter), summed in a tree.
inline constexpr int64_t kHcInputRanges = 8;
inline constexpr int64_t kHcPartialFloats = 32;  // 24 dots, the sum of squares, padding

// --- Attention -----------------------------------------------------------------------------------
inline constexpr int64_t kHeadBlock = 16;    // heads side by side in vector lanes
inline constexpr int64_t kQueryBlock = 8;    // consecutive tokens of a request that share KV rows
inline constexpr int64_t kAttendRows = 128;  // most rows of one softmax tile

// --- Indexer -------------------------------------------------------------------------------------
// A packed indexer query is int16 codes [head panel][64 pairs][16 heads][2], then float scales
// [heads] and weights [heads], heads padded with zeros to whole panels.
inline constexpr int64_t kIndexPanelHeads = 16;

constexpr int64_t PaddedIndexHeads(int64_t num_heads) {
  return RoundUp(num_heads, kIndexPanelHeads);
}

// Bytes of a packed query, a multiple of kBufferAlignment: 16,896 with 64 heads.
constexpr int64_t PackedIndexQueryBytes(int64_t num_heads) {
  return PaddedIndexHeads(num_heads) *
         static_cast<int64_t>(kIndexDim * sizeof(int16_t) + 2 * sizeof(float));
}

}  // namespace millipede

#endif  // MILLIPEDE_GEOMETRY_TILES_H_
