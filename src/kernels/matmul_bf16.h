// Matrix product with bf16 weights, float32 sums.
#ifndef MILLIPEDE_KERNELS_MATMUL_BF16_H_
#define MILLIPEDE_KERNELS_MATMUL_BF16_H_

#include <cstdint>

#include "millipede/tensor.h"

namespace millipede {

// out[r][n] = sum over k of x[r][k] * w[n][k], for some panels of 16 outputs. Each sum is one chain
// of float32 multiply-adds in ascending k (fused where the SIMD target has it), so a row's bits do
// not depend on the rows and panels it is computed with.
struct MatmulBf16Args {
  const Bf16* x = nullptr;  // [num_rows, num_inputs], row r at x + r * x_stride
  int64_t x_stride = 0;     // elements
  int64_t num_rows = 0;     // 1 to kTileRows
  int64_t num_inputs = 0;   // at least 1

  const Bf16* weights = nullptr;  // the whole matrix, packed by PackBf16, 64-byte aligned
  int64_t num_outputs = 0;        // of the whole matrix
  int64_t panel_begin = 0;        // panels to compute, of NumPanels(num_outputs)
  int64_t panel_end = 0;

  // [num_rows, outputs of the panels], row r at out + r * out_stride; out[0] is output
  // panel_begin * kPanelOutputs. The padded outputs of the last panel are not written.
  float* out = nullptr;
  int64_t out_stride = 0;  // elements

  void* scratch = nullptr;  // kMatmulScratchBytes, 64-byte aligned, contents of no meaning
};

void MatmulBf16(const MatmulBf16Args& args);

// The SIMD target that MatmulBf16 runs on.
const char* MatmulBf16TargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_MATMUL_BF16_H_
