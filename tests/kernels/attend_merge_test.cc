// AttendMerge and AttendFinish on every target against plain double.
#include "kernels/attend_merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/attend_cases.h"
#include "kernels/targets.h"

namespace millipede {
namespace {

constexpr float kMinusInfinity = -kInfinity;

// A partial of finite random values, maxima of a wide range.
void Randomize(const Partial& partial, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < partial.buffer.size(); ++i) partial.buffer[i] = normal(random);
  for (size_t head = 0; head < kBlock; ++head) {
    partial.view.max[head] = 20.0F * normal(random);
    partial.view.sum[head] = 1.0F + 50.0F * std::abs(normal(random));
  }
}

void Copy(const Partial& from, const Partial& to) {
  std::copy_n(from.buffer.data(), from.buffer.size(), to.buffer.data());
}

TEST(AttendMerge, MatchesDouble) {
  ForEachTarget(AttendTarget, [] {
    Partial a;
    Partial b;
    Partial merged;
    Randomize(a, 1);
    Randomize(b, 2);
    b.view.max[3] = a.view.max[3];
    b.view.max[4] = a.view.max[4] + 300.0F;
    b.view.max[5] = a.view.max[5] - 300.0F;
    Copy(a, merged);
    AttendMerge({.from = b.view, .into = merged.view});
    for (size_t head = 0; head < kBlock; ++head) {
      const double max = std::max(a.view.max[head], b.view.max[head]);
      const double scale_a = std::exp(a.view.max[head] - max);
      const double scale_b = std::exp(b.view.max[head] - max);
      const auto check = [&](float actual, double x, double y) {
        const double bound = std::ldexp(std::abs(x * scale_a) + std::abs(y * scale_b), -22);
        ASSERT_NEAR(actual, x * scale_a + y * scale_b, bound + 1e-37) << "head " << head;
      };
      EXPECT_EQ(merged.view.max[head], static_cast<float>(max));
      check(merged.view.sum[head], a.view.sum[head], b.view.sum[head]);
      for (size_t i = 0; i < kDim; ++i) {
        const size_t at = i * kBlock + head;
        check(merged.view.out_t[at], a.view.out_t[at], b.view.out_t[at]);
      }
    }
  });
}

TEST(AttendMerge, NothingLeavesTheOtherAsItIs) {
  ForEachTarget(AttendTarget, [] {
    Partial some;
    Partial nothing;
    Randomize(some, 3);
    std::fill_n(nothing.buffer.data(), nothing.buffer.size(), 0.0F);
    std::fill_n(nothing.view.max, kBlock, kMinusInfinity);
    Partial merged;
    Copy(some, merged);
    AttendMerge({.from = nothing.view, .into = merged.view});
    for (size_t head = 0; head < kBlock; ++head) {
      EXPECT_TRUE(SameLane(merged.view, head, some.view, head));
    }
    Copy(nothing, merged);
    AttendMerge({.from = some.view, .into = merged.view});
    for (size_t head = 0; head < kBlock; ++head) {
      EXPECT_TRUE(SameLane(merged.view, head, some.view, head));
    }
    Copy(nothing, merged);
    AttendMerge({.from = nothing.view, .into = merged.view});
    for (size_t head = 0; head < kBlock; ++head) {
      EXPECT_TRUE(SameLane(merged.view, head, nothing.view, head));
    }
  });
}

TEST(AttendMerge, NanOfEitherSideStaysInItsHead) {
  ForEachTarget(AttendTarget, [] {
    for (const bool in_from : {false, true}) {
      Partial a;
      Partial b;
      Randomize(a, 4);
      Randomize(b, 5);
      Partial expected;
      Copy(a, expected);
      AttendMerge({.from = b.view, .into = expected.view});
      const Partial& dirty = in_from ? b : a;
      dirty.view.max[6] = kNan;
      dirty.view.sum[6] = kNan;
      for (size_t i = 0; i < kDim; ++i) dirty.view.out_t[i * kBlock + 6] = kNan;
      AttendMerge({.from = b.view, .into = a.view});
      for (size_t head = 0; head < kBlock; ++head) {
        EXPECT_EQ(AllNan(a.view, head), head == 6);
        EXPECT_EQ(SameLane(a.view, head, expected.view, head), head != 6);
      }
    }
  });
}

// Three tiles merged in order are the softmax over all their rows.
TEST(AttendMerge, TilesMergeIntoTheWhole) {
  const auto rows = RandomBf16(300, 6);
  const auto q = RandomBf16(16, 7);
  std::vector<ExpectedPartial> expected;
  for (size_t head = 0; head < kBlock; ++head) {
    expected.push_back(ExpectTile(&q[head * kDim], rows.data(), 300));
    // Probabilities are rounded relative to their tile's maximum, not to the maximum of all.
    for (size_t i = 0; i < kDim; ++i) {
      expected.back().slack[i] += std::ldexp(expected.back().sum, -8);
    }
  }
  ForEachTarget(AttendTarget, [&] {
    const Floats kv = Widened(rows, 301, 0);
    const Floats q_t = TransposedQ(q, 16);
    const Partial merged = RunTile(q_t, kv, 0, 128);
    for (const int64_t first : {128, 256}) {
      const Partial next = RunTile(q_t, kv, first, std::min<int64_t>(128, 300 - first));
      AttendMerge({.from = next.view, .into = merged.view});
    }
    for (size_t head = 0; head < kBlock; ++head) {
      EXPECT_EQ(Compare(merged.view, head, expected[head]), "");
    }
  });
}

// A tile that merges into what came before it leaves the bits of a tile and AttendMerge; so it does
// where nothing came before, where it has no rows, and where either side is NaN.
TEST(AttendMerge, ATileThatMergesHasTheSameBits) {
  const auto rows = RandomBf16(128, 8);
  const auto q = RandomBf16(16, 9);
  ForEachTarget(AttendTarget, [&] {
    const Floats kv = Widened(rows, 129, 0);
    const Floats q_t = TransposedQ(q, 16);
    for (size_t i = 0; i < kDim; ++i) q_t[i * kBlock + 7] = kNan;
    for (const int64_t num_rows : {0, 1, 33, 128}) {
      Partial expected;
      Randomize(expected, 10);
      expected.view.max[2] = kMinusInfinity;
      expected.view.sum[2] = 0.0F;
      expected.view.max[4] = 1e30F;
      expected.view.sum[5] = kNan;
      Partial merged;
      Copy(expected, merged);
      AttendMerge({.from = RunTile(q_t, kv, 0, num_rows).view, .into = expected.view});
      RunTileInto(merged, true, q_t, kv, 0, num_rows);
      for (size_t head = 0; head < kBlock; ++head) {
        ASSERT_TRUE(SameLane(merged.view, head, expected.view, head)) << num_rows << " rows";
      }
    }
  });
}

struct Finished {
  std::vector<Bf16> heads;
  std::vector<float> log_sum_exp;
};

// Heads with a stride of 515 elements, everything outside the heads 0xABCD.
Finished Finish(const Partial& partial, const std::vector<float>& sink, const float* cos,
                const float* sin) {
  Finished finished;
  finished.heads.assign(sink.size() * 515, Bf16{0xABCD});
  finished.log_sum_exp.resize(sink.size());
  AttendFinish({.partial = partial.view,
                .sink = sink.data(),
                .cos = cos,
                .sin = sin,
                .num_heads = static_cast<int64_t>(sink.size()),
                .heads = finished.heads.data(),
                .head_stride = 515,
                .log_sum_exp = finished.log_sum_exp.data()});
  return finished;
}

TEST(AttendFinish, MatchesDouble) {
  ForEachTarget(AttendTarget, [] {
    Partial partial;
    Randomize(partial, 8);
    std::vector<float> cos(33);
    std::vector<float> sin(33);
    for (size_t i = 0; i < 33; ++i) {
      cos[i] = static_cast<float>(std::cos(0.37 * static_cast<double>(i) + 0.1));
      sin[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i) + 0.1));
    }
    for (const bool rotate : {false, true}) {
      for (const int64_t num_heads : kHeadCounts) {
        std::vector<float> sink;
        for (int64_t head = 0; head < num_heads; ++head) {
          sink.push_back(head % 4 == 1 ? kMinusInfinity
                                       : partial.view.max[head] + static_cast<float>(3 - head));
        }
        const Finished actual = Finish(partial, sink, rotate ? cos.data() + 1 : nullptr,
                                       rotate ? sin.data() + 1 : nullptr);
        for (size_t head = 0; head < sink.size(); ++head) {
          const double denominator = double{partial.view.sum[head]} +
                                     std::exp(double{sink[head]} - partial.view.max[head]);
          std::vector<double> out(kDim);
          for (size_t i = 0; i < kDim; ++i) {
            out[i] = partial.view.out_t[i * kBlock + head] / denominator;
          }
          if (rotate) {
            for (size_t i = 0; i < 32; ++i) {
              const double x0 = out[448 + 2 * i];
              const double x1 = out[448 + 2 * i + 1];
              out[448 + 2 * i] = x0 * cos[i + 1] + x1 * sin[i + 1];
              out[448 + 2 * i + 1] = x1 * cos[i + 1] - x0 * sin[i + 1];
            }
          }
          for (size_t i = 0; i < 515 && head * 515 + i < actual.heads.size(); ++i) {
            const Bf16 value = actual.heads[head * 515 + i];
            if (i >= kDim) {
              ASSERT_EQ(value.bits, 0xABCD) << "past head " << head;
            } else {
              // Half a unit of bf16, and the float32 roundings before it.
              ASSERT_NEAR(Bf16ToFloat(value), out[i], std::abs(out[i]) / 256 + 1e-6 / denominator)
                  << "head " << head << " dim " << i;
            }
          }
          EXPECT_NEAR(actual.log_sum_exp[head],
                      partial.view.max[head] + std::log(double{partial.view.sum[head]}),
                      1e-7 * (std::abs(double{partial.view.max[head]}) + 8));
        }
      }
    }
  });
}

