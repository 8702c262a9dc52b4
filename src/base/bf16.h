// Scalar bfloat16 conversions; the vector ones are in kernels/bf16-inl.h.
#ifndef MILLIPEDE_BASE_BF16_H_
#define MILLIPEDE_BASE_BF16_H_

#include <bit>
#include <cstdint>

#include "millipede/tensor.h"

namespace millipede {

inline float Bf16ToFloat(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to nearest even; a NaN stays a NaN.
inline Bf16 FloatToBf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  bits += 0x7FFFU + ((bits >> 16) & 1U);
  return {static_cast<uint16_t>(bits >> 16)};
}

}  // namespace millipede

#endif  // MILLIPEDE_BASE_BF16_H_
