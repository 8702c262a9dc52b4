// The golden's compressors: state rows and the pooling of blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "reference/golden.h"
#include "tests/reference/golden_fixture.h"

namespace millipede::reference {
namespace {

// State rows of `n` tokens, [kv | score] of `lanes` each, by formula; other rows for other `first`.
std::vector<std::vector<float>> Rows(const TinyLayer& tiny, int64_t first, int64_t n,
                                     int64_t lanes) {
  std::vector<std::vector<float>> rows;
  for (int64_t p = first; p < first + n; ++p) {
    rows.emplace_back(static_cast<size_t>(2 * lanes));
    tiny.request.StateRow(p, rows.back());
  }
  return rows;
}

// Pools lanes [begin, begin + width) of kv and score, in plain softmax; then norm.
struct HalfRow {
  const float* kv;
  const float* score;
};
std::vector<double> PlainPool(const std::vector<HalfRow>& rows, size_t width,
                              const std::vector<float>& norm) {
  std::vector<double> c(width);
  double squares = 0;
  for (size_t lane = 0; lane < width; ++lane) {
    double sum = 0;
    for (const HalfRow& row : rows) sum += std::exp(double{row.score[lane]});
    for (const HalfRow& row : rows) {
      c[lane] += std::exp(double{row.score[lane]}) / sum * row.kv[lane];
    }
    squares += c[lane] * c[lane];
  }
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(width) + 1e-6);
  for (size_t lane = 0; lane < width; ++lane) c[lane] *= inverse * norm[lane];
  return c;
}

class HcaCompressor : public testing::Test, protected TinyLayer {
 protected:
  HcaCompressor() : TinyLayer(kHca) {}
};

class CsaCompressor : public testing::Test, protected TinyLayer {
 protected:
  CsaCompressor() : TinyLayer(kCsa) {}

  // Of 8 rows: front halves of the first four, back halves of the others.
  static std::vector<HalfRow> Halves(const std::vector<std::vector<float>>& rows, size_t width) {
    std::vector<HalfRow> halves;
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* row = rows[i].data() + (i < 4 ? 0 : width);
      halves.push_back({row, row + 2 * width});
    }
    return halves;
  }
};

TEST_F(HcaCompressor, StateRowIsKvAndScoreWithTheEncodingOfItsPlace) {
  const Golden golden = Make();
  const std::vector<Bf16> xn = Xn(0);
  const std::vector<float> at_0 = golden.StateRow(xn, 0);
  ASSERT_EQ(at_0.size(), 1024U);
  for (const size_t lane : {size_t{0}, size_t{200}, size_t{511}}) {
    double kv = 0;
    double score = layer.cmp_ape[lane];
    for (size_t i = 0; i < xn.size(); ++i) {
      kv += ToFloat(xn[i]) * ToFloat(layer.cmp_wkv[lane * 256 + i]);
      score += ToFloat(xn[i]) * ToFloat(layer.cmp_wgate[lane * 256 + i]);
    }
    EXPECT_NEAR(at_0[lane], kv, 1e-5);
    EXPECT_NEAR(at_0[512 + lane], score, 1e-5);
  }
  EXPECT_EQ(golden.StateRow(xn, 128), at_0);
  EXPECT_EQ(golden.StateRow(xn, 1'048'448), at_0);
  const std::vector<float> at_127 = golden.StateRow(xn, 255);
  for (size_t lane = 0; lane < 512; ++lane) {
    EXPECT_EQ(at_127[lane], at_0[lane]);
    EXPECT_NEAR(at_127[512 + lane] - at_0[512 + lane],
                layer.cmp_ape[127 * 512 + lane] - layer.cmp_ape[lane], 1e-6);
  }
}

TEST_F(HcaCompressor, PoolsAllRowsLaneByLane) {
  const auto rows = Rows(*this, 0, 128, 512);
  const std::vector<Bf16> actual = Make().CompressRow(PointersOf(rows), no_turn);
  std::vector<HalfRow> halves;
  for (const auto& row : rows) halves.push_back({row.data(), row.data() + 512});
  const std::vector<double> expected = PlainPool(halves, 512, layer.cmp_norm);
  for (size_t lane = 0; lane < 512; ++lane) {
    EXPECT_NEAR(ToFloat(actual[lane]), expected[lane], 1e-6 + std::abs(expected[lane]) / 256);
  }
}

