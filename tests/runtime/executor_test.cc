#include "millipede/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <limits>
#include <string>
#include <vector>

#include "millipede/trace.h"
#include "runtime/context.h"
#include "support/executors.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace millipede {
namespace {

using testing::AllExecutors;
using testing::CountedExecutor;
using testing::NamedExecutor;

TEST(ExecutorTest, RunsEveryItemOnce) {
  for (const NamedExecutor& named : AllExecutors()) {
    SCOPED_TRACE(named.name);
    Context context(*named.executor);
    for (const int64_t num_items : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(num_items));
      ParallelFor(context, "count", num_items,
                  [&](int64_t item, int /*thread*/) { ++runs[static_cast<size_t>(item)]; });
      for (const auto& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(ExecutorTest, ThreadNumbersAreNeverSharedAtOneTime) {
  for (const NamedExecutor& named : AllExecutors()) {
    SCOPED_TRACE(named.name);
    Context context(*named.executor);
    std::vector<std::atomic<int>> inside(static_cast<size_t>(context.num_threads()));
    std::atomic<int> clashes{0};
    std::atomic<int> out_of_range{0};
    ParallelFor(context, "threads", 2000, [&](int64_t /*item*/, int thread) {
      if (thread < 0 || thread >= context.num_threads()) {
        ++out_of_range;
        return;
      }
      std::atomic<int>& mine = inside[static_cast<size_t>(thread)];
      if (++mine != 1) ++clashes;
      for (volatile int spin = 0; spin < 200;) spin = spin + 1;
      --mine;
    });
    EXPECT_EQ(clashes, 0);
    EXPECT_EQ(out_of_range, 0);
  }
}

TEST(ExecutorTest, WritesBeforeAndAfterARegionAreSeen) {
  for (const NamedExecutor& named : AllExecutors()) {
    SCOPED_TRACE(named.name);
    Context context(*named.executor);
    std::vector<int64_t> values(512, 0);
    for (int round = 1; round <= 50; ++round) {
      for (int64_t& value : values) value += 1;
      ParallelFor(context, "double", static_cast<int64_t>(values.size()),
                  [&](int64_t item, int /*thread*/) { values[static_cast<size_t>(item)] *= 2; });
    }
    // v -> 2(v + 1), 50 times from 0.
    const int64_t expected = (int64_t{1} << 51) - 2;
    for (const int64_t value : values) ASSERT_EQ(value, expected);
  }
}

TEST(ExecutorTest, RefusesThreadCountsOutOfRange) {
  for (const int threads : {-1, 0, 1025}) {
    EXPECT_FALSE(MakeTbbExecutor(threads));
    const auto refused = MakeThreadExecutor(threads);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().field, "num_threads");
    EXPECT_NE(refused.error().message.find(std::to_string(threads)), std::string::npos);
  }
}

// A caller's own pool that starts every item on a thread with a hostile floating-point mode.
class HostileModeExecutor final : public Executor {
 public:
  int num_threads() const override { return 1; }
  void Run(int64_t num_items, const Task& task) override {
    const int rounding = std::fegetround();
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    const uint32_t saved = _mm_getcsr();
    _mm_setcsr(saved | 0x8040U);  // flush-to-zero, denormals-are-zero
#endif
    for (int64_t item = 0; item < num_items; ++item) {
      task.Run(item, 0);
      mode_was_kept = mode_was_kept && std::fegetround() == FE_UPWARD;
#if defined(__x86_64__)
      mode_was_kept = mode_was_kept && (_mm_getcsr() & 0x8040U) == 0x8040U;
      _mm_setcsr(saved);
#endif
    }
    std::fesetround(rounding);
  }
  bool mode_was_kept = true;
};

TEST(ExecutorTest, ItemsSeeTheDefaultFloatModeAndThreadsGetTheirsBack) {
  HostileModeExecutor executor;
  Context context(executor);
  volatile float third = 0;
  volatile float subnormal = 0;
  ParallelFor(context, "mode", 1, [&](int64_t /*item*/, int /*thread*/) {
    volatile float one = 1.0F;
    volatile float three = 3.0F;
    third = one / three;
    volatile float tiny = 1e-38F;
    volatile float quarter = 0.25F;
    subnormal = tiny * quarter;
  });
  EXPECT_EQ(third, 1.0F / 3.0F);  // rounding upward gives the next float
  EXPECT_GT(subnormal, 0.0F);     // flushing gives zero
  EXPECT_TRUE(executor.mode_was_kept);
}

TEST(ContextTest, RegionsReportWhatRan) {
  const auto executor = MakeThreadExecutor(2).value();
  Context context(*executor);
  static const char* const kFirst = "first";
  static const char* const kSecond = "second";
  const auto nothing = [](int64_t, int) {};
  ParallelFor(context, kFirst, 3, nothing);
  ParallelFor(context, kSecond, 5, nothing);
  ParallelFor(context, kFirst, 4, nothing);
  const std::vector<RegionStats> regions = context.regions();
  ASSERT_EQ(regions.size(), 2U);
  EXPECT_EQ(regions[0].name, "first");
  EXPECT_EQ(regions[0].num_calls, 2);
  EXPECT_EQ(regions[0].num_items, 7);
  EXPECT_EQ(regions[1].name, "second");
  EXPECT_EQ(regions[1].num_items, 5);
  EXPECT_GE(regions[0].seconds, 0);
  context.Reset();
  EXPECT_TRUE(context.regions().empty());
}

// An executor that loses an item: the books must tell, since they count what ran.
class LossyExecutor final : public Executor {
 public:
  int num_threads() const override { return 1; }
  void Run(int64_t num_items, const Task& task) override {
    for (int64_t item = 0; item + 1 < num_items; ++item) task.Run(item, 0);
  }
};

TEST(ContextTest, BooksCountItemsThatRanNotItemsAskedFor) {
  LossyExecutor executor;
  Context context(executor);
  ParallelFor(context, "lossy", 5, [](int64_t, int) {});
  EXPECT_EQ(context.regions()[0].num_items, 4);
}

TEST(ContextTest, OfAnExecutorWithoutThreadsOrWithTooManyIsNotTaken) {
  Trace trace = Trace::Create(1024).value();
  for (const int threads :
       {0, -1, std::numeric_limits<int>::min(), 1025, std::numeric_limits<int>::max()}) {
    CountedExecutor executor(threads);
    Context context(executor);
    EXPECT_EQ(context.num_threads(), threads);
    EXPECT_EQ(context.counters().query_tokens, 0);
    for (const Status& refused : {CheckContext(context), context.StartTrace(trace)}) {
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
      EXPECT_EQ(refused.error().message,
                "num_threads: " + std::to_string(threads) + "; allowed: 1 to 1024");
    }
  }
  for (const int threads : {1, 1024}) {
    CountedExecutor executor(threads);
    Context context(executor);
    EXPECT_TRUE(CheckContext(context));
    EXPECT_TRUE(context.StartTrace(trace));
  }
}

TEST(ContextTest, CountsOfRequestsAddUpOverThreads) {
  const auto executor = MakeThreadExecutor(3).value();
  Context context(*executor);
  ReserveRequestCounts(context, 2);
  ParallelFor(context, "counts", 300, [&](int64_t item, int thread) {
    RequestCounts& counts = CountsOf(context, thread, item % 2);
    counts.query_tokens += 1;
    counts.window_rows += item;
    counts.raw_ring_pages |= 1U << (item % 2 == 0 ? 0 : item % 3);
  });
  EXPECT_EQ(context.counters(0).query_tokens, 150);
  EXPECT_EQ(context.counters(0).raw_pages_touched, 1);
  EXPECT_EQ(context.counters(1).raw_pages_touched, 3);
  EXPECT_EQ(context.counters().window_rows, 299 * 300 / 2);
  EXPECT_EQ(context.counters(7).query_tokens, 0);
  EXPECT_EQ(context.counters(-1).query_tokens, 0);
}

}  // namespace
}  // namespace millipede
