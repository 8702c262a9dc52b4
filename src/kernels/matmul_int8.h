// Matrix product of int8 values, exact int32 sums.
#ifndef MILLIPEDE_KERNELS_MATMUL_INT8_H_
#define MILLIPEDE_KERNELS_MATMUL_INT8_H_

#include <cstdint>

namespace millipede {

// out[r][n] = sum over k of x[r][k] * w[n][k], for some panels of 16 outputs. Exact for all int8
// values, -128 included, while num_inputs <= 131071.
struct MatmulInt8Args {
  const int8_t* x = nullptr;  // [num_rows, num_inputs], row r at x + r * x_stride
  int64_t x_stride = 0;       // elements
  int64_t num_rows = 0;       // 1 to kTileRows
  int64_t num_inputs = 0;     // 1 to 131071

  const int8_t* weights = nullptr;  // the whole matrix, packed by PackInt8, 64-byte aligned
  int64_t num_outputs = 0;          // of the whole matrix
  int64_t panel_begin = 0;          // panels to compute, of NumPanels(num_outputs)
  int64_t panel_end = 0;

  // [num_rows, outputs of the panels], row r at out + r * out_stride; out[0] is output
  // panel_begin * kPanelOutputs. The padded outputs of the last panel are not written.
  int32_t* out = nullptr;
  int64_t out_stride = 0;  // elements

  void* scratch = nullptr;  // kMatmulScratchBytes, 64-byte aligned, contents of no meaning
};

void MatmulInt8(const MatmulInt8Args& args);

// The SIMD target that MatmulInt8 runs on.
const char* MatmulInt8TargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_MATMUL_INT8_H_
