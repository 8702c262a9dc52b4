// What is CSA's own: two compressors with overlap, and the exact selection of rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>

#include "plan/plan_state.h"
#include "support/decode_world.h"
#include "support/executors.h"
#include "support/golden_check.h"
#include "support/select_case.h"

namespace millipede {
namespace {

using reference::RuleProfile;
using testing::AllExecutors;
using testing::DecodeWorld;
using testing::EntryResult;
using testing::ExpectGoldenStages;
using testing::NamedExecutor;
using testing::SameBits;
using testing::SelectCase;
using testing::StepEntry;

constexpr AttentionKind kKind = AttentionKind::kCsa;
constexpr Bf16 kHuge = {0x7149};  // about 1e30

class CsaTest : public ::testing::Test {
 protected:
  std::unique_ptr<Executor> serial_ = MakeSerialExecutor();
  Context context_{*serial_};
  ModelConfig config_ = ModelConfig::Tiny();
};

// --- Compressors ---------------------------------------------------------------------------------

TEST_F(CsaTest, StepsOfEightAtEveryPhaseEqualSerial) {
  for (const int64_t start : {0, 1, 2, 3, 2048, 2049, 2050, 2051}) {
    SCOPED_TRACE(start);
    DecodeWorld wide(config_, kKind);
    DecodeWorld serial(config_, kKind);
    wide.Add(0, start);
    serial.Add(0, start);
    const EntryResult result = wide.Step(context_, {{.id = 0, .num_tokens = 8}}).at(0);
    EXPECT_EQ(result.event_rows.size(), 2U);
    ExpectGoldenStages(wide, result, RuleProfile::kTiny);
    EXPECT_TRUE(SameBits(result, serial.Decode(context_, 0, 8, 1)));
    for (int64_t p = std::max<int64_t>(0, start); p < start + 8; ++p) {
      const auto state = [p](DecodeWorld& world) {
        const auto row = world.StateRow(0, p);
        return std::vector<float>(row.begin(), row.end());
      };
      const auto inner = [p](DecodeWorld& world) {
        const auto row = world.InnerStateRow(0, p);
        return std::vector<float>(row.begin(), row.end());
      };
      EXPECT_TRUE(SameBits(state(wide), state(serial))) << p;
      EXPECT_TRUE(SameBits(inner(wide), inner(serial))) << p;
    }
  }
}

TEST_F(CsaTest, ARowPoolsItsOwnBlockAndTheOneBeforeAndTurnsByItsFirstPosition) {
  // Row 513 is finished by token 2055 and rotated at 2052.
  const auto rows_with_edit = [&](int64_t edited) {
    DecodeWorld world(config_, kKind);
    world.Add(0, 2040);
    world.edit_x = [edited](int64_t, int64_t position, std::span<float> row) {
      if (position == edited) std::ranges::reverse(row);
    };
    return world.Decode(context_, 0, 16, 8);
  };
  const EntryResult plain = rows_with_edit(-1);
  const auto row_equal = [&](const EntryResult& a, int64_t row) {
    const auto offset = (row - 510) * kHeadDim;
    return std::equal(a.cmp_rows.begin() + offset, a.cmp_rows.begin() + offset + kHeadDim,
                      plain.cmp_rows.begin() + offset,
                      [](Bf16 x, Bf16 y) { return x.bits == y.bits; });
  };
  EXPECT_FALSE(row_equal(rows_with_edit(2055), 513));
  EXPECT_FALSE(row_equal(rows_with_edit(4 * 512), 513));  // the first token of the block before
  EXPECT_TRUE(row_equal(rows_with_edit(4 * 512 - 1), 513));
  EXPECT_TRUE(row_equal(rows_with_edit(4 * 511), 513));
}

TEST_F(CsaTest, UnfinishedRowsAreNotSeenAndFinishedOnesAreCandidatesOfTheirToken) {
  for (const int64_t finisher : {2055, 8191}) {
    SCOPED_TRACE(finisher);
    const int64_t row = finisher / kCsaRatio;
    for (const int64_t token : {finisher - 3, finisher - 2, finisher - 1}) {
      DecodeWorld plain(config_, kKind);
      DecodeWorld spoiled(config_, kKind);
      plain.Add(0, token);
      spoiled.Add(0, token);
      spoiled.Prepare(0, kCsaRatio);
      std::ranges::fill(spoiled.MainRow(0, row), kHuge);
      std::ranges::fill(spoiled.IndexRow(0, row), int8_t{127});
      spoiled.IndexScale(0, row) = 1e30F;
      EXPECT_TRUE(SameBits(plain.Step(context_, {{.id = 0}}).at(0),
                           spoiled.Step(context_, {{.id = 0}}).at(0)));
    }
    DecodeWorld world(config_, kKind);
    world.Add(0, finisher - 3);
    context_.Reset();
    world.Step(context_, {{.id = 0, .num_tokens = 5}});
    EXPECT_EQ(context_.counters(0).candidates, 3 * row + 2 * (row + 1));
  }
}

// --- Selection -----------------------------------------------------------------------------------

TEST_F(CsaTest, CountsOfCandidatesAroundEveryEdge) {
  for (const int64_t n : {0, 1, 2, 511, 512, 513, 2047, 2048, 2049, 4095, 4096, 4097}) {
    SCOPED_TRACE(n);
    SelectCase select(config_, n);
    select.UnitQuery();
    for (int64_t row = 0; row < n; ++row) {
      select.SetScore(row, static_cast<float>((row * 7919) % 5003) - 2000.0F);
    }
    select.Run(context_, 512);
    const reference::Selection expected = select.Expected(512);
    EXPECT_EQ(select.topk_idx, expected.idx);
    EXPECT_EQ(select.topk_score, expected.score);
  }
}

TEST_F(CsaTest, RealQueriesOverALongContextOnAnyThreads) {
  SelectCase select(config_, 40'000);
  const fixtures::Stream stream("q", 3);
  for (size_t i = 0; i < select.idx_q.size(); ++i) select.idx_q[i] = stream.Int8(i);
  for (size_t h = 0; h < select.weights.size(); ++h) {
    select.weights[h] = h % 2 == 0 ? 0.3F : -0.2F;
    select.scales[h] = 0.01F * static_cast<float>(h + 1);
  }
  const reference::Selection expected = select.Expected(512);
  std::vector<int32_t> first;
  for (const NamedExecutor& named : AllExecutors()) {
    SCOPED_TRACE(named.name);
    Context context(*named.executor);
    select.Run(context, 512);
    if (first.empty()) first = select.topk_idx;
    EXPECT_EQ(select.topk_idx, first);
    const auto scores = reference::JudgeScores(select.topk_score, expected.score);
    EXPECT_TRUE(scores.ok) << scores.text;
    const auto rows = reference::JudgeSelection(select.topk_idx, expected.idx, expected.score,
                                                expected.next_score);
    EXPECT_TRUE(rows.ok) << rows.text;
  }
  // Any k: the same order, cut elsewhere.
  select.Run(context_, 2048);
  EXPECT_TRUE(std::equal(first.begin(), first.end(), select.topk_idx.begin()));
}

TEST_F(CsaTest, ReluTiesNanAndPadding) {
  SelectCase select(config_, 600);
  // A large negative product with a negative weight would win without the ReLU.
  std::ranges::fill(select.idx_q, int8_t{0});
  select.idx_q[0] = 100;
  select.weights[0] = -1.0F;
  select.idx_q[kIndexDim + 1] = 100;
  select.weights[1] = 1.0F;
  for (int64_t row = 0; row < 600; ++row) {
    std::ranges::fill(select.world().IndexRow(0, row), int8_t{0});
    select.world().IndexScale(0, row) = 1.0F;
  }
  select.world().IndexRow(0, 10)[0] = -128;  // product -12800, weight -1
  select.world().IndexRow(0, 20)[1] = 3;     // product 300, weight 1
  select.world().IndexScale(0, 30) = NAN;
  select.Run(context_, 512);
  EXPECT_EQ(select.topk_idx[0], 20);
  EXPECT_EQ(select.topk_score[0], 300.0F);
  EXPECT_EQ(select.topk_idx[1], 0);  // then all equal, by index
  EXPECT_EQ(select.topk_idx[2], 1);
  EXPECT_EQ(std::ranges::count(select.topk_idx, 30), 0);
  EXPECT_EQ(select.topk_idx, select.Expected(512).idx);
  select.Run(context_, 700);
  EXPECT_EQ(select.topk_idx[599], 30);  // NaN comes last, before the padding
  EXPECT_EQ(select.topk_idx[600], -1);
  EXPECT_EQ(select.topk_score[699], -FLT_MAX);
}

TEST_F(CsaTest, EveryScaleOfAPageIsItsOwn) {
  SelectCase select(config_, 64);
  select.UnitQuery();
  for (int64_t row = 0; row < 64; ++row) {
    select.SetScore(row, std::pow(10.0F, static_cast<float>(row % 32) / 31 * 6 - 3));
  }
  select.Run(context_, 512);
  EXPECT_EQ(select.topk_idx, select.Expected(512).idx);
  EXPECT_EQ(select.topk_score, select.Expected(512).score);
}

TEST_F(CsaTest, ALeafTakenOutOfThePlanIsMissing) {
  SelectCase select(config_, 7 * 2048 + 100);
  select.UnitQuery();
  for (int64_t row = 0; row < 7 * 2048 + 100; ++row) {
    select.SetScore(row, static_cast<float>((row * 7919) % 100'003));
  }
  select.Plan();
  PackedWork& work = select.plan->state()->work;
  ASSERT_EQ(work.leaves.size(), 8U);
  ASSERT_EQ(work.merges.size(), 7U);
  const reference::Selection whole = select.Expected(512);
  // Without leaf 3 the others are paired anew: 0-1 2-4 5-6 7, and so on.
  work.leaves.erase(work.leaves.begin() + 3);
  work.leaf_offsets.back() -= 1;
  work.merges = {{0, 1}, {2, 3}, {4, 5}, {0, 2}, {4, 6}, {0, 4}};
  work.merge_offsets.back() -= 1;
  select.Run(context_, 512);
  for (int64_t row = 3 * 2048; row < 4 * 2048; ++row) select.SetScore(row, -1e9F);
  EXPECT_EQ(select.topk_idx, select.Expected(512).idx);
  EXPECT_NE(select.topk_idx, whole.idx);
}

TEST_F(CsaTest, HistoryAppendedByManyStepsIsSelectable) {
  DecodeWorld world(config_, kKind);
  world.Add(0, 0);
  for (const int64_t n : {2048, 1945, 1, 8}) {
    const EntryResult result = world.Step(context_, {{.id = 0, .num_tokens = n}}).at(0);
    ExpectGoldenStages(world, result, RuleProfile::kTiny, {0, n / 2, n - 1});
  }
}

TEST_F(CsaTest, AGivenSelectionGivesTheBitsOfTheRunItCameFrom) {
  for (const int64_t start : {3, 1000, 9000}) {
    SCOPED_TRACE(start);
    DecodeWorld chosen(config_, kKind);
    DecodeWorld given(config_, kKind);
    chosen.Add(0, start);
    given.Add(0, start);
    const EntryResult expected = chosen.Step(context_, {{.id = 0, .num_tokens = 5}}).at(0);
    given.selections[0] = expected.topk_idx;
    context_.Reset();
    EXPECT_TRUE(SameBits(given.Step(context_, {{.id = 0, .num_tokens = 5}}).at(0), expected));
    EXPECT_EQ(context_.counters().leaves, 0);  // the indexer did not run
  }
}

TEST_F(CsaTest, SelectionsThatAreNotOnesAreRefused) {
  const auto refused = [&](const std::function<void(std::vector<int32_t>&)>& spoil) {
    DecodeWorld world(config_, kKind);
    world.Add(0, 100);  // 25 visible rows
    std::vector<int32_t> selection(512, -1);
    std::iota(selection.begin(), selection.begin() + 25, 0);
    spoil(selection);
    world.selections[0] = selection;
    try {
      world.Step(context_, {{.id = 0}});
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refused([](std::vector<int32_t>&) {}), "");
  EXPECT_NE(refused([](auto& s) { s[24] = 25; }).find("selection[0][24]"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s[3] = -1; }).find("selection[0][3]"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s[7] = 3; }).find("selection[0][7]"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s[25] = 4; }).find("selection[0][25]"), std::string::npos);
  EXPECT_NE(refused([](auto& s) { s[0] = 1 << 30; }).find("25 distinct rows in 0 to 24"),
            std::string::npos);
}

// --- Work and memory -----------------------------------------------------------------------------

TEST_F(CsaTest, CountersEqualThePlan) {
  DecodeWorld world(config_, kKind);
  world.Add(0, 2);
  world.Add(1, 16383);
  world.Add(2, 500'000);
  std::vector<StepRequest> step;
  for (const int64_t id : {0, 1, 2}) {
    world.Prepare(id, 3);
    step.push_back(
        {.start_pos = world.position(id), .num_tokens = 3, .request = &world.request(id)});
  }
  // The plan itself is gone before the step makes its own.
  const PackedWork work = Plan::Create(config_, kKind, 1, world.spaces(), step).value().work();
  world.Step(context_,
             {{.id = 0, .num_tokens = 3}, {.id = 1, .num_tokens = 3}, {.id = 2, .num_tokens = 3}});
  const WorkCounters counters = context_.counters();
  EXPECT_EQ(counters.leaves, static_cast<int64_t>(work.leaves.size()));
  EXPECT_EQ(counters.merges, static_cast<int64_t>(work.merges.size()));
  EXPECT_EQ(counters.candidates, work.compressed_rows);
  EXPECT_EQ(counters.events, static_cast<int64_t>(work.events.size()));
  EXPECT_EQ(counters.window_rows, work.window_rows);
}

TEST_F(CsaTest, TheIndexerHoldsAtMostEightMebibytesAThread) {
  for (const ModelConfig& config :
       {ModelConfig::Tiny(), ModelConfig::Flash(), ModelConfig::Pro()}) {
    for (const int64_t k : {int64_t{1}, int64_t{config.index_topk}, kMaxTopK}) {
      EXPECT_LE(SelectScratchBytes(config, k, 1), int64_t{8} << 20);
      EXPECT_LE(SelectScratchBytes(config, k, 4), int64_t{32} << 20);
    }
  }
}

}  // namespace
}  // namespace millipede
