// What is HCA's own: compressed rows and their shards, from none to 64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "plan/plan_state.h"
#include "support/decode_world.h"
#include "support/executors.h"
#include "support/golden_check.h"

namespace millipede {
namespace {

using reference::RuleProfile;
using testing::AlignedBytes;
using testing::AllExecutors;
using testing::DecodeWorld;
using testing::EntryResult;
using testing::ExpectGoldenStages;
using testing::NamedExecutor;
using testing::SameBits;
using testing::StepEntry;

constexpr AttentionKind kKind = AttentionKind::kHca;
constexpr Bf16 kHuge = {0x7149};  // about 1e30

class HcaTest : public ::testing::Test {
 protected:
  std::unique_ptr<Executor> serial_ = MakeSerialExecutor();
  Context context_{*serial_};
  ModelConfig config_ = ModelConfig::Tiny();
};

TEST_F(HcaTest, RowCountsAroundEveryTail) {
  for (const int64_t rows : {0, 1, 2, 127, 128, 129, 256, 4100, 8000, 8191}) {
    SCOPED_TRACE(rows);
    DecodeWorld world(config_, kKind);
    world.Add(0, rows * kHcaRatio + 5);
    const EntryResult result = world.Step(context_, {{.id = 0}}).at(0);
    ExpectGoldenStages(world, result, RuleProfile::kTiny);
    EXPECT_EQ(context_.counters(0).compressed_rows, rows);
    EXPECT_EQ(context_.counters(0).shards, (rows + 127) / 128);
    context_.Reset();
  }
}

TEST_F(HcaTest, TheLastTokensBeforeAMillionGetTheLastRow) {
  DecodeWorld world(config_, kKind);
  world.Add(0, kMaxContextTokens - 8);
  const EntryResult result = world.Step(context_, {{.id = 0, .num_tokens = 8}}).at(0);
  ASSERT_EQ(result.event_rows, std::vector<int64_t>{8191});
  ExpectGoldenStages(world, result, RuleProfile::kTiny, {0, 6, 7});
  // Seven tokens see 8,191 rows, the one that finished the last block 8,192.
  EXPECT_EQ(context_.counters(0).compressed_rows, 7 * 8191 + 8192);
}

TEST_F(HcaTest, WorkFollowsEachRequestAndCountersEqualThePlan) {
  DecodeWorld world(config_, kKind);
  world.Add(0, 128);
  world.Add(1, 999'999);
  const StepRequest step[] = {
      {.start_pos = 128, .num_tokens = 1, .request = &world.request(0)},
      {.start_pos = 999'999, .num_tokens = 1, .request = &world.request(1)}};
  // The plan itself is gone before the step makes its own.
  const PackedWork work = Plan::Create(config_, kKind, 1, world.spaces(), step).value().work();
  EXPECT_EQ(work.compressed_rows, 1 + 7812);
  world.Step(context_, {{.id = 0}, {.id = 1}});
  EXPECT_EQ(context_.counters(0).compressed_rows, 1);
  EXPECT_EQ(context_.counters(1).compressed_rows, 7812);
  EXPECT_EQ(context_.counters().compressed_rows, work.compressed_rows);
  EXPECT_EQ(context_.counters().shards, static_cast<int64_t>(work.shards.size()));
  EXPECT_EQ(context_.counters().window_rows, work.window_rows);
}

TEST_F(HcaTest, ALoneLongRequestIsTheSameBitsOnAnyThreads) {
  std::vector<EntryResult> results;
  for (const NamedExecutor& named : AllExecutors(8)) {
    SCOPED_TRACE(named.name);
    Context context(*named.executor);
    DecodeWorld world(config_, kKind);
    world.Add(0, 300'000);
    world.Add(1, 20);
    results.push_back(world.Step(context, {{.id = 0, .num_tokens = 3}, {.id = 1}}).at(0));
    EXPECT_TRUE(SameBits(results.back(), results.front()));
    EXPECT_EQ(context.counters(0).shards, 3 * 19);
  }
}

TEST_F(HcaTest, AnUnfinishedRowIsNotSeenAndAFinishedOneIsByItsOwnToken) {
  for (const int64_t finisher : {383, 1'048'447}) {
    SCOPED_TRACE(finisher);
    const int64_t row = finisher / kHcaRatio;
    // Tokens before the one that finishes the row do not see what its slot holds.
    for (const int64_t token : {finisher - 83, finisher - 1}) {
      DecodeWorld plain(config_, kKind);
      DecodeWorld spoiled(config_, kKind);
      plain.Add(0, token);
      spoiled.Add(0, token);
      spoiled.Prepare(0, kHcaRatio);
      std::ranges::fill(spoiled.MainRow(0, row), kHuge);
      EXPECT_TRUE(SameBits(plain.Step(context_, {{.id = 0}}).at(0),
                           spoiled.Step(context_, {{.id = 0}}).at(0)));
    }
    // The one that does sees it, in a step of its own and amid others.
    for (const int64_t start : {finisher, finisher - 3}) {
      DecodeWorld world(config_, kKind);
      world.Add(0, start);
      const int64_t n = finisher - start + 2;
      context_.Reset();
      const EntryResult result = world.Step(context_, {{.id = 0, .num_tokens = n}}).at(0);
      EXPECT_EQ(context_.counters(0).compressed_rows, (n - 2) * row + 2 * (row + 1));
      ExpectGoldenStages(world, result, RuleProfile::kTiny);
    }
  }
}

TEST_F(HcaTest, ARowTurnsByItsBlocksFirstPosition) {
  DecodeWorld world(config_, kKind);
  world.Add(0, 383);
  const StepRequest step[] = {{.start_pos = 383, .num_tokens = 1, .request = &world.request(0)}};
  world.Prepare(0, 1);
  const Plan plan = Plan::Create(config_, kKind, 1, world.spaces(), step).value();
  ASSERT_EQ(plan.work().events.size(), 1U);
  EXPECT_EQ(plan.work().events[0].rope_position, 256);
  EXPECT_EQ(plan.work().events[0].row, 2);
}

TEST_F(HcaTest, EmittedRowsDoNotDependOnStepWidth) {
  DecodeWorld one(config_, kKind);
  one.Add(0, 100);
  const EntryResult expected = one.Decode(context_, 0, 300, 1);
  EXPECT_EQ(expected.cmp_rows.size(), size_t{3} * kHeadDim);
  for (const int64_t width : {4, 7, 8, 130, 300}) {
    SCOPED_TRACE(width);
    DecodeWorld world(config_, kKind);
    world.Add(0, 100);
    EXPECT_TRUE(SameBits(world.Decode(context_, 0, 300, width), expected));
  }
}

// A query's attention with one shard taken out of its plan is the golden's without those rows.
TEST_F(HcaTest, AShardTakenOutOfThePlanIsMissing) {
  constexpr int64_t kStart = 12 * 128 * 128 + 77;  // 12 shards
  for (const int64_t removed : {0, 5, 11}) {
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(std::to_string(removed) + " on " + std::to_string(threads));
      const auto executor = MakeThreadExecutor(threads).value();
      Context context(*executor);
      DecodeWorld world(config_, kKind);
      world.Add(0, kStart);
      const StepRequest step[] = {
          {.start_pos = kStart, .num_tokens = 1, .request = &world.request(0)}};
      const Plan plan = Plan::Create(config_, kKind, 1, world.spaces(), step).value();
      PackedWork& work = plan.state()->work;
      ASSERT_EQ(work.shards.size(), 12U);
      work.shards.erase(work.shards.begin() + removed);
      work.shard_offsets.back() -= 1;

      const int64_t head_width = int64_t{config_.num_heads} * kHeadDim;
      std::vector<Bf16> q(static_cast<size_t>(head_width));
      std::vector<Bf16> heads(q.size());
      const fixtures::RequestFixture data(config_, world.seed(), 0);
      data.Heads(0, q);
      std::vector<Bf16> kv(kHeadDim);
      data.KvRow(kStart, kv);
      const std::vector<float> cos(kRopePairs, 1.0F);
      const std::vector<float> sin(kRopePairs, 0.0F);
      AlignedBytes scratch(StageScratchBytes(config_, 1, threads));
      const AttendInputs inputs = {
          .q = MakeView<const Bf16>(q.data(), 1, config_.num_heads, kHeadDim),
          .sink = MakeView<const float>(world.fixture().attn_sink.data(), config_.num_heads),
          .rope = {MakeView(cos.data(), 1, kRopePairs), MakeView(sin.data(), 1, kRopePairs)},
          .raw = world.pools().raw,
          .new_kv = MakeView<const Bf16>(kv.data(), 1, kHeadDim),
          .main = world.pools().main};
      ASSERT_TRUE(Attend(context, config_, plan, inputs,
                         {.heads = MakeView(heads.data(), 1, config_.num_heads, kHeadDim)},
                         scratch.span()));

      std::vector<const Bf16*> window;
      for (int64_t p = kStart - 127; p < kStart; ++p) window.push_back(world.RawRow(0, p).data());
      window.push_back(kv.data());
      const reference::Golden golden(config_, kKind, world.fixture().views());
      const auto expected = [&](int64_t without) {
        std::vector<const Bf16*> rows;
        for (int64_t row = 0; row < 12 * 128; ++row) {
          if (row / 128 != without) rows.push_back(world.MainRow(0, row).data());
        }
        return golden.Attend(q, window, rows, reference::RopeRowOf(inputs.rope, 0)).heads;
      };
      const reference::Verdict missing = reference::JudgeHeads(heads, expected(removed));
      EXPECT_TRUE(missing.ok) << missing.text;
      EXPECT_FALSE(reference::JudgeHeads(heads, expected(-1)).ok);
    }
  }
}

TEST_F(HcaTest, ManyQueriesAtAMillionStayWithinTheWorkspaceOfOneThread) {
  DecodeWorld world(config_, kKind);
  world.Add(0, kMaxContextTokens - 512);
  const EntryResult result =
      world.Step(context_, {{.id = 0, .num_tokens = 512}}).at(0);  // NaN-filled, exact workspace
  ExpectGoldenStages(world, result, RuleProfile::kTiny, {0, 255, 511});
  EXPECT_EQ(result.event_rows.size(), 4U);
}

TEST_F(HcaTest, ScratchOfAttentionDoesNotGrowWithContextOrTokens) {
  const auto workspace = [&](int64_t start, int64_t num_tokens, int threads) {
    DecodeWorld world(config_, kKind);
    world.Add(0, start);
    world.Prepare(0, num_tokens);
    const StepRequest step[] = {
        {.start_pos = start, .num_tokens = num_tokens, .request = &world.request(0)}};
    return Plan::Create(config_, kKind, 1, world.spaces(), step).value().workspace_bytes(threads);
  };
  EXPECT_EQ(workspace(0, 1, 2), workspace(1'048'000, 1, 2));
  EXPECT_EQ(workspace(0, 64, 2), workspace(1'048'000, 64, 2));
  const int64_t per_token = (workspace(0, 1024, 1) - workspace(0, 512, 1)) / 512;
  EXPECT_LT(per_token, 64 * 1024);  // activations of tiny, not partials of 64 shards
}

}  // namespace
}  // namespace millipede
