// planned, run, committed: the order of calls, the recheck of pages, and the ranges a commit gives.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan_state.h"
#include "support/plan_fixture.h"

namespace millipede {
namespace {

using testing::EngineRequest;
using testing::EngineRing;
using testing::EngineSpace;
using testing::EngineSpaces;

constexpr auto kSwa = AttentionKind::kSwa;

void ExpectError(const Status& status, ErrorCode code, const std::string& field,
                 int64_t request = -1) {
  ASSERT_FALSE(status) << field;
  EXPECT_EQ(ErrorCodeName(status.error().code), ErrorCodeName(code)) << status.error().message;
  EXPECT_EQ(status.error().field, field) << status.error().message;
  EXPECT_EQ(status.error().request, request) << status.error().message;
}

void RunLayer(Plan& plan, int32_t layer) {
  const Status status = BeginRun(*plan.state(), layer);
  ASSERT_TRUE(status) << status.error().message;
  MarkRun(*plan.state(), layer);
}

std::vector<RequestRanges> CommitLayer(Plan& plan, int32_t layer,
                                       const std::vector<int64_t>& accepted) {
  const Status status = BeginCommit(*plan.state(), layer, accepted);
  EXPECT_TRUE(status) << status.error().message;
  return FinishCommit(*plan.state(), layer, accepted);
}

// Two engine requests, of 3 and 8 tokens, with an idle one between them.
class Lifecycle : public ::testing::Test {
 protected:
  Plan Make(int32_t num_layers) {
    StepRequest idle;
    idle.active = false;
    const std::vector<StepRequest> steps = {first_.Step(10, 3), idle, second_.Step(1000, 8)};
    auto plan = Plan::Create(ModelConfig::Tiny(), kSwa, num_layers, space_.spaces(), steps);
    EXPECT_TRUE(plan);
    return std::move(*plan);
  }

