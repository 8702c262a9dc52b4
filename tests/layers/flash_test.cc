// One golden-checked step of each big preset.
#include <gtest/gtest.h>

#include "support/decode_world.h"
#include "support/golden_check.h"

namespace millipede {
namespace {

using reference::RuleProfile;
using testing::DecodeWorld;
using testing::ExpectGoldenStages;

void CheckStep(const ModelConfig& config, AttentionKind kind) {
  const auto executor = MakeTbbExecutor(2).value();
  Context context(*executor);
  DecodeWorld world(config, kind, 64);
  world.Add(0, 5);
  world.Add(1, 1048571);
  const auto results =
      world.Step(context, {{.id = 0, .num_tokens = 1}, {.id = 1, .num_tokens = 2}});
  for (const auto& [id, result] : results) {
    SCOPED_TRACE(id);
    ExpectGoldenStages(world, result, RuleProfile::kStandard);
  }
}

class BigPresetTest : public ::testing::TestWithParam<AttentionKind> {};

TEST_P(BigPresetTest, FlashStepMatchesTheGolden) { CheckStep(ModelConfig::Flash(), GetParam()); }

TEST_P(BigPresetTest, ProStepMatchesTheGolden) { CheckStep(ModelConfig::Pro(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Kinds, BigPresetTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         testing::KindTestName);

}  // namespace
}  // namespace millipede