TEST_F(HcaCompressor, OneHighScoreWinsItsLaneAndRotationComesLast) {
  auto rows = Rows(*this, 0, 128, 512);
  for (size_t lane = 0; lane < 512; ++lane) rows[lane % 128][512 + lane] = 1e4F;
  const Golden golden = Make();
  const std::vector<Bf16> flat = golden.CompressRow(PointersOf(rows), no_turn);
  double squares = 0;
  for (size_t lane = 0; lane < 512; ++lane) {
    squares += std::pow(double{rows[lane % 128][lane]}, 2);
  }
  const double inverse = 1 / std::sqrt(squares / 512 + 1e-6);
  for (size_t lane = 0; lane < 512; ++lane) {
    const double expected = rows[lane % 128][lane] * inverse * layer.cmp_norm[lane];
    EXPECT_EQ(flat[lane].bits, Rounded(expected).bits);
  }
  const RopeRow turn = RopeRowAt(kHca, 256);
  const std::vector<Bf16> turned = golden.CompressRow(PointersOf(rows), turn);
  for (size_t lane = 0; lane < 448; ++lane) ASSERT_EQ(turned[lane].bits, flat[lane].bits);
  for (size_t i = 0; i < 32; ++i) {
    const float even = ToFloat(flat[448 + 2 * i]);
    const float odd = ToFloat(flat[449 + 2 * i]);
    EXPECT_NEAR(ToFloat(turned[448 + 2 * i]), even * turn.cos[i] - odd * turn.sin[i], 5e-3);
    EXPECT_NEAR(ToFloat(turned[449 + 2 * i]), even * turn.sin[i] + odd * turn.cos[i], 5e-3);
  }
}

TEST_F(HcaCompressor, NaNOfKvOrScoreIsNotSwallowed) {
  for (const size_t lane : {size_t{5}, size_t{512 + 5}}) {
    for (const size_t bad : {size_t{0}, size_t{64}, size_t{127}}) {
      auto rows = Rows(*this, 0, 128, 512);
      rows[bad][lane] = kNaN;
      for (const Bf16 v : Make().CompressRow(PointersOf(rows), no_turn)) {
        ASSERT_TRUE(std::isnan(ToFloat(v)));  // the norm spreads it
      }
    }
  }
}

TEST_F(CsaCompressor, PoolsTheFrontOfTheBlockBeforeAndTheBackOfTheBlock) {
  auto rows = Rows(*this, 0, 8, 1024);
  const Golden golden = Make();
  const std::vector<Bf16> actual = golden.CompressRow(PointersOf(rows), no_turn);
  const std::vector<double> expected = PlainPool(Halves(rows, 512), 512, layer.cmp_norm);
  for (size_t lane = 0; lane < 512; ++lane) {
    EXPECT_NEAR(ToFloat(actual[lane]), expected[lane], 1e-6 + std::abs(expected[lane]) / 256);
  }
  // The other halves are not read.
  for (size_t i = 0; i < 8; ++i) {
    const auto unused = static_cast<std::ptrdiff_t>(i < 4 ? 512 : 0);
    std::fill_n(rows[i].begin() + unused, 512, kNaN);
    std::fill_n(rows[i].begin() + 1024 + unused, 512, kNaN);
  }
  EXPECT_TRUE(SameBits(golden.CompressRow(PointersOf(rows), no_turn), actual));
}

TEST_F(CsaCompressor, BlockBeforeTheFirstCountsAsAbsent) {
  auto rows = Rows(*this, 0, 8, 1024);
  for (size_t i = 0; i < 4; ++i) {
    std::fill_n(rows[i].begin(), 1024, 0.0F);
    std::fill_n(rows[i].begin() + 1024, 1024, -kInf);
  }
  std::vector<const float*> absent = PointersOf(rows);
  std::fill_n(absent.begin(), 4, nullptr);
  const Golden golden = Make();
  const RopeRow turn = RopeRowAt(kCsa, 4);
  const std::vector<Bf16> row = golden.CompressRow(absent, turn);
  EXPECT_TRUE(SameBits(row, golden.CompressRow(PointersOf(rows), turn)));
  for (const Bf16 v : row) EXPECT_TRUE(std::isfinite(ToFloat(v)));
  // Absent is not the same as a kv of 0 and a score of 0.
  for (size_t i = 0; i < 4; ++i) std::fill_n(rows[i].begin() + 1024, 1024, 0.0F);
  EXPECT_FALSE(SameBits(row, golden.CompressRow(PointersOf(rows), turn)));

  auto inner = Rows(*this, 0, 8, 256);
  for (size_t i = 0; i < 4; ++i) {
    std::fill_n(inner[i].begin(), 256, 0.0F);
    std::fill_n(inner[i].begin() + 256, 256, -kInf);
  }
  absent = PointersOf(inner);
  std::fill_n(absent.begin(), 4, nullptr);
  const Quantized key = golden.IndexRow(absent, turn);
  EXPECT_EQ(key.codes, golden.IndexRow(PointersOf(inner), turn).codes);
  EXPECT_GT(key.scale, 0);
}

