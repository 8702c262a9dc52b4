// The raw ring pages that a planned request reads and writes.
#ifndef MILLIPEDE_PLAN_RAW_PAGES_H_
#define MILLIPEDE_PLAN_RAW_PAGES_H_

#include <cstdint>

#include "geometry/page_span.h"
#include "geometry/rings.h"
#include "millipede/plan.h"

namespace millipede {

struct RawPages {
  PageSpan read;
  PageSpan written;

  // Whether ring page `index` is read, written or both.
  bool Contains(int64_t index) const { return read.Contains(index) || written.Contains(index); }
  int64_t count() const {
    int64_t sum = 0;
    for (int64_t i = 0; i < FormatOf(PoolKind::kRaw).ring_pages; ++i) sum += Contains(i) ? 1 : 0;
    return sum;
  }
};

inline RawPages RawPagesOf(const PlannedRequest& request) {
  if (request.num_tokens == 0) return {};
  const PoolFormat raw = FormatOf(PoolKind::kRaw);
  const int64_t start = request.start_pos;
  return {PagesOf(raw, RawRowsRead(start)), PagesOf(raw, {start, start + request.num_tokens})};
}

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_RAW_PAGES_H_
