// What the attention kernels hand to one another. Sixteen heads of one token (a head block) stand
// side by side in vector lanes, so that no kernel sums across lanes and a head's bits depend
// neither on its lane nor on the other heads. Buffers of these shapes start at multiples of
// kBufferAlignment bytes.
#ifndef MILLIPEDE_KERNELS_ATTEND_LAYOUT_H_
#define MILLIPEDE_KERNELS_ATTEND_LAYOUT_H_

#include <cstdint>

#include "geometry/tiles.h"
#include "millipede/config.h"
#include "millipede/tensor.h"

namespace millipede {

// Widened KV rows stand in panels of 16 dimensions: float [kKvPanels][panel_rows][kKvPanelDims],
// one cache line per row of a panel, so that a softmax tile walks memory in order. `panel_rows` is
// any number of rows the buffer has room for, panel_rows * 512 floats in all; 128 rows and a few
// more (an odd number is best for the caches). A tile is any range of consecutive rows.
inline constexpr int64_t kKvPanelDims = 16;
inline constexpr int64_t kKvPanels = kHeadDim / kKvPanelDims;

// KV rows [512] by where they are, of any alignment. As `next` rows of a kernel they are wanted
// soon: brought near while it works, and not read.
struct AttendRowList {
  const Bf16* const* rows = nullptr;  // [num_rows]
  int64_t num_rows = 0;
};

// The attention of one head block over some rows: what one softmax tile yields and what tiles merge
// into. The output is not divided by `sum` yet.
struct AttendPartial {
  float* max;    // [kHeadBlock] the largest score; -inf over no rows
  float* sum;    // [kHeadBlock] of exp(score - max)
  float* out_t;  // [kHeadDim, kHeadBlock] of bf16(exp(score - max)) * V
};

inline constexpr int64_t kAttendPartialFloats = (kHeadDim + 2) * kHeadBlock;

// The partial in a buffer of kAttendPartialFloats.
inline AttendPartial AttendPartialAt(float* buffer) {
  float* max = buffer + kHeadDim * kHeadBlock;
  return {.max = max, .sum = max + kHeadBlock, .out_t = buffer};
}

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_ATTEND_LAYOUT_H_
