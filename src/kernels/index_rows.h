// The indexer's own rows: index keys from pooled rows, and heads of an index query from int32 sums.
// Both are rotated, multiplied by the 128 x 128 Sylvester matrix with entries +-128^-1/2, and
// quantized as in quantize.h.
#ifndef MILLIPEDE_KERNELS_INDEX_ROWS_H_
#define MILLIPEDE_KERNELS_INDEX_ROWS_H_

#include <cstdint>

namespace millipede {

struct IndexKeyRowArgs {
  const float* pooled = nullptr;  // [128] from the indexer's compressor
  const float* weight = nullptr;  // [128] of the compressor's norm
  const float* cos = nullptr;     // [32] of the block's first token
  const float* sin = nullptr;     // [32]
  int8_t* codes = nullptr;        // [128], written
  float* scale = nullptr;         // one value, written
  float eps = 0;
};

// c = bf16(RoPE(pooled * rsqrt(mean(pooled^2) + eps) * weight)), the last 64 lanes rotated;
// codes and scale are of bf16(c * Hadamard).
void IndexKeyRow(const IndexKeyRowArgs& args);

struct IndexQueryHeadArgs {
  const int32_t* sums = nullptr;        // [128] exact products of one indexer head
  float row_scale = 0;                  // of the token's qr codes
  const float* output_scale = nullptr;  // [128] of the weights
  const float* cos = nullptr;           // [32] of the token
  const float* sin = nullptr;           // [32]
  int8_t* codes = nullptr;              // [128], written
  float* scale = nullptr;               // one value, written
};

// v = bf16(RoPE(float(sums) * row_scale * output_scale)), the last 64 lanes rotated; codes and
// scale are of v * Hadamard.
void IndexQueryHead(const IndexQueryHeadArgs& args);

// The SIMD target that these kernels run on.
const char* IndexRowsTargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_INDEX_ROWS_H_
