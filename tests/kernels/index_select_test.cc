// Selections against a plain stable sort, on every target.
#include "kernels/index_select.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/row_data.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

constexpr int64_t kCounts[] = {0, 1, 2, 7, 31, 33, 511, 512, 513, 1023, 1025, 2047, 2048};
constexpr int64_t kKs[] = {1, 2, 5, 512, 1024, 2048};

std::vector<float> FromFunction(int64_t n, const std::function<float(int64_t)>& score) {
  std::vector<float> scores;
  for (int64_t i = 0; i < n; ++i) scores.push_back(score(i));
  return scores;
}

std::vector<float> RandomChoice(std::mt19937_64& random, int64_t n,
                                const std::vector<float>& values) {
  return FromFunction(n, [&](int64_t) { return values[random() % values.size()]; });
}

// Scores of every sort that a selection could get wrong.
std::vector<std::pair<std::string, std::vector<float>>> Patterns(std::mt19937_64& random,
                                                                 int64_t n) {
  const auto ramp = [](float step) {
    return [step](int64_t i) { return step * static_cast<float>(i); };
  };
  return {
      {"random", RandomFloats(random, n, -3.0F, 5.0F)},
      {"negative", RandomFloats(random, n, -5.0F, -1.0F)},
      {"ascending", FromFunction(n, ramp(1.0F))},
      {"descending", FromFunction(n, ramp(-1.0F))},
      {"all equal", std::vector<float>(static_cast<size_t>(n), 2.5F)},
      {"all NaN", std::vector<float>(static_cast<size_t>(n), kNan)},
      {"all -inf", std::vector<float>(static_cast<size_t>(n), -kInf)},
      {"zeros", RandomChoice(random, n, {0.0F, -0.0F})},
      {"few values", RandomChoice(random, n, {1.0F, 2.0F, -1.0F, 0.0F, -0.0F})},
      {"special", RandomChoice(random, n,
                               {kNan, -kNan, kInf, -kInf, 0.0F, -0.0F, FLT_MAX, -FLT_MAX, 1e-45F,
                                -1e-45F, FLT_MIN, 1.0F})},
      {"half NaN",
       FromFunction(
           n, [&](int64_t i) { return i % 2 == 0 ? kNan : static_cast<float>(random() % 1000); })},
      {"any bits",
       FromFunction(
           n, [&](int64_t) { return std::bit_cast<float>(static_cast<uint32_t>(random())); })},
  };
}

struct Candidate {
  int32_t index;
  float score;
};

bool IsBefore(const Candidate& a, const Candidate& b) {
  if (std::isnan(a.score) || std::isnan(b.score)) {
    if (std::isnan(a.score) != std::isnan(b.score)) return std::isnan(b.score);
  } else if (a.score != b.score) {
    return a.score > b.score;
  }
  return a.index < b.index;
}

std::vector<Candidate> Sorted(const std::vector<float>& scores, int64_t first_candidate = 0) {
  std::vector<Candidate> candidates;
  for (const float score : scores) {
    candidates.push_back({static_cast<int32_t>(first_candidate), score});
    ++first_candidate;
  }
  std::sort(candidates.begin(), candidates.end(), IsBefore);
  return candidates;
}

std::vector<uint64_t> Leaf(const std::vector<float>& scores, int64_t k, int64_t first_candidate = 0,
                           uint64_t floor = 0) {
  PoisonedRows<float> in(scores);
  PoisonedRows<uint64_t> keys(k);
  const int64_t count = IndexSelectLeaf({.scores = in.data(),
                                         .num_candidates = static_cast<int64_t>(scores.size()),
                                         .first_candidate = first_candidate,
                                         .k = k,
                                         .floor = floor,
                                         .keys = keys.data()});
  EXPECT_TRUE(keys.PoisonIntact());
  for (int64_t i = count; i < k; ++i) EXPECT_EQ(keys.data()[i], Poison<uint64_t>());
  return {keys.data(), keys.data() + count};
}

std::vector<uint64_t> Merge(const std::vector<uint64_t>& left, const std::vector<uint64_t>& right,
                            int64_t k) {
  PoisonedRows<uint64_t> out(k);
  std::copy(left.begin(), left.end(), out.data());
  PoisonedRows<uint64_t> other(right);
  const int64_t count = IndexMerge({.left = out.data(),
                                    .left_count = static_cast<int64_t>(left.size()),
                                    .right = other.data(),
                                    .right_count = static_cast<int64_t>(right.size()),
                                    .k = k});
  EXPECT_TRUE(out.PoisonIntact());
  EXPECT_EQ(other.values(), right);
  return {out.data(), out.data() + count};
}

