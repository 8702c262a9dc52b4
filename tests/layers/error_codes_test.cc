// Every error code is one a caller can meet, by the shortest call that gives it.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "millipede/layer.h"
#include "millipede/request.h"
#include "support/plan_fixture.h"

namespace millipede {
namespace {

using testing::EngineRequest;
using testing::EngineSpaces;

constexpr auto kSwa = AttentionKind::kSwa;
constexpr auto kCsa = AttentionKind::kCsa;

template <typename T>
Status StatusOf(const Result<T>& result) {
  return result ? Status() : Status(tl::make_unexpected(result.error()));
}

// A CSA step of 4 tokens at 1000, spoiled.
Status PlanSpoiled(const std::function<void(EngineSpaces&, EngineRequest&, StepRequest&)>& spoil) {
  std::mt19937_64 random(1);
  EngineSpaces spaces(2, 100);
  EngineRequest request(kCsa, spaces, 1100, random);
  StepRequest step = request.Step(1000, 4);
  spoil(spaces, request, step);
  return StatusOf(Plan::Create(ModelConfig::Tiny(), kCsa, 1, spaces.views(kCsa), {&step, 1}));
}

// A SWA step of a request at position 10, in a space of 8 pages.
struct SwaStep {
  PageSpace space = std::move(*PageSpace::Create(8));
  RequestSpaces spaces{.raw = &space};
  Request request = std::move(*Request::Create(spaces, 10));
  std::unique_ptr<Executor> serial = MakeSerialExecutor();
  Context context{*serial};

