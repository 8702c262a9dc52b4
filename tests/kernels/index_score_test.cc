// IndexScore against plain C++, on every target: exact dots, and bits that no company changes.
#include "kernels/index_score.h"

#include <gtest/gtest.h>
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/row_data.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

constexpr size_t kDim = kIndexDim;
constexpr int64_t kHeadCounts[] = {1, 4, 15, 16, 17, 33, 64, 80, 100, 128};
constexpr int64_t kCandidateCounts[] = {1, 2, 3, 5, 6, 7, 31, 32, 33, 47, 48, 49, 64, 97, 200};

std::vector<int8_t> RandomCodes(std::mt19937_64& random, size_t size) {
  std::uniform_int_distribution<int> uniform(-128, 127);
  std::vector<int8_t> codes(size);
  for (int8_t& code : codes) code = static_cast<int8_t>(uniform(random));
  return codes;
}

struct Query {
  Query(std::mt19937_64& random, int64_t num_heads)
      : codes(RandomCodes(random, static_cast<size_t>(num_heads) * kDim)),
        scales(RandomFloats(random, num_heads, 0.001F, 0.02F)),
        weights(RandomFloats(random, num_heads, -0.1F, 0.15F)) {}

  int64_t num_heads() const { return static_cast<int64_t>(scales.size()); }

  std::vector<int8_t> codes;
  std::vector<float> scales;
  std::vector<float> weights;
};

// A packed query in memory that ends where its bytes do and was NaN before.
class Packed {
 public:
  explicit Packed(const Query& query)
      : buffer_(hwy::AllocateAligned<uint8_t>(
            static_cast<size_t>(PackedIndexQueryBytes(query.num_heads())))) {
    std::fill_n(buffer_.get(), PackedIndexQueryBytes(query.num_heads()), uint8_t{0xFF});
    IndexPackQuery({.codes = query.codes.data(),
                    .scales = query.scales.data(),
                    .weights = query.weights.data(),
                    .num_heads = query.num_heads(),
                    .packed = buffer_.get()});
  }
  const void* get() const { return buffer_.get(); }

 private:
  hwy::AlignedFreeUniquePtr<uint8_t[]> buffer_;
};

// Pages that lie apart, at odd addresses, the last one as short as its candidates.
struct Keys {
  Keys(const std::vector<int8_t>& codes, const std::vector<float>& key_scales) {
    const size_t count = key_scales.size();
    for (size_t begin = 0; begin < count; begin += kPageRows) {
      const size_t end = std::min(count, begin + kPageRows);
      rows.emplace_back(1 + (end - begin) * kDim, int8_t{77});
      std::copy(&codes[begin * kDim], &codes[begin * kDim] + (end - begin) * kDim,
                rows.back().data() + 1);
      scales.emplace_back(key_scales.begin() + static_cast<std::ptrdiff_t>(begin),
                          key_scales.begin() + static_cast<std::ptrdiff_t>(end));
    }
    for (size_t p = 0; p < rows.size(); ++p)
      pages.push_back({rows[p].data() + 1, scales[p].data()});
  }
  Keys(std::mt19937_64& random, int64_t count)
      : Keys(RandomCodes(random, static_cast<size_t>(count) * kDim),
             RandomFloats(random, count, 0.001F, 0.02F)) {}

  const int8_t* row(size_t c) const { return pages[c / kPageRows].rows + c % kPageRows * kDim; }
  float scale(size_t c) const { return pages[c / kPageRows].scales[c % kPageRows]; }

  std::vector<std::vector<int8_t>> rows;
  std::vector<std::vector<float>> scales;
  std::vector<IndexPage> pages;
};

// Scores [queries][candidates].
std::vector<std::vector<float>> Score(const std::vector<Query>& queries, const IndexPage* pages,
                                      int64_t num_candidates) {
  std::vector<Packed> packed;
  std::vector<const void*> pointers;
  for (const Query& query : queries) packed.emplace_back(query);
  for (const Packed& one : packed) pointers.push_back(one.get());
  const auto num_queries = static_cast<int64_t>(queries.size());
  PoisonedRows<float> out(num_candidates, num_queries);
  std::vector<float*> scores;
  for (int64_t q = 0; q < num_queries; ++q) scores.push_back(out.row(q));
  IndexScore({.queries = pointers.data(),
              .num_queries = num_queries,
              .num_heads = queries[0].num_heads(),
              .pages = pages,
              .num_candidates = num_candidates,
              .scores = scores.data()});
  EXPECT_TRUE(out.PoisonIntact());
  std::vector<std::vector<float>> values;
  for (int64_t q = 0; q < num_queries; ++q) values.push_back(out.values(q));
  return values;
}

int32_t Dot(const int8_t* a, const int8_t* b) {
  int32_t sum = 0;
  for (size_t i = 0; i < kDim; ++i) sum += a[i] * b[i];
  return sum;
}

// One head counts, the others have weight 0: every sum is exact.
TEST(IndexScoreTest, DotsAreExact) {
  ForEachTarget(IndexScoreTargetName, [] {
    std::mt19937_64 random(31);
    for (const int64_t num_heads : kHeadCounts) {
      const Keys keys(random, 50);
      for (const size_t head :
           {size_t{0}, static_cast<size_t>(num_heads - 1), static_cast<size_t>(num_heads / 2)}) {
        Query query(random, num_heads);
        std::fill(query.scales.begin(), query.scales.end(), 1.0F);
        std::fill(query.weights.begin(), query.weights.end(), 0.0F);
        query.weights[head] = 1.0F;
        const auto scores = Score({query}, keys.pages.data(), 50)[0];
        for (size_t c = 0; c < 50; ++c) {
          const int32_t dot = Dot(&query.codes[head * kDim], keys.row(c));
          ASSERT_EQ(scores[c], keys.scale(c) * static_cast<float>(std::max(dot, 0)))
              << num_heads << " heads, head " << head << ", candidate " << c;
        }
      }
    }
  });
}