// That the selection is the first min(k, all) of the expected candidates.
void ExpectSelection(const std::vector<uint64_t>& keys, const std::vector<Candidate>& expected,
                     int64_t k) {
  const size_t count = std::min(static_cast<size_t>(k), expected.size());
  ASSERT_EQ(keys.size(), count);
  PoisonedRows<uint64_t> in(keys);
  PoisonedRows<int32_t> indices(k);
  PoisonedRows<float> scores(k);
  IndexUnpack({.keys = in.data(),
               .count = static_cast<int64_t>(count),
               .k = k,
               .indices = indices.data(),
               .scores = scores.data()});
  EXPECT_TRUE(indices.PoisonIntact());
  EXPECT_TRUE(scores.PoisonIntact());
  for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
    if (i >= count) {
      ASSERT_EQ(indices.data()[i], -1);
      ASSERT_EQ(scores.data()[i], -FLT_MAX);
      continue;
    }
    ASSERT_EQ(indices.data()[i], expected[i].index) << "place " << i;
    if (std::isnan(expected[i].score)) {
      ASSERT_TRUE(std::isnan(scores.data()[i]));
    } else {
      // A zero comes back as +0; all else has its bits.
      ASSERT_TRUE(SameBits(scores.data()[i], expected[i].score + 0.0F)) << "place " << i;
    }
  }
}

