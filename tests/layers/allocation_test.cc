// A step allocates nothing: whatever run needs lies in the workspace, the overlay and the plan.
#include <gtest/gtest.h>

#include "support/decode_world.h"
#include "support/failing_new.h"

namespace millipede {
namespace {

class AllocationTest : public ::testing::TestWithParam<AttentionKind> {};

// Requests with events, with compressed rows enough to be split among threads, and with none; the
// context has seen a step like it, as its books grow with the requests of a step.
TEST_P(AllocationTest, RunOfASecondStepAllocatesNothing) {
  const std::unique_ptr<Executor> executor = MakeThreadExecutor(3).value();
  Context context(*executor);
  testing::DecodeWorld world(ModelConfig::Tiny(), GetParam());
  for (const int64_t start : {0, 126, 3000, 300'000}) world.Add(start, start);
  const std::vector<testing::StepEntry> entries = {{.id = 0, .num_tokens = 9},
                                                   {.id = 126, .num_tokens = 1},
                                                   {.id = 3000, .num_tokens = 5},
                                                   {.id = 300'000, .num_tokens = 2}};
  int64_t in_run = -1;
  world.run_layer = [&](Context& of_step, const Plan& plan, const LayerPools& pools,
                        const StepTensors& tensors, std::span<std::byte> workspace,
                        std::span<std::byte> overlay, const StepActivations& activations) {
    const int64_t before = testing::NumAllocations();
    Status status =
        world.layer().Run(of_step, plan, 0, pools, tensors, workspace, overlay, activations);
    in_run = testing::NumAllocations() - before;
    return status;
  };
  world.Step(context, entries);
  EXPECT_GT(in_run, 0);  // the books: what counts here does count
  world.Step(context, entries);
  EXPECT_EQ(in_run, 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, AllocationTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         testing::KindTestName);

}  // namespace
}  // namespace millipede
