// The softmax tile: attention of one head block over at most 128 rows.
#ifndef MILLIPEDE_KERNELS_ATTEND_TILE_H_
#define MILLIPEDE_KERNELS_ATTEND_TILE_H_

#include <cstdint>

#include "kernels/attend_layout.h"

namespace millipede {

struct AttendTileArgs {
  const float* q_t;  // [512, kHeadBlock]
  const float* kv;   // panels [kKvPanels][panel_rows][kKvPanelDims], keys and values alike
  int64_t panel_rows;
  int64_t first_row;   // the tile is rows [first_row, first_row + num_rows); no other is read
  int64_t num_rows;    // 0 to kAttendRows
  float* scores;       // scratch [kAttendRows, kHeadBlock]
  AttendPartial out;   // overwritten, or merged into
  bool merge = false;  // into what `out` has of the rows before, bit for bit as AttendMerge does
  AttendRowList next;
};

// Per head: s[r] = q.k[r] * 512^-1/2, m = max s, p[r] = exp(s[r] - m); max = m, sum = sum of p[r],
// out_t = sum of bf16(p[r]) * v[r]. Dot products sum over lanes in ascending order, sums over rows
// in ascending order, fused where the target has it. Over no rows, or rows that all score -inf,
// max = -inf and sum and output are 0; a NaN score makes the head's sum and output NaN.
void AttendTile(const AttendTileArgs& args);

// Name of the SIMD target that AttendTile and the other attention kernels run on now.
const char* AttendTarget();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_ATTEND_TILE_H_
