// The life of requests that decode: forks and marks, rewinds, recycled pages, spaces that run out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "layers/accept_matrix.h"
#include "support/decode_world.h"

namespace millipede::testing {
namespace {

constexpr int64_t kId = 5;  // the request of SerialTruth

class LifeTest : public ::testing::TestWithParam<AttentionKind> {
 protected:
  // Bytes of all the pools that a step of the kind may write, one after another.
  std::vector<std::byte> Rings(DecodeWorld& world) const {
    std::vector<std::byte> bytes;
    std::vector<PoolKind> pools = {PoolKind::kRaw};
    if (GetParam() == AttentionKind::kHca) pools.push_back(PoolKind::kHcaState);
    if (GetParam() == AttentionKind::kCsa) {
      pools.insert(pools.end(), {PoolKind::kCsaState, PoolKind::kCsaInnerState});
    }
    for (const PoolKind pool : pools) {
      const std::span<std::byte> of_pool = world.Bytes(pool);
      bytes.insert(bytes.end(), of_pool.begin(), of_pool.end());
    }
    return bytes;
  }

  std::unique_ptr<Executor> serial_ = MakeSerialExecutor();
  Context context_{*serial_};
  ModelConfig config_ = ModelConfig::Tiny();
};

TEST_P(LifeTest, ForksAtMarksAndAtThePresentEqualTheirPrefix) {
  const SerialTruth truth(GetParam(), 200, 130);
  DecodeWorld world(config_, GetParam());
  world.Add(kId, 200);
  Request& parent = world.request(kId);
  world.Decode(context_, kId, 57, 8);
  const auto at_257 = parent.Mark(world.request_pools());
  ASSERT_TRUE(at_257) << at_257.error().message;
  world.Decode(context_, kId, 42, 5);
  const auto at_299 = parent.Mark(world.request_pools());
  ASSERT_TRUE(at_299);
  world.Decode(context_, kId, 1, 1);
  ASSERT_EQ(world.position(kId), 300);

  const auto refused = parent.Fork(258, world.request_pools());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("the nearest is at 257"), std::string::npos);

