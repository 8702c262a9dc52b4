// CSA at the far end of the context.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/decode_world.h"
#include "support/golden_check.h"
#include "support/select_case.h"

namespace millipede {
namespace {

using reference::RuleProfile;
using testing::DecodeWorld;
using testing::EntryResult;
using testing::ExpectGoldenStages;
using testing::SameBits;
using testing::SelectCase;

constexpr AttentionKind kKind = AttentionKind::kCsa;

class CsaMillionTest : public ::testing::Test {
 protected:
  std::unique_ptr<Executor> executor_ = MakeTbbExecutor(2).value();
  Context context_{*executor_};
  ModelConfig config_ = ModelConfig::Tiny();
};

TEST_F(CsaMillionTest, WinnersAnywhereAmongManyLeavesEqualAFullSort) {
  enum class Order { kAscending, kDescending, kEqual, kOnePerLeaf, kLastLeaf };
  for (const int64_t n : {8192, 32768, 131'071, 131'072, 131'073, 262'143, 262'144}) {
    SelectCase select(config_, n);
    select.UnitQuery();
    for (const Order order : {Order::kAscending, Order::kDescending, Order::kEqual,
                              Order::kOnePerLeaf, Order::kLastLeaf}) {
      SCOPED_TRACE(std::to_string(n) + " order " + std::to_string(static_cast<int>(order)));
      for (int64_t row = 0; row < n; ++row) {
        const auto value = static_cast<float>(row);
        float score = 0;
        if (order == Order::kAscending) score = value;
        if (order == Order::kDescending) score = -value;
        if (order == Order::kOnePerLeaf) score = row % 2048 == 77 ? 1e6F + value : -value;
        if (order == Order::kLastLeaf) score = row >= n - 600 ? 1e6F - value : -1.0F;
        select.SetScore(row, score);
      }
      const reference::Selection expected = select.Expected(512);
      const auto executor = MakeThreadExecutor(3).value();
      Context threads(*executor);
      for (Context* context : {&context_, &threads}) {
        select.Run(*context, 512);
        EXPECT_EQ(select.topk_idx, expected.idx);
        EXPECT_EQ(select.topk_score, expected.score);
      }
    }
  }
}

TEST_F(CsaMillionTest, TheRowAfterTheLastVisibleOneIsNotSeen) {
  constexpr int64_t kToken = 1'048'570;  // sees 262,142 rows; the next token finishes row 262,142
  constexpr int64_t kRow = kToken / kCsaRatio;
  DecodeWorld plain(config_, kKind);
  DecodeWorld spoiled(config_, kKind);
  plain.Add(0, kToken);
  spoiled.Add(0, kToken);
  spoiled.Prepare(0, kCsaRatio);
  std::ranges::fill(spoiled.MainRow(0, kRow), Bf16{0x7149});
  std::ranges::fill(spoiled.IndexRow(0, kRow), int8_t{127});
  spoiled.IndexScale(0, kRow) = 1e30F;
  EXPECT_TRUE(
      SameBits(plain.Step(context_, {{.id = 0}}).at(0), spoiled.Step(context_, {{.id = 0}}).at(0)));
  context_.Reset();
  const EntryResult next = plain.Step(context_, {{.id = 0, .num_tokens = 5}}).at(0);
  EXPECT_EQ(context_.counters(0).candidates, 4 * (kRow + 1) + (kRow + 2));
  ExpectGoldenStages(plain, next, RuleProfile::kTiny, {0, 4});
}

}  // namespace
}  // namespace millipede
