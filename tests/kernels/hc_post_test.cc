// HcPost against plain C++ in double, on every target.
#include "kernels/hc_post.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/row_data.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

// One token's inputs. Streams are dense, so poison stands around all four, not between them.
struct Token {
  Token(std::mt19937_64& random, int64_t hidden_size, float magnitude)
      : hidden(hidden_size),
        x(RandomFloats(random, 4 * hidden, -magnitude, magnitude)),
        attn_out(ToBf16(RandomFloats(random, hidden, -3.0F, 3.0F))),
        post(RandomFloats(random, 4, 0.0F, 2.0F)),
        comb(RandomFloats(random, 16, 0.0F, 1.0F)) {}

  HcPostArgs Args(const float* x_in, float* x_out, int64_t begin, int64_t end) {
    return {x_in, attn_out.data(), post.data(), comb.data(), x_out, hidden, begin, end};
  }
  std::vector<float> Run() {
    PoisonedRows<float> out(4 * hidden);
    HcPost(Args(x.data(), out.data(), 0, hidden));
    EXPECT_TRUE(out.PoisonIntact());
    return out.values();
  }

  int64_t hidden;
  PoisonedRows<float> x;
  PoisonedRows<Bf16> attn_out;
  PoisonedRows<float> post;
  PoisonedRows<float> comb;
};

TEST(HcPostTest, EqualsDouble) {
  ForEachTarget(HcPostTargetName, [] {
    std::mt19937_64 random(21);
    for (const int64_t hidden : kRowLengths) {
      for (const float magnitude : {0.0F, 1.0F, 1e-40F, 1e30F}) {
        Token token(random, hidden, magnitude);
        const std::vector<float> out = token.Run();
        for (int64_t o = 0; o < 4; ++o) {
          for (int64_t k = 0; k < hidden; ++k) {
            const double attn_out = Bf16ToFloat(token.attn_out.data()[k]);
            double expected = attn_out * token.post.data()[o];
            double terms = std::fabs(expected);
            for (int64_t i = 0; i < 4; ++i) {
              const double term = static_cast<double>(token.x.data()[i * hidden + k]) *
                                  token.comb.data()[4 * i + o];
              expected += term;
              terms += std::fabs(term);
            }
            ASSERT_NEAR(out[static_cast<size_t>(o * hidden + k)], expected, terms * 3e-7 + 1e-44)
                << "hidden " << hidden << " stream " << o << " lane " << k;
          }
        }
      }
    }
  });
}

TEST(HcPostTest, RangesAndTheInputAsOutputGiveTheSameBits) {
  ForEachTarget(HcPostTargetName, [] {
    std::mt19937_64 random(22);
    for (const int64_t hidden : {1, 3, 31, 33, 256, 1000}) {
      Token token(random, hidden, 1.0F);
      const std::vector<float> whole = token.Run();

      PoisonedRows<float> parts(4 * hidden);
      const int64_t cut = hidden / 3;
      HcPost(token.Args(token.x.data(), parts.data(), cut, hidden));
      for (int64_t o = 0; o < 4; ++o) {
        for (int64_t k = 0; k < cut; ++k) {
          ASSERT_TRUE(std::isnan(parts.data()[o * hidden + k])) << "outside the range";
        }
      }
      HcPost(token.Args(token.x.data(), parts.data(), 0, cut));
      EXPECT_TRUE(SameBits(parts.values(), whole));
      EXPECT_TRUE(parts.PoisonIntact());

      PoisonedRows<float> same(token.x.values());
      HcPost(token.Args(same.data(), same.data(), 0, hidden));
      EXPECT_TRUE(SameBits(same.values(), whole));
      EXPECT_TRUE(same.PoisonIntact());
    }
  });
}

TEST(HcPostTest, NotFiniteValuesStayInTheirLane) {
  ForEachTarget(HcPostTargetName, [] {
    std::mt19937_64 random(23);
    constexpr int64_t kHidden = 37;
    for (const float special : {kNan, kInf, -kInf}) {
      for (const int64_t lane : {0, 20, 36}) {
        Token token(random, kHidden, 1.0F);
        token.x.data()[2 * kHidden + lane] = special;
        const std::vector<float> out = token.Run();
        for (int64_t i = 0; i < 4 * kHidden; ++i) {
          const float value = out[static_cast<size_t>(i)];
          EXPECT_EQ(std::isfinite(value), i % kHidden != lane);
          EXPECT_EQ(std::isnan(value), i % kHidden == lane && std::isnan(special));
        }
      }
    }
  });
}

}  // namespace
}  // namespace millipede
