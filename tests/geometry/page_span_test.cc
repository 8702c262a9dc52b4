#include "geometry/page_span.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>

#include "geometry/rings.h"

namespace millipede {
namespace {

void ExpectSpan(const PageSpan& span, const std::set<int64_t>& pages, int64_t num_pages) {
  EXPECT_EQ(span.count, static_cast<int64_t>(pages.size()));
  for (int64_t i = 0; i < num_pages; ++i) EXPECT_EQ(span.Contains(i), pages.contains(i)) << i;
}

TEST(PageSpan, RingPagesOfPositions) {
  std::mt19937_64 random(5);
  for (const PoolKind kind :
       {PoolKind::kRaw, PoolKind::kHcaState, PoolKind::kCsaState, PoolKind::kCsaInnerState}) {
    const PoolFormat format = FormatOf(kind);
    for (int i = 0; i < 500; ++i) {
      const auto begin = static_cast<int64_t>(random() % 1000);
      const auto end = begin + static_cast<int64_t>(random() % 300);
      std::set<int64_t> pages;
      for (int64_t p = begin; p < end; ++p) pages.insert(RingPage(format, p));
      SCOPED_TRACE(::testing::Message() << begin << " to " << end);
      ExpectSpan(PagesOf(format, {begin, end}), pages, format.ring_pages);
    }
  }
}

TEST(PageSpan, PagesOfRows) {
  std::mt19937_64 random(6);
  for (int i = 0; i < 500; ++i) {
    const auto begin = static_cast<int64_t>(random() % 1000);
    const auto end = begin + static_cast<int64_t>(random() % 300);
    std::set<int64_t> pages;
    for (int64_t row = begin; row < end; ++row) pages.insert(row / 32);
    SCOPED_TRACE(::testing::Message() << begin << " to " << end);
    ExpectSpan(PagesOf(FormatOf(PoolKind::kHcaMain), {begin, end}), pages, 50);
  }
}

}  // namespace
}  // namespace millipede