TEST(AttendFinish, NothingVisibleIsZeroAndInfiniteSinksAreDefined) {
  ForEachTarget(AttendTarget, [] {
    Partial nothing;
    std::fill_n(nothing.buffer.data(), nothing.buffer.size(), 0.0F);
    std::fill_n(nothing.view.max, kBlock, kMinusInfinity);
    const Finished none =
        Finish(nothing, {kMinusInfinity, 0.0F, -7.0F, kInfinity}, nullptr, nullptr);
    Partial some;
    Randomize(some, 9);
    const Finished taken =
        Finish(some, {kInfinity, kInfinity, kInfinity, kInfinity}, nullptr, nullptr);
    for (size_t head = 0; head < 4; ++head) {
      EXPECT_EQ(none.log_sum_exp[head], kMinusInfinity);
      for (size_t i = 0; i < kDim; ++i) {
        ASSERT_EQ(Bf16ToFloat(none.heads[head * 515 + i]), 0.0F);
        ASSERT_EQ(Bf16ToFloat(taken.heads[head * 515 + i]), 0.0F);
      }
    }
  });
}

TEST(AttendFinish, UnusedLanesAreNotRead) {
  ForEachTarget(AttendTarget, [] {
    Partial partial;
    Randomize(partial, 10);
    const std::vector<float> sink(5, 1.0F);
    const Finished clean = Finish(partial, sink, nullptr, nullptr);
    for (size_t lane = 5; lane < kBlock; ++lane) {
      partial.view.max[lane] = kNan;
      partial.view.sum[lane] = kNan;
      for (size_t i = 0; i < kDim; ++i) partial.view.out_t[i * kBlock + lane] = kNan;
    }
    const Finished dirty = Finish(partial, sink, nullptr, nullptr);
    for (size_t i = 0; i < clean.heads.size(); ++i) {
      ASSERT_EQ(clean.heads[i].bits, dirty.heads[i].bits);
    }
  });
}

