// RoPE rows. The library takes cos and sin rows as inputs and uses them as given; this helper
// computes them for given positions. No table with one row per context position exists.
#ifndef MILLIPEDE_ROPE_H_
#define MILLIPEDE_ROPE_H_

#include <cstdint>
#include <span>

#include "millipede/config.h"
#include "millipede/status.h"
#include "millipede/tensor.h"

namespace millipede {

inline constexpr int32_t kRopePairs = kRopeLanes / 2;  // 32 rotated lane pairs per head

// The rotation of each row: pair i of a row at position p turns by (cos[i], sin[i]).
struct RopeRows {
  TensorView<const float, 2> cos;  // [rows, 32]
  TensorView<const float, 2> sin;  // [rows, 32]
};

// Writes one row of cos and sin per position, unrounded float32, `[positions.size(), 32]` each.
//
// SWA layers: theta 10000, no scaling. HCA and CSA layers: theta 160000 with YaRN (factor 16,
// original context 65536, beta 32 and 1, no magnitude factor). The frequency is computed in double
// and rounded to float32; the angle is float32(position) * frequency rounded to float32.
//
// kInvalidArgument for a position outside [0, kMaxContextTokens); kShapeMismatch for wrong views.
Status ComputeRopeRows(AttentionKind kind, std::span<const int64_t> positions,
                       TensorView<float, 2> cos, TensorView<float, 2> sin);

}  // namespace millipede

#endif  // MILLIPEDE_ROPE_H_
