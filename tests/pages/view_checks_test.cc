#include "pages/view_checks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace millipede {
namespace {

void ExpectError(const Status& status, ErrorCode code, const std::string& field) {
  ASSERT_FALSE(status) << field;
  EXPECT_EQ(status.error().code, code);
  EXPECT_EQ(status.error().field, field);
}

TEST(ViewChecks, SpaceView) {
  const std::vector<uint64_t> epochs(4);
  const std::vector<int32_t> ref_counts(4);
  const uint64_t generation = 0;
  const PageSpaceView good{epochs.data(), ref_counts.data(), &generation, 4};
  EXPECT_TRUE(CheckSpaceView(good, "spaces.raw"));

  PageSpaceView bad = good;
  bad.epochs = nullptr;
  ExpectError(CheckSpaceView(bad, "spaces.raw"), ErrorCode::kInvalidArgument, "spaces.raw.epochs");
  bad = good;
  bad.ref_counts = nullptr;
  ExpectError(CheckSpaceView(bad, "a"), ErrorCode::kInvalidArgument, "a.ref_counts");
  bad = good;
  bad.generation = nullptr;
  ExpectError(CheckSpaceView(bad, "a"), ErrorCode::kInvalidArgument, "a.generation");
  for (const int32_t num_pages : {-1, 0, kMaxPagesPerSpace + 1}) {
    bad = good;
    bad.num_pages = num_pages;
    ExpectError(CheckSpaceView(bad, "a"), ErrorCode::kInvalidArgument, "a.num_pages");
  }
}

TEST(ViewChecks, PoolView) {
  const auto pool = LayerPool::Create(PoolKind::kRaw, 5);
  ASSERT_TRUE(pool);
  const PoolView good = pool->view();
  const auto check = [](const PoolView& view) {
    return CheckPoolView(view, PoolKind::kRaw, 5, "pools.raw");
  };
  EXPECT_TRUE(check(good));
  PoolView wide = good;
  wide.page_stride_bytes += 64;  // an engine's pages may stand apart
  EXPECT_TRUE(check(wide));

  PoolView bad = good;
  bad.base = nullptr;
  ExpectError(check(bad), ErrorCode::kPlanMismatch, "pools.raw.base");
  bad = good;
  bad.base += 1;
  ExpectError(check(bad), ErrorCode::kPlanMismatch, "pools.raw.base");
  for (const int32_t num_pages : {0, 4, 6}) {
    bad = good;
    bad.num_pages = num_pages;
    ExpectError(check(bad), ErrorCode::kPlanMismatch, "pools.raw.num_pages");
  }
  for (const int64_t stride :
       {int64_t{0}, int64_t{-32'768}, int64_t{32'766}, int64_t{32'769}, INT64_MAX - 1}) {
    bad = good;
    bad.page_stride_bytes = stride;
    ExpectError(check(bad), ErrorCode::kPlanMismatch, "pools.raw.page_stride_bytes");
  }
}

}  // namespace
}  // namespace millipede