  const std::map<int64_t, int64_t> lengths = {{11, 257}, {12, 299}, {13, 300}};
  for (const auto& [id, length] : lengths) {
    auto child = parent.Fork(length, world.request_pools());
    ASSERT_TRUE(child) << child.error().message;
    world.Adopt(id, *std::move(child), kId);
    truth.ExpectSameCaches(world, id);
  }
  // One child goes a way of its own, and writes more than a ring.
  world.edit_x = [](int64_t id, int64_t, std::span<float> row) {
    if (id == 11) std::ranges::reverse(row);
  };
  world.Step(context_, {{.id = 11, .num_tokens = 150}});
  for (const int64_t id : {kId, int64_t{12}, int64_t{13}}) {
    SCOPED_TRACE(id);
    truth.ExpectSameCaches(world, id);
  }
  // The others go on together, each as the one request would have.
  const auto results = world.Step(context_, {{.id = 13, .num_tokens = 9},
                                             {.id = kId, .num_tokens = 30},
                                             {.id = 12, .num_tokens = 31},
                                             {.id = 11, .num_tokens = 3}});
  for (const int64_t id : {kId, int64_t{12}, int64_t{13}}) {
    SCOPED_TRACE(id);
    truth.ExpectSameOutputs(results.at(id));
    truth.ExpectSameCaches(world, id);
  }
  // The marks are what they were.
  for (const RequestMark* mark : {&*at_257, &*at_299}) {
    world.Adopt(20 + mark->position(), std::move(*mark->Fork(world.request_pools())), kId);
    truth.ExpectSameCaches(world, 20 + mark->position());
  }
}

TEST_P(LifeTest, ForkOneTokenBackAtEveryPhase) {
  const SerialTruth truth(GetParam(), 120, 16);
  DecodeWorld world(config_, GetParam());
  world.Add(kId, 120);
  for (int64_t position = 121; position < 134; ++position) {
    SCOPED_TRACE(position);
    world.Step(context_, {{.id = kId}});
    auto child = world.request(kId).Fork(position - 1, world.request_pools());
    // What was imported is no longer than what a step needs.
    if (!child) {
      EXPECT_EQ(child.error().code, ErrorCode::kRangeMissingRows);
      EXPECT_EQ(world.request(kId).EarliestRewind(), position);
      continue;
    }
    world.Adopt(6, *std::move(child), kId);
    truth.ExpectSameOutputs(world.Step(context_, {{.id = 6, .num_tokens = 2}}).at(6));
    truth.ExpectSameCaches(world, kId);
    world.Remove(6);
  }
}

TEST_P(LifeTest, ARewoundRequestIsAsIfItHadNeverGoneFurther) {
  for (const int64_t start : {int64_t{0}, int64_t{250}}) {
    const SerialTruth truth(GetParam(), start, 30);
    for (int64_t ahead = 1; ahead <= 13; ++ahead) {
      SCOPED_TRACE(std::to_string(start) + " + " + std::to_string(ahead));
      DecodeWorld world(config_, GetParam());
      world.Add(kId, start);
      const int64_t end = start + 8 + ahead;
      world.edit_x = [&](int64_t, int64_t position, std::span<float> row) {
        if (position == end - 1) std::ranges::reverse(row);  // a wrong token
      };
      world.Decode(context_, kId, end - start, 3);
      const int64_t to = std::max(end - 1 - ahead % 4, world.request(kId).EarliestRewind());
      ASSERT_LT(to, end);
      ASSERT_TRUE(world.request(kId).Rewind(to));
      world.edit_x = nullptr;
      truth.ExpectSameOutputs(
          world.Step(context_, {{.id = kId, .num_tokens = start + 30 - to}}).at(kId));
      truth.ExpectSameCaches(world, kId);
    }
  }
}

TEST_P(LifeTest, RollingOneOfThreeBackLeavesTheOthersUnchanged) {
  const std::map<int64_t, int64_t> starts = {{1, 130}, {2, 300}, {3, 511}};
  DecodeWorld world(config_, GetParam());
  std::map<int64_t, EntryResult> expected;
  for (const auto& [id, start] : starts) {
    world.Add(id, start);
    DecodeWorld solo(config_, GetParam());
    solo.Add(id, start);
    solo.Decode(context_, id, 7, 7);
    expected[id] = solo.Decode(context_, id, 6, 6);
  }
  const auto all = [](int64_t n) {
    return std::vector<StepEntry>{
        {.id = 1, .num_tokens = n}, {.id = 2, .num_tokens = n}, {.id = 3, .num_tokens = n}};
  };
  world.Step(context_, all(7));
  world.edit_x = [](int64_t, int64_t, std::span<float> row) { std::ranges::reverse(row); };
  world.Step(context_, {{.id = 2}});
  world.edit_x = nullptr;
  const std::vector<std::byte> before = Rings(world);
  ASSERT_TRUE(world.request(2).Rewind(307));
  EXPECT_TRUE(SameBits(Rings(world), before));
  for (const auto& [id, result] : world.Step(context_, all(6))) {
    EXPECT_TRUE(SameBits(result, expected.at(id))) << id;
  }
}

TEST_P(LifeTest, ARecycledPageShowsNothingOfItsFormerOwner) {
  DecodeWorld fresh(config_, GetParam());
  fresh.Add(kId, 0);
  const EntryResult expected = fresh.Decode(context_, kId, 140, 7);

  // Room for one ring of state rows, or four of others.
  DecodeWorld world(config_, GetParam(), 16);
  const auto pages_of = [&](int64_t id) {
    std::set<int32_t> pages;
    for (const PageEntry& entry : world.request(id).pages(GetParam()).raw.pages) {
      pages.insert(entry.page);
    }
    return pages;
  };
  world.Add(1, 0);
  world.edit_x = [](int64_t, int64_t, std::span<float> row) {
    for (float& value : row) value = 1000.0F * value + 7.0F;
  };
  world.Decode(context_, 1, 300, 20);
  world.edit_x = nullptr;
  const std::set<int32_t> former = pages_of(1);
  world.Remove(1);
  world.Add(kId, 0);
  EXPECT_EQ(pages_of(kId), former);
  EXPECT_TRUE(SameBits(world.Decode(context_, kId, 140, 7), expected));
}

TEST_P(LifeTest, AfterASpaceRanOutTheNextStepWorks) {
  DecodeWorld solo(config_, GetParam());
  solo.Add(0, 100);
  const EntryResult expected = solo.Decode(context_, 0, 12, 6);
  DecodeWorld world(config_, GetParam(), 16);
  world.Add(0, 100);
  int64_t last = 0;
  EXPECT_THROW(
      {
        for (last = 1; last < 10; ++last) world.Add(last, 3);
      },
      std::runtime_error);
  const auto fork = world.request(0).Fork(100, world.request_pools());
  ASSERT_FALSE(fork);
  EXPECT_EQ(fork.error().code, ErrorCode::kOutOfPages);
  EXPECT_TRUE(SameBits(world.Decode(context_, 0, 12, 6), expected));
  for (int64_t id = 1; id < last; ++id) world.Remove(id);
  if (last > 1) world.Add(last, 3);
}

INSTANTIATE_TEST_SUITE_P(Kinds, LifeTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         KindTestName);

}  // namespace
}  // namespace millipede::testing
