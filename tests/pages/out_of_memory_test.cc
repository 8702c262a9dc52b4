// Refusals whose words cannot be had are kOutOfMemory, and leave everything as it was.
#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "millipede/request.h"
#include "support/failing_new.h"

namespace millipede {
namespace {

// The status of a call whose every allocation fails; one does.
Status WithoutMemory(const std::function<Status()>& call) {
  testing::FailAllocations(0, /*all=*/true);
  Status status = call();
  EXPECT_TRUE(testing::StopFailing());
  return status;
}

template <typename T>
Status StatusOf(Result<T> result) {
  if (result) return {};
  return tl::make_unexpected(std::move(result).error());
}

void ExpectNone(const std::vector<std::function<Status()>>& calls) {
  for (size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    const Status status = WithoutMemory(calls[i]);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(status.error().message, "memory: none");
  }
}

TEST(OutOfMemory, OfSpacesAndPools) {
  PageSpace space = std::move(*PageSpace::Create(8));
  std::vector<PageEntry> pages(3);
  ASSERT_TRUE(space.Acquire(pages));
  const std::vector<PageEntry> twice = {pages[0], pages[1], pages[0]};
  std::vector<PageEntry> many(6);
  ExpectNone({[&] { return space.Release(twice); }, [&] { return space.Share(twice); },
              [&] { return space.Acquire(many); }, [] { return Validate(ModelConfig()); },
              [] { return StatusOf(PageSpace::Create(0)); },
              [] { return StatusOf(PageSpace::Create(8)); },
              [] { return StatusOf(LayerPool::Create(PoolKind::kRaw, 0)); },
              [] { return StatusOf(LayerPool::Create(PoolKind::kRaw, 8)); }});
  for (const PageEntry& entry : pages) EXPECT_EQ(space.ref_count(entry.page), 1);
  EXPECT_TRUE(space.Release(pages));
  EXPECT_EQ(space.num_free(), 8);
}

TEST(OutOfMemory, OfRequests) {
  PageSpace space = std::move(*PageSpace::Create(64));
  const LayerPool pool = std::move(*LayerPool::Create(PoolKind::kRaw, 64));
  RequestSpaces spaces;
  spaces.raw = &space;
  LayerPools layer;
  layer.raw = pool.view();
  const RequestPools pools{.swa = {&layer, 1}};
  Request request = std::move(*Request::Create(spaces, 100));
  RequestMark mark = std::move(*request.Mark(pools));
  const RequestMark moved = std::move(mark);
  const int32_t free = space.num_free();
  ExpectNone(
      {[&] { return StatusOf(Request::Create(spaces, -1)); },
       [&] { return StatusOf(Request::Create(spaces, 10)); }, [&] { return request.Prepare(-1); },
       [&] { return request.Rewind(-1); }, [&] { return StatusOf(request.Mark({})); },
       [&] { return StatusOf(request.Mark(pools)); },
       [&] { return StatusOf(request.Fork(50, pools)); },
       [&] { return StatusOf(request.Fork(100, pools)); },
       [&] { return StatusOf(mark.Fork(pools)); }, [&] { return StatusOf(moved.Fork(pools)); }});
  EXPECT_EQ(space.num_free(), free);
  EXPECT_EQ(request.position(AttentionKind::kSwa), 100);
  EXPECT_TRUE(request.Mark(pools));
  EXPECT_TRUE(moved.Fork(pools));
}

}  // namespace
}  // namespace millipede
