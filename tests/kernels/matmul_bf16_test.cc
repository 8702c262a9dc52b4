#include "kernels/matmul_bf16.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "geometry/tiles.h"
#include "hwy/aligned_allocator.h"
#include "kernels/pack_weights.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Bf16 kBf16Nan = {0x7FC1};
constexpr uint32_t kSentinel = 0x7FABCDEF;  // a NaN that no computation makes

std::vector<Bf16> RandomBf16(size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(n);
  for (Bf16& value : values) value = FloatToBf16(normal(random));
  return values;
}

hwy::AlignedFreeUniquePtr<Bf16[]> Packed(const std::vector<Bf16>& weights, int64_t num_outputs,
                                         int64_t num_inputs) {
  const auto elements = static_cast<size_t>(PackedElements(num_outputs, num_inputs));
  auto packed = hwy::AllocateAligned<Bf16>(elements);
  std::fill_n(packed.get(), elements, kBf16Nan);
  PackWeightsArgs<Bf16> args;
  args.weights = weights.data();
  args.stride = num_inputs;
  args.num_outputs = num_outputs;
  args.num_inputs = num_inputs;
  args.panel_end = NumPanels(num_outputs);
  args.packed = packed.get();
  PackBf16(args);
  return packed;
}

// The kernel's sum in plain C++: ascending inputs, one accumulator.
float Dot(const Bf16* x, const Bf16* w, int64_t num_inputs, bool fused) {
  float sum = 0;
  for (int64_t k = 0; k < num_inputs; ++k) {
    const float a = Bf16ToFloat(x[k]);
    const float b = Bf16ToFloat(w[k]);
    sum = fused ? std::fma(a, b, sum) : sum + a * b;
  }
  return sum;
}

// Rows with NaN between and around them, and out with sentinels between and around its rows.
class Product {
 public:
  Product(int64_t num_rows, int64_t num_inputs, int64_t num_outputs, uint32_t seed)
      : num_inputs_(num_inputs),
        num_outputs_(num_outputs),
        x_stride_(num_inputs + 7),
        random_(seed),
        weights_(RandomBf16(static_cast<size_t>(num_outputs * num_inputs), random_)),
        packed_(Packed(weights_, num_outputs, num_inputs)),
        x_(static_cast<size_t>((num_rows + 2) * x_stride_), kBf16Nan),
        scratch_(hwy::AllocateAligned<float>(kScratchFloats)) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const std::vector<Bf16> values = RandomBf16(static_cast<size_t>(num_inputs), random_);
      std::copy(values.begin(), values.end(), x_.begin() + (row + 1) * x_stride_);
    }
  }

  // The out buffer, [num_rows, stride] behind a first row of sentinels, of rows and panels.
  std::vector<uint32_t> Run(int64_t row_begin, int64_t row_end, int64_t panel_begin,
                            int64_t panel_end) {
    std::fill_n(scratch_.get(), kScratchFloats, kNan);
    const int64_t stride = out_stride(panel_begin, panel_end);
    std::vector<uint32_t> out(static_cast<size_t>((row_end - row_begin + 2) * stride), kSentinel);
    MatmulBf16Args args;
    args.x = x_.data() + (row_begin + 1) * x_stride_;
    args.x_stride = x_stride_;
    args.num_rows = row_end - row_begin;
    args.num_inputs = num_inputs_;
    args.weights = packed_.get();
    args.num_outputs = num_outputs_;
    args.panel_begin = panel_begin;
    args.panel_end = panel_end;
    args.out = reinterpret_cast<float*>(out.data()) + stride;
    args.out_stride = stride;
    args.scratch = scratch_.get();
    MatmulBf16(args);
    return out;
  }

  int64_t out_stride(int64_t panel_begin, int64_t panel_end) const {
    return num_computed(panel_begin, panel_end) + 5;
  }
  int64_t num_computed(int64_t panel_begin, int64_t panel_end) const {
    return std::min(panel_end * kPanelOutputs, num_outputs_) - panel_begin * kPanelOutputs;
  }

  // What Run should return.
  std::vector<uint32_t> Expected(int64_t row_begin, int64_t row_end, int64_t panel_begin,
                                 int64_t panel_end, bool fused) const {
    const int64_t stride = out_stride(panel_begin, panel_end);
    std::vector<uint32_t> out(static_cast<size_t>((row_end - row_begin + 2) * stride), kSentinel);
    for (int64_t row = row_begin; row < row_end; ++row) {
      for (int64_t n = 0; n < num_computed(panel_begin, panel_end); ++n) {
        const float dot = Dot(x_.data() + (row + 1) * x_stride_,
                              weights_.data() + (panel_begin * kPanelOutputs + n) * num_inputs_,
                              num_inputs_, fused);
        out[static_cast<size_t>((row - row_begin + 1) * stride + n)] = std::bit_cast<uint32_t>(dot);
      }
    }
    return out;
  }

 private:
  static constexpr size_t kScratchFloats = kMatmulScratchBytes / sizeof(float);

  int64_t num_inputs_;
  int64_t num_outputs_;
  int64_t x_stride_;
  std::mt19937 random_;
  std::vector<Bf16> weights_;
  hwy::AlignedFreeUniquePtr<Bf16[]> packed_;
  std::vector<Bf16> x_;
  hwy::AlignedFreeUniquePtr<float[]> scratch_;
};

