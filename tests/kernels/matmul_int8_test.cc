#include "kernels/matmul_int8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "geometry/tiles.h"
#include "hwy/aligned_allocator.h"
#include "kernels/pack_weights.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

constexpr int32_t kSentinel = 0x55AA1234;

using Source = std::function<int8_t()>;

// Rows with other values between and around them, and out with sentinels between and around its
// rows.
class Product {
 public:
  Product(int64_t num_rows, int64_t num_inputs, int64_t num_outputs, const Source& x_source,
          const Source& weight_source)
      : num_inputs_(num_inputs), num_outputs_(num_outputs), x_stride_(num_inputs + 3) {
    weights_.resize(static_cast<size_t>(num_outputs * num_inputs));
    for (int8_t& value : weights_) value = weight_source();
    x_.assign(static_cast<size_t>((num_rows + 2) * x_stride_), 101);
    for (int64_t row = 0; row < num_rows; ++row) {
      std::generate_n(x_.begin() + (row + 1) * x_stride_, num_inputs, x_source);
    }
    const auto elements = static_cast<size_t>(PackedElements(num_outputs, num_inputs));
    packed_ = hwy::AllocateAligned<int8_t>(elements);
    std::fill_n(packed_.get(), elements, int8_t{77});
    PackWeightsArgs<int8_t> args;
    args.weights = weights_.data();
    args.stride = num_inputs;
    args.num_outputs = num_outputs;
    args.num_inputs = num_inputs;
    args.panel_end = NumPanels(num_outputs);
    args.packed = packed_.get();
    PackInt8(args);
    scratch_ = hwy::AllocateAligned<int8_t>(kMatmulScratchBytes);
  }

  // The out buffer, [num_rows, stride] behind a first row of sentinels.
  std::vector<int32_t> Run(int64_t num_rows, int64_t panel_begin, int64_t panel_end) {
    std::fill_n(scratch_.get(), kMatmulScratchBytes, int8_t{-99});
    const int64_t stride = num_computed(panel_begin, panel_end) + 5;
    std::vector<int32_t> out(static_cast<size_t>((num_rows + 2) * stride), kSentinel);
    MatmulInt8Args args;
    args.x = x_.data() + x_stride_;
    args.x_stride = x_stride_;
    args.num_rows = num_rows;
    args.num_inputs = num_inputs_;
    args.weights = packed_.get();
    args.num_outputs = num_outputs_;
    args.panel_begin = panel_begin;
    args.panel_end = panel_end;
    args.out = out.data() + stride;
    args.out_stride = stride;
    args.scratch = scratch_.get();
    MatmulInt8(args);
    return out;
  }

  // What Run should return.
  std::vector<int32_t> Expected(int64_t num_rows, int64_t panel_begin, int64_t panel_end) const {
    const int64_t stride = num_computed(panel_begin, panel_end) + 5;
    std::vector<int32_t> out(static_cast<size_t>((num_rows + 2) * stride), kSentinel);
    for (int64_t row = 0; row < num_rows; ++row) {
      for (int64_t n = 0; n < num_computed(panel_begin, panel_end); ++n) {
        const int8_t* x = x_.data() + (row + 1) * x_stride_;
        const int8_t* w = weights_.data() + (panel_begin * kPanelOutputs + n) * num_inputs_;
        int64_t sum = 0;
        for (int64_t k = 0; k < num_inputs_; ++k) sum += int64_t{x[k]} * w[k];
        out[static_cast<size_t>((row + 1) * stride + n)] = static_cast<int32_t>(sum);
      }
    }
    return out;
  }

 private:
  int64_t num_computed(int64_t panel_begin, int64_t panel_end) const {
    return std::min(panel_end * kPanelOutputs, num_outputs_) - panel_begin * kPanelOutputs;
  }

  int64_t num_inputs_;
  int64_t num_outputs_;
  int64_t x_stride_;
  std::vector<int8_t> weights_;
  std::vector<int8_t> x_;
  hwy::AlignedFreeUniquePtr<int8_t[]> packed_;
  hwy::AlignedFreeUniquePtr<int8_t[]> scratch_;
};

// All int8 values, -128 too.
Source RandomInt8(uint32_t seed) {
  return [random = std::mt19937(seed)]() mutable { return static_cast<int8_t>(random() >> 24); };
}

Source Constant(int8_t value) {
  return [value] { return value; };
}

TEST(MatmulInt8Test, IsExactOnRandomValues) {
  ForEachTarget(MatmulInt8TargetName, [] {
    for (const int64_t num_inputs : {1, 2, 31, 64, 511, 512, 513, 1024, 1536}) {
      for (const int64_t num_outputs : {1, 15, 16, 17, 33, 64, 512}) {
        const int64_t num_rows = 1 + (num_inputs * 5 + num_outputs) % 9;
        SCOPED_TRACE(testing::Message()
                     << num_rows << " rows, " << num_inputs << " to " << num_outputs);
        Product product(num_rows, num_inputs, num_outputs, RandomInt8(1), RandomInt8(2));
        const int64_t num_panels = NumPanels(num_outputs);
        ASSERT_EQ(product.Run(num_rows, 0, num_panels), product.Expected(num_rows, 0, num_panels));
      }
    }
  });
}

TEST(MatmulInt8Test, IsExactAtTheExtremes) {
  ForEachTarget(MatmulInt8TargetName, [] {
    for (const auto& [x, weight] : {std::pair{-128, -128}, {127, 127}, {-128, 127}, {127, -128}}) {
      // The longest sums that an int32 holds.
      Product product(2, 131071, 17, Constant(static_cast<int8_t>(x)),
                      Constant(static_cast<int8_t>(weight)));
      ASSERT_EQ(product.Run(2, 0, 2), product.Expected(2, 0, 2)) << x << " times " << weight;
    }
  });
}

TEST(MatmulInt8Test, EveryNumberOfRows) {
  ForEachTarget(MatmulInt8TargetName, [] {
    Product product(kTileRows, 1027, 5 * kPanelOutputs - 1, RandomInt8(3), RandomInt8(4));
    for (int64_t num_rows = 1; num_rows <= kTileRows; ++num_rows) {
      ASSERT_EQ(product.Run(num_rows, 0, 5), product.Expected(num_rows, 0, 5))
          << num_rows << " rows";
    }
  });
}

TEST(MatmulInt8Test, EveryPanelRange) {
  ForEachTarget(MatmulInt8TargetName, [] {
    Product product(3, 515, 7 * kPanelOutputs - 3, RandomInt8(5), RandomInt8(6));
    for (int64_t begin = 0; begin < 7; ++begin) {
      for (int64_t end = begin + 1; end <= 7; ++end) {
        ASSERT_EQ(product.Run(3, begin, end), product.Expected(3, begin, end))
            << "panels " << begin << " to " << end;
      }
    }
  });
}

}  // namespace
}  // namespace millipede