  Result<Plan> Make(int32_t count = 1) const {
    const std::vector<StepRequest> steps(
        static_cast<size_t>(count),
        StepRequest{.start_pos = 10, .num_tokens = 1, .request = &request, .pages = {}});
    return Plan::Create(ModelConfig::Tiny(), kSwa, 1, spaces.views(kSwa), steps);
  }
  Status CommitInto(const LayerPools& pools) {
    const std::vector<int64_t> accepted = {1};
    return StatusOf(Commit(context, *Make(), 0, pools, {}, accepted));
  }
};

Status TooMuchWork() {
  // Lists are not looked at before the work is counted.
  const std::vector<StepRequest> steps(
      64, StepRequest{
              .start_pos = 0, .num_tokens = kMaxContextTokens, .request = nullptr, .pages = {}});
  const EngineSpaces spaces(1, 1);
  return StatusOf(Plan::Create(ModelConfig::Tiny(), kCsa, 1, spaces.views(kCsa), steps));
}

// Takes address space in lazily mapped pieces of 2 TiB until there is none left.
Status OutOfMemory() {
  std::vector<LayerPool> pools;
  for (int i = 0; i < 200; ++i) {
    auto pool = LayerPool::Create(PoolKind::kHcaState, kMaxPagesPerSpace);
    if (!pool) return StatusOf(pool);
    pools.push_back(*std::move(pool));
  }
  return {};
}

TEST(ErrorCodes, EveryOneIsReachable) {
  auto space = std::move(*PageSpace::Create(8));
  std::vector<PageEntry> owned(2);
  ASSERT_TRUE(space.Acquire(owned));
  const auto release = [&](std::vector<PageEntry> pages) { return space.Release(pages); };
  const auto share = [&](std::vector<PageEntry> pages) { return space.Share(pages); };
  const auto pages_of = [](StepRequest& step, PageListView RequestPages::*list) {
    return (step.pages.*list).pages;
  };

  const std::map<ErrorCode, std::function<Status()>> calls = {
      {ErrorCode::kInvalidConfig, [] { return Validate(ModelConfig{}); }},
      {ErrorCode::kInvalidArgument, [] { return StatusOf(PageSpace::Create(0)); }},
      {ErrorCode::kShapeMismatch,
       [] {
         const int64_t positions[] = {1, 2};
         return ComputeRopeRows(kSwa, positions, {}, {});
       }},
      {ErrorCode::kPageOutOfRange,
       [&] {
         return release({{8, 1}});
       }},
      {ErrorCode::kPageNotAcquired,
       [&] {
         return share({{7, 0}});
       }},
      {ErrorCode::kStaleEpoch,
       [&] {
         return release({{owned[0].page, owned[0].epoch + 9}});
       }},
      {ErrorCode::kDuplicatePage,
       [&] {
         return share({owned[0], owned[0]});
       }},
      {ErrorCode::kDoubleFree,
       [&] {
         return release({owned[0], owned[0]});
       }},
      {ErrorCode::kOutOfPages,
       [&] {
         std::vector<PageEntry> more(7);
         return space.Acquire(more);
       }},
      {ErrorCode::kOutOfMemory, OutOfMemory},
      {ErrorCode::kRingPages,
       [&] {
         return PlanSpoiled([&](auto&, auto&, StepRequest& step) {
           step.pages.state.pages = pages_of(step, &RequestPages::state).first(3);
         });
       }},
      {ErrorCode::kShortList,
       [&] {
         return PlanSpoiled([&](auto&, auto&, StepRequest& step) {
           step.pages.main.pages = pages_of(step, &RequestPages::main).first(7);
         });
       }},
      {ErrorCode::kHole,
       [] {
         return PlanSpoiled(
             [](auto&, EngineRequest& request, auto&) { request.main[3].page = -1; });
       }},
      {ErrorCode::kRangeMismatch,
       [] { return PlanSpoiled([](auto&, auto&, StepRequest& step) { ++step.start_pos; }); }},
      {ErrorCode::kRangeMissingRows,
       [] {
         return PlanSpoiled(
             [](auto&, auto&, StepRequest& step) { step.pages.raw.valid.begin = 874; });
       }},
      {ErrorCode::kListsDisagree,
       [] {
         return PlanSpoiled([](auto&, auto&, StepRequest& step) { --step.pages.index.valid.end; });
       }},
      {ErrorCode::kInactiveTokens,
       [] { return PlanSpoiled([](auto&, auto&, StepRequest& step) { step.active = false; }); }},
      {ErrorCode::kSharedWritePage,
       [] {
         return PlanSpoiled([](EngineSpaces& spaces, EngineRequest& request, auto&) {
           spaces.main.ref_counts[static_cast<size_t>(request.main[7].page)] = 2;
         });
       }},
      {ErrorCode::kWriteConflict, [] { return StatusOf(SwaStep().Make(2)); }},
      {ErrorCode::kTooMuchWork, TooMuchWork},
      {ErrorCode::kContextCeiling, [] { return SwaStep().request.Prepare(kMaxContextTokens); }},
      {ErrorCode::kPlanMismatch, [] { return SwaStep().CommitInto({}); }},
      {ErrorCode::kBufferTooSmall,
       [] {
         const auto pool = LayerPool::Create(PoolKind::kRaw, 8);
         LayerPools pools;
         pools.raw = pool->view();
         return SwaStep().CommitInto(pools);
       }},
      {ErrorCode::kCallOrder,
       [] {
         SwaStep step;
         const auto plan = step.Make();
         return step.request.Rewind(10);
       }},
  };
  // Those of tensor parallelism come behind; it takes several processes to meet them.
  for (int i = 0; i <= static_cast<int>(ErrorCode::kCallOrder); ++i) {
    const auto code = static_cast<ErrorCode>(i);
    SCOPED_TRACE(ErrorCodeName(code));
    ASSERT_TRUE(calls.contains(code));
    const Status status = calls.at(code)();
    ASSERT_FALSE(status);
    EXPECT_EQ(ErrorCodeName(status.error().code), ErrorCodeName(code)) << status.error().message;
    // One line that says what is allowed.
    EXPECT_FALSE(status.error().field.empty());
    EXPECT_EQ(status.error().message.find('\n'), std::string::npos);
    EXPECT_EQ(space.num_free(), 6);
  }
}

}  // namespace
}  // namespace millipede
