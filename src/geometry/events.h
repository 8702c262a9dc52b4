// Boundary events: the tokens that finish a block of `ratio` tokens and emit its compressed row.
#ifndef MILLIPEDE_GEOMETRY_EVENTS_H_
#define MILLIPEDE_GEOMETRY_EVENTS_H_

#include <cstdint>

#include "geometry/visibility.h"
#include "millipede/config.h"
#include "millipede/pages.h"

namespace millipede {

// Whether the token at `position` finishes a block.
constexpr bool IsBoundary(AttentionKind kind, int64_t position) {
  const int64_t ratio = RatioOf(kind);
  return ratio != 0 && (position + 1) % ratio == 0;
}

// The compressed rows emitted by tokens [start, start + num_tokens): one event each, in order.
constexpr RowRange EventRows(AttentionKind kind, int64_t start, int64_t num_tokens) {
  return {CompressedRows(kind, start), CompressedRows(kind, start + num_tokens)};
}

// The token that emits compressed row `row`, the last of its block.
constexpr int64_t BoundaryToken(AttentionKind kind, int64_t row) {
  return (row + 1) * RatioOf(kind) - 1;
}

// The position that rotates compressed row `row`: the first token of its block.
constexpr int64_t RopePosition(AttentionKind kind, int64_t row) { return row * RatioOf(kind); }

// The positions whose state rows compressed row `row` pools. HCA pools its own block, `back`. CSA
// pools the front half of the lanes of the block before, and the back half of its own; the block
// before the first one is empty.
struct PooledPositions {
  RowRange front;
  RowRange back;
};
constexpr PooledPositions PooledBy(AttentionKind kind, int64_t row) {
  const int64_t ratio = RatioOf(kind);
  const RowRange back{row * ratio, (row + 1) * ratio};
  if (kind != AttentionKind::kCsa || row == 0) return {{}, back};
  return {{back.begin - ratio, back.begin}, back};
}

// State rows that one event pools, absent ones before position 0 included.
constexpr int64_t PooledRows(AttentionKind kind) {
  return kind == AttentionKind::kCsa ? 2 * RatioOf(kind) : RatioOf(kind);
}

}  // namespace millipede

#endif  // MILLIPEDE_GEOMETRY_EVENTS_H_