TEST(IndexScoreTest, ExtremeCodesAreExact) {
  ForEachTarget(IndexScoreTargetName, [] {
    std::mt19937_64 random(32);
    for (const int a : {-128, 127}) {
      for (const int b : {-128, 127}) {
        Query query(random, 4);
        std::fill(query.codes.begin(), query.codes.end(), static_cast<int8_t>(a));
        std::fill(query.scales.begin(), query.scales.end(), 1.0F);
        query.weights = {0.0F, 0.0F, 0.0F, 1.0F};
        const Keys keys(std::vector<int8_t>(3 * kDim, static_cast<int8_t>(b)), {1.0F, 2.0F, -1.0F});
        const auto dot = static_cast<float>(std::max(0, 128 * a * b));
        EXPECT_EQ(Score({query}, keys.pages.data(), 3)[0],
                  (std::vector<float>{dot, 2.0F * dot, -dot}));
      }
    }
  });
}

TEST(IndexScoreTest, EqualsDouble) {
  ForEachTarget(IndexScoreTargetName, [] {
    std::mt19937_64 random(33);
    for (const int64_t num_heads : kHeadCounts) {
      for (const int64_t count : kCandidateCounts) {
        const Keys keys(random, count);
        const std::vector<Query> queries{{random, num_heads}, {random, num_heads}};
        const auto scores = Score(queries, keys.pages.data(), count);
        for (size_t q = 0; q < queries.size(); ++q) {
          for (size_t c = 0; c < static_cast<size_t>(count); ++c) {
            double sum = 0;
            double magnitude = 0;
            for (size_t h = 0; h < static_cast<size_t>(num_heads); ++h) {
              const double product = Dot(&queries[q].codes[h * kDim], keys.row(c)) *
                                     static_cast<double>(queries[q].scales[h]);
              const double term = std::max(product, 0.0) * queries[q].weights[h];
              sum += term;
              magnitude += std::fabs(term);
            }
            ASSERT_NEAR(scores[q][c], keys.scale(c) * sum, 1e-6 * keys.scale(c) * magnitude)
                << num_heads << " heads, query " << q << ", candidate " << c << " of " << count;
          }
        }
      }
    }
  });
}

TEST(IndexScoreTest, BitsDoNotDependOnCompany) {
  ForEachTarget(IndexScoreTargetName, [] {
    std::mt19937_64 random(34);
    for (const int64_t num_heads : kHeadCounts) {
      constexpr int64_t kCount = 117;
      const Keys keys(random, kCount);
      std::vector<Query> queries;
      for (int64_t q = 0; q < kMaxIndexQueries; ++q) queries.emplace_back(random, num_heads);
      const auto together = Score(queries, keys.pages.data(), kCount);
      for (size_t q = 0; q < queries.size(); ++q) {
        EXPECT_TRUE(SameBits(together[q], Score({queries[q]}, keys.pages.data(), kCount)[0]));
        for (size_t c = 0; c < kCount; c += q + 1) {
          const IndexPage alone{keys.row(c), keys.pages[c / kPageRows].scales + c % kPageRows};
          ASSERT_TRUE(SameBits(together[q][c], Score({queries[q]}, &alone, 1)[0][0]))
              << num_heads << " heads, query " << q << ", candidate " << c;
        }
      }
      for (const int64_t count : kCandidateCounts) {
        if (count > kCount) continue;
        const auto some = Score({queries[3], queries[1], queries[4]}, keys.pages.data(), count);
        const auto first = together[3].begin();
        EXPECT_TRUE(SameBits(some[0], std::vector<float>(first, first + count)));
      }
    }
  });
}

TEST(IndexScoreTest, ANanStaysOneAndInItsPlace) {
  ForEachTarget(IndexScoreTargetName, [] {
    std::mt19937_64 random(35);
    constexpr size_t kCount = 70;
    for (const float nan : {kNan, -kNan}) {
      const std::vector<int8_t> codes = RandomCodes(random, kCount * kDim);
      std::vector<float> key_scales(kCount, 0.5F);
      const Query good(random, 64);
      const auto clean = Score({good}, Keys(codes, key_scales).pages.data(), kCount)[0];
      Query bad_scale = good;
      bad_scale.scales[37] = nan;
      Query bad_weight = good;
      bad_weight.weights[63] = nan;
      key_scales[40] = nan;
      const Keys keys(codes, key_scales);
      const auto scores = Score({bad_scale, good, bad_weight}, keys.pages.data(), kCount);
      for (size_t c = 0; c < kCount; ++c) {
        EXPECT_TRUE(std::isnan(scores[0][c]));
        EXPECT_TRUE(std::isnan(scores[2][c]));
        if (c == 40) {
          EXPECT_TRUE(std::isnan(scores[1][c]));
        } else {
          EXPECT_TRUE(SameBits(scores[1][c], clean[c]));
        }
      }
    }
  });
}

TEST(IndexScoreTest, NoCandidatesWriteNothing) {
  ForEachTarget(IndexScoreTargetName, [] {
    std::mt19937_64 random(36);
    EXPECT_TRUE(Score({Query(random, 4)}, nullptr, 0)[0].empty());
  });
}

}  // namespace
}  // namespace millipede
