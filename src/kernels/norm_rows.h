// RMS norm of one row of activations.
#ifndef MILLIPEDE_KERNELS_NORM_ROWS_H_
#define MILLIPEDE_KERNELS_NORM_ROWS_H_

#include <cstdint>

#include "millipede/tensor.h"

namespace millipede {

struct RmsNormArgs {
  const Bf16* x = nullptr;        // [num_values]
  const float* weight = nullptr;  // [num_values]
  Bf16* out = nullptr;            // [num_values], written
  int64_t num_values = 0;         // >= 1
  float eps = 0;
};

// out = bf16(x * rsqrt(mean(x^2) + eps) * weight).
void RmsNorm(const RmsNormArgs& args);

struct RmsNormQuantizeArgs {
  const float* x = nullptr;       // [num_values]
  const float* weight = nullptr;  // [num_values]
  int8_t* codes = nullptr;        // [num_values], written
  float* scale = nullptr;         // one value, written
  int64_t num_values = 0;         // >= 1
  float eps = 0;
};

// Quantize (quantize.h) of x * rsqrt(mean(x^2) + eps) * weight.
void RmsNormQuantize(const RmsNormQuantizeArgs& args);

// The SIMD target that these kernels run on.
const char* NormRowsTargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_NORM_ROWS_H_
