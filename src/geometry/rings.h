// Where a position lies in a ring of pages, and which positions a ring has to hold before a step.
#ifndef MILLIPEDE_GEOMETRY_RINGS_H_
#define MILLIPEDE_GEOMETRY_RINGS_H_

#include <algorithm>
#include <cstdint>

#include "base/checked.h"
#include "geometry/visibility.h"
#include "millipede/config.h"
#include "millipede/pages.h"

namespace millipede {

// The ring row of `position`, in [0, ring_rows).
constexpr int64_t RingOffset(const PoolFormat& format, int64_t position) {
  return position % format.ring_rows();
}

// The ring page of `position`, an index into the request's ring list, and the slot in that page.
constexpr int32_t RingPage(const PoolFormat& format, int64_t position) {
  return static_cast<int32_t>(RingOffset(format, position) / format.rows_per_page);
}
constexpr int32_t RingSlot(const PoolFormat& format, int64_t position) {
  return static_cast<int32_t>(RingOffset(format, position) % format.rows_per_page);
}

// The raw positions a step that starts at `start` reads: the window of its first token, less that
// token itself.
constexpr RowRange RawRowsRead(int64_t start) { return {WindowRange(start).begin, start}; }

// The state positions a step that starts at `start` may pool: the open block and, for CSA, the
// block before it.
constexpr RowRange StateRowsHeld(AttentionKind kind, int64_t start) {
  if (kind == AttentionKind::kSwa) return {};
  const int64_t ratio = RatioOf(kind);
  const int64_t open_block = start / ratio * ratio;
  const int64_t overlap = kind == AttentionKind::kCsa ? ratio : 0;
  return {std::max<int64_t>(0, open_block - overlap), start};
}

// The lowest start whose raw rows a ring holds that has those from position `begin` on.
constexpr int64_t EarliestRawStart(int64_t begin) {
  return begin == 0 ? 0 : begin + kWindowRows - 1;
}

// The same of the state rows of a compressed kind.
constexpr int64_t EarliestStateStart(AttentionKind kind, int64_t begin) {
  const int64_t overlap = kind == AttentionKind::kCsa ? RatioOf(kind) : 0;
  return begin == 0 ? 0 : RoundUp(begin + overlap, RatioOf(kind));
}

}  // namespace millipede

#endif  // MILLIPEDE_GEOMETRY_RINGS_H_
