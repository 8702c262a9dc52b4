// Which pages of a list hold a range of its rows.
#ifndef MILLIPEDE_GEOMETRY_PAGE_SPAN_H_
#define MILLIPEDE_GEOMETRY_PAGE_SPAN_H_

#include <algorithm>
#include <cstdint>

#include "base/checked.h"
#include "millipede/pages.h"

namespace millipede {

// Consecutive pages of one list, as indices into it. On a ring the page after the last is the first
// again.
struct PageSpan {
  int64_t first = 0;
  int64_t count = 0;
  int32_t ring_pages = 0;  // 0: a ragged list

  // The list index of the i-th page.
  constexpr int64_t index(int64_t i) const {
    return ring_pages == 0 ? first + i : (first + i) % ring_pages;
  }
  constexpr bool Contains(int64_t index) const {
    const int64_t offset = index - first + (index < first ? ring_pages : 0);
    return offset >= 0 && offset < count;
  }
};

// The pages that hold `rows`: positions for a ring, rows for a ragged list; rows.begin >= 0.
constexpr PageSpan PagesOf(const PoolFormat& format, RowRange rows) {
  if (rows.begin >= rows.end) return {0, 0, format.ring_pages};
  const int64_t first = rows.begin / format.rows_per_page;
  const int64_t count = CeilDiv(rows.end, format.rows_per_page) - first;
  if (format.ring_pages == 0) return {first, count, 0};
  return {first % format.ring_pages, std::min<int64_t>(count, format.ring_pages),
          format.ring_pages};
}

}  // namespace millipede

#endif  // MILLIPEDE_GEOMETRY_PAGE_SPAN_H_
