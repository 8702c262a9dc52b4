// HcPartial, HcFinish and HcCombine against plain C++ in double, on every target.
#include "kernels/hc_pre.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/row_data.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

constexpr float kEps = 1e-6F;
constexpr int64_t kPartialsOfRow = kHcInputRanges * kHcPartialFloats;

// hc_fn [24, num_inputs] with poison behind each row, and its packed form.
class Weights {
 public:
  Weights(int64_t num_inputs, const std::vector<float>& values)
      : num_inputs_(num_inputs), fn_(num_inputs, kHcMixes) {
    for (int64_t m = 0; m < kHcMixes; ++m) {
      std::copy_n(values.begin() + m * num_inputs, num_inputs, fn_.row(m));
    }
    const int64_t floats = PackedHcFnFloats(num_inputs);
    packed_.resize(static_cast<size_t>(floats + 32), kNan);
    PackHcFn({fn_.data(), fn_.stride(), num_inputs, packed()});
    for (float* guard = packed() + floats; guard < packed() + floats + 16; ++guard) {
      EXPECT_TRUE(std::isnan(*guard));
    }
  }

  float at(int64_t mix, int64_t k) { return fn_.row(mix)[k]; }
  const float* packed() const { return const_cast<Weights*>(this)->packed(); }

  // All ranges of num_rows rows, [num_rows, 8, 32].
  std::vector<float> Run(const float* x, int64_t x_stride, int64_t num_rows) const {
    PoisonedRows<float> partials(kPartialsOfRow, num_rows);
    for (int64_t range = 0; range < kHcInputRanges; ++range) {
      const HcInputs inputs = HcInputRange(num_inputs_, range);
      HcPartial({x, x_stride, packed(), inputs.begin, inputs.end,
                 partials.data() + range * kHcPartialFloats, partials.stride(), num_rows});
    }
    EXPECT_TRUE(partials.PoisonIntact());
    std::vector<float> all;
    for (int64_t r = 0; r < num_rows; ++r) {
      const std::vector<float> row = partials.values(r);
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }

 private:
  float* packed() {
    void* start = packed_.data();
    size_t space = packed_.size() * sizeof(float);
    return static_cast<float*>(std::align(64, 64, start, space));
  }

  int64_t num_inputs_;
  PoisonedRows<float> fn_;
  std::vector<float> packed_;
};

std::vector<float> SmallIntegers(std::mt19937_64& random, int64_t n) {
  std::uniform_int_distribution<int> uniform(-8, 8);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = static_cast<float>(uniform(random));
  return values;
}

TEST(HcPreTest, RangesCoverAllInputsInWholeBlocks) {
  for (const int64_t hidden : kRowLengths) {
    int64_t covered = 0;
    for (int64_t range = 0; range < kHcInputRanges; ++range) {
      const HcInputs inputs = HcInputRange(4 * hidden, range);
      EXPECT_EQ(inputs.begin, covered);
      EXPECT_LE(inputs.begin, inputs.end);
      EXPECT_TRUE(inputs.begin % kHcInputBlock == 0 || inputs.begin == 4 * hidden);
      covered = inputs.end;
    }
    EXPECT_EQ(covered, 4 * hidden);
  }
  EXPECT_EQ(HcInputRange(16384, 7).begin, 7 * 2048);  // equal for the models' sizes
  EXPECT_EQ(HcInputRange(28672, 7).begin, 7 * 3584);
}

// Sums of small integers are exact in float32 in any order, so nothing may be lost or added.
TEST(HcPreTest, PartialsOfIntegersAreExact) {
  ForEachTarget(HcPreTargetName, [] {
    std::mt19937_64 random(31);
    for (const int64_t hidden : kRowLengths) {
      const int64_t n = 4 * hidden;
      Weights weights(n, SmallIntegers(random, kHcMixes * n));
      PoisonedRows<float> x(SmallIntegers(random, n));
      const std::vector<float> partials = weights.Run(x.data(), n, 1);
      for (int64_t range = 0; range < kHcInputRanges; ++range) {
        const HcInputs inputs = HcInputRange(n, range);
        std::array<double, kHcPartialFloats> expected{};
        for (int64_t k = inputs.begin; k < inputs.end; ++k) {
          const double value = x.data()[k];
          for (int64_t m = 0; m < kHcMixes; ++m) {
            expected[static_cast<size_t>(m)] += value * weights.at(m, k);
          }
          expected[kHcMixes] += value * value;
        }
        for (size_t i = 0; i < expected.size(); ++i) {
          ASSERT_EQ(partials[static_cast<size_t>(range * kHcPartialFloats) + i], expected[i])
              << "hidden " << hidden << " range " << range << " element " << i;
        }
      }
    }
  });
}

TEST(HcPreTest, PartialsEqualDouble) {
  ForEachTarget(HcPreTargetName, [] {
    std::mt19937_64 random(32);
    for (const int64_t hidden : kRowLengths) {
      for (const float magnitude : {1.0F, 1e-15F, 1e15F}) {
        const int64_t n = 4 * hidden;
        Weights weights(n, RandomFloats(random, kHcMixes * n, -0.1F, 0.1F));
        PoisonedRows<float> x(RandomFloats(random, n, -magnitude, magnitude));
        const std::vector<float> partials = weights.Run(x.data(), n, 1);
        for (int64_t range = 0; range < kHcInputRanges; ++range) {
          const HcInputs inputs = HcInputRange(n, range);
          // Errors of a sum of n roundings that do not conspire.
          const double relative =
              0x1p-24 * (8 + 2 * std::sqrt(static_cast<double>(inputs.end - inputs.begin)));
          for (int64_t m = 0; m <= kHcMixes; ++m) {
            double expected = 0;
            double terms = 0;
            for (int64_t k = inputs.begin; k < inputs.end; ++k) {
              const double value = x.data()[k];
              const double term = value * (m == kHcMixes ? value : weights.at(m, k));
              expected += term;
              terms += std::fabs(term);
            }
            ASSERT_NEAR(partials[static_cast<size_t>(range * kHcPartialFloats + m)], expected,
                        relative * terms)
                << "hidden " << hidden << " range " << range << " element " << m;
          }
        }
      }
    }
  });
}

TEST(HcPreTest, ARowHasTheSameBitsAloneAndAmongOthers) {
  ForEachTarget(HcPreTargetName, [] {
    std::mt19937_64 random(33);
    for (const int64_t hidden : {1, 3, 31, 33, 256, 1024}) {
      const int64_t n = 4 * hidden;
      constexpr int64_t kRows = 2 * kHcTileRows + 3;
      const Weights weights(n, RandomFloats(random, kHcMixes * n));
      PoisonedRows<float> x(n, kRows);
      for (int64_t r = 0; r < kRows; ++r) {
        const std::vector<float> values = RandomFloats(random, n, -3.0F, 3.0F);
        std::copy(values.begin(), values.end(), x.row(r));
      }
      x.row(4)[0] = kNan;  // a spoiled row spoils no other
      std::vector<float> alone;
      for (int64_t r = 0; r < kRows; ++r) {
        const std::vector<float> partials = weights.Run(x.row(r), 1, 1);
        alone.insert(alone.end(), partials.begin(), partials.end());
      }
      EXPECT_TRUE(std::isnan(alone[4 * kPartialsOfRow]));
      EXPECT_FALSE(std::isnan(alone[5 * kPartialsOfRow]));
      for (int64_t rows = 0; rows <= kRows; ++rows) {
        const std::vector<float> together = weights.Run(x.data(), x.stride(), rows);
        for (int64_t i = 0; i < rows * kPartialsOfRow; ++i) {
          const float a = together[static_cast<size_t>(i)];
          const float b = alone[static_cast<size_t>(i)];
          ASSERT_TRUE(SameBits(a, b) || (std::isnan(a) && std::isnan(b)))
              << rows << " rows, row " << i / kPartialsOfRow << " of hidden " << hidden;
        }
      }
    }
  });
}

struct Coefficients {
  std::vector<float> pre;
  std::vector<float> post;
  std::vector<float> comb;
};

struct FinishCase {
  std::vector<float> partials;  // [8, 32]
  std::vector<float> scale;     // [3]
  std::vector<float> base;      // [24]
  int64_t num_inputs;
  int32_t rounds;
  float hc_eps = kEps;
};

Coefficients Finish(const FinishCase& test) {
  PoisonedRows<float> partials(test.partials);
  PoisonedRows<float> scale(test.scale);
  PoisonedRows<float> base(test.base);
  PoisonedRows<float> pre(4);
  PoisonedRows<float> post(4);
  PoisonedRows<float> comb(16);
  HcFinish({partials.data(), scale.data(), base.data(), test.num_inputs, kEps, test.hc_eps,
            test.rounds, pre.data(), post.data(), comb.data()});
  EXPECT_TRUE(pre.PoisonIntact() && post.PoisonIntact() && comb.PoisonIntact());
  return {pre.values(), post.values(), comb.values()};
}

// The same in double.
void ExpectFinish(const FinishCase& test) {
  std::array<double, kHcMixes + 1> sums{};
  for (size_t range = 0; range < kHcInputRanges; ++range) {
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] += test.partials[range * kHcPartialFloats + i];
    }
  }
  const double eps = test.hc_eps;
  const double inverse =
      1 / std::sqrt(sums[kHcMixes] / static_cast<double>(test.num_inputs) + kEps);
  const auto logit = [&](size_t i) {
    const size_t kind = i < 4 ? 0 : i < 8 ? 1 : 2;
    return sums[i] * inverse * test.scale[kind] + test.base[i];
  };
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };

  std::array<std::array<double, 4>, 4> comb{};
  for (size_t i = 0; i < 4; ++i) {
    double largest = logit(8 + 4 * i);
    for (size_t o = 0; o < 4; ++o) largest = std::max(largest, logit(8 + 4 * i + o));
    double sum = 0;
    for (size_t o = 0; o < 4; ++o) sum += comb[i][o] = std::exp(logit(8 + 4 * i + o) - largest);
    for (double& value : comb[i]) value = value / sum + eps;
  }
  for (int32_t half = 1; half < 2 * test.rounds; ++half) {
    for (size_t a = 0; a < 4; ++a) {
      double sum = eps;
      for (size_t b = 0; b < 4; ++b) sum += half % 2 == 1 ? comb[b][a] : comb[a][b];
      for (size_t b = 0; b < 4; ++b) (half % 2 == 1 ? comb[b][a] : comb[a][b]) /= sum;
    }
  }

  const Coefficients actual = Finish(test);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(actual.pre[i], sigmoid(logit(i)) + eps, 1e-6);
    EXPECT_NEAR(actual.post[i], 2 * sigmoid(logit(4 + i)), 2e-6);
    for (size_t o = 0; o < 4; ++o) {
      EXPECT_NEAR(actual.comb[4 * i + o], comb[i][o], 2e-6 + 1e-5 * comb[i][o])
          << "from " << i << " to " << o << ", " << test.rounds << " rounds";
    }
  }
}

