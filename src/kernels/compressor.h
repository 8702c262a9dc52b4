// The two kernels of a compressor beside its matrix products: the position's bias on a state row,
// and the pooling of a block's state rows.
#ifndef MILLIPEDE_KERNELS_COMPRESSOR_H_
#define MILLIPEDE_KERNELS_COMPRESSOR_H_

#include <cstdint>

namespace millipede {

struct AddRowArgs {
  float* row;           // [num_values], added to
  const float* addend;  // [num_values]
  int64_t num_values;   // >= 0
};
// row += addend.
void AddRow(const AddRowArgs& args);

// Most state rows of one block.
inline constexpr int64_t kMaxPooledRows = 128;

struct PoolRowsArgs {
  const float* const* kv;     // [num_rows] pointers to [num_lanes]
  const float* const* score;  // [num_rows] pointers to [num_lanes]
  int64_t num_rows;           // 1 to kMaxPooledRows
  int64_t num_lanes;          // >= 1
  float* out;                 // [num_lanes], written
};
// Per lane: out = sum of softmax(score) * kv over the rows, summed in the order given.
void PoolRows(const PoolRowsArgs& args);

// The SIMD target both run on.
const char* CompressorTargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_COMPRESSOR_H_
