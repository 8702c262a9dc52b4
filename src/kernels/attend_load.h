// Kernels that bring attention inputs into the shapes of the tile kernel.
#ifndef MILLIPEDE_KERNELS_ATTEND_LOAD_H_
#define MILLIPEDE_KERNELS_ATTEND_LOAD_H_

#include <cstdint>

#include "kernels/attend_layout.h"
#include "millipede/tensor.h"

namespace millipede {

struct AttendWidenArgs {
  AttendRowList rows;
  float* kv;           // panels [kKvPanels][panel_rows][kKvPanelDims]
  int64_t panel_rows;  // at least first_row + rows.num_rows
  int64_t first_row;   // where the first goes
};
// Widens the rows to float32; only the panels' rows [first_row, first_row + rows.num_rows) are
// written.
void AttendWiden(const AttendWidenArgs& args);

struct AttendTransposeQArgs {
  const Bf16* q;        // [num_heads, 512] of one token, of any alignment
  int64_t head_stride;  // elements from one head to the next
  int64_t num_heads;    // 0 to kHeadBlock
  float* q_t;           // [512, kHeadBlock]; lanes without a head become 0
  AttendRowList next;
};
void AttendTransposeQ(const AttendTransposeQArgs& args);

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_ATTEND_LOAD_H_
