// Sizes follow the step, never the context or its ceiling.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "millipede/plan.h"
#include "pages/request_state.h"
#include "plan/plan_state.h"
#include "support/plan_fixture.h"

namespace millipede {
namespace {

using testing::EngineRequest;
using testing::EngineRing;
using testing::EngineSpace;
using testing::EngineSpaces;

constexpr auto kSwa = AttentionKind::kSwa;

Plan MakePlan(const EngineSpace& space, const EngineRing& ring, int64_t start, int64_t num_tokens,
              int64_t max_context_tokens = kMaxContextTokens) {
  ModelConfig config = ModelConfig::Flash();
  config.max_context_tokens = max_context_tokens;
  const std::vector<StepRequest> steps = {ring.Step(start, num_tokens)};
  auto plan = Plan::Create(config, kSwa, 2, space.spaces(), steps);
  EXPECT_TRUE(plan) << plan.error().message;
  return std::move(*plan);
}

void ExpectSameSizes(const Plan& a, const Plan& b) {
  const PackedWork& wa = a.work();
  const PackedWork& wb = b.work();
  EXPECT_EQ(wa.requests.size(), wb.requests.size());
  EXPECT_EQ(wa.requests.capacity(), wb.requests.capacity());
  EXPECT_EQ(wa.queries.size(), wb.queries.size());
  EXPECT_EQ(wa.queries.capacity(), wb.queries.capacity());
  EXPECT_EQ(wa.window_sources.size(), wb.window_sources.size());
  EXPECT_EQ(wa.window_sources.capacity(), wb.window_sources.capacity());
  EXPECT_EQ(a.state()->owners.size(), b.state()->owners.size());
  EXPECT_EQ(a.state()->owners.capacity(), b.state()->owners.capacity());
  EXPECT_EQ(a.state()->lists.size(), b.state()->lists.size());
  EXPECT_EQ(a.state()->lists.capacity(), b.state()->lists.capacity());
  for (size_t i = 0; i < a.state()->lists.size(); ++i) {
    EXPECT_EQ(a.state()->lists[i].epochs.size(), b.state()->lists[i].epochs.size());
    EXPECT_EQ(a.state()->lists[i].epochs.capacity(), b.state()->lists[i].epochs.capacity());
  }
  EXPECT_EQ(a.state()->progress.layers.size(), b.state()->progress.layers.size());
  EXPECT_EQ(a.state()->progress.accepted.size(), b.state()->progress.accepted.size());
  EXPECT_EQ(a.state()->num_raw_pages, b.state()->num_raw_pages);
  EXPECT_EQ(a.overlay_bytes(), b.overlay_bytes());
  for (const int num_threads : {1, 4, 64}) {
    EXPECT_EQ(a.workspace_bytes(num_threads), b.workspace_bytes(num_threads));
  }
}

TEST(Size, TheCeilingHasNoPartInAPlan) {
  EngineSpace space(8);
  const EngineRing ring(space, {0, 1, 2, 3});
  for (const int64_t num_tokens : {1, 8}) {
    const int64_t start = 128 - num_tokens;
    ExpectSameSizes(MakePlan(space, ring, start, num_tokens, 128),
                    MakePlan(space, ring, start, num_tokens, 1'048'576));
  }
}

// Bytes of every array of the packed work and of the lists a plan keeps.
std::vector<size_t> ArraySizes(const Plan& plan) {
  const PackedWork& work = plan.work();
  std::vector<size_t> sizes = {
      work.requests.capacity(),           work.queries.capacity(),
      work.window_sources.capacity(),     work.events.capacity(),
      work.event_sources.capacity(),      work.inner_event_sources.capacity(),
      work.main_page_offsets.capacity(),  work.main_pages.capacity(),
      work.index_page_offsets.capacity(), work.index_pages.capacity(),
      work.shard_offsets.capacity(),      work.shards.capacity(),
      work.leaf_offsets.capacity(),       work.leaves.capacity(),
      work.merge_offsets.capacity(),      work.merges.capacity()};
  for (const PlannedList& list : plan.state()->lists) {
    sizes.push_back(list.offsets.capacity());
    sizes.push_back(list.epochs.capacity());
    sizes.push_back(list.ring_pages.capacity());
  }
  return sizes;
}

TEST(Size, TheCeilingHasNoPartInACompressedPlan) {
  for (const auto kind : {AttentionKind::kHca, AttentionKind::kCsa}) {
    std::mt19937_64 random(4);
    EngineSpaces spaces(1, 64);
    const EngineRequest request(kind, spaces, 128, random);
    std::vector<Plan> plans;
    for (const int64_t ceiling : {4096, 1'048'576}) {
      ModelConfig config = ModelConfig::Flash();
      config.max_context_tokens = ceiling;
      const std::vector<StepRequest> steps = {request.Step(120, 8)};
      auto plan = Plan::Create(config, kind, 1, spaces.views(kind), steps);
      ASSERT_TRUE(plan) << plan.error().message;
      plans.push_back(std::move(*plan));
    }
    EXPECT_EQ(ArraySizes(plans[0]), ArraySizes(plans[1]));
    EXPECT_EQ(plans[0].overlay_bytes(), plans[1].overlay_bytes());
    EXPECT_EQ(plans[0].workspace_bytes(4), plans[1].workspace_bytes(4));
  }
}

// Arrays are made at their final size.
TEST(Size, NothingIsReservedInVain) {
  for (const auto kind : {AttentionKind::kHca, AttentionKind::kCsa}) {
    std::mt19937_64 random(4);
    EngineSpaces spaces(2, 2000);
    const EngineRequest wide(kind, spaces, 20'300, random);
    const EngineRequest narrow(kind, spaces, 40'008, random);
    const std::vector<StepRequest> steps = {wide.Step(20'000, 300), narrow.Step(40'000, 8)};
    const auto plan = Plan::Create(ModelConfig::Flash(), kind, 1, spaces.views(kind), steps);
    ASSERT_TRUE(plan) << plan.error().message;
    const PackedWork& work = plan->work();
    EXPECT_EQ(work.queries.capacity(), work.queries.size());
    EXPECT_EQ(work.events.capacity(), work.events.size());
    EXPECT_EQ(work.event_sources.capacity(), work.event_sources.size());
    EXPECT_EQ(work.inner_event_sources.capacity(), work.inner_event_sources.size());
    EXPECT_EQ(work.main_page_offsets.capacity(), work.main_page_offsets.size());
    EXPECT_EQ(work.main_pages.capacity(), work.main_pages.size());
    EXPECT_EQ(work.index_pages.capacity(), work.index_pages.size());
    EXPECT_EQ(work.shard_offsets.capacity(), work.shard_offsets.size());
    EXPECT_EQ(work.shards.capacity(), work.shards.size());
    EXPECT_EQ(work.leaves.capacity(), work.leaves.size());
    EXPECT_EQ(work.merges.capacity(), work.merges.size());
  }
}

// A request is made without a config: what it holds follows its own tokens.
TEST(Size, TheCeilingHasNoPartInARequest) {
  std::vector<PageSpace> owned;
  for (int i = 0; i < 7; ++i) owned.push_back(std::move(*PageSpace::Create(64)));
  const RequestSpaces spaces{&owned[0], &owned[1], &owned[2], &owned[3],
                             &owned[4], &owned[5], &owned[6]};
  const auto request = Request::Create(spaces, 128);
  ASSERT_TRUE(request);
  const Request::State& state = *request->state();
  EXPECT_EQ(state.raw.capacity(), 4U);
  EXPECT_EQ(state.hca_main.capacity(), 1U);
  EXPECT_EQ(state.hca_state.capacity(), 16U);
  EXPECT_EQ(state.csa_main.capacity(), 1U);
  EXPECT_EQ(state.csa_index.capacity(), 1U);
  EXPECT_EQ(state.csa_state.capacity(), 4U);
  EXPECT_EQ(state.csa_inner_state.capacity(), 4U);
}

TEST(Size, AMillionTokensCostWhatAThousandDo) {
  EngineSpace space(8);
  const EngineRing ring(space, {0, 1, 2, 3});
  for (const int64_t num_tokens : {1, 8, 300}) {
    const Plan million = MakePlan(space, ring, 1'048'576 - num_tokens, num_tokens);
    const Plan thousand = MakePlan(space, ring, 1000, num_tokens);
    ExpectSameSizes(million, thousand);
    EXPECT_EQ(million.state()->num_raw_pages, 4);
    EXPECT_EQ(million.work().window_rows, thousand.work().window_rows);
  }
}

TEST(Size, BytesGrowLinearlyWithTokensAndThreads) {
  EngineSpace space(8);
  const EngineRing ring(space, {0, 1, 2, 3});
  const auto overlay = [&](int64_t n) { return MakePlan(space, ring, 1000, n).overlay_bytes(); };
  EXPECT_EQ(overlay(1), 1024);  // one bf16 row of 512
  EXPECT_EQ(overlay(64), 64 * 1024);
  const Plan plan = MakePlan(space, ring, 1000, 64);
  const int64_t one = plan.workspace_bytes(1);
  const int64_t two = plan.workspace_bytes(2);
  const int64_t three = plan.workspace_bytes(3);
  EXPECT_GT(two, one);
  EXPECT_EQ(three - two, two - one);
  // A thread's part does not grow with the tokens. Scratch is what the stage that needs most needs:
  // attention for few tokens, the output projection, with less per thread, for many.
  const Plan narrow = MakePlan(space, ring, 1000, 8);
  EXPECT_EQ(narrow.workspace_bytes(3) - narrow.workspace_bytes(2), three - two);
  const Plan wide = MakePlan(space, ring, 1000, 640);
  const Plan wider = MakePlan(space, ring, 1000, 6400);
  EXPECT_LE(wide.workspace_bytes(3) - wide.workspace_bytes(2), three - two);
  EXPECT_EQ(wide.workspace_bytes(3) - wide.workspace_bytes(2),
            wider.workspace_bytes(3) - wider.workspace_bytes(2));
  EXPECT_EQ(plan.workspace_bytes(0), one);
}

TEST(Size, PagesSharedByRequestsCountOnce) {
  EngineSpace space(16);
  const EngineRing first(space, {0, 1, 2, 3});
  EngineRing second(space, {4, 5, 6, 7});
  second.entries[0] = first.entries[0];  // read by both, written by neither
  const std::vector<StepRequest> steps = {first.Step(1000, 1), second.Step(1001, 1)};
  const auto plan = Plan::Create(ModelConfig::Tiny(), kSwa, 1, space.spaces(), steps);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->state()->num_raw_pages, 7);
  EXPECT_EQ(plan->work().raw_pages_read, 8);
  EXPECT_EQ(plan->work().raw_pages_written, 2);
}

}  // namespace
}  // namespace millipede
