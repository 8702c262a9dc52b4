// The promise of determinism: a token's outputs are the same bits alone or in any batch, for any
// step width, executor, thread count and page placement.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/decode_world.h"
#include "support/executors.h"

namespace millipede {
namespace {

using testing::AllExecutors;
using testing::DecodeWorld;
using testing::EntryResult;
using testing::NamedExecutor;
using testing::SameBits;
using testing::StepEntry;

// Ring rollovers, page boundaries, short and long histories.
const std::vector<int64_t> kStarts = {0,   1,   31,  32,  63,  120,   126,    127,
                                      128, 129, 255, 256, 300, 16384, 524288, 1048560};

// The same with CSA histories that are quick to make; csa_million_test.cc goes to the end.
std::vector<int64_t> StartsOf(AttentionKind kind) {
  std::vector<int64_t> starts = kStarts;
  for (int64_t& start : starts) {
    if (kind == AttentionKind::kCsa && start > 20'000) start = 20'000 + start % 1000;
  }
  return starts;
}

class BitsTest : public ::testing::TestWithParam<AttentionKind> {
 protected:
  std::unique_ptr<Executor> serial_ = MakeSerialExecutor();
  Context context_{*serial_};
  ModelConfig config_ = ModelConfig::Tiny();
};

TEST_P(BitsTest, SoloEqualsBatch) {
  DecodeWorld batch(config_, GetParam());
  std::vector<StepEntry> entries;
  const std::vector<int64_t> starts = StartsOf(GetParam());
  for (size_t i = 0; i < starts.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    batch.Add(id, starts[i]);
    entries.push_back({.id = id, .num_tokens = 1 + id % 9});
  }
  const std::map<int64_t, EntryResult> together = batch.Step(context_, entries);
  for (const StepEntry& entry : entries) {
    SCOPED_TRACE(entry.id);
    DecodeWorld solo(config_, GetParam());
    solo.Add(entry.id, starts[static_cast<size_t>(entry.id)]);
    const EntryResult alone = solo.Step(context_, {entry}).at(entry.id);
    EXPECT_TRUE(SameBits(alone, together.at(entry.id)));
    for (const float value : alone.x_out) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_P(BitsTest, OneStepOfEightEqualsEightStepsOfOne) {
  for (const int64_t start : StartsOf(GetParam())) {
    SCOPED_TRACE(start);
    DecodeWorld wide(config_, GetParam());
    DecodeWorld narrow(config_, GetParam());
    wide.Add(3, start);
    narrow.Add(3, start);
    EXPECT_TRUE(SameBits(wide.Decode(context_, 3, 16, 8), narrow.Decode(context_, 3, 16, 1)));
    // The rings too, for the positions both hold.
    const int64_t end = start + 16;
    ASSERT_EQ(wide.position(3), end);
    for (int64_t p = std::max<int64_t>(0, end - kWindowRows); p < end; ++p) {
      const auto a = wide.RawRow(3, p);
      const auto b = narrow.RawRow(3, p);
      ASSERT_TRUE(
          SameBits(std::vector<Bf16>(a.begin(), a.end()), std::vector<Bf16>(b.begin(), b.end())))
          << p;
    }
  }
}

TEST_P(BitsTest, AnyStepWidthEvenWiderThanTheRing) {
  DecodeWorld narrow(config_, GetParam());
  narrow.Add(1, 90);
  const EntryResult expected = narrow.Decode(context_, 1, 180, 1);
  for (const int64_t width : {3, 33, 128, 129, 180}) {
    SCOPED_TRACE(width);
    DecodeWorld wide(config_, GetParam());
    wide.Add(1, 90);
    EXPECT_TRUE(SameBits(wide.Decode(context_, 1, 180, width), expected));
    // And on from what the wide steps left in the ring.
    DecodeWorld on(config_, GetParam());
    on.Add(1, 90);
    on.Decode(context_, 1, 170, width);
    const EntryResult rest = on.Decode(context_, 1, 10, 4);
    EXPECT_TRUE(std::equal(rest.x_out.begin(), rest.x_out.end(),
                           expected.x_out.end() - static_cast<int64_t>(rest.x_out.size())));
  }
}

TEST_P(BitsTest, AnyExecutorAndThreadCount) {
  const std::vector<StepEntry> entries = {
      {.id = 0, .num_tokens = 8}, {.id = 1, .num_tokens = 1}, {.id = 2, .num_tokens = 70}};
  std::map<int64_t, EntryResult> expected;
  for (const NamedExecutor& named : AllExecutors()) {
    SCOPED_TRACE(named.name);
    Context context(*named.executor);
    DecodeWorld world(config_, GetParam());
    world.Add(0, 300);
    world.Add(1, 5);
    world.Add(2, 120);
    const std::map<int64_t, EntryResult> results = world.Step(context, entries);
    if (expected.empty()) {
      expected = results;
      continue;
    }
    for (const auto& [id, result] : results) EXPECT_TRUE(SameBits(result, expected.at(id))) << id;
  }
}

TEST_P(BitsTest, AnyPagePlacement) {
  DecodeWorld plain(config_, GetParam());
  plain.Add(2, 4000);
  const EntryResult expected = plain.Decode(context_, 2, 140, 8);
  for (const int32_t shift : {1, 5, 77}) {
    SCOPED_TRACE(shift);
    DecodeWorld moved(config_, GetParam(), 256, shift);
    // Others come and go first, so that the free pages are no longer in order.
    for (int64_t id = 10; id < 20; ++id) moved.Add(id, 3 * id);
    for (const int64_t id : {11, 18, 14, 10, 17}) moved.Remove(id);
    moved.Add(2, 4000);
    EXPECT_TRUE(SameBits(moved.Decode(context_, 2, 140, 8), expected));
  }
}

TEST_P(BitsTest, AnyBatchOrderWithRequestsJoiningAndLeaving) {
  DecodeWorld world(config_, GetParam());
  std::map<int64_t, EntryResult> joined;
  std::map<int64_t, int64_t> starts = {{0, 3}, {1, 100}, {2, 129}, {3, 2051}, {4, 5000}};
  const auto step = [&](const std::vector<StepEntry>& entries) {
    for (auto& [id, part] : world.Step(context_, entries)) {
      EntryResult& all = joined[id];
      all.x_out.insert(all.x_out.end(), part.x_out.begin(), part.x_out.end());
    }
  };
  for (const auto& [id, start] : starts) world.Add(id, start);
  step({{.id = 0, .num_tokens = 2}, {.id = 1, .num_tokens = 8}, {.id = 2}});
  step({{.id = 2, .num_tokens = 3}, {.id = 4, .num_tokens = 5}, {.id = 0}, {.id = 1}});
  world.Remove(1);
  step({{.id = 4}, {.id = 3, .num_tokens = 33}, {.id = 0, .num_tokens = 4, .active = false}});
  step({{.id = 3}, {.id = 0, .num_tokens = 9}, {.id = 2}, {.id = 4, .num_tokens = 2}});
  for (const auto& [id, result] : joined) {
    SCOPED_TRACE(id);
    DecodeWorld solo(config_, GetParam());
    solo.Add(id, starts.at(id));
    const auto total = static_cast<int64_t>(result.x_out.size()) / (4 * config_.hidden);
    EXPECT_TRUE(SameBits(solo.Decode(context_, id, total, 1).x_out, result.x_out));
  }
}

TEST_P(BitsTest, MixedLengthsInEveryRotation) {
  std::vector<int64_t> lengths = {3, 100, 129, 2051, 5000, 16384, 131072, 300000};
  if (GetParam() == AttentionKind::kCsa) lengths.resize(6);
  std::map<int64_t, EntryResult> expected;
  for (size_t i = 0; i < lengths.size(); ++i) {
    DecodeWorld solo(config_, GetParam());
    solo.Add(static_cast<int64_t>(i), lengths[i]);
    expected[static_cast<int64_t>(i)] = solo.Decode(context_, static_cast<int64_t>(i), 2, 2);
  }
  for (size_t rotation = 0; rotation < lengths.size(); ++rotation) {
    SCOPED_TRACE(rotation);
    DecodeWorld world(config_, GetParam());
    std::vector<StepEntry> entries;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const size_t which = (i + rotation) % lengths.size();
      world.Add(static_cast<int64_t>(which), lengths[which]);
      entries.push_back({.id = static_cast<int64_t>(which), .num_tokens = 2});
    }
    for (const auto& [id, result] : world.Step(context_, entries)) {
      EXPECT_TRUE(SameBits(result, expected.at(id))) << id;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, BitsTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         testing::KindTestName);

}  // namespace
}  // namespace millipede