FinishCase RandomCase(std::mt19937_64& random, int64_t num_inputs, float dots, float bases) {
  FinishCase test;
  test.partials = RandomFloats(random, kPartialsOfRow, -dots, dots);
  for (size_t range = 0; range < kHcInputRanges; ++range) {
    float& squares = test.partials[range * kHcPartialFloats + kHcMixes];
    squares = std::fabs(squares) * static_cast<float>(num_inputs);
  }
  test.scale = RandomFloats(random, 3, 0.01F, 1.0F);
  test.base = RandomFloats(random, kHcMixes, -bases, bases);
  test.num_inputs = num_inputs;
  test.rounds = 20;
  return test;
}

TEST(HcPreTest, FinishEqualsDouble) {
  ForEachTarget(HcPreTargetName, [] {
    std::mt19937_64 random(34);
    for (const int64_t num_inputs : {4, 1024, 16384, 28672}) {
      for (const int32_t rounds : {1, 2, 3, 20, 100}) {
        for (const float bases : {0.0F, 1.0F, 5.0F, 30.0F}) {
          FinishCase test = RandomCase(random, num_inputs, 1.0F, bases);
          test.rounds = rounds;
          ExpectFinish(test);
          test.hc_eps = 0.05F;  // large, so that a lost one shows
          ExpectFinish(test);
        }
      }
    }
  });
}

