// The golden's indexer: queries, head weights, scores and the exact top k.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "reference/golden.h"
#include "tests/reference/golden_fixture.h"

namespace millipede::reference {
namespace {

class IndexerTest : public testing::Test, protected TinyLayer {
 protected:
  IndexerTest() : TinyLayer(kCsa) {}
};

TEST_F(IndexerTest, QueryIsTurnedMixedAndQuantizedHeadByHead) {
  const Golden golden = Make();
  const Quantized qr = golden.ProjectLatent(Xn(2));
  const RopeRow turn = RopeRowAt(kCsa, 2055);
  const IndexQueryResult query = golden.IndexQuery(qr.codes, qr.scale, turn);
  ASSERT_EQ(query.codes.size(), 4U * 128);
  ASSERT_EQ(query.scales.size(), 4U);
  for (size_t h = 0; h < 4; ++h) {
    std::vector<double> head(128);
    for (size_t d = 0; d < 128; ++d) {
      const size_t o = h * 128 + d;
      int sum = 0;
      for (size_t i = 0; i < 64; ++i) sum += layer.idx_wq_b[o * 64 + i] * qr.codes[i];
      head[d] = sum * double{qr.scale} * layer.idx_wq_b_scale[o];
    }
    for (size_t i = 0; i < 32; ++i) {
      const double even = head[64 + 2 * i];
      const double odd = head[65 + 2 * i];
      head[64 + 2 * i] = even * turn.cos[i] - odd * turn.sin[i];
      head[65 + 2 * i] = even * turn.sin[i] + odd * turn.cos[i];
    }
    double amax = 0;
    std::vector<double> mixed(128);
    for (size_t j = 0; j < 128; ++j) {
      for (size_t i = 0; i < 128; ++i) {
        const double sign = std::popcount(i & j) % 2 == 0 ? 1 : -1;
        mixed[j] += sign * ToFloat(Rounded(head[i])) / std::sqrt(128.0);
      }
      amax = std::max(amax, std::abs(mixed[j]));
    }
    EXPECT_NEAR(query.scales[h], amax / 127, amax * 1e-5);
    for (size_t j = 0; j < 128; ++j) {
      // Not rounded to bf16: codes are right to the last place but for rounding ties.
      EXPECT_NEAR(query.codes[h * 128 + j], mixed[j] * (127 / amax), 0.501);
    }
  }
}

TEST_F(IndexerTest, WeightsAreScaledByWidthAndHeads) {
  const std::vector<Bf16> xn = Xn(3);
  const std::vector<float> weights = Make().IndexWeights(xn);
  ASSERT_EQ(weights.size(), 4U);
  for (size_t h = 0; h < 4; ++h) {
    double sum = 0;
    for (size_t i = 0; i < 256; ++i) {
      sum += ToFloat(xn[i]) * ToFloat(layer.idx_weights_proj[h * 256 + i]);
    }
    EXPECT_NEAR(weights[h], sum / std::sqrt(128.0 * 4), 1e-6);
  }
}

// Keys that are zero but for the given lanes.
std::vector<int8_t> Key(std::initializer_list<std::pair<size_t, int8_t>> lanes) {
  std::vector<int8_t> key(kIndexDim, 0);
  for (const auto& [lane, code] : lanes) key[lane] = code;
  return key;
}

std::vector<int8_t> Join(const std::vector<std::vector<int8_t>>& rows) {
  std::vector<int8_t> joined;
  for (const auto& row : rows) joined.insert(joined.end(), row.begin(), row.end());
  return joined;
}

TEST(Scores, ByHand) {
  // Head 0 looks at lane 0, head 1 at lane 127.
  const IndexQueryResult query{Join({Key({{0, 100}}), Key({{127, -127}})}), {0.5F, 0.25F}};
  const std::vector<float> weights = {2, -4};
  const std::vector<int8_t> keys = Join({Key({{0, 3}}),                 // 300 * 0.5 * 2
                                         Key({{127, -2}}),              // 254 * 0.25 * -4
                                         Key({{0, -127}, {127, 127}}),  // both negative: nothing
                                         Key({{0, 1}, {127, -1}})});    // 50 * 2 - 31.75 * 4
  const std::vector<float> key_scales = {1, 0.5F, 1, 2};
  EXPECT_EQ(Scores(query, weights, keys, key_scales), (std::vector<float>{300, -127, 0, -54}));
  EXPECT_TRUE(Scores(query, weights, {}, {}).empty());
}

// A large negative product with a negative weight: without ReLU it would win.
TEST(Scores, ReluComesBeforeTheWeights) {
  const IndexQueryResult query{Join({Key({{0, 127}}), Key({{1, 127}})}), {1, 1}};
  const std::vector<float> weights = {1, -1};
  const std::vector<int8_t> keys = Join({Key({{1, -127}}), Key({{0, 1}})});
  const std::vector<float> scores = Scores(query, weights, keys, std::vector<float>{1, 1});
  EXPECT_EQ(scores, (std::vector<float>{0, 127}));
  EXPECT_EQ(TopK(scores, 1).idx[0], 1);
}

TEST(Scores, ExtremeCodesAreExact) {
  const IndexQueryResult query{std::vector<int8_t>(64 * 128, -127), std::vector<float>(64, 1)};
  const std::vector<float> scores = Scores(query, std::vector<float>(64, 1),
                                           std::vector<int8_t>(128, -127), std::vector<float>{1});
  EXPECT_EQ(scores[0], 64.0F * 128 * 127 * 127);
}

TEST(Scores, NaNOfAnyInputReachesTheScore) {
  const IndexQueryResult query{Join({Key({{0, 1}}), Key({{1, 1}})}), {1, 1}};
  const std::vector<float> weights = {1, 1};
  const std::vector<int8_t> keys = Join({Key({{0, 1}}), Key({{0, 1}})});
  const std::vector<float> scores = Scores(query, weights, keys, std::vector<float>{kNaN, 1});
  EXPECT_TRUE(std::isnan(scores[0]));
  EXPECT_EQ(scores[1], 1);
  IndexQueryResult bad = query;
  bad.scales[1] = kNaN;
  EXPECT_TRUE(std::isnan(Scores(bad, weights, keys, std::vector<float>{1, 1})[1]));
  EXPECT_TRUE(
      std::isnan(Scores(query, std::vector<float>{1, kNaN}, keys, std::vector<float>{1, 1})[0]));
}

TEST(TopK, TiesGoToTheLowerIndexAndNaNComesLast) {
  const std::vector<float> scores = {1, kNaN, 2, 1, 2, -kInf, kInf, 1, -0.0F, 0.0F};
  const Selection all = TopK(scores, 10);
  EXPECT_EQ(all.idx, (std::vector<int32_t>{6, 2, 4, 0, 3, 7, 8, 9, 5, 1}));
  EXPECT_TRUE(std::isnan(all.score[9]));
  EXPECT_EQ(all.score[0], kInf);
  EXPECT_EQ(all.next_score, -FLT_MAX);
  EXPECT_EQ(all.count(), 10);

  const Selection four = TopK(scores, 4);
  EXPECT_EQ(four.idx, (std::vector<int32_t>{6, 2, 4, 0}));
  EXPECT_EQ(four.score, (std::vector<float>{kInf, 2, 2, 1}));
  EXPECT_EQ(four.next_score, 1);
  EXPECT_EQ(TopK(scores, 3).next_score, 1);  // not the last of those taken
}

TEST(TopK, FewerCandidatesThanPlaces) {
  const Selection none = TopK({}, 3);
  EXPECT_EQ(none.idx, (std::vector<int32_t>{-1, -1, -1}));
  EXPECT_EQ(none.score, (std::vector<float>{-FLT_MAX, -FLT_MAX, -FLT_MAX}));
  EXPECT_EQ(none.next_score, -FLT_MAX);
  EXPECT_EQ(none.count(), 0);
  const Selection two = TopK(std::vector<float>{-5, -3}, 3);
  EXPECT_EQ(two.idx, (std::vector<int32_t>{1, 0, -1}));
  EXPECT_EQ(two.score, (std::vector<float>{-3, -5, -FLT_MAX}));
  EXPECT_EQ(two.count(), 2);
  const Selection full = TopK(std::vector<float>{-5, -3, -4}, 3);
  EXPECT_EQ(full.idx, (std::vector<int32_t>{1, 2, 0}));
  EXPECT_EQ(full.next_score, -FLT_MAX);
  // Nothing but NaN still fills the places.
  EXPECT_EQ(TopK(std::vector<float>{kNaN, kNaN}, 2).idx, (std::vector<int32_t>{0, 1}));
}

TEST(TopK, EqualsAFullSortOnManyTies) {
  const fixtures::Stream stream("topk", 4);
  for (const size_t n : {511U, 512U, 513U, 2049U, 6000U}) {
    std::vector<float> scores(n);
    for (size_t i = 0; i < n; ++i) {
      scores[i] = static_cast<float>(stream.Int8(i) / 16);
      if (stream.Bits(i) % 37 == 0) scores[i] = kNaN;
    }
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const float x = scores[static_cast<size_t>(a)];
      const float y = scores[static_cast<size_t>(b)];
      return std::isnan(y) ? !std::isnan(x) : x > y;
    });
    const size_t taken = std::min<size_t>(n, 512);
    const Selection selection = TopK(scores, 512);
    EXPECT_EQ(selection.count(), static_cast<int64_t>(taken));
    order.resize(taken);
    EXPECT_EQ(std::vector<int32_t>(selection.idx.begin(),
                                   selection.idx.begin() + static_cast<std::ptrdiff_t>(taken)),
              order);
  }
}

}  // namespace
}  // namespace millipede::reference