TEST(AttendFinish, NanStaysInItsHead) {
  ForEachTarget(AttendTarget, [] {
    Partial partial;
    Randomize(partial, 11);
    partial.view.sum[2] = kNan;
    partial.view.out_t[17 * kBlock + 4] = kNan;
    const Finished actual = Finish(partial, std::vector<float>(16, 0.5F), nullptr, nullptr);
    for (size_t head = 0; head < kBlock; ++head) {
      for (size_t i = 0; i < kDim; ++i) {
        ASSERT_EQ(std::isnan(Bf16ToFloat(actual.heads[head * 515 + i])),
                  head == 2 || (head == 4 && i == 17));
      }
    }
  });
}

// Rows whose score is `score`, through all kernels. Lane 0 alone makes the score.
std::vector<float> Attended(float score, const std::vector<Bf16>& rows, float sink) {
  const auto num_rows = static_cast<int64_t>(rows.size() / kDim);
  std::vector<Bf16> q(kDim * kBlock);
  for (size_t head = 0; head < kBlock; ++head) {
    q[head * kDim] = FloatToBf16(score * 22.627417F);
  }
  const Partial partial = RunTile(TransposedQ(q, 16), Widened(rows, num_rows, 0), 0, num_rows);
  EXPECT_NEAR(partial.view.max[0], score, std::abs(score) / 128);
  const Finished finished = Finish(partial, std::vector<float>(16, sink), nullptr, nullptr);
  std::vector<float> heads;
  for (size_t head = 0; head < kBlock; ++head) {
    for (size_t i = 0; i < kDim; ++i) heads.push_back(Bf16ToFloat(finished.heads[head * 515 + i]));
  }
  return heads;
}

TEST(AttendFinish, VeryLowScores) {
  auto one = RandomBf16(1, 12);
  one[0] = FloatToBf16(1.0F);
  auto many = RandomBf16(128, 13);
  for (size_t r = 0; r < 128; ++r) many[r * kDim] = FloatToBf16(1.0F);
  ForEachTarget(AttendTarget, [&] {
    const std::vector<float> alone = Attended(-5e5F, one, kMinusInfinity);
    const std::vector<float> sunk = Attended(-5e5F, one, 0.0F);
    const std::vector<float> mean = Attended(-1e6F, many, kMinusInfinity);
    for (size_t i = 0; i < alone.size(); ++i) {
      ASSERT_EQ(alone[i], Bf16ToFloat(one[i % kDim]));
      ASSERT_EQ(sunk[i], 0.0F);
      double expected = 0;
      for (size_t r = 0; r < 128; ++r) expected += Bf16ToFloat(many[r * kDim + i % kDim]) / 128.0;
      ASSERT_NEAR(mean[i], expected, std::abs(expected) / 256 + 1e-6);
    }
  });
}

}  // namespace
}  // namespace millipede
