#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "geometry/visibility.h"
#include "millipede/pages.h"

namespace millipede {
namespace {

// Bytes of this process that are in memory.
int64_t ResidentBytes() {
  long long total = 0;
  long long resident = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return -1;
  const int fields = std::fscanf(file, "%lld %lld", &total, &resident);
  std::fclose(file);
  return fields == 2 ? resident * 4096 : -1;
}

TEST(LayerPool, Formats) {
  struct Line {
    PoolKind kind;
    int64_t row_bytes, rows_per_page, ring_pages, page_bytes;
  };
  for (const Line& line : std::vector<Line>{
           {PoolKind::kRaw, 1024, 32, 4, 32'768},
           {PoolKind::kHcaMain, 1024, 32, 0, 32'768},
           {PoolKind::kHcaState, 4096, 8, 16, 32'768},
           {PoolKind::kCsaMain, 1024, 32, 0, 32'768},
           {PoolKind::kCsaIndexRows, 128, 32, 0, 4096},
           {PoolKind::kCsaIndexScales, 4, 32, 0, 128},
           {PoolKind::kCsaState, 8192, 2, 4, 16'384},
           {PoolKind::kCsaInnerState, 2048, 2, 4, 4096},
       }) {
    const PoolFormat format = FormatOf(line.kind);
    EXPECT_EQ(format.row_bytes, line.row_bytes);
    EXPECT_EQ(format.rows_per_page, line.rows_per_page);
    EXPECT_EQ(format.ring_pages, line.ring_pages);
    EXPECT_EQ(format.page_bytes(), line.page_bytes);
    const auto pool = LayerPool::Create(line.kind, 7);
    ASSERT_TRUE(pool);
    EXPECT_EQ(pool->kind(), line.kind);
    EXPECT_EQ(pool->view().page_stride_bytes, line.page_bytes);
    EXPECT_EQ(pool->view().num_pages, 7);
  }
}

TEST(LayerPool, ArgumentsAreChecked) {
  for (const int32_t num_pages : {-3, 0, kMaxPagesPerSpace + 1}) {
    const auto pool = LayerPool::Create(PoolKind::kRaw, num_pages);
    ASSERT_FALSE(pool);
    EXPECT_EQ(pool.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(pool.error().field, "num_pages");
  }
  const auto pool = LayerPool::Create(static_cast<PoolKind>(kNumPoolKinds), 1);
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().field, "kind");
}

TEST(LayerPool, TheLastPageLiesWhereItsOffsetSays) {
  // 2^22 pages of 32 KiB: offsets near 2^37.
  constexpr int32_t kPages = 1 << 22;
  const auto pool = LayerPool::Create(PoolKind::kRaw, kPages);
  ASSERT_TRUE(pool);
  const PoolView view = pool->view();
  std::byte* last = view.base + int64_t{kPages - 1} * view.page_stride_bytes;
  last[view.page_stride_bytes - 1] = std::byte{42};
  EXPECT_EQ(last[view.page_stride_bytes - 1], std::byte{42});
  EXPECT_EQ(view.base[0], std::byte{0});
}

// Pages, spaces and a request's lists for 64 requests of 1M tokens, each kind of pool: capacity
// costs address space only.
TEST(LayerPool, UnusedCapacityCostsNoMemory) {
  constexpr int32_t kRequests = 64;
  std::vector<LayerPool> pools;
  std::vector<PageSpace> spaces;
  pools.reserve(kNumPoolKinds);
  spaces.reserve(kNumPoolKinds);
  const int64_t before = ResidentBytes();
  ASSERT_GT(before, 0);
  int64_t capacity_bytes = 0;
  for (int i = 0; i < kNumPoolKinds; ++i) {
    const auto kind = static_cast<PoolKind>(i);
    const PoolFormat format = FormatOf(kind);
    const AttentionKind attention =
        kind == PoolKind::kHcaMain ? AttentionKind::kHca : AttentionKind::kCsa;
    const int64_t pages_per_request =
        format.ring_pages != 0 ? format.ring_pages
                               : PagesForRows(CompressedRows(attention, kMaxContextTokens));
    const auto num_pages = static_cast<int32_t>(kRequests * pages_per_request);
    pools.push_back(std::move(*LayerPool::Create(kind, num_pages)));
    spaces.push_back(std::move(*PageSpace::Create(num_pages)));
    capacity_bytes += num_pages * format.page_bytes();
  }
  EXPECT_GT(capacity_bytes, int64_t{16} << 30);
  EXPECT_LT(ResidentBytes() - before, int64_t{1} << 20);
}

}  // namespace
}  // namespace millipede
