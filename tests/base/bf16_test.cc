#include "base/bf16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace millipede {
namespace {

float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

TEST(Bf16, EveryBf16ValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits <= 0xFFFF; ++bits) {
    const float value = Bf16ToFloat({static_cast<uint16_t>(bits)});
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value)))) << bits;
    } else {
      EXPECT_EQ(FloatToBf16(value).bits, bits);
    }
  }
}

TEST(Bf16, HalfwayGoesToEven) {
  EXPECT_EQ(FloatToBf16(FromBits(0x3F808000)).bits, 0x3F80);  // even below
  EXPECT_EQ(FloatToBf16(FromBits(0x3F818000)).bits, 0x3F82);  // even above
  EXPECT_EQ(FloatToBf16(FromBits(0x3F808001)).bits, 0x3F81);  // just past halfway
  EXPECT_EQ(FloatToBf16(FromBits(0x3F807FFF)).bits, 0x3F80);  // just short of it
  EXPECT_EQ(FloatToBf16(FromBits(0xBF818000)).bits, 0xBF82);  // the sign plays no part
}

TEST(Bf16, EdgesOfTheRange) {
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
  EXPECT_EQ(FloatToBf16(-std::numeric_limits<float>::infinity()).bits, 0xFF80);
  EXPECT_EQ(FloatToBf16(std::numeric_limits<float>::max()).bits, 0x7F80);  // rounds up to infinity
  EXPECT_EQ(FloatToBf16(-0.0F).bits, 0x8000);
  EXPECT_EQ(FloatToBf16(FromBits(0x00000001)).bits, 0x0000);  // the least subnormal
  EXPECT_EQ(FloatToBf16(FromBits(0x00008001)).bits, 0x0001);
  // A NaN whose payload lies in the low half alone must not become infinity.
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(FromBits(0x7F800001)))));
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(FromBits(0xFFFFFFFF)))));
}

TEST(Bf16, NearestOfTheNeighbours) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100'000; ++i) {
    const float value = FromBits(static_cast<uint32_t>(random()));
    if (!(std::fabs(value) <= FromBits(0x7F7F0000))) continue;  // past the largest bf16
    const uint32_t down = std::bit_cast<uint32_t>(value) & 0xFFFF0000U;
    const double error = std::fabs(double{Bf16ToFloat(FloatToBf16(value))} - double{value});
    const double error_down = std::fabs(double{FromBits(down)} - double{value});
    EXPECT_LE(error, error_down) << value;
    const float up = FromBits(down + 0x10000U);
    if (std::isfinite(up)) {
      EXPECT_LE(error, std::fabs(double{up} - double{value})) << value;
    }
  }
}

}  // namespace
}  // namespace millipede
