// The epilogue of the output projection: int32 products of each group to one bf16 result.
#ifndef MILLIPEDE_KERNELS_OUTPUT_SUM_H_
#define MILLIPEDE_KERNELS_OUTPUT_SUM_H_

#include <cstdint>

#include "millipede/tensor.h"

namespace millipede {

struct ScaleGroupArgs {
  const int32_t* sums = nullptr;     // [num_rows, num_cols] exact products of one group
  int64_t sums_stride = 0;           // elements between rows
  const float* row_scale = nullptr;  // [num_rows] scale of the group's codes in each row
  int64_t row_scale_stride = 0;      // elements between rows
  float* out = nullptr;              // [num_rows, num_cols], written
  int64_t out_stride = 0;            // elements between rows
  int64_t num_rows = 0;              // >= 0
  int64_t num_cols = 0;              // >= 1
};

// out = float(sums) * row_scale.
void ScaleGroup(const ScaleGroupArgs& args);

// As many groups as a model may have heads.
inline constexpr int64_t kMaxOutputGroups = 4096;

struct SumGroupsArgs {
  const float* groups = nullptr;  // [num_groups, num_rows, num_cols]
  int64_t group_stride = 0;       // elements between groups
  int64_t row_stride = 0;         // elements between rows of a group
  const float* scale = nullptr;   // [num_cols] of the output weights
  Bf16* out = nullptr;            // [num_rows, num_cols], written
  int64_t out_stride = 0;         // elements between rows
  int64_t num_groups = 0;         // 1 to kMaxOutputGroups
  int64_t num_rows = 0;           // >= 0
  int64_t num_cols = 0;           // >= 1
};

// out = bf16(sum over groups * scale), the sum a balanced tree ((g0+g1)+(g2+g3))+..., an odd node
// carried up.
void SumGroups(const SumGroupsArgs& args);

// The SIMD target that these kernels run on.
const char* OutputSumTargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_OUTPUT_SUM_H_