TEST(IndexSelectTest, KeysFollowTheOrder) {
  const std::vector<float> best_first = {kInf,    FLT_MAX, 1.0F,     FLT_MIN, 1e-45F, 0.0F,
                                         -1e-45F, -1.0F,   -FLT_MAX, -kInf,   kNan};
  constexpr int32_t kLast = std::numeric_limits<int32_t>::max();
  for (size_t i = 0; i < best_first.size(); ++i) {
    for (const int32_t index : {0, 1, 262'143, kLast}) {
      const uint64_t key = SelectionKey(best_first[i], index);
      EXPECT_NE(key, 0U);
      EXPECT_EQ(SelectionIndex(key), index);
      if (std::isnan(best_first[i])) {
        EXPECT_TRUE(std::isnan(SelectionScore(key)));
      } else {
        EXPECT_TRUE(SameBits(SelectionScore(key), best_first[i]));
      }
      if (i + 1 < best_first.size()) {
        EXPECT_GT(key, SelectionKey(best_first[i + 1], 0));
      }
      if (index > 0) {
        EXPECT_LT(key, SelectionKey(best_first[i], index - 1));
      }
    }
  }
  EXPECT_EQ(SelectionKey(-0.0F, 5), SelectionKey(0.0F, 5));
  EXPECT_EQ(SelectionKey(-kNan, 5), SelectionKey(kNan, 5));
}

TEST(IndexSelectTest, ALeafEqualsASort) {
  ForEachTarget(IndexSelectTargetName, [] {
    std::mt19937_64 random(41);
    for (const int64_t n : kCounts) {
      for (const auto& [name, scores] : Patterns(random, n)) {
        for (const int64_t k : kKs) {
          SCOPED_TRACE(name + ", n " + std::to_string(n) + ", k " + std::to_string(k));
          const int64_t first_candidate = static_cast<int64_t>(random() % 128) * 2048;
          const std::vector<uint64_t> keys = Leaf(scores, k, first_candidate);
          ExpectSelection(keys, Sorted(scores, first_candidate), k);
          for (size_t i = 0; i < keys.size(); ++i) {
            const auto place = static_cast<size_t>(SelectionIndex(keys[i]) - first_candidate);
            ASSERT_EQ(keys[i], SelectionKey(scores[place], SelectionIndex(keys[i])));
          }
        }
      }
    }
  });
}

TEST(IndexSelectTest, AFloorOnlyDropsWhatIsBelow) {
  ForEachTarget(IndexSelectTargetName, [] {
    std::mt19937_64 random(42);
    for (const int64_t n : {1, 33, 513, 2048}) {
      for (const auto& [name, scores] : Patterns(random, n)) {
        for (const int64_t k : {1, 5, 512}) {
          SCOPED_TRACE(name + ", n " + std::to_string(n) + ", k " + std::to_string(k));
          const std::vector<uint64_t> complete = Leaf(scores, k, 4096);
          for (int trial = 0; trial < 4; ++trial) {
            // The key of some score of the leaf, in a leaf before or after it.
            const float score = scores[random() % scores.size()];
            const uint64_t floor = SelectionKey(score, trial % 2 == 0 ? 17 : 9000);
            const std::vector<uint64_t> keys = Leaf(scores, k, 4096, floor);
            ASSERT_LE(keys.size(), complete.size());
            ASSERT_TRUE(std::equal(keys.begin(), keys.end(), complete.begin()));
            ASSERT_TRUE(keys.size() == complete.size() || complete[keys.size()] < floor);
          }
        }
      }
    }
  });
}

TEST(IndexSelectTest, AMergeEqualsASort) {
  std::mt19937_64 random(43);
  for (const int64_t k : {1, 2, 5, 31, 512, 1024}) {
    for (const int64_t left_size : {int64_t{0}, int64_t{1}, k / 2, k - 1, k}) {
      for (const int64_t right_size : {int64_t{0}, int64_t{1}, k / 3, k}) {
        const auto left_patterns = Patterns(random, left_size);
        const auto right_patterns = Patterns(random, right_size);
        for (size_t p = 0; p < left_patterns.size(); ++p) {
          // The right holds scores of the same sort or of another one.
          const size_t other = random() % 2 == 0 ? p : random() % right_patterns.size();
          const bool right_first = random() % 2 == 0;  // the right has the lower indices
          SCOPED_TRACE(left_patterns[p].first + " and " + right_patterns[other].first + ", k " +
                       std::to_string(k));
          std::vector<Candidate> all = Sorted(left_patterns[p].second, right_first ? 2048 : 0);
          const auto right_candidates =
              Sorted(right_patterns[other].second, right_first ? 0 : 2048);
          std::vector<uint64_t> left;
          std::vector<uint64_t> right;
          for (const Candidate& c : all) left.push_back(SelectionKey(c.score, c.index));
          for (const Candidate& c : right_candidates) {
            right.push_back(SelectionKey(c.score, c.index));
          }
          all.insert(all.end(), right_candidates.begin(), right_candidates.end());
          std::sort(all.begin(), all.end(), IsBefore);
          ExpectSelection(Merge(left, right, k), all, k);
        }
      }
    }
  }
}

TEST(IndexSelectTest, UnpackNeedsNoScores) {
  const std::vector<uint64_t> keys{SelectionKey(2.0F, 7), SelectionKey(1.0F, 3)};
  PoisonedRows<int32_t> indices(4);
  IndexUnpack({.keys = keys.data(), .count = 2, .k = 4, .indices = indices.data()});
  EXPECT_EQ(indices.values(), (std::vector<int32_t>{7, 3, -1, -1}));
  EXPECT_TRUE(indices.PoisonIntact());
}

// Pairs level by level, an odd node carried up.
std::vector<uint64_t> MergeForest(std::vector<std::vector<uint64_t>> nodes, int64_t k) {
  while (nodes.size() > 1) {
    std::vector<std::vector<uint64_t>> above;
    for (size_t i = 0; i < nodes.size(); i += 2) {
      above.push_back(i + 1 < nodes.size() ? Merge(nodes[i], nodes[i + 1], k) : nodes[i]);
    }
    nodes = std::move(above);
  }
  return nodes[0];
}

struct Forest {
  std::string name;
  std::vector<float> scores;
};

std::vector<Forest> Forests(std::mt19937_64& random, int64_t n) {
  std::vector<Forest> forests;
  forests.push_back({"random", RandomFloats(random, n, 0.0F, 10.0F)});
  forests.push_back({"all equal", std::vector<float>(static_cast<size_t>(n), 1.0F)});
  forests.push_back({"few values", RandomChoice(random, n, {1.0F, 2.0F, 3.0F, kNan})});
  forests.push_back({"one winner per leaf", FromFunction(n, [](int64_t i) {
                       return i % 2048 == 1000 ? 5.0F : static_cast<float>(-i % 77);
                     })});
  forests.push_back({"winners in the last leaf", FromFunction(n, [n](int64_t i) {
                       return i >= (n - 1) / 2048 * 2048 ? 5.0F : static_cast<float>(i % 3);
                     })});
  forests.push_back(
      {"ascending", FromFunction(n, [](int64_t i) { return static_cast<float>(i); })});
  return forests;
}

TEST(IndexSelectTest, AForestEqualsASort) {
  std::mt19937_64 random(44);
  for (const int64_t n : {4097, 10 * 2048 + 513, 262'144}) {
    for (const Forest& forest : Forests(random, n)) {
      const std::vector<float>& scores = forest.scores;
      const std::vector<Candidate> expected = Sorted(scores);
      ForEachTarget(IndexSelectTargetName, [&] {
        for (const int64_t k : {512, 1024}) {
          SCOPED_TRACE(forest.name + ", n " + std::to_string(n) + ", k " + std::to_string(k));
          std::vector<std::vector<uint64_t>> leaves;
          std::vector<std::vector<uint64_t>> floored;
          uint64_t floor = 0;
          for (int64_t first = 0; first < n; first += kLeafCandidates) {
            const auto begin = scores.begin() + first;
            const std::vector<float> leaf(begin, begin + std::min(kLeafCandidates, n - first));
            leaves.push_back(Leaf(leaf, k, first));
            floored.push_back(Leaf(leaf, k, first, floor));
            if (static_cast<int64_t>(leaves.back().size()) == k) {
              floor = std::max(floor, leaves.back().back());
            }
          }
          ExpectSelection(MergeForest(std::move(leaves), k), expected, k);
          ExpectSelection(MergeForest(std::move(floored), k), expected, k);
        }
      });
    }
  }
}

}  // namespace
}  // namespace millipede
