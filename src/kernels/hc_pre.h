// Hyper-connection mixing before the attention: three kernels, the product with hc_fn in ranges of
// inputs, the 24 coefficients from it, and the mixed row.
#ifndef MILLIPEDE_KERNELS_HC_PRE_H_
#define MILLIPEDE_KERNELS_HC_PRE_H_

#include <algorithm>
#include <cstdint>

#include "base/checked.h"
#include "geometry/tiles.h"
#include "millipede/config.h"
#include "millipede/tensor.h"

namespace millipede {

// Packed hc_fn is [block of 16 inputs][24 mixes][16 inputs], zeros past the last input: vectors run
// along the inputs, and one block is read front to back.
inline constexpr int64_t kHcInputBlock = 16;

// Most token rows that share one read of hc_fn.
inline constexpr int64_t kHcTileRows = 8;

constexpr int64_t PackedHcFnFloats(int64_t num_inputs) {
  return RoundUp(num_inputs, kHcInputBlock) * kHcMixes;
}

struct HcInputs {
  int64_t begin = 0;
  int64_t end = 0;
};

// Range `index` in [0, kHcInputRanges) of the inputs, whole blocks; the last ones may be empty.
constexpr HcInputs HcInputRange(int64_t num_inputs, int64_t index) {
  const int64_t size = RoundUp(CeilDiv(num_inputs, kHcInputRanges), kHcInputBlock);
  return {std::min(num_inputs, index * size), std::min(num_inputs, (index + 1) * size)};
}

struct PackHcFnArgs {
  const float* fn = nullptr;  // [24, num_inputs]
  int64_t fn_stride = 0;      // elements between rows
  int64_t num_inputs = 0;     // 4*D
  float* packed = nullptr;    // [PackedHcFnFloats(num_inputs)], written
};
void PackHcFn(const PackHcFnArgs& args);

struct HcPartialArgs {
  const float* x = nullptr;          // [num_rows, num_inputs] the token rows, stream-major
  int64_t x_stride = 0;              // elements between rows
  const float* packed_fn = nullptr;  // from PackHcFn, 64-byte aligned
  int64_t begin = 0;  // inputs [begin, end) of the product, as HcInputRange gives them
  int64_t end = 0;
  float* partials = nullptr;    // [num_rows, 32], written: 24 dots, the sum of squares, zeros
  int64_t partials_stride = 0;  // elements between rows
  int64_t num_rows = 0;         // >= 0; up to kHcTileRows share each read of packed_fn
};

// The part of hc_fn * x and of the sum of x^2 that inputs [begin, end) make. A row's values do not
// depend on the rows beside it.
void HcPartial(const HcPartialArgs& args);

struct HcFinishArgs {
  const float* partials = nullptr;  // [kHcInputRanges, 32] of one token
  const float* scale = nullptr;     // [3] pre, post, comb
  const float* base = nullptr;      // [24]
  int64_t num_inputs = 0;           // 4*D
  float rms_eps = 0;
  float hc_eps = 0;
  int32_t sinkhorn_rounds = 0;  // >= 1
  float* pre = nullptr;         // [4], written
  float* post = nullptr;        // [4], written
  float* comb = nullptr;        // [4, 4] from stream, to stream, written
};

// m = dots * rsqrt(mean(x^2) + rms_eps), dots and squares each the tree over ranges
// ((p0+p1)+(p2+p3))+((p4+p5)+(p6+p7)).
//   pre = sigmoid(m[0:4] * scale[0] + base[0:4]) + hc_eps
//   post = 2 * sigmoid(m[4:8] * scale[1] + base[4:8])
//   comb[i][o]: m[8+4i+o] * scale[2] + base[8+4i+o], softmax over o, + hc_eps, divided by (sum over
//   i + hc_eps); then sinkhorn_rounds - 1 times divided by (sum over o + hc_eps) and by (sum over
//   i + hc_eps).
void HcFinish(const HcFinishArgs& args);

struct HcCombineArgs {
  const float* x = nullptr;    // [4, hidden] one token's streams
  const float* pre = nullptr;  // [4]
  Bf16* x_mixed = nullptr;     // [hidden], written
  int64_t hidden = 0;          // >= 1
};

// x_mixed = bf16((pre0 * x0 + pre1 * x1) + (pre2 * x2 + pre3 * x3)).
void HcCombine(const HcCombineArgs& args);

// The SIMD target that these kernels run on.
const char* HcPreTargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_HC_PRE_H_
