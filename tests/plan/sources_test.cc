// The packed work against a plain model: a ring of positions, and windows taken one by one.
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "millipede/plan.h"
#include "support/plan_fixture.h"

namespace millipede {
namespace {

using testing::EngineRing;
using testing::EngineSpace;

constexpr auto kSwa = AttentionKind::kSwa;

// Plans `steps` and checks every number of the packed work.
void CheckWork(const EngineSpace& space, const std::vector<StepRequest>& steps) {
  const auto plan = Plan::Create(ModelConfig::Tiny(), kSwa, 1, space.spaces(), steps);
  ASSERT_TRUE(plan) << plan.error().message;
  const PackedWork& work = plan->work();

  // Which request and position each row of the pool holds.
  std::vector<std::pair<int64_t, int64_t>> pool(space.epochs.size() * 32, {-1, -1});
  for (size_t r = 0; r < steps.size(); ++r) {
    if (!steps[r].active || steps[r].num_tokens == 0) continue;
    const PageListView& raw = steps[r].pages.raw;
    for (int64_t p = raw.valid.begin; p < raw.valid.end; ++p) {
      const int64_t page = raw.pages[static_cast<size_t>(p % 128 / 32)].page;
      pool[static_cast<size_t>(page * 32 + p % 32)] = {r, p};
    }
  }

  ASSERT_EQ(work.requests.size(), steps.size());
  int64_t t = 0;
  int64_t window_rows = 0;
  int64_t pages_read = 0;
  int64_t pages_written = 0;
  std::vector<std::pair<int64_t, int64_t>> tokens;  // request and position of each step token
  for (size_t r = 0; r < steps.size(); ++r) {
    const int64_t num_tokens = steps[r].active ? steps[r].num_tokens : 0;
    ASSERT_EQ(work.requests[r].num_tokens, num_tokens);
    ASSERT_EQ(work.requests[r].start_pos, num_tokens == 0 ? 0 : steps[r].start_pos);
    if (num_tokens != 0) {
      ASSERT_EQ(work.requests[r].first_query, tokens.size());
    }
    for (int64_t i = 0; i < num_tokens; ++i) tokens.emplace_back(r, steps[r].start_pos + i);
  }
  ASSERT_EQ(work.queries.size(), tokens.size());
  ASSERT_EQ(work.window_sources.size(), tokens.size() * 128);
  ASSERT_EQ(plan->num_tokens(), static_cast<int64_t>(tokens.size()));

  for (size_t r = 0; r < steps.size(); ++r) {
    if (!steps[r].active) continue;
    std::set<int32_t> read;
    std::set<int32_t> written;
    for (int64_t i = 0; i < steps[r].num_tokens; ++i, ++t) {
      const int64_t position = steps[r].start_pos + i;
      const QueryToken& query = work.queries[static_cast<size_t>(t)];
      ASSERT_EQ(query.request, static_cast<int32_t>(r));
      ASSERT_EQ(query.position, position);
      const int64_t page = steps[r].pages.raw.pages[static_cast<size_t>(position % 128 / 32)].page;
      ASSERT_EQ(query.raw_write_row, page * 32 + position % 32);
      written.insert(query.raw_write_row / 32);

      const int32_t* source = &work.window_sources[static_cast<size_t>(t) * 128];
      int32_t rows = 0;
      for (int64_t p = position < 127 ? 0 : position - 127; p <= position; ++p, ++rows) {
        const std::pair<int64_t, int64_t> expected{r, p};
        if (source[rows] >= 0) {
          ASSERT_EQ(pool[static_cast<size_t>(source[rows])], expected);
          ASSERT_LT(p, steps[r].start_pos);
          read.insert(source[rows] / 32);
        } else {
          ASSERT_LE(source[rows], -2);
          ASSERT_EQ(tokens.at(static_cast<size_t>(-2 - source[rows])), expected);
        }
      }
      ASSERT_EQ(query.window_rows, rows);
      window_rows += rows;
      for (; rows < 128; ++rows) ASSERT_EQ(source[rows], -1);
    }
    pages_read += static_cast<int64_t>(read.size());
    pages_written += static_cast<int64_t>(written.size());
  }
  EXPECT_EQ(work.window_rows, window_rows);
  EXPECT_EQ(work.raw_pages_read, pages_read);
  EXPECT_EQ(work.raw_pages_written, pages_written);
}

// A lone request on pages that are out of order.
void CheckLone(int64_t start, int64_t num_tokens) {
  SCOPED_TRACE(::testing::Message() << "start " << start << " tokens " << num_tokens);
  EngineSpace space(40);
  const EngineRing ring(space, {31, 0, 39, 7});
  CheckWork(space, {ring.Step(start, num_tokens)});
}

TEST(Sources, EveryShortHistory) {
  for (int64_t start = 0; start <= 300; ++start) {
    CheckLone(start, 1);
    CheckLone(start, 1 + start % 9);
  }
}

TEST(Sources, RandomHistories) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    const auto num_tokens = static_cast<int64_t>(1 + random() % 200);
    CheckLone(static_cast<int64_t>(random() % (1'048'576 - 200)), num_tokens);
  }
}