TEST(HcPreTest, FinishOfExtremeLogits) {
  ForEachTarget(HcPreTargetName, [] {
    FinishCase test{std::vector<float>(kPartialsOfRow, 0.0F), {1, 1, 1}, {}, 16384, 20};
    test.base.assign(kHcMixes, 0.0F);
    ExpectFinish(test);  // a row of zeros
    for (const float huge : {90.0F, 1e4F, 3e38F}) {
      test.base.assign(kHcMixes, 0.0F);
      test.base[0] = test.base[4] = huge;
      test.base[1] = test.base[5] = -huge;
      for (size_t i = 0; i < 4; ++i) test.base[8 + 4 * i + (i + 1) % 4] = huge;
      ExpectFinish(test);
      const Coefficients actual = Finish(test);
      EXPECT_EQ(actual.pre[0], 1.0F + kEps);
      EXPECT_EQ(actual.post[0], 2.0F);
      EXPECT_EQ(actual.pre[1], kEps);
      EXPECT_EQ(actual.post[1], 0.0F);
    }
  });
}

TEST(HcPreTest, NotFiniteDotsAreNotHidden) {
  ForEachTarget(HcPreTargetName, [] {
    std::mt19937_64 random(35);
    const FinishCase good = RandomCase(random, 1024, 1.0F, 1.0F);
    for (const size_t mix : {0U, 2U, 4U, 7U, 8U, 17U, 23U}) {
      FinishCase test = good;
      test.partials[3 * kHcPartialFloats + mix] = kNan;
      const Coefficients actual = Finish(test);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(std::isnan(actual.pre[i]), i == mix);
        EXPECT_EQ(std::isnan(actual.post[i]), i + 4 == mix);
      }
      for (const float value : actual.comb) EXPECT_EQ(std::isnan(value), mix >= 8);
    }
    FinishCase test = good;
    test.partials[5 * kHcPartialFloats + kHcMixes] = kNan;
    const Coefficients actual = Finish(test);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(std::isnan(actual.pre[i]) && std::isnan(actual.post[i]));
    }
    for (const float value : actual.comb) EXPECT_TRUE(std::isnan(value));
  });
}