TEST(MatmulBf16Test, EqualsTheChainInPlainCpp) {
  ForEachTarget(MatmulBf16TargetName, [] {
    for (const int64_t num_inputs : {1, 2, 31, 64, 511, 512, 513, 1024, 1536}) {
      for (const int64_t num_outputs : {1, 15, 16, 17, 33, 64, 512}) {
        const int64_t num_rows = 1 + (num_inputs * 5 + num_outputs) % 9;
        SCOPED_TRACE(testing::Message()
                     << num_rows << " rows, " << num_inputs << " to " << num_outputs);
        Product product(num_rows, num_inputs, num_outputs, 1);
        const int64_t num_panels = NumPanels(num_outputs);
        ASSERT_EQ(product.Run(0, num_rows, 0, num_panels),
                  product.Expected(0, num_rows, 0, num_panels, IsFused()));
      }
    }
  });
}

TEST(MatmulBf16Test, EveryPanelRange) {
  ForEachTarget(MatmulBf16TargetName, [] {
    constexpr int64_t kOutputs = 7 * kPanelOutputs - 3;
    Product product(3, 515, kOutputs, 2);
    for (int64_t begin = 0; begin < 7; ++begin) {
      for (int64_t end = begin + 1; end <= 7; ++end) {
        SCOPED_TRACE(testing::Message() << "panels " << begin << " to " << end);
        ASSERT_EQ(product.Run(0, 3, begin, end), product.Expected(0, 3, begin, end, IsFused()));
      }
    }
  });
}

TEST(MatmulBf16Test, RowsHaveTheSameBitsAloneAndTogether) {
  ForEachTarget(MatmulBf16TargetName, [] {
    constexpr int64_t kOutputs = 5 * kPanelOutputs - 1;
    Product product(kTileRows, 1027, kOutputs, 3);
    const int64_t stride = product.out_stride(0, 5);
    const auto row_of = [stride](const std::vector<uint32_t>& out, int64_t row) {
      const auto begin = out.begin() + (row + 1) * stride;
      return std::vector<uint32_t>(begin, begin + stride);
    };
    std::vector<std::vector<uint32_t>> alone;
    for (int64_t row = 0; row < kTileRows; ++row) {
      alone.push_back(row_of(product.Run(row, row + 1, 0, 5), 0));
    }
    for (int64_t num_rows = 1; num_rows <= kTileRows; ++num_rows) {
      const int64_t first = kTileRows - num_rows;
      const std::vector<uint32_t> together = product.Run(first, kTileRows, 0, 5);
      for (int64_t row = 0; row < num_rows; ++row) {
        ASSERT_EQ(row_of(together, row), alone[static_cast<size_t>(first + row)])
            << num_rows << " rows, row " << row;
      }
    }
  });
}

}  // namespace
}  // namespace millipede
