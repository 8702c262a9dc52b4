// Symmetric int8 quantization of one row.
#ifndef MILLIPEDE_KERNELS_QUANTIZE_H_
#define MILLIPEDE_KERNELS_QUANTIZE_H_

#include <cstdint>

namespace millipede {

struct QuantizeArgs {
  const float* x = nullptr;  // [num_values]
  int8_t* codes = nullptr;   // [num_values], written
  float* scale = nullptr;    // one value, written
  int64_t num_values = 0;    // >= 1
};

// amax = max(max|x|, 1e-4), code = round_half_even(x * (127 / amax)), scale = amax / 127. Codes lie
// in [-127, 127]. A row with a NaN has scale NaN, one with an infinity and no NaN has scale
// infinity; every code of such a row is 0.
void Quantize(const QuantizeArgs& args);

// The SIMD target that Quantize runs on.
const char* QuantizeTargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_QUANTIZE_H_
