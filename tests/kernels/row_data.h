// Buffers with poison around them, and the doubles that row kernels are judged by.
#ifndef MILLIPEDE_TESTS_KERNELS_ROW_DATA_H_
#define MILLIPEDE_TESTS_KERNELS_ROW_DATA_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "base/bf16.h"
#include "millipede/tensor.h"

namespace millipede {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// Row lengths around every vector length, and the models' own.
inline const std::vector<int64_t> kRowLengths = {1, 3, 15, 16, 17, 31, 33, 64, 256, 4096, 7168};

template <typename T>
T Poison() {
  if constexpr (std::is_same_v<T, float>) return kNan;
  if constexpr (std::is_same_v<T, Bf16>) return Bf16{0x7FC1};
  if constexpr (std::is_integral_v<T>) return static_cast<T>(std::numeric_limits<T>::max() - 6);
}

template <typename T>
bool SameBits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Rows at an odd address with poison before the first and behind each, so that reading beyond a row
// spoils the result and writing beyond it is seen.
template <typename T>
class PoisonedRows {
 public:
  explicit PoisonedRows(int64_t length, int64_t num_rows = 1)
      : length_(length),
        storage_(static_cast<size_t>(kGap + num_rows * stride()), Poison<T>()),
        num_rows_(num_rows) {}
  explicit PoisonedRows(const std::vector<T>& values)
      : PoisonedRows(static_cast<int64_t>(values.size())) {
    std::copy(values.begin(), values.end(), row(0));
  }

  int64_t stride() const { return length_ + kGap; }
  T* row(int64_t r) { return storage_.data() + kGap + r * stride(); }
  T* data() { return row(0); }
  std::vector<T> values(int64_t r = 0) { return {row(r), row(r) + length_}; }
  bool PoisonIntact() {
    for (int64_t i = 0; i < kGap; ++i) {
      if (!SameBits(storage_[static_cast<size_t>(i)], Poison<T>())) return false;
    }
    for (int64_t r = 0; r < num_rows_; ++r) {
      for (int64_t i = length_; i < stride(); ++i) {
        if (!SameBits(row(r)[i], Poison<T>())) return false;
      }
    }
    return true;
  }

 private:
  static constexpr int64_t kGap = 67;
  int64_t length_;
  std::vector<T> storage_;
  int64_t num_rows_;
};

inline std::vector<float> RandomFloats(std::mt19937_64& random, int64_t n, float low = -1.0F,
                                       float high = 1.0F) {
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = uniform(random);
  return values;
}

inline std::vector<Bf16> ToBf16(const std::vector<float>& values) {
  std::vector<Bf16> rounded;
  for (const float value : values) rounded.push_back(FloatToBf16(value));
  return rounded;
}

// rsqrt(mean(x^2) + eps) in double.
template <typename T>
double InverseRmsOf(const std::vector<T>& x, double eps) {
  double sum = 0;
  for (const T value : x) sum += static_cast<double>(value) * static_cast<double>(value);
  return 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

// Whether `actual` is bf16 of a value within `tolerance` of `expected`.
inline ::testing::AssertionResult IsBf16Of(Bf16 actual, double expected, double tolerance) {
  const float low = Bf16ToFloat(FloatToBf16(static_cast<float>(expected - tolerance)));
  const float high = Bf16ToFloat(FloatToBf16(static_cast<float>(expected + tolerance)));
  const float value = Bf16ToFloat(actual);
  if (low <= value && value <= high) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << value << " is not bf16 of " << expected << " +- " << tolerance;
}

}  // namespace millipede

#endif  // MILLIPEDE_TESTS_KERNELS_ROW_DATA_H_
