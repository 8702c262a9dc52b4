#include "kernels/pack_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "geometry/tiles.h"

namespace millipede {
namespace {

// A value for every element of a matrix, never zero.
int8_t ValueAt(int64_t output, int64_t input) {
  return static_cast<int8_t>((output * 37 + input * 11) % 127 + 1);
}

TEST(PackWeightsTest, LayoutIsBlockPanelPairOutputInput) {
  constexpr int64_t kOutputs = 35;
  constexpr int64_t kInputs = 2 * kInputBlock + 7;
  constexpr int64_t kStride = kInputs + 9;
  std::vector<int8_t> weights(kOutputs * kStride, -1);
  for (int64_t n = 0; n < kOutputs; ++n) {
    for (int64_t k = 0; k < kInputs; ++k) {
      weights[static_cast<size_t>(n * kStride + k)] = ValueAt(n, k);
    }
  }
  std::vector<int8_t> packed(static_cast<size_t>(PackedElements(kOutputs, kInputs)), -1);

  PackWeightsArgs<int8_t> args;
  args.weights = weights.data();
  args.stride = kStride;
  args.num_outputs = kOutputs;
  args.num_inputs = kInputs;
  args.packed = packed.data();
  // Out of order, to show that panels are packed alone.
  for (const int64_t panel : {2, 0, 1}) {
    args.panel_begin = panel;
    args.panel_end = panel + 1;
    PackInt8(args);
  }

  auto at = packed.begin();
  for (int64_t block = 0; block < 3; ++block) {
    const int64_t block_inputs = block < 2 ? kInputBlock : 8;  // 7, padded
    for (int64_t panel = 0; panel < 3; ++panel) {
      for (int64_t pair = 0; pair < block_inputs / 2; ++pair) {
        for (int64_t i = 0; i < kPanelOutputs; ++i) {
          for (int64_t half = 0; half < 2; ++half) {
            const int64_t n = panel * kPanelOutputs + i;
            const int64_t k = block * kInputBlock + pair * 2 + half;
            const int8_t expected = n < kOutputs && k < kInputs ? ValueAt(n, k) : int8_t{0};
            ASSERT_EQ(*at++, expected) << "output " << n << " input " << k;
          }
        }
      }
    }
  }
  EXPECT_EQ(at, packed.end());
}

TEST(PackWeightsTest, Bf16BitsAreKept) {
  const std::vector<Bf16> weights = {{0x8000}, {0x7FC1}, {0x0001}};  // -0, a NaN, a subnormal
  std::vector<Bf16> packed(static_cast<size_t>(PackedElements(1, 3)), Bf16{0xFFFF});
  PackWeightsArgs<Bf16> args;
  args.weights = weights.data();
  args.stride = 3;
  args.num_outputs = 1;
  args.num_inputs = 3;
  args.panel_end = 1;
  args.packed = packed.data();
  PackBf16(args);
  EXPECT_EQ(packed[0].bits, 0x8000);
  EXPECT_EQ(packed[1].bits, 0x7FC1);
  EXPECT_EQ(packed[32].bits, 0x0001);
  EXPECT_EQ(std::count_if(packed.begin(), packed.end(), [](Bf16 v) { return v.bits == 0; }), 61);
}

}  // namespace
}  // namespace millipede
