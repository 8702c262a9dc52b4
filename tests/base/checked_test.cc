#include "base/checked.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>

namespace millipede {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

TEST(Checked, AddReportsOverflowOnly) {
  EXPECT_EQ(CheckedAdd(kMax - 1, 1), kMax);
  EXPECT_EQ(CheckedAdd(kMax, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMin, -1), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMin, kMax), -1);
}

TEST(Checked, MultiplyReportsOverflowOnly) {
  EXPECT_EQ(CheckedMultiply(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_EQ(CheckedMultiply(int64_t{1} << 32, int64_t{1} << 31), std::nullopt);
  EXPECT_EQ(CheckedMultiply(kMin, -1), std::nullopt);
  EXPECT_EQ(CheckedMultiply(kMax, 0), 0);
}

TEST(Checked, AgreesWith128BitArithmetic) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 10'000; ++i) {
    const int64_t a = static_cast<int64_t>(random()) >> (random() % 64);
    const int64_t b = static_cast<int64_t>(random()) >> (random() % 64);
    const __int128 product = static_cast<__int128>(a) * b;
    const bool fits = product >= kMin && product <= kMax;
    EXPECT_EQ(CheckedMultiply(a, b).has_value(), fits) << a << " * " << b;
    if (fits) {
      EXPECT_EQ(*CheckedMultiply(a, b), static_cast<int64_t>(product));
    }
  }
}

TEST(Checked, CeilDivAndRoundUp) {
  for (int64_t a = 0; a < 300; ++a) {
    for (int64_t b = 1; b < 70; ++b) {
      int64_t quotient = 0;
      while (quotient * b < a) ++quotient;
      EXPECT_EQ(CeilDiv(a, b), quotient) << a << " / " << b;
      EXPECT_EQ(RoundUp(a, b), quotient * b);
    }
  }
  EXPECT_EQ(CeilDiv(kMax, kMax), 1);  // no intermediate sum overflows
  EXPECT_EQ(CeilDiv(kMax, 2), (int64_t{1} << 62));
}

}  // namespace
}  // namespace millipede