TEST(Sources, PageBoundaries) {
  for (const int64_t boundary : {32, 64, 96, 160, 1024}) {
    for (const int64_t start : {boundary - 2, boundary - 1, boundary, boundary + 1}) {
      for (const int64_t num_tokens : {1, 2, 3, 33}) CheckLone(start, num_tokens);
    }
  }
}

TEST(Sources, RingRollover) {
  for (const int64_t rollover : {128, 256, 1'048'448}) {
    for (const int64_t start : {rollover - 2, rollover - 1, rollover, rollover + 1}) {
      for (const int64_t num_tokens : {1, 2, 3, 8}) CheckLone(start, num_tokens);
    }
  }
}

TEST(Sources, TheLastTokenBeforeTheCeiling) {
  CheckLone(1'048'575, 1);
  CheckLone(1'048'568, 8);
}

TEST(Sources, WideSteps) {
  for (const int64_t start : {0, 1, 31, 100, 127, 128, 1000}) {
    for (const int64_t num_tokens : {127, 128, 129, 300}) CheckLone(start, num_tokens);
  }
}

TEST(Sources, AWideStepsLateTokensSeeTheOverlayAlone) {
  EngineSpace space(4);
  const EngineRing ring(space, {0, 1, 2, 3});
  const std::vector<StepRequest> steps = {ring.Step(500, 300)};
  const auto plan = Plan::Create(ModelConfig::Tiny(), kSwa, 1, space.spaces(), steps);
  ASSERT_TRUE(plan);
  for (int64_t t = 0; t < 300; ++t) {
    int64_t old_rows = 0;
    for (int64_t i = 0; i < 128; ++i) {
      old_rows += plan->work().window_sources[static_cast<size_t>(t * 128 + i)] >= 0 ? 1 : 0;
    }
    EXPECT_EQ(old_rows, t < 127 ? 127 - t : 0) << t;
  }
}

TEST(Sources, ARingThatIsNotFull) {
  EngineSpace space(8);
  const EngineRing ring(space, {5, 2, 7, 0});
  for (const int64_t start : {200, 255, 256}) {
    StepRequest step = ring.Step(start, 4);
    step.pages.raw.valid.begin = start - 127;
    CheckWork(space, {step});
  }
}

TEST(Sources, MixedBatchesOnShuffledPages) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 50; ++round) {
    constexpr int32_t kPages = 64;
    EngineSpace space(kPages);
    std::vector<int32_t> pages(kPages);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), random);
    std::vector<EngineRing> rings;
    std::vector<StepRequest> steps;
    for (size_t r = 0; r < 12; ++r) {
      rings.emplace_back(space,
                         std::vector<int32_t>(pages.begin() + static_cast<int64_t>(4 * r),
                                              pages.begin() + static_cast<int64_t>(4 * r) + 4));
    }
    for (const EngineRing& ring : rings) {
      static constexpr int64_t kStarts[] = {0, 1, 2, 3, 31, 32, 63, 126, 127, 128, 300, 524'288};
      steps.push_back(ring.Step(kStarts[random() % 12], static_cast<int64_t>(random() % 12)));
      if (random() % 4 == 0) {
        steps.back().active = false;
        steps.back().num_tokens = 0;
      }
    }
    CheckWork(space, steps);
  }
}

