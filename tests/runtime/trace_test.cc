// The recorder: what is kept, in what order, how much of it, and what it costs when off.
#include "millipede/trace.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "millipede/plan.h"
#include "runtime/context.h"
#include "support/executors.h"

namespace millipede {
namespace {

using testing::AllExecutors;
using testing::NamedExecutor;

TEST(TraceTest, EveryItemOnceOnItsThread) {
  for (const NamedExecutor& named : AllExecutors()) {
    SCOPED_TRACE(named.name);
    Context context(*named.executor);
    Trace trace = Trace::Create(context.num_threads()).value();
    ASSERT_TRUE(context.StartTrace(trace));
    std::vector<int> thread_of(500, -1);
    ParallelFor(context, "items", 500,
                [&](int64_t item, int thread) { thread_of[static_cast<size_t>(item)] = thread; });
    std::multiset<int32_t> seen;
    for (int thread = 0; thread < trace.num_threads(); ++thread) {
      int64_t last_end = 0;
      for (const TraceEvent& event : trace.events(thread)) {
        EXPECT_STREQ(event.name, "items");
        EXPECT_EQ(event.task, TraceTask::kItem);
        EXPECT_EQ(event.layer, -1);
        EXPECT_EQ(thread_of[static_cast<size_t>(event.index)], thread);
        EXPECT_GE(event.begin_ns, last_end);
        EXPECT_GE(event.end_ns, event.begin_ns);
        last_end = event.end_ns;
        seen.insert(event.index);
      }
    }
    EXPECT_EQ(seen.size(), 500U);
    EXPECT_EQ(std::set<int32_t>(seen.begin(), seen.end()).size(), 500U);
    ASSERT_EQ(trace.calls().size(), 1U);
    EXPECT_EQ(trace.calls()[0].task, TraceTask::kRegion);
    EXPECT_EQ(trace.calls()[0].index, 500);
  }
}

TEST(TraceTest, SpansLieInTheirItemsAndNameLayerAndRequest) {
  const auto executor = MakeThreadExecutor(2).value();
  Context context(*executor);
  Trace trace = Trace::Create(2).value();
  ASSERT_TRUE(context.StartTrace(trace));
  PackedWork work;
  work.queries = {{.request = 0}, {.request = 2}, {.request = 2}};
  {
    const TraceCall call(context, "run", AttentionKind::kHca, 7, &work);
    ParallelFor(context, "tokens", 3, [&](int64_t item, int thread) {
      DescribeItem(context.impl().trace, thread, {.first_query = 0, .num_queries = item + 1});
      const TraceSpan span(
          context.impl().trace, thread,
          {.task = TraceTask::kShard, .index = 5, .first_query = item, .rows = 9, .bytes = 99});
    });
  }
  ParallelFor(context, "after", 1, [](int64_t, int) {});

  int spans = 0;
  for (int thread = 0; thread < 2; ++thread) {
    const TraceEvent* item = nullptr;
    for (const TraceEvent& event : trace.events(thread)) {
      if (std::string_view(event.name) == "after") {
        EXPECT_EQ(event.layer, -1);
        continue;
      }
      EXPECT_EQ(event.layer, 7);
      EXPECT_EQ(event.kind, AttentionKind::kHca);
      if (event.task == TraceTask::kItem) {
        item = &event;
        EXPECT_EQ(event.num_queries, event.index + 1);
        EXPECT_EQ(event.request, event.index == 0 ? 0 : -1);  // of one request only
        continue;
      }
      ++spans;
      ASSERT_NE(item, nullptr);
      EXPECT_GE(event.begin_ns, item->begin_ns);
      EXPECT_LE(event.end_ns, item->end_ns);
      EXPECT_EQ(event.first_query, item->index);
      EXPECT_EQ(event.request, item->index == 0 ? 0 : 2);
      EXPECT_EQ(event.index, 5);
      EXPECT_EQ(event.rows, 9);
      EXPECT_EQ(event.bytes, 99);
    }
  }
  EXPECT_EQ(spans, 3);
  ASSERT_EQ(trace.calls().size(), 3U);
  EXPECT_STREQ(trace.calls()[0].name, "run");
  EXPECT_EQ(trace.calls()[1].layer, 7);
  EXPECT_LE(trace.calls()[1].end_ns, trace.calls()[0].end_ns);
  EXPECT_GE(trace.calls()[2].begin_ns, trace.calls()[0].end_ns);
}

TEST(TraceTest, AfterACallInACallWorkIsTheOuterOnesAgain) {
  const auto executor = MakeSerialExecutor();
  Context context(*executor);
  Trace trace = Trace::Create(1).value();
  ASSERT_TRUE(context.StartTrace(trace));
  PackedWork outer_work;
  outer_work.queries = {{.request = 5}};
  const auto work = [&](const char* name) {
    ParallelFor(context, name, 1, [&](int64_t, int thread) {
      DescribeItem(context.impl().trace, thread, {.first_query = 0});
    });
  };
  {
    const TraceCall outer(context, "outer", AttentionKind::kHca, 3, &outer_work);
    {
      const TraceCall inner(context, "inner", AttentionKind::kCsa, 8);
      work("within");
    }
    work("between");
  }
  work("after");
  const auto events = trace.events(0);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].layer, 8);
  EXPECT_EQ(events[0].kind, AttentionKind::kCsa);
  EXPECT_EQ(events[0].request, -1);
  EXPECT_EQ(events[1].layer, 3);
  EXPECT_EQ(events[1].kind, AttentionKind::kHca);
  EXPECT_EQ(events[1].request, 5);
  EXPECT_EQ(events[2].layer, -1);
  EXPECT_EQ(events[2].request, -1);
}