  EngineSpace space_{16};
  EngineRing first_{space_, {0, 1, 2, 3}};
  EngineRing second_{space_, {7, 6, 5, 4}};
};

TEST_F(Lifecycle, RunThenCommitEachLayerOnce) {
  Plan plan = Make(2);
  Plan::State& state = *plan.state();
  const std::vector<int64_t> accepted = {3, 0, 8};
  ExpectError(BeginCommit(state, 0, accepted), ErrorCode::kCallOrder, "layer_index");
  RunLayer(plan, 0);
  RunLayer(plan, 0);  // a rerun is allowed
  ExpectError(BeginCommit(state, 1, accepted), ErrorCode::kCallOrder, "layer_index");
  EXPECT_TRUE(CommitLayer(plan, 0, accepted).empty());
  ExpectError(BeginRun(state, 0), ErrorCode::kCallOrder, "layer_index");
  ExpectError(BeginCommit(state, 0, accepted), ErrorCode::kCallOrder, "layer_index");
  RunLayer(plan, 1);
  EXPECT_EQ(CommitLayer(plan, 1, accepted).size(), 3U);
  for (const int32_t layer : {0, 1}) {
    ExpectError(BeginRun(state, layer), ErrorCode::kCallOrder, "layer_index");
    ExpectError(BeginCommit(state, layer, accepted), ErrorCode::kCallOrder, "layer_index");
  }
}

TEST_F(Lifecycle, LayersCommitInAnyOrder) {
  Plan plan = Make(3);
  for (const int32_t layer : {1, 2, 0}) RunLayer(plan, layer);
  EXPECT_TRUE(CommitLayer(plan, 2, {1, 0, 1}).empty());
  EXPECT_TRUE(CommitLayer(plan, 0, {1, 0, 1}).empty());
  EXPECT_EQ(CommitLayer(plan, 1, {1, 0, 1}).size(), 3U);
}

TEST_F(Lifecycle, LayersOutOfRange) {
  Plan plan = Make(2);
  for (const int32_t layer : {-1, 2}) {
    ExpectError(BeginRun(*plan.state(), layer), ErrorCode::kInvalidArgument, "layer_index");
    ExpectError(BeginCommit(*plan.state(), layer, std::vector<int64_t>{3, 0, 8}),
                ErrorCode::kInvalidArgument, "layer_index");
  }
}

TEST_F(Lifecycle, AcceptedCountsAreChecked) {
  Plan plan = Make(2);
  Plan::State& state = *plan.state();
  RunLayer(plan, 0);
  RunLayer(plan, 1);
  const auto begin = [&](int32_t layer, std::vector<int64_t> accepted) {
    return BeginCommit(state, layer, accepted);
  };
  ExpectError(begin(0, {3, 0}), ErrorCode::kInvalidArgument, "accepted");
  ExpectError(begin(0, {3, 0, 8, 0}), ErrorCode::kInvalidArgument, "accepted");
  ExpectError(begin(0, {4, 0, 8}), ErrorCode::kInvalidArgument, "accepted", 0);
  ExpectError(begin(0, {3, 1, 8}), ErrorCode::kInvalidArgument, "accepted", 1);
  ExpectError(begin(0, {3, 0, -1}), ErrorCode::kInvalidArgument, "accepted", 2);
  // Counts are fixed by the first commit, not by the check before it.
  EXPECT_TRUE(begin(0, {1, 0, 1}));
  EXPECT_TRUE(CommitLayer(plan, 0, {2, 0, 0}).empty());
  ExpectError(begin(1, {3, 0, 0}), ErrorCode::kInvalidArgument, "accepted", 0);
  ExpectError(begin(1, {2, 0, 1}), ErrorCode::kInvalidArgument, "accepted", 2);
  EXPECT_TRUE(begin(1, {2, 0, 0}));
}

TEST_F(Lifecycle, RangesAdvanceByTheAcceptedTokens) {
  Plan plan = Make(1);
  RunLayer(plan, 0);
  const auto ranges = CommitLayer(plan, 0, {3, 0, 5});
  ASSERT_EQ(ranges.size(), 3U);
  EXPECT_EQ(ranges[0].raw.begin, 0);
  EXPECT_EQ(ranges[0].raw.end, 13);
  EXPECT_EQ(ranges[1].raw.end, 0);
  EXPECT_EQ(ranges[2].raw.begin, 877);
  EXPECT_EQ(ranges[2].raw.end, 1005);
}

TEST_F(Lifecycle, NewRangesOfAnyStep) {
  for (const int64_t start : {0, 1, 100, 127, 128, 129, 5000}) {
    for (const int64_t missing : {0, 1}) {
      for (const int64_t accepted : {0, 1, 8, 127, 128, 129, 300}) {
        StepRequest step = first_.Step(start, 300);
        int64_t begin = step.pages.raw.valid.begin;
        if (start >= 128) begin += missing;  // the row at start - 128 is not read
        step.pages.raw.valid.begin = begin;
        auto plan = Plan::Create(ModelConfig::Tiny(), kSwa, 1, space_.spaces(), {&step, 1});
        ASSERT_TRUE(plan);
        RunLayer(*plan, 0);
        const auto ranges = CommitLayer(*plan, 0, {accepted});
        // Positions the ring holds: those it held, plus the accepted, less the overwritten ones.
        int64_t held = start + accepted;
        while (held - 1 >= begin && held - 1 >= start + accepted - 128) --held;
        ASSERT_EQ(ranges.size(), 1U);
        EXPECT_EQ(ranges[0].raw.end, start + accepted);
        EXPECT_EQ(ranges[0].raw.begin, held);
      }
    }
  }
}

TEST_F(Lifecycle, AReleaseElsewhereIsRecheckedOnceAndPasses) {
  Plan plan = Make(1);
  space_.Own(12);
  space_.Free(12);
  EXPECT_NE(plan.state()->lists[0].generation, space_.generation);
  RunLayer(plan, 0);
  EXPECT_EQ(plan.state()->lists[0].generation, space_.generation);
  EXPECT_TRUE(BeginCommit(*plan.state(), 0, std::vector<int64_t>{3, 0, 8}));
}

TEST_F(Lifecycle, WhilstTheGenerationStandsPagesAreNotVisited) {
  Plan plan = Make(1);
  space_.epochs[0] += 1;  // an engine that broke the contract: the generation did not move
  EXPECT_TRUE(BeginRun(*plan.state(), 0));
  ++space_.generation;
  ExpectError(BeginRun(*plan.state(), 0), ErrorCode::kStaleEpoch, "raw.pages[0].epoch", 0);
}

TEST_F(Lifecycle, ReleasedPagesStopRunAndCommit) {
  Plan plan = Make(1);
  RunLayer(plan, 0);
  const std::vector<int64_t> accepted = {3, 0, 8};
  space_.Free(6);
  ExpectError(BeginRun(*plan.state(), 0), ErrorCode::kPageNotAcquired, "raw.pages[1].page", 2);
  ExpectError(BeginCommit(*plan.state(), 0, accepted), ErrorCode::kPageNotAcquired,
              "raw.pages[1].page", 2);
  space_.Own(6);
  ExpectError(BeginRun(*plan.state(), 0), ErrorCode::kStaleEpoch, "raw.pages[1].epoch", 2);
  ExpectError(BeginCommit(*plan.state(), 0, accepted), ErrorCode::kStaleEpoch, "raw.pages[1].epoch",
              2);
}

TEST_F(Lifecycle, AWritePageSharedSinceStopsTheCommit) {
  Plan plan = Make(1);
  RunLayer(plan, 0);
  space_.ref_counts[4] = 2;  // 1000 to 1007 are written to ring page 3, page 4
  ++space_.generation;
  ExpectError(BeginCommit(*plan.state(), 0, std::vector<int64_t>{3, 0, 8}),
              ErrorCode::kSharedWritePage, "raw.pages[3].page", 2);
  space_.ref_counts[4] = 1;
  space_.ref_counts[5] = 2;  // read only
  ++space_.generation;
  EXPECT_TRUE(BeginCommit(*plan.state(), 0, std::vector<int64_t>{3, 0, 8}));
}

// --- Compressed kinds ---------------------------------------------------------------------------

class CompressedLifecycle : public ::testing::TestWithParam<AttentionKind> {
 protected:
  Plan Make(const std::vector<StepRequest>& steps) {
    auto plan = Plan::Create(ModelConfig::Tiny(), kind_, 1, spaces_.views(kind_), steps);
    EXPECT_TRUE(plan) << plan.error().message;
    return std::move(*plan);
  }
  int64_t ratio() const { return kind_ == AttentionKind::kHca ? 128 : 4; }