TEST(Sources, PagePlacementMovesRowsOnly) {
  EngineSpace space(200);
  const EngineRing plain(space, {0, 1, 2, 3});
  const std::vector<int32_t> placement = {150, 11, 199, 42};
  const EngineRing moved(space, placement);
  for (const int64_t start : {0, 90, 127, 1000}) {
    const std::vector<StepRequest> plain_steps = {plain.Step(start, 8)};
    const std::vector<StepRequest> moved_steps = {moved.Step(start, 8)};
    const auto a = Plan::Create(ModelConfig::Tiny(), kSwa, 1, space.spaces(), plain_steps);
    const auto b = Plan::Create(ModelConfig::Tiny(), kSwa, 1, space.spaces(), moved_steps);
    ASSERT_TRUE(a && b);
    ASSERT_EQ(a->work().window_sources.size(), b->work().window_sources.size());
    for (size_t i = 0; i < a->work().window_sources.size(); ++i) {
      const int32_t source = a->work().window_sources[i];
      const int32_t expected =
          source < 0 ? source : placement[static_cast<size_t>(source / 32)] * 32 + source % 32;
      ASSERT_EQ(b->work().window_sources[i], expected);
    }
  }
}

TEST(Sources, ListsOfIdleRequestsAreNotLookedAt) {
  EngineSpace space(8);
  const EngineRing ring(space, {5, 2, 7, 0});
  auto* nowhere = reinterpret_cast<const PageEntry*>(uintptr_t{64});
  StepRequest inactive;
  inactive.active = false;
  inactive.start_pos = -99;
  inactive.pages.raw = {{nowhere, 4}, {77, -3}};
  StepRequest empty;
  empty.start_pos = 5'000'000;
  empty.pages.raw = {{nowhere, size_t{1} << 40}, {1, 0}};
  StepRequest dangling;
  dangling.request = reinterpret_cast<const Request*>(uintptr_t{64});
  const std::vector<StepRequest> steps = {inactive, ring.Step(300, 2), empty, dangling};
  CheckWork(space, steps);
}

TEST(Sources, AStepWithoutTokens) {
  EngineSpace space(4);
  CheckWork(space, {});
  StepRequest inactive;
  inactive.active = false;
  CheckWork(space, {inactive, inactive});
  const std::vector<StepRequest> steps = {inactive};
  const auto plan = Plan::Create(ModelConfig::Tiny(), kSwa, 3, space.spaces(), steps);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->num_tokens(), 0);
  EXPECT_EQ(plan->overlay_bytes(), 0);
}

TEST(Sources, RequestObjectsAndRawDescriptorsPackAlike) {
  auto raw = std::move(*PageSpace::Create(8));
  RequestSpaces spaces;
  spaces.raw = &raw;
  const auto request = Request::Create(spaces, 777);
  ASSERT_TRUE(request);
  StepRequest by_request;
  by_request.start_pos = 777;
  by_request.num_tokens = 5;
  by_request.request = &*request;
  StepRequest by_lists = by_request;
  by_lists.request = nullptr;
  by_lists.pages = request->pages(kSwa);
  const auto create = [&](const StepRequest& step) {
    return Plan::Create(ModelConfig::Tiny(), kSwa, 1, spaces.views(kSwa), {&step, 1});
  };
  const auto a = create(by_request);
  const auto b = create(by_lists);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->work().window_sources, b->work().window_sources);
  EXPECT_EQ(a->fingerprint(), b->fingerprint());
}

}  // namespace
}  // namespace millipede