TEST(HcPreTest, CombineEqualsPlainCode) {
  ForEachTarget(HcPreTargetName, [] {
    std::mt19937_64 random(36);
    for (const int64_t hidden : kRowLengths) {
      for (const float magnitude : {0.0F, 1.0F, 1e-40F, 3e38F}) {
        PoisonedRows<float> x(RandomFloats(random, 4 * hidden, -magnitude, magnitude));
        PoisonedRows<float> pre(RandomFloats(random, 4, 0.0F, 1.0F));
        if (magnitude == 1.0F) x.data()[hidden - 1] = kNan;
        if (magnitude == 1e-40F) x.data()[3 * hidden] = -kInf;
        PoisonedRows<Bf16> out(hidden);
        HcCombine({x.data(), pre.data(), out.data(), hidden});
        EXPECT_TRUE(out.PoisonIntact());
        for (int64_t k = 0; k < hidden; ++k) {
          const auto term = [&](int64_t i) { return pre.data()[i] * x.data()[i * hidden + k]; };
          const float expected = (term(0) + term(1)) + (term(2) + term(3));
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(Bf16ToFloat(out.data()[k])));
          } else {
            ASSERT_EQ(out.data()[k].bits, FloatToBf16(expected).bits) << "lane " << k;
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace millipede
