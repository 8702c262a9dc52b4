// 64-bit arithmetic that reports overflow, and the roundings of sizes.
#ifndef MILLIPEDE_BASE_CHECKED_H_
#define MILLIPEDE_BASE_CHECKED_H_

#include <cstdint>
#include <optional>

namespace millipede {

constexpr std::optional<int64_t> CheckedAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

constexpr std::optional<int64_t> CheckedMultiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// ceil(a / b) for a >= 0, b > 0.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// The least multiple of b at or above a, for a >= 0, b > 0.
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

}  // namespace millipede

#endif  // MILLIPEDE_BASE_CHECKED_H_
