// Arithmetic shared by the files of the golden.
#ifndef MILLIPEDE_REFERENCE_NUMBERS_H_
#define MILLIPEDE_REFERENCE_NUMBERS_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "millipede/config.h"
#include "millipede/tensor.h"
#include "reference/golden.h"

namespace millipede::reference {

inline double ToDouble(double value) { return value; }
inline double ToDouble(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

// Through float32, the precision of the layer, then to nearest even.
inline Bf16 RoundBf16(double value) {
  const auto narrow = static_cast<float>(value);
  const auto bits = std::bit_cast<uint32_t>(narrow);
  if (std::isnan(narrow)) return {0x7FC0};
  return {static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

template <typename T>
std::vector<double> ToDoubles(std::span<const T> values) {
  std::vector<double> doubles(values.size());
  std::transform(values.begin(), values.end(), doubles.begin(), [](T v) { return ToDouble(v); });
  return doubles;
}

inline std::vector<Bf16> RoundAll(std::span<const double> values) {
  std::vector<Bf16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), RoundBf16);
  return rounded;
}

// Sum of a[i] * b[i]. Independent partial sums let the compiler use vectors.
template <typename A>
double Dot(const A* a, const double* b, int64_t n) {
  constexpr int64_t kLanes = 8;
  double sums[kLanes] = {};
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += ToDouble(a[i + j]) * b[i + j];
  }
  for (int64_t i = whole; i < n; ++i) sums[i - whole] += ToDouble(a[i]) * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

// The same of codes (int8_t, or int16_t values of that range), exact.
template <typename Code>
int32_t DotCodes(const Code* a, const Code* b, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += int32_t{a[i]} * int32_t{b[i]};
  return sum;
}

// 1 / sqrt(mean(x^2) + eps).
inline double InverseRms(std::span<const double> x, double eps) {
  const double sum = Dot(x.data(), x.data(), static_cast<int64_t>(x.size()));
  return 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

// x <- rms(x), times `norm` if there is one.
inline void Normalize(std::span<double> x, double eps, const float* norm = nullptr) {
  const double inverse = InverseRms(x, eps);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= norm != nullptr ? inverse * norm[i] : inverse;
}

// Rotates the pairs (2i, 2i+1) of the last 64 lanes of a head; direction -1 is the inverse.
inline void Rotate(std::span<double> head, const RopeRow& rope, double direction) {
  double* pair = head.data() + head.size() - kRopeLanes;
  for (size_t i = 0; i < kRopePairs; ++i, pair += 2) {
    const double cos = rope.cos[i];
    const double sin = direction * rope.sin[i];
    const double even = pair[0] * cos - pair[1] * sin;
    pair[1] = pair[0] * sin + pair[1] * cos;
    pair[0] = even;
  }
}

// x [inputs] times a matrix [outputs, inputs].
template <typename W>
std::vector<double> Project(TensorView<const W, 2> weights, std::span<const double> x) {
  std::vector<double> y(static_cast<size_t>(weights.shape[0]));
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] = Dot(weights.row(static_cast<int64_t>(o)), x.data(), weights.shape[1]);
  }
  return y;
}

// Codes x [inputs] of scale `x_scale` times a matrix [outputs, inputs] of codes with one scale
// each.
inline std::vector<double> ProjectCodes(TensorView<const int8_t, 2> weights, const float* scales,
                                        std::span<const int8_t> x, float x_scale) {
  std::vector<double> y(static_cast<size_t>(weights.shape[0]));
  for (size_t o = 0; o < y.size(); ++o) {
    const int32_t sum = DotCodes(weights.row(static_cast<int64_t>(o)), x.data(), weights.shape[1]);
    y[o] = sum * double{x_scale} * scales[o];
  }
  return y;
}

// x times the Sylvester matrix of 128 rows, whose entry (i, j) is 128^-1/2, negative if i and j
// have an odd number of ones in common. The entries are float32.
inline std::vector<double> Hadamard(std::span<const double> x) {
  const auto entry = static_cast<float>(1 / std::sqrt(double{kIndexDim}));
  std::vector<double> y(kIndexDim);
  for (size_t j = 0; j < kIndexDim; ++j) {
    for (size_t i = 0; i < kIndexDim; ++i) {
      y[j] += std::popcount(i & j) % 2 == 0 ? x[i] * entry : -x[i] * entry;
    }
  }
  return y;
}

}  // namespace millipede::reference

#endif  // MILLIPEDE_REFERENCE_NUMBERS_H_