TEST_F(CsaCompressor, InnerStateRowsHaveTheIndexersWeights) {
  const Golden golden = Make();
  const std::vector<Bf16> xn = Xn(1);
  const std::vector<float> state = golden.StateRow(xn, 6);
  const std::vector<float> inner = golden.InnerStateRow(xn, 6);
  ASSERT_EQ(state.size(), 2048U);
  ASSERT_EQ(inner.size(), 512U);
  for (const size_t lane : {size_t{0}, size_t{127}, size_t{255}}) {
    double kv = 0;
    double score = layer.idx_cmp_ape[2 * 256 + lane];
    double main_score = layer.cmp_ape[2 * 1024 + lane];
    for (size_t i = 0; i < xn.size(); ++i) {
      kv += ToFloat(xn[i]) * ToFloat(layer.idx_cmp_wkv[lane * 256 + i]);
      score += ToFloat(xn[i]) * ToFloat(layer.idx_cmp_wgate[lane * 256 + i]);
      main_score += ToFloat(xn[i]) * ToFloat(layer.cmp_wgate[lane * 256 + i]);
    }
    EXPECT_NEAR(inner[lane], kv, 1e-5);
    EXPECT_NEAR(inner[256 + lane], score, 1e-5);
    EXPECT_NEAR(state[1024 + lane], main_score, 1e-5);
  }
}

// y[j] = sum of x[i] * (-1)^(ones that i and j share) / 128^1/2, by halves.
std::vector<double> FastHadamard(std::vector<double> x) {
  for (size_t step = 1; step < x.size(); step *= 2) {
    for (size_t i = 0; i < x.size(); ++i) {
      if ((i & step) != 0) continue;
      const double a = x[i];
      x[i] = a + x[i + step];
      x[i + step] = a - x[i + step];
    }
  }
  for (double& value : x) value /= std::sqrt(static_cast<double>(x.size()));
  return x;
}

TEST_F(CsaCompressor, IndexRowIsPooledTurnedMixedAndQuantized) {
  const auto rows = Rows(*this, 0, 8, 256);
  const RopeRow turn = RopeRowAt(kCsa, 2052);
  const Quantized key = Make().IndexRow(PointersOf(rows), turn);
  std::vector<double> c = PlainPool(Halves(rows, 128), 128, layer.idx_cmp_norm);
  for (size_t i = 0; i < 32; ++i) {  // of its last 64 lanes
    const double even = c[64 + 2 * i];
    const double odd = c[65 + 2 * i];
    c[64 + 2 * i] = even * turn.cos[i] - odd * turn.sin[i];
    c[65 + 2 * i] = even * turn.sin[i] + odd * turn.cos[i];
  }
  for (double& value : c) value = ToFloat(Rounded(value));
  std::vector<double> y = FastHadamard(c);
  float amax = 0;
  for (double& value : y) {
    value = ToFloat(Rounded(value));
    amax = std::max(amax, std::abs(static_cast<float>(value)));
  }
  ASSERT_EQ(key.codes.size(), 128U);
  EXPECT_NEAR(key.scale, amax / 127, amax * 1e-4);
  EXPECT_TRUE(std::ranges::any_of(key.codes, [](int8_t q) { return std::abs(q) == 127; }));
  int off_by_one = 0;
  for (size_t j = 0; j < 128; ++j) {
    const double difference = std::abs(key.codes[j] - std::nearbyint(y[j] * (127 / amax)));
    EXPECT_LE(difference, 1);
    off_by_one += difference > 0 ? 1 : 0;
  }
  EXPECT_LE(off_by_one, 3);
}

}  // namespace
}  // namespace millipede::reference
