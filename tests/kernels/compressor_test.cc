// AddRow and PoolRows against plain C++ in double, on every target.
#include "kernels/compressor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/row_data.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

struct Rows {
  Rows(std::mt19937_64& random, int64_t num_rows, int64_t num_lanes, float spread)
      : kv(num_lanes, num_rows), score(num_lanes, num_rows) {
    for (int64_t r = 0; r < num_rows; ++r) {
      const std::vector<float> kv_values = RandomFloats(random, num_lanes, -2.0F, 3.0F);
      const std::vector<float> score_values = RandomFloats(random, num_lanes, -spread, spread);
      std::copy(kv_values.begin(), kv_values.end(), kv.row(r));
      std::copy(score_values.begin(), score_values.end(), score.row(r));
      kv_pointers.push_back(kv.row(r));
      score_pointers.push_back(score.row(r));
    }
  }
  PoisonedRows<float> kv;
  PoisonedRows<float> score;
  std::vector<const float*> kv_pointers;
  std::vector<const float*> score_pointers;
};

std::vector<float> Pool(Rows& rows, int64_t num_lanes) {
  PoisonedRows<float> out(num_lanes);
  PoolRows({rows.kv_pointers.data(), rows.score_pointers.data(),
            static_cast<int64_t>(rows.kv_pointers.size()), num_lanes, out.data()});
  EXPECT_TRUE(out.PoisonIntact());
  return out.values();
}

TEST(CompressorTest, PoolEqualsDouble) {
  ForEachTarget(CompressorTargetName, [] {
    std::mt19937_64 random(11);
    for (const int64_t num_rows : {1, 4, 8, 127, 128}) {
      for (const int64_t num_lanes : {1, 3, 17, 128, 512}) {
        for (const float spread : {0.0F, 1.0F, 30.0F, 2000.0F}) {
          Rows rows(random, num_rows, num_lanes, spread);
          const std::vector<float> actual = Pool(rows, num_lanes);
          for (size_t lane = 0; lane < actual.size(); ++lane) {
            double max = -INFINITY;
            for (const float* score : rows.score_pointers) {
              max = std::max(max, static_cast<double>(score[lane]));
            }
            double sum = 0;
            double weighted = 0;
            double magnitude = 0;
            for (size_t r = 0; r < rows.kv_pointers.size(); ++r) {
              const double weight = std::exp(rows.score_pointers[r][lane] - max);
              sum += weight;
              weighted += weight * rows.kv_pointers[r][lane];
              magnitude += weight * std::fabs(rows.kv_pointers[r][lane]);
            }
            // A difference of scores is rounded once; at 2000 that is worth 1e-4 of its weight.
            const double tolerance = (4e-6 + 1.2e-7 * spread) * magnitude / sum;
            ASSERT_NEAR(actual[lane], weighted / sum, tolerance)
                << num_rows << " rows, " << num_lanes << " lanes, lane " << lane;
          }
        }
      }
    }
  });
}

TEST(CompressorTest, ARowOfScoreMinusInfinityCountsNothing) {
  ForEachTarget(CompressorTargetName, [] {
    std::mt19937_64 random(12);
    Rows rows(random, 8, 512, 3.0F);
    for (int64_t r = 0; r < 4; ++r) {
      std::fill_n(rows.score.row(r), 512, -kInf);
      std::fill_n(rows.kv.row(r), 512, 0.0F);
    }
    const std::vector<float> with = Pool(rows, 512);
    rows.kv_pointers.erase(rows.kv_pointers.begin(), rows.kv_pointers.begin() + 4);
    rows.score_pointers.erase(rows.score_pointers.begin(), rows.score_pointers.begin() + 4);
    EXPECT_TRUE(SameBits(with, Pool(rows, 512)));
  });
}

TEST(CompressorTest, ANanStaysInItsLane) {
  ForEachTarget(CompressorTargetName, [] {
    std::mt19937_64 random(13);
    Rows rows(random, 128, 64, 3.0F);
    const std::vector<float> clean = Pool(rows, 64);
    rows.score.row(5)[7] = kNan;
    rows.kv.row(100)[40] = kNan;
    const std::vector<float> actual = Pool(rows, 64);
    for (size_t lane = 0; lane < 64; ++lane) {
      if (lane == 7 || lane == 40) {
        EXPECT_TRUE(std::isnan(actual[lane]));
      } else {
        EXPECT_TRUE(SameBits(actual[lane], clean[lane]));
      }
    }
  });
}

TEST(CompressorTest, AddRowAdds) {
  ForEachTarget(CompressorTargetName, [] {
    std::mt19937_64 random(14);
    for (const int64_t n : kRowLengths) {
      PoisonedRows<float> row(RandomFloats(random, n));
      PoisonedRows<float> addend(RandomFloats(random, n));
      std::vector<float> expected = row.values();
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += addend.data()[i];
      AddRow({row.data(), addend.data(), n});
      EXPECT_TRUE(SameBits(row.values(), expected));
      EXPECT_TRUE(row.PoisonIntact());
    }
  });
}

}  // namespace
}  // namespace millipede
