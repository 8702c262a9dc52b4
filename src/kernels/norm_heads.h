// RMS norm and RoPE of one 512-lane head or KV row.
#ifndef MILLIPEDE_KERNELS_NORM_HEADS_H_
#define MILLIPEDE_KERNELS_NORM_HEADS_H_

#include <cstdint>

#include "millipede/config.h"
#include "millipede/rope.h"
#include "millipede/tensor.h"

namespace millipede {

struct HeadNormRopeArgs {
  const int32_t* sums = nullptr;        // [512] exact products of one head
  float row_scale = 0;                  // of the token's codes
  const float* output_scale = nullptr;  // [512] of the head's weight rows
  const float* cos = nullptr;           // [32]
  const float* sin = nullptr;           // [32]
  Bf16* out = nullptr;                  // [512], written
  float eps = 0;
};

// A query head: v = float(sums) * row_scale * output_scale, u = v * rsqrt(mean(v^2) + eps), the
// last 64 lanes rotated in pairs (2i, 2i+1), rounded to bf16.
void HeadNormRope(const HeadNormRopeArgs& args);

struct KvNormRopeArgs {
  const float* x = nullptr;       // [512]
  const float* weight = nullptr;  // [512]
  const float* cos = nullptr;     // [32]
  const float* sin = nullptr;     // [32]
  Bf16* out = nullptr;            // [512], written
  float eps = 0;
};

// A KV row: u = x * rsqrt(mean(x^2) + eps) * weight, the last 64 lanes rotated, rounded to bf16.
void KvNormRope(const KvNormRopeArgs& args);

// The SIMD target that these kernels run on.
const char* NormHeadsTargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_NORM_HEADS_H_
