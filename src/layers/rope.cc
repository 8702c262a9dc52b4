#include "millipede/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "layers/checks.h"

namespace millipede {
namespace {

constexpr double kSwaTheta = 10000.0;
constexpr double kCompressedTheta = 160000.0;

// YaRN of the compressed kinds.
constexpr double kYarnFactor = 16.0;
constexpr double kYarnOriginalContext = 65536.0;
constexpr double kYarnBetaFast = 32.0;
constexpr double kYarnBetaSlow = 1.0;

// The (fractional) pair index that turns `rotations` times over the original context.
double YarnDimension(double rotations) {
  return kRopeLanes * std::log(kYarnOriginalContext / (2 * std::numbers::pi * rotations)) /
         (2 * std::log(kCompressedTheta));
}

using Frequencies = std::array<float, kRopePairs>;

Frequencies FrequenciesOf(AttentionKind kind) {
  const bool scaled = kind != AttentionKind::kSwa;
  const double theta = scaled ? kCompressedTheta : kSwaTheta;
  const double low = std::floor(YarnDimension(kYarnBetaFast));
  const double high = std::ceil(YarnDimension(kYarnBetaSlow));
  Frequencies frequencies{};
  for (int32_t i = 0; i < kRopePairs; ++i) {
    double frequency = std::pow(theta, -2.0 * i / kRopeLanes);
    if (scaled) {
      const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
      frequency = frequency / kYarnFactor * ramp + frequency * (1 - ramp);
    }
    frequencies[static_cast<size_t>(i)] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace

Status ComputeRopeRows(AttentionKind kind, std::span<const int64_t> positions,
                       TensorView<float, 2> cos, TensorView<float, 2> sin) try {
  const auto num_rows = static_cast<int64_t>(positions.size());
  MILLIPEDE_RETURN_IF_ERROR(CheckKind(kind));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("cos", cos, {num_rows, kRopePairs}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("sin", sin, {num_rows, kRopePairs}));
  for (size_t row = 0; row < positions.size(); ++row) {
    if (positions[row] < 0 || positions[row] >= kMaxContextTokens) {
      return MakeError(ErrorCode::kInvalidArgument, fmt::format("positions[{}]", row),
                       "{}; allowed: 0 to {}", positions[row], kMaxContextTokens - 1);
    }
  }
  const Frequencies frequencies = FrequenciesOf(kind);
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto position = static_cast<float>(positions[static_cast<size_t>(row)]);
    for (int32_t i = 0; i < kRopePairs; ++i) {
      const float angle = position * frequencies[static_cast<size_t>(i)];
      cos.row(row)[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin.row(row)[i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("positions", "an error message");
}

}  // namespace millipede
