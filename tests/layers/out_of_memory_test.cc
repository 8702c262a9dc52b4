// Calls for which memory runs out: operator new fails at every place in turn, and each time the
// call is refused with kOutOfMemory, has changed nothing, and works when it is made again.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millipede/trace.h"
#include "pages/request_state.h"
#include "support/decode_world.h"
#include "support/failing_new.h"

namespace millipede {
namespace {

using testing::AlignedBytes;
using testing::DecodeWorld;
using testing::FailAllocations;
using testing::StopFailing;

// Makes the call with its n-th allocation failing, or all from the n-th on, for n = 1, 2, ... until
// it has fewer. `call` returns a Result; `refused` looks around after each failure, and may make
// the call again; `renew` comes before each try.
template <typename Call>
void FailEveryAllocation(
    const Call& call, const std::function<void()>& refused = [] {},
    const std::function<void()>& renew = [] {}) {
  for (const bool all : {false, true}) {
    for (int64_t n = 0;; ++n) {
      SCOPED_TRACE("allocation " + std::to_string(n) + (all ? " and all later" : ""));
      ASSERT_LT(n, 1000);
      renew();
      FailAllocations(n, all);
      auto result = call();
      if (!StopFailing()) {
        EXPECT_TRUE(result);
        EXPECT_GT(n, 0) << "nothing is allocated";
        break;
      }
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().code, ErrorCode::kOutOfMemory) << result.error().message;
      EXPECT_FALSE(result.error().field.empty());
      EXPECT_FALSE(result.error().message.empty());
      refused();
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Two requests of one kind, and steps of the first one's forks.
class OutOfMemory : public ::testing::TestWithParam<AttentionKind> {
 protected:
  // What must not change: references, lists and positions.
  struct Snapshot {
    std::vector<int32_t> free;
    std::vector<int32_t> ref_counts;
    std::vector<int32_t> pages;
    int64_t position = 0;
    size_t num_marks = 0;
    bool planned = false;

    bool operator==(const Snapshot&) const = default;
  };

  OutOfMemory() {
    world_.Add(1, 300);
    world_.Add(2, 10);
    world_.Decode(context_, 1, 9, 3);
  }

  const RequestSpaces& spaces() { return world_.request(1).state()->spaces; }

  Snapshot Take(const Request& request) {
    Snapshot snapshot;
    for (const PageSpace* space :
         {spaces().raw, spaces().hca_main, spaces().hca_state, spaces().csa_main,
          spaces().csa_index, spaces().csa_state, spaces().csa_inner_state}) {
      if (space == nullptr) continue;
      snapshot.free.push_back(space->num_free());
      for (int32_t page = 0; page < 300; ++page) {
        snapshot.ref_counts.push_back(space->ref_count(page));
      }
    }
    const RequestPages lists = request.pages(GetParam());
    for (const PageListView& list :
         {lists.raw, lists.main, lists.index, lists.state, lists.inner_state}) {
      for (const PageEntry& entry : list.pages) snapshot.pages.push_back(entry.page);
    }
    snapshot.position = request.position(GetParam());
    snapshot.num_marks = request.state()->marks.size();
    snapshot.planned = HasLivePlan(*request.state(), GetParam());
    return snapshot;
  }

  // A request at position 309 that shares its finished pages with request 1.
  Request Child() { return std::move(*world_.request(1).Fork(309, world_.request_pools())); }

  // A step of `child` and of request 2.
  std::vector<StepRequest> StepOf(const Request& child) {
    return {{.start_pos = 309, .num_tokens = 140, .request = &child, .pages = {}},
            {.active = false},
            {.start_pos = 10, .num_tokens = 3, .request = &world_.request(2), .pages = {}}};
  }
  Result<Plan> Make(const std::vector<StepRequest>& step) {
    return Plan::Create(world_.config(), GetParam(), 1, world_.spaces(), step);
  }

  std::unique_ptr<Executor> serial_ = MakeSerialExecutor();
  Context context_{*serial_};
  DecodeWorld world_{ModelConfig::Tiny(), GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Kinds, OutOfMemory,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         testing::KindTestName);

TEST_P(OutOfMemory, CreateMarkAndFork) {
  Request& request = world_.request(1);
  const RequestPools pools = world_.request_pools();
  const RequestMark mark = std::move(*request.Mark(pools));
  const Snapshot before = Take(request);
  const auto unchanged = [&] { EXPECT_EQ(Take(request), before); };
  const auto create = [&] { return Request::Create(spaces(), 1000); };
  FailEveryAllocation(create, [&] {
    unchanged();
    EXPECT_TRUE(create());
  });
  const auto fork = [&] { return request.Fork(309, pools); };
  FailEveryAllocation(fork, [&] {
    unchanged();
    EXPECT_TRUE(fork());
  });
  FailEveryAllocation([&] { return mark.Fork(pools); }, unchanged);
  FailEveryAllocation([&] { return request.Mark(pools); }, unchanged);
  EXPECT_TRUE(request.Mark(pools));
}

TEST_P(OutOfMemory, PrepareThatCopiesAndGrows) {
  std::optional<Request> child;
  std::vector<PageEntry> shared;
  Snapshot before;
  const auto renew = [&] {
    if (!shared.empty()) {
      EXPECT_TRUE(spaces().raw->Release(shared));
    }
    child = Child();
    const auto pages = child->pages(GetParam()).raw.pages;
    shared.assign(pages.begin(), pages.end());
    ASSERT_TRUE(spaces().raw->Share(shared));
    before = Take(*child);
  };
  const RequestPools pools = world_.request_pools();
  const auto prepare = [&] { return child->Prepare(2000, pools); };
  FailEveryAllocation(
      prepare,
      [&] {
        EXPECT_EQ(Take(*child), before);
        EXPECT_TRUE(prepare());
        EXPECT_NE(child->pages(GetParam()).raw.pages[0].page, shared[0].page);
      },
      renew);
  EXPECT_TRUE(spaces().raw->Release(shared));
}

TEST_P(OutOfMemory, APlanIsMadeOrNotLive) {
  Request child = Child();
  ASSERT_TRUE(child.Prepare(140, world_.request_pools()));
  ASSERT_TRUE(world_.request(2).Prepare(3));
  const std::vector<StepRequest> step = StepOf(child);
  const Snapshot before = Take(child);
  ASSERT_FALSE(before.planned);
  const auto make = [&] { return Make(step); };
  FailEveryAllocation(make, [&] {
    EXPECT_EQ(Take(child), before);
    EXPECT_FALSE(HasLivePlan(*world_.request(2).state(), GetParam()));
    EXPECT_TRUE(make());
  });
}

TEST_P(OutOfMemory, RunAndCommit) {
  Request child = Child();
  ASSERT_TRUE(child.Prepare(140, world_.request_pools()));
  ASSERT_TRUE(world_.request(2).Prepare(3));
  const ModelConfig& config = world_.config();
  constexpr int64_t kTokens = 143;
  std::vector<float> x(static_cast<size_t>(kTokens * 4 * config.hidden), 0.25F);
  std::vector<float> x_out(x.size());
  std::vector<float> cos(static_cast<size_t>(kTokens * kRopePairs), 1.0F);
  std::vector<float> sin(cos.size(), 0.0F);
  std::optional<Plan> plan = *Make(StepOf(child));
  const auto num_events = static_cast<int64_t>(plan->work().events.size());
  AlignedBytes workspace(plan->workspace_bytes(1));
  AlignedBytes overlay(plan->overlay_bytes());
  const auto rope = [&](int64_t rows) -> RopeRows {
    return {MakeView<const float>(cos.data(), rows, kRopePairs),
            MakeView<const float>(sin.data(), rows, kRopePairs)};
  };
  const StepTensors tensors = {
      .x = MakeView<const float>(x.data(), kTokens, kHcStreams, config.hidden),
      .rope = rope(kTokens),
      .event_rope = rope(num_events),
      .x_out = MakeView(x_out.data(), kTokens, kHcStreams, config.hidden),
      .selection = {}};
  const auto run = [&](Context& context) {
    return world_.layer().Run(context, *plan, 0, world_.pools(), tensors, workspace.span(),
                              overlay.span());
  };
  ASSERT_TRUE(run(context_));
  const std::vector<float> expected = x_out;

  // A context of its own each time, whose books have yet to grow.
  std::vector<std::byte> rings(world_.raw_bytes().begin(), world_.raw_bytes().end());
  std::optional<Context> fresh(*serial_);
  FailEveryAllocation([&] { return run(*fresh); },
                      [&] {
                        std::ranges::fill(x_out, -77.0F);
                        EXPECT_TRUE(run(context_));
                        EXPECT_TRUE(testing::SameBits(x_out, expected));
                      },
                      [&] { fresh.emplace(*serial_); });
  // Where pages moved hands, the plan looks at its own again.
  FailEveryAllocation([&] { return run(*fresh); }, [] {},
                      [&] { EXPECT_TRUE(Request::Create(spaces())); });

  const std::vector<int64_t> accepted = {140, 0, 2};
  const Snapshot before = Take(child);
  bool committed = false;
  const auto commit = [&](Context& context) {
    return Commit(context, *plan, 0, world_.pools(), overlay.span(), accepted);
  };
  FailEveryAllocation(
      [&] {
        auto result = commit(*fresh);
        committed = result.has_value();
        return result;
      },
      [&] {
        EXPECT_EQ(std::memcmp(rings.data(), world_.raw_bytes().data(), rings.size()), 0);
        EXPECT_EQ(child.position(GetParam()), before.position);
      },
      [&] {
        fresh.emplace(*serial_);
        // A commit that works ends the plan: the next one has one of its own.
        if (!committed) return;
        child = Child();
        EXPECT_TRUE(child.Prepare(140, world_.request_pools()));
        EXPECT_TRUE(world_.request(2).Rewind(10));
        plan = *Make(StepOf(child));
        EXPECT_TRUE(run(context_));
        rings.assign(world_.raw_bytes().begin(), world_.raw_bytes().end());
        committed = false;
      });
  EXPECT_EQ(child.position(GetParam()), 449);
  EXPECT_EQ(world_.request(2).position(GetParam()), 12);
}

TEST_P(OutOfMemory, LayersAndWhatTheyRunOn) {
  const LayerWeights weights = world_.fixture().views();
  FailEveryAllocation([&] { return Layer::Create(world_.config(), GetParam(), weights); });
  FailEveryAllocation([] { return PageSpace::Create(8); });
  FailEveryAllocation([] { return LayerPool::Create(PoolKind::kRaw, 8); });
  FailEveryAllocation([] { return MakeThreadExecutor(3); });
  // What oneTBB sets up once for the process is another matter: it does not try again.
  ASSERT_TRUE(MakeTbbExecutor(3));
  FailEveryAllocation([] { return MakeTbbExecutor(3); });
  FailEveryAllocation([] { return Trace::Create(2, 8); });
}

// A pool of threads that has no memory for its tasks.
class PoorExecutor final : public Executor {
 public:
  int num_threads() const override { return 1; }
  void Run(int64_t /*num_items*/, const Task& /*task*/) override { throw std::bad_alloc(); }
};

TEST(OutOfMemoryTest, AnExecutorsIsTheCalls) {
  PoorExecutor executor;
  Context context(executor);
  const ModelConfig config = ModelConfig::Tiny();
  std::vector<Bf16> xn(static_cast<size_t>(config.hidden));
  std::vector<float> norm(xn.size());
  const auto row = MakeView(xn.data(), 1, config.hidden);
  const Status status =
      AttnNorm(context, config, MakeView<const float>(norm.data(), config.hidden), row, row);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(status.error().field, "context");
}

}  // namespace
}  // namespace millipede
