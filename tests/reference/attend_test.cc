// The golden's attention: against plain softmax, and the order and roundings of its tiles.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/golden.h"
#include "tests/reference/golden_fixture.h"

namespace millipede::reference {
namespace {

class AttendTest : public testing::Test, protected TinyLayer {
 protected:
  AttendTest() : TinyLayer(kHca) {}

  // Every head is 512^1/2 in lane 0, as near as bf16 holds it; ScoreOf(s) is the score of a row
  // with s there.
  std::vector<Bf16> Query() const {
    std::vector<Bf16> q(static_cast<size_t>(config.num_heads) * kHeadDim);
    for (size_t h = 0; h < q.size(); h += kHeadDim) q[h] = Rounded(std::sqrt(512.0));
    return q;
  }
  static double ScoreOf(float score) {
    return ToFloat(Rounded(std::sqrt(512.0))) * score / std::sqrt(512.0);
  }
};

TEST_F(AttendTest, ExtremeScoresAndSinks) {
  // q and the row differ in lane 0 alone, which makes every score what is wanted: q = 512^1/2 s.
  const auto attend = [&](float lane_q, float lane_k, int rows, float sink) {
    layer.attn_sink.assign(8, sink);
    std::vector<Bf16> q(8 * 512);
    for (size_t h = 0; h < 8; ++h) q[h * 512] = Exact(lane_q);
    std::vector<std::vector<Bf16>> kv;
    std::vector<const Bf16*> window;
    for (int r = 0; r < rows; ++r) {
      kv.push_back(KvRow(r));
      kv.back()[0] = Exact(lane_k);
    }
    for (const auto& row : kv) window.push_back(row.data());
    return Make().Attend(q, window, no_turn, false);
  };
  // One row at about -5e5: without a sink its weight is one, with a sink at 0 it is nothing.
  const std::vector<Bf16> row = KvRow(0);
  const AttendResult alone = attend(-4096, 2816, 1, -kInf);
  const AttendResult sunk = attend(-4096, 2816, 1, 0);
  for (size_t d = 1; d < 512; ++d) {
    EXPECT_EQ(alone.heads[d].bits, row[d].bits);
    EXPECT_EQ(ToFloat(sunk.heads[d]), 0.0F);
  }
  EXPECT_NEAR(alone.log_sum_exp[0], -4096.0 * 2816 / std::sqrt(512.0), 0.1);
  // 128 rows at about -1e6: their mean.
  const AttendResult many = attend(-8192, 2816, 128, -kInf);
  for (size_t d = 1; d < 512; ++d) {
    double mean = 0;
    for (int r = 0; r < 128; ++r) mean += ToFloat(KvRow(r)[d]) / 128.0;
    EXPECT_NEAR(ToFloat(many.heads[d]), mean, 1e-3 + std::abs(mean) / 256);
  }
  // Equal scores of 0 and a sink at log 128: half the mean. log_sum_exp leaves the sink out.
  const AttendResult half = attend(0, 1, 128, static_cast<float>(std::log(128.0)));
  EXPECT_NEAR(ToFloat(half.heads[0]), 0.5, 2e-3);
  EXPECT_NEAR(half.log_sum_exp[7], std::log(128.0), 1e-6);
}

// The probabilities are rounded for the sum of rows, but not for the denominator.
TEST_F(AttendTest, ProbabilitiesAreRoundedForTheRowsAlone) {
  layer.attn_sink.assign(8, -kInf);
  const Golden golden = Make();
  const auto round = [](double value) {  // to 8 significant bits, half to even
    int exponent = 0;
    const double mantissa = std::frexp(value, &exponent);
    return std::ldexp(std::nearbyint(mantissa * 256), exponent - 8);
  };
  std::vector<Bf16> zero(512);
  std::vector<Bf16> one(512);
  one[0] = Exact(-1);  // what q sees
  one[1] = Exact(1);   // what comes out
  const std::vector<const Bf16*> window = {zero.data(), one.data()};
  int telling = 0;
  for (int step = 1; step < 100; ++step) {
    std::vector<Bf16> q(8 * 512);
    q[0] = Exact(static_cast<float>(step) * 0.5F);
    const double p = std::exp(-0.5 * step / std::sqrt(512.0));
    const double expected = round(round(p) / (1 + p));
    EXPECT_EQ(ToFloat(golden.Attend(q, window, no_turn).heads[1]), expected) << step;
    telling += expected != round(p / (1 + p)) && expected != round(round(p) / (1 + round(p)));
  }
  EXPECT_GT(telling, 5);
}

TEST_F(AttendTest, AttendAgreesWithPlainSoftmaxAndUndoesTheRotation) {
  const Golden golden = Make();
  std::vector<std::vector<Bf16>> kv;
  std::vector<const Bf16*> window;
  for (int r = 0; r < 37; ++r) kv.push_back(KvRow(r));
  for (const auto& row : kv) window.push_back(row.data());
  const std::vector<Bf16> q = Heads(0);
  const AttendResult plain = golden.Attend(q, window, no_turn, false);
  const RopeRow turn = RopeRowAt(kSwa, 12345);
  const AttendResult turned = golden.Attend(q, window, turn);
  for (size_t h = 0; h < 8; ++h) {
    double denominator = std::exp(double{layer.attn_sink[h]});
    std::vector<double> out(512);
    for (const auto& row : kv) {
      double score = 0;
      for (size_t d = 0; d < 512; ++d) score += ToFloat(q[h * 512 + d]) * ToFloat(row[d]);
      const double p = std::exp(score / std::sqrt(512.0));
      denominator += p;
      for (size_t d = 0; d < 512; ++d) out[d] += p * ToFloat(row[d]);
    }
    for (double& value : out) value /= denominator;
    const auto near = [](double a, double e) { EXPECT_NEAR(a, e, 5e-3 + std::abs(e) / 128); };
    for (size_t d = 0; d < 512; ++d) near(ToFloat(plain.heads[h * 512 + d]), out[d]);
    for (size_t i = 0; i < 32; ++i) {
      const double even = out[448 + 2 * i];
      const double odd = out[449 + 2 * i];
      near(ToFloat(turned.heads[h * 512 + 448 + 2 * i]), even * turn.cos[i] + odd * turn.sin[i]);
      near(ToFloat(turned.heads[h * 512 + 449 + 2 * i]), odd * turn.cos[i] - even * turn.sin[i]);
    }
    EXPECT_NEAR(plain.log_sum_exp[h], std::log(denominator - std::exp(double{layer.attn_sink[h]})),
                1e-4);
  }
}

// Every tile has its own maximum: in a tile whose rows have equal scores p is 1, exact in bf16, and
// only the merge weighs it. One maximum for all rows, a window that shares its tile, or shards cut
// elsewhere would round p to bf16.
TEST_F(AttendTest, TilesKeepTheirOwnMaximum) {
  layer.attn_sink.assign(8, -kInf);
  const float low = -2.015625F;
  const double weight = std::exp(ScoreOf(low));
  const double coarse = ToFloat(Rounded(weight));
  std::vector<Bf16> last(kHeadDim);  // of the low score, its other lanes all different
  for (size_t d = 0; d < 512; ++d) last[d] = Rounded(256.0 + static_cast<double>(d));
  last[0] = Exact(low);
  const std::vector<Bf16> zero(kHeadDim);  // of score 0
  const std::vector<const Bf16*> window(3, zero.data());
  for (const int before : {0, 128, 1024, 1152}) {
    SCOPED_TRACE(before);
    std::vector<const Bf16*> compressed(static_cast<size_t>(before), zero.data());
    compressed.push_back(last.data());
    const double denominator = 3 + before + weight;
    const AttendResult own = Make().Attend(Query(), window, compressed, no_turn, false);
    for (size_t h = 0; h < 8; ++h) {
      EXPECT_NEAR(own.log_sum_exp[h], std::log(denominator), 1e-6);
      int num_different = 0;
      for (size_t d = 1; d < 512; ++d) {
        const Bf16 expected = Rounded(ToFloat(last[d]) * weight / denominator);
        ASSERT_EQ(own.heads[h * 512 + d].bits, expected.bits);
        const Bf16 wrong = Rounded(ToFloat(last[d]) * coarse / denominator);
        num_different += expected.bits != wrong.bits ? 1 : 0;
      }
      ASSERT_GT(num_different, 50);
    }
    // Among rows of score 0 in one tile it is rounded.
    if (before == 0) continue;
    std::rotate(compressed.begin(), compressed.end() - 1, compressed.end());
    const AttendResult shared = Make().Attend(Query(), window, compressed, no_turn, false);
    for (size_t d = 1; d < 512; ++d) {
      ASSERT_EQ(shared.heads[d].bits, Rounded(ToFloat(last[d]) * coarse / denominator).bits);
    }
  }
}

TEST_F(AttendTest, CompressedRowsAgreeWithPlainSoftmax) {
  const Golden golden = Make();
  std::vector<std::vector<Bf16>> window, compressed;
  for (int64_t p = 0; p < 5; ++p) window.push_back(KvRow(p));
  const std::vector<Bf16> q = Heads(1);
  for (const int64_t n : {1, 127, 128, 129, 1023, 1024, 1025, 2049}) {
    SCOPED_TRACE(n);
    while (static_cast<int64_t>(compressed.size()) < n) {
      compressed.push_back(CmpRow(static_cast<int64_t>(compressed.size())));
    }
    const AttendResult actual =
        golden.Attend(q, PointersOf(window), PointersOf(compressed), no_turn, false);
    for (const size_t h : {size_t{0}, size_t{7}}) {
      double denominator = 0;
      std::vector<double> out(512);
      for (int64_t r = 0; r < n + 5; ++r) {
        const auto& row =
            r < 5 ? window[static_cast<size_t>(r)] : compressed[static_cast<size_t>(r - 5)];
        double score = 0;
        for (size_t d = 0; d < 512; ++d) score += ToFloat(q[h * 512 + d]) * ToFloat(row[d]);
        const double p = std::exp(score / std::sqrt(512.0));
        denominator += p;
        for (size_t d = 0; d < 512; ++d) out[d] += p * ToFloat(row[d]);
      }
      EXPECT_NEAR(actual.log_sum_exp[h], std::log(denominator), 1e-5);
      denominator += std::exp(double{layer.attn_sink[h]});
      for (size_t d = 0; d < 512; ++d) {
        const double expected = out[d] / denominator;
        EXPECT_NEAR(ToFloat(actual.heads[h * 512 + d]), expected, 2e-3 + std::abs(expected) / 128);
      }
    }
  }
}

TEST_F(AttendTest, NaNInAnyTileReachesEveryLaneOfTheOutput) {
  std::vector<std::vector<Bf16>> compressed;
  for (int64_t r = 0; r < 1200; ++r) compressed.push_back(CmpRow(r));
  const std::vector<Bf16> window = KvRow(0);
  for (const size_t bad : {size_t{0}, size_t{127}, size_t{128}, size_t{1100}, size_t{1199}}) {
    std::vector<std::vector<Bf16>> rows = compressed;
    rows[bad][3] = {0x7FC0};
    const AttendResult result =
        Make().Attend(Heads(0), std::vector<const Bf16*>{window.data()}, PointersOf(rows), no_turn);
    for (const Bf16 v : result.heads) ASSERT_TRUE(std::isnan(ToFloat(v)));
    for (const float v : result.log_sum_exp) ASSERT_TRUE(std::isnan(v));
  }
}

}  // namespace
}  // namespace millipede::reference