  AttentionKind kind_ = GetParam();
  std::mt19937_64 random_{3};
  EngineSpaces spaces_{3, 900};
};

INSTANTIATE_TEST_SUITE_P(Kinds, CompressedLifecycle,
                         ::testing::Values(AttentionKind::kHca, AttentionKind::kCsa),
                         [](const auto& kind) { return std::string(KindName(kind.param)); });

void ExpectRange(const RowRange& range, int64_t begin, int64_t end) {
  EXPECT_EQ(range.begin, begin);
  EXPECT_EQ(range.end, end);
}

TEST_P(CompressedLifecycle, NewRangesOfAnyStep) {
  const EngineRequest request(kind_, spaces_, 5300, random_);
  const int64_t ring_rows = kind_ == AttentionKind::kHca ? 128 : 8;
  for (const int64_t start : {0, 1, 3, 100, 124, 127, 128, 255, 5000}) {
    for (const int64_t accepted : {0, 1, 2, 3, 4, 8, 127, 128, 129, 300}) {
      SCOPED_TRACE(::testing::Message() << start << " + " << accepted);
      Plan plan = Make({request.Step(start, 300)});
      RunLayer(plan, 0);
      const auto ranges = CommitLayer(plan, 0, {accepted});
      ASSERT_EQ(ranges.size(), 1U);
      const int64_t end = start + accepted;
      ExpectRange(ranges[0].raw, std::max<int64_t>(0, end - 128), end);
      ExpectRange(ranges[0].state, std::max<int64_t>(0, end - ring_rows), end);
      ExpectRange(ranges[0].main, 0, end / ratio());
      if (kind_ == AttentionKind::kCsa) {
        ExpectRange(ranges[0].inner_state, std::max<int64_t>(0, end - 8), end);
        ExpectRange(ranges[0].index, 0, end / 4);
      } else {
        ExpectRange(ranges[0].inner_state, 0, 0);
        ExpectRange(ranges[0].index, 0, 0);
      }
    }
  }
}

// Rings that were not full grow as rows are written to them.
TEST_P(CompressedLifecycle, ARingThatIsNotFullGrows) {
  const EngineRequest request(kind_, spaces_, 1100, random_);
  StepRequest step = request.Step(1025, 2);
  const int64_t begin = kind_ == AttentionKind::kHca ? 1024 : 1020;
  step.pages.state.valid.begin = begin;
  step.pages.inner_state.valid.begin = begin;
  Plan plan = Make({step});
  RunLayer(plan, 0);
  ExpectRange(CommitLayer(plan, 0, {2}).at(0).state, begin, 1027);
}

// An engine rewinds by handing in ranges that end earlier: ring ranges keep their beginnings. Just
// those positions are planned whose rows the rings still hold, and decoding on from there fills the
// rings again.
TEST_P(CompressedLifecycle, ShortenedRangesRewind) {
  const EngineRequest request(kind_, spaces_, 5300, random_);
  for (const int64_t position : {5, 8, 9, 127, 128, 129, 260, 384, 511, 1000}) {
    const StepRequest last = request.Step(position, 1);
    const RowRange raw = last.pages.raw.valid;
    const RowRange state = last.pages.state.valid;
    for (int64_t to = std::max<int64_t>(0, position - 140); to <= position; ++to) {
      SCOPED_TRACE(::testing::Message() << position << " to " << to);
      StepRequest step = request.Step(to, 5);
      step.pages.raw.valid = {raw.begin, to};
      step.pages.state.valid = {state.begin, to};
      if (kind_ == AttentionKind::kCsa) step.pages.inner_state.valid = {state.begin, to};
      const int64_t block =
          kind_ == AttentionKind::kHca ? to / 128 * 128 : std::max<int64_t>(0, to / 4 * 4 - 4);
      const bool raw_held = raw.begin <= std::max<int64_t>(0, to - 127);
      const bool held = raw_held && state.begin <= block;
      auto plan = Plan::Create(ModelConfig::Tiny(), kind_, 1, spaces_.views(kind_), {&step, 1});
      ASSERT_EQ(plan.has_value(), held);
      if (!held) {
        const bool malformed = raw.begin > to || (raw_held && state.begin > to);
        EXPECT_EQ(plan.error().code,
                  malformed ? ErrorCode::kRangeMismatch : ErrorCode::kRangeMissingRows);
        continue;
      }
      RunLayer(*plan, 0);
      const RequestRanges ranges = CommitLayer(*plan, 0, {5}).at(0);
      ExpectRange(ranges.raw, std::max(raw.begin, to + 5 - 128), to + 5);
      ExpectRange(ranges.state,
                  std::max(state.begin, to + 5 - (kind_ == AttentionKind::kHca ? 128 : 8)), to + 5);
    }
  }
}

// A release in any one of the spaces is noticed, and it is that space's pages that are checked.
TEST_P(CompressedLifecycle, EverySpaceIsRechecked) {
  struct List {
    std::string name;
    EngineSpace EngineSpaces::*space;
    std::vector<PageEntry> EngineRequest::*entries;
    size_t index;
  };
  std::vector<List> lists = {{"raw", &EngineSpaces::raw, &EngineRequest::raw, 2},
                             {"main", &EngineSpaces::main, &EngineRequest::main, 0},
                             {"state", &EngineSpaces::state, &EngineRequest::state, 3}};
  if (kind_ == AttentionKind::kCsa) {
    lists.push_back({"index", &EngineSpaces::index, &EngineRequest::index, 5});
    lists.push_back({"inner_state", &EngineSpaces::inner_state, &EngineRequest::inner_state, 1});
  }
  const EngineRequest first(kind_, spaces_, 100, random_);
  const EngineRequest second(kind_, spaces_, 5000, random_);
  const std::vector<int64_t> accepted = {1, 2};
  for (const List& list : lists) {
    Plan plan = Make({first.Step(50, 1), second.Step(4606, 2)});
    RunLayer(plan, 0);
    EngineSpace& space = spaces_.*list.space;
    const EngineSpace before = space;
    const int32_t page = (second.*list.entries)[list.index].page;
    const std::string field = list.name + ".pages[" + std::to_string(list.index) + "].";
    // A space whose pages are all good moved too, and it is the first to be looked at.
    ++spaces_.raw.generation;
    space.Free(page);
    ExpectError(BeginRun(*plan.state(), 0), ErrorCode::kPageNotAcquired, field + "page", 1);
    space.Own(page);
    ExpectError(BeginCommit(*plan.state(), 0, accepted), ErrorCode::kStaleEpoch, field + "epoch",
                1);
    // The same page again, and a release of one that is not the plan's.
    space.epochs = before.epochs;
    EXPECT_TRUE(BeginRun(*plan.state(), 0));
    int32_t other = 0;
    while (space.ref_counts[static_cast<size_t>(other)] != 0) ++other;
    space.Own(other);
    space.Free(other);
    EXPECT_TRUE(BeginCommit(*plan.state(), 0, accepted));
  }
}

TEST_P(CompressedLifecycle, OnlyPagesTheStepTouchesAreRechecked) {
  const EngineRequest request(kind_, spaces_, 16'000, random_);
  const EngineSpaces before = spaces_;
  Plan plan = Make({request.Step(4606, 2)});
  const auto rows_page = static_cast<size_t>(4608 / ratio() / 32);
  // 4608 tokens make 36 HCA rows, in two pages, and 1152 CSA rows, in just 36.
  const size_t num_touched = kind_ == AttentionKind::kHca ? rows_page + 1 : rows_page;
  spaces_.main.Free(request.main[num_touched].page);
  EXPECT_TRUE(BeginRun(*plan.state(), 0));
  spaces_.main.Free(request.main[num_touched - 1].page);
  ExpectError(BeginRun(*plan.state(), 0), ErrorCode::kPageNotAcquired,
              "main.pages[" + std::to_string(num_touched - 1) + "].page", 0);
  // A page with the row of this step may not be shared, one that is only read may.
  spaces_ = before;
  plan = Make({request.Step(4606, 2)});
  spaces_.main.ref_counts[static_cast<size_t>(request.main[0].page)] = 2;
  ++spaces_.main.generation;
  EXPECT_TRUE(BeginRun(*plan.state(), 0));
  spaces_.main.ref_counts[static_cast<size_t>(request.main[num_touched - 1].page)] = 2;
  ++spaces_.main.generation;
  ExpectError(BeginRun(*plan.state(), 0), ErrorCode::kSharedWritePage,
              "main.pages[" + std::to_string(num_touched - 1) + "].page", 0);
}

// --- Request objects -----------------------------------------------------------------------------

class RequestLifecycle : public ::testing::Test {
 protected:
  RequestLifecycle() { spaces_.raw = &raw_; }

  Plan Make(const Request& request, int64_t num_tokens, int32_t num_layers = 1) {
    StepRequest step;
    step.start_pos = request.position(kSwa);
    step.num_tokens = num_tokens;
    step.request = &request;
    auto plan =
        Plan::Create(ModelConfig::Tiny(), kSwa, num_layers, spaces_.views(kSwa), {&step, 1});
    EXPECT_TRUE(plan) << plan.error().message;
    return std::move(*plan);
  }

  PageSpace raw_ = std::move(*PageSpace::Create(16));
  RequestSpaces spaces_;
};

TEST_F(RequestLifecycle, TheLastLayersCommitAdvancesTheRequest) {
  auto request = Request::Create(spaces_, 126);
  ASSERT_TRUE(request);
  Plan plan = Make(*request, 8, 2);
  RunLayer(plan, 0);
  RunLayer(plan, 1);
  CommitLayer(plan, 1, {5});
  EXPECT_EQ(request->position(kSwa), 126);
  const auto ranges = CommitLayer(plan, 0, {5});
  EXPECT_EQ(request->position(kSwa), 131);
  EXPECT_EQ(request->pages(kSwa).raw.valid.begin, 3);
  EXPECT_EQ(ranges.at(0).raw.end, 131);
  EXPECT_EQ(request->position(AttentionKind::kHca), 0);  // other kinds stay
  Plan next = Make(*request, 1);
  EXPECT_EQ(next.work().queries[0].position, 131);
}

TEST_F(RequestLifecycle, ASecondLivePlanIsRefused) {
  auto request = Request::Create(spaces_, 50);
  ASSERT_TRUE(request);
  const auto refused = [&] {
    StepRequest idle;
    idle.active = false;
    StepRequest step;
    step.start_pos = request->position(kSwa);
    step.num_tokens = 3;
    step.request = &*request;
    const std::vector<StepRequest> steps = {idle, step};
    const auto plan = Plan::Create(ModelConfig::Tiny(), kSwa, 1, spaces_.views(kSwa), steps);
    if (plan) return false;
    ExpectError(tl::make_unexpected(plan.error()), ErrorCode::kCallOrder, "request", 1);
    return true;
  };
  EXPECT_FALSE(refused());  // that plan is gone at once
  {
    Plan first = Make(*request, 2, 2);
    EXPECT_TRUE(refused());
    const Plan copy = first;
    RunLayer(first, 0);
    RunLayer(first, 1);
    CommitLayer(first, 0, {1});
    EXPECT_TRUE(refused());
    CommitLayer(first, 1, {1});
    EXPECT_FALSE(refused());  // committed, though it still exists
    EXPECT_EQ(request->position(kSwa), 51);
  }
  std::optional<Plan> dropped = Make(*request, 2);
  std::optional<Plan> copy = dropped;
  dropped.reset();
  EXPECT_TRUE(refused());
  copy.reset();
  EXPECT_FALSE(refused());
}

TEST_F(RequestLifecycle, ARefusedPlanIsNotLive) {
  auto request = Request::Create(spaces_, 50);
  auto behind = Request::Create(spaces_, 20);
  ASSERT_TRUE(request && behind);
  std::vector<StepRequest> steps(2);
  steps[0] = {.start_pos = 50, .num_tokens = 1, .request = &*request};
  steps[1] = {.start_pos = 21, .num_tokens = 1, .request = &*behind};
  EXPECT_FALSE(Plan::Create(ModelConfig::Tiny(), kSwa, 1, spaces_.views(kSwa), steps));
  Make(*request, 1);
  Make(*behind, 1);
}

TEST_F(RequestLifecycle, ARequestThatTakesNoPartIsNotLive) {
  auto request = Request::Create(spaces_, 50);
  ASSERT_TRUE(request);
  std::vector<StepRequest> steps(2);
  steps[0] = {.active = false, .request = &*request};
  steps[1] = {.num_tokens = 0, .request = &*request};
  const auto idle = Plan::Create(ModelConfig::Tiny(), kSwa, 1, spaces_.views(kSwa), steps);
  ASSERT_TRUE(idle);
  Make(*request, 1);
}

TEST_F(RequestLifecycle, TheNextPlanFollowsAPlanThatAcceptedNothing) {
  auto request = Request::Create(spaces_, 50);
  ASSERT_TRUE(request);
  Plan first = Make(*request, 2);
  RunLayer(first, 0);
  CommitLayer(first, 0, {0});
  EXPECT_EQ(request->position(kSwa), 50);
  Plan second = Make(*request, 3);
  RunLayer(second, 0);
  CommitLayer(second, 0, {3});
  EXPECT_EQ(request->position(kSwa), 53);
}

// Rows that one layer has overwritten are missing, whatever becomes of the other layers.
TEST_F(RequestLifecycle, APlanDroppedBetweenItsCommitsLeavesTheRingsShort) {
  for (const int64_t accepted : {0, 1, 2, 50, 128, 129, 300}) {
    SCOPED_TRACE(accepted);
    auto request = Request::Create(spaces_, 200);
    ASSERT_TRUE(request);
    {
      Plan plan = Make(*request, 300, 2);
      RunLayer(plan, 0);
      RunLayer(plan, 1);
      CommitLayer(plan, 1, {accepted});
    }
    EXPECT_EQ(request->position(kSwa), 200);
    EXPECT_EQ(request->pages(kSwa).raw.valid.begin, std::min<int64_t>(200, 72 + accepted));
    const StepRequest step{.start_pos = 200, .num_tokens = 1, .request = &*request};
    const auto plan = Plan::Create(ModelConfig::Tiny(), kSwa, 2, spaces_.views(kSwa), {&step, 1});
    EXPECT_EQ(plan.has_value(), accepted <= 1);  // the next step does not read row 72
    if (!plan) {
      ExpectError(tl::make_unexpected(plan.error()), ErrorCode::kRangeMissingRows,
                  "raw.valid.begin", 0);
    }
  }
}

TEST_F(RequestLifecycle, AReleasedRequestWhosePagesOthersShareStopsItsPlan) {
  auto request = Request::Create(spaces_, 50);
  ASSERT_TRUE(request);
  Plan plan = Make(*request, 2);
  const auto view = request->pages(kSwa).raw.pages;
  const std::vector<PageEntry> pages(view.begin(), view.end());
  ASSERT_TRUE(raw_.Share(pages));
  ASSERT_TRUE(request->Release());
  ExpectError(BeginRun(*plan.state(), 0), ErrorCode::kCallOrder, "request", 0);
  ASSERT_TRUE(raw_.Release(pages));
}

TEST_F(RequestLifecycle, AReleasedOrDestroyedRequestStopsItsPlans) {
  for (const bool destroy : {false, true}) {
    for (const int64_t start : {0, 50}) {
      auto request = std::make_unique<Request>(std::move(*Request::Create(spaces_, start)));
      Plan plan = Make(*request, 2);
      RunLayer(plan, 0);
      if (destroy) {
        request.reset();
      } else {
        ASSERT_TRUE(request->Release());
      }
      // Its pages belong to someone else by now.
      auto other = Request::Create(spaces_, 7);
      ASSERT_TRUE(other);
      ExpectError(BeginRun(*plan.state(), 0), ErrorCode::kCallOrder, "request", 0);
      ExpectError(BeginCommit(*plan.state(), 0, std::vector<int64_t>{2}), ErrorCode::kCallOrder,
                  "request", 0);
      EXPECT_EQ(other->position(kSwa), 7);
    }
  }
}

TEST_F(RequestLifecycle, AMovedRequestKeepsItsPlan) {
  auto created = Request::Create(spaces_, 50);
  ASSERT_TRUE(created);
  Plan plan = Make(*created, 2);
  const Request moved = std::move(*created);
  RunLayer(plan, 0);
  CommitLayer(plan, 0, {2});
  EXPECT_EQ(moved.position(kSwa), 52);
}

TEST_F(RequestLifecycle, CopiesOfAPlanShareItsProgress) {
  auto request = Request::Create(spaces_, 50);
  ASSERT_TRUE(request);
  Plan plan = Make(*request, 2);
  Plan copy = plan;
  RunLayer(plan, 0);
  CommitLayer(copy, 0, {2});
  ExpectError(BeginRun(*plan.state(), 0), ErrorCode::kCallOrder, "layer_index");
}

TEST_F(RequestLifecycle, SharingAWritePageIsNoticed) {
  auto request = Request::Create(spaces_, 50);
  ASSERT_TRUE(request);
  Plan plan = Make(*request, 2);
  RunLayer(plan, 0);
  ASSERT_TRUE(raw_.Share(request->pages(kSwa).raw.pages));
  ExpectError(BeginCommit(*plan.state(), 0, std::vector<int64_t>{2}), ErrorCode::kSharedWritePage,
              "raw.pages[1].page", 0);
}

// A request that takes all kinds through random steps, some of their tokens rejected: its ranges
// and the next plans follow what was accepted.
TEST(RequestSteps, RangesFollowTheAcceptedTokens) {
  std::vector<PageSpace> owned;
  owned.reserve(7);
  for (int i = 0; i < 7; ++i) owned.push_back(std::move(*PageSpace::Create(200)));
  const RequestSpaces spaces{&owned[0], &owned[1], &owned[2], &owned[3],
                             &owned[4], &owned[5], &owned[6]};
  std::mt19937_64 random(21);
  auto request = Request::Create(spaces, 120);
  ASSERT_TRUE(request);
  for (const AttentionKind kind : {AttentionKind::kCsa, AttentionKind::kHca, kSwa}) {
    int64_t position = 120;
    for (int i = 0; i < 100; ++i) {
      const auto num_tokens = static_cast<int64_t>(1 + random() % (i % 10 == 0 ? 300 : 9));
      const auto accepted = static_cast<int64_t>(random() % static_cast<uint64_t>(num_tokens + 1));
      ASSERT_TRUE(request->Prepare(num_tokens));
      StepRequest step;
      step.start_pos = position;
      step.num_tokens = num_tokens;
      step.request = &*request;
      auto plan = Plan::Create(ModelConfig::Tiny(), kind, 1, spaces.views(kind), {&step, 1});
      ASSERT_TRUE(plan) << plan.error().message;
      RunLayer(*plan, 0);
      const RequestRanges ranges = CommitLayer(*plan, 0, {accepted}).at(0);
      position += accepted;
      ASSERT_EQ(request->position(kind), position);
      const RequestPages pages = request->pages(kind);
      const int64_t rows = kind == kSwa ? 0 : position / (kind == AttentionKind::kHca ? 128 : 4);
      ASSERT_EQ(pages.raw.valid.end, position);
      ASSERT_EQ(pages.main.valid.end, rows);
      ASSERT_EQ(pages.index.valid.end, kind == AttentionKind::kCsa ? rows : 0);
      ASSERT_EQ(pages.state.valid.end, kind == kSwa ? 0 : position);
      ASSERT_EQ(pages.inner_state.valid.end, kind == AttentionKind::kCsa ? position : 0);
      ASSERT_EQ(ranges.main.end, rows);
      ASSERT_EQ(ranges.state.begin, pages.state.valid.begin);
      // A step of the old position is not where the request is.
      if (accepted == 0) continue;
      EXPECT_FALSE(Plan::Create(ModelConfig::Tiny(), kind, 1, spaces.views(kind), {&step, 1}));
    }
  }
}

}  // namespace
}  // namespace millipede
