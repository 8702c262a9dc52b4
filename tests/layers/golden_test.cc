// The SWA layer against the golden reference, on the tiny preset.
#include <gtest/gtest.h>

#include <cmath>

#include "support/decode_world.h"
#include "support/golden_check.h"

namespace millipede {
namespace {

using reference::RuleProfile;
using testing::DecodeWorld;
using testing::EntryResult;
using testing::ExpectGoldenStages;
using testing::StepEntry;

class GoldenTest : public ::testing::TestWithParam<AttentionKind> {
 protected:
  void Check(DecodeWorld& world, const EntryResult& result) {
    ExpectGoldenStages(world, result, RuleProfile::kTiny);
  }
  std::unique_ptr<Executor> executor_ = MakeThreadExecutor(2).value();
  Context context_{*executor_};
  ModelConfig config_ = ModelConfig::Tiny();
};

TEST_P(GoldenTest, ShortHistoriesAloneAndInOneBatch) {
  const std::vector<int64_t> starts = {0, 1, 2, 3, 31, 32, 63, 126, 127};
  DecodeWorld batch(config_, GetParam());
  std::vector<StepEntry> entries;
  for (size_t i = 0; i < starts.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    SCOPED_TRACE(starts[i]);
    DecodeWorld solo(config_, GetParam());
    solo.Add(id, starts[i]);
    Check(solo, solo.Step(context_, {{.id = id}}).at(id));
    batch.Add(id, starts[i]);
    entries.push_back({.id = id});
  }
  for (const auto& [id, result] : batch.Step(context_, entries)) {
    SCOPED_TRACE(starts[static_cast<size_t>(id)]);
    Check(batch, result);
  }
}

TEST_P(GoldenTest, MixedStepsAnywhereInTheContext) {
  DecodeWorld world(config_, GetParam());
  std::vector<int64_t> starts = {120, 127, 255, 300, 4000, 16384, 524288, 1048560};
  if (GetParam() == AttentionKind::kCsa) starts = {120, 127, 255, 300, 4000, 9001, 16384};
  std::vector<StepEntry> entries;
  for (size_t i = 0; i < starts.size(); ++i) {
    const auto id = static_cast<int64_t>(i);
    world.Add(id, starts[i]);
    entries.push_back({.id = id, .num_tokens = id % 3 == 0 ? 8 : 1 + id});
  }
  for (int step = 0; step < 2; ++step) {
    for (const auto& [id, result] : world.Step(context_, entries)) {
      SCOPED_TRACE(result.start_pos);
      Check(world, result);
    }
    if (entries.size() == 8) entries.pop_back();  // the last request is at the ceiling
  }
}

TEST_P(GoldenTest, WideStep) {
  DecodeWorld world(config_, GetParam());
  world.Add(0, 100);
  Check(world, world.Step(context_, {{.id = 0, .num_tokens = 200}}).at(0));
}

TEST_P(GoldenTest, ZeroSubnormalAndSmallInputs) {
  for (const float factor : {0.0F, 1e-40F, 1e-20F}) {
    SCOPED_TRACE(factor);
    DecodeWorld world(config_, GetParam());
    world.edit_x = [factor](int64_t, int64_t, std::span<float> row) {
      for (float& value : row) value *= factor;
    };
    world.Add(0, 40);
    Check(world, world.Step(context_, {{.id = 0, .num_tokens = 3}}).at(0));
  }
}

TEST_P(GoldenTest, HugeInputsStayFinite) {
  DecodeWorld world(config_, GetParam());
  world.edit_x = [](int64_t, int64_t, std::span<float> row) {
    for (float& value : row) value *= 1e15F;
  };
  world.Add(0, 40);
  const EntryResult result = world.Step(context_, {{.id = 0, .num_tokens = 3}}).at(0);
  for (const float value : result.x_out) ASSERT_TRUE(std::isfinite(value));
}

TEST_P(GoldenTest, OddShapes) {
  ModelConfig config = config_;
  config.hidden = 72;
  config.num_heads = 9;
  config.o_groups = 3;
  config.q_rank = 33;
  config.o_rank = 7;
  ASSERT_TRUE(Validate(config));
  DecodeWorld world(config, GetParam());
  world.Add(0, 130);
  world.Add(1, 5);
  for (const auto& [id, result] :
       world.Step(context_, {{.id = 0, .num_tokens = 9}, {.id = 1, .num_tokens = 2}})) {
    SCOPED_TRACE(id);
    ExpectGoldenStages(world, result, RuleProfile::kTiny);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GoldenTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         testing::KindTestName);

}  // namespace
}  // namespace millipede
