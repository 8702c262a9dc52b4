// Merging partial attentions, and turning the last one into heads.
#ifndef MILLIPEDE_KERNELS_ATTEND_MERGE_H_
#define MILLIPEDE_KERNELS_ATTEND_MERGE_H_

#include <cstdint>

#include "kernels/attend_layout.h"
#include "millipede/tensor.h"

namespace millipede {

struct AttendMergeArgs {
  AttendPartial from;  // the rows that follow
  AttendPartial into;  // the rows before; becomes both
};
// m = the larger max; both sums and outputs are scaled by exp(own max - m) and added. A partial of
// max -inf (no rows, or none that counts) leaves the other as it is; two of them stay one.
void AttendMerge(const AttendMergeArgs& args);

struct AttendFinishArgs {
  AttendPartial partial;  // read only
  const float* sink;      // [num_heads], -inf for none
  const float* cos;       // [32] of the token's position, any alignment; null: no rotation
  const float* sin;       // [32]
  int64_t num_heads;      // 1 to kHeadBlock
  Bf16* heads;            // [num_heads, 512] of one token, any alignment
  int64_t head_stride;    // elements from one head to the next
  float* log_sum_exp;     // [num_heads] or null
};
// heads = bf16(out / (sum + exp(sink - max))), its last 64 lanes turned back by the rotary angle
// before rounding; where nothing counts (sum 0, sink -inf) 0. The quotient is the product with the
// correctly rounded reciprocal. log_sum_exp = max + ln(sum), without the sink; -inf over no rows.
// The logarithm, one per head, is the C library's in double.
void AttendFinish(const AttendFinishArgs& args);

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_ATTEND_MERGE_H_