TEST(TraceTest, TokensThatArePastThePlansHaveNoRequest) {
  const auto executor = MakeSerialExecutor();
  Context context(*executor);
  Trace trace = Trace::Create(1).value();
  ASSERT_TRUE(context.StartTrace(trace));
  PackedWork work;
  work.queries = {{.request = 4}};
  const TraceCall call(context, "run", AttentionKind::kSwa, 0, &work);
  ParallelFor(context, "tokens", 3, [&](int64_t item, int thread) {
    DescribeItem(context.impl().trace, thread, {.first_query = item});
  });
  EXPECT_EQ(trace.events(0)[0].request, 4);
  EXPECT_EQ(trace.events(0)[1].request, -1);
  EXPECT_EQ(trace.events(0)[2].first_query, 2);
}

TEST(TraceTest, WhatDoesNotFitIsCountedAndDropped) {
  const auto executor = MakeSerialExecutor();
  Context context(*executor);
  Trace trace = Trace::Create(1, 10).value();
  ASSERT_TRUE(context.StartTrace(trace));
  int64_t sum = 0;
  ParallelFor(context, "items", 25, [&](int64_t item, int thread) {
    DescribeItem(context.impl().trace, thread, {.rows = item});
    sum += item;
  });
  EXPECT_EQ(sum, 25 * 24 / 2);
  ASSERT_EQ(trace.events(0).size(), 10U);
  EXPECT_EQ(trace.events(0)[9].rows, 9);  // not what later items say
  EXPECT_EQ(trace.num_dropped(), 15);
  trace.Clear();
  EXPECT_EQ(trace.num_dropped(), 0);
  EXPECT_TRUE(trace.events(0).empty());
  EXPECT_TRUE(trace.calls().empty());
}

TEST(TraceTest, StopsAndIsShared) {
  const auto executor = MakeSerialExecutor();
  Context first(*executor);
  Context second(*executor);
  Trace trace = Trace::Create(1).value();
  const auto nothing = [](int64_t, int) {};
  ASSERT_TRUE(first.StartTrace(trace));
  ASSERT_TRUE(second.StartTrace(trace));
  ParallelFor(first, "one", 1, nothing);
  ParallelFor(second, "two", 2, nothing);
  first.StopTrace();
  ParallelFor(first, "one", 4, nothing);
  EXPECT_EQ(trace.events(0).size(), 3U);
}

TEST(TraceTest, Refusals) {
  for (const int threads : {0, -1, 1025}) {
    const auto refused = Trace::Create(threads);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().field, "num_threads");
  }
  for (const int64_t max_events : {int64_t{0}, int64_t{-1}, Trace::kMaxEvents + 1}) {
    const auto refused = Trace::Create(1, max_events);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().message,
              "max_events: " + std::to_string(max_events) + "; allowed: 1 to 4294967296");
  }

  const auto executor = MakeThreadExecutor(3).value();
  Context context(*executor);
  Trace narrow = Trace::Create(2).value();
  const Status refused = context.StartTrace(narrow);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "trace: 2 threads; allowed: at least 3");
}

}  // namespace
}  // namespace millipede
