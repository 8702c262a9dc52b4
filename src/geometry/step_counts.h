// How much work a run of tokens makes, counted without listing it.
#ifndef MILLIPEDE_GEOMETRY_STEP_COUNTS_H_
#define MILLIPEDE_GEOMETRY_STEP_COUNTS_H_

#include <algorithm>
#include <cstdint>

#include "geometry/events.h"
#include "geometry/visibility.h"
#include "millipede/config.h"

namespace millipede {

struct StepCounts {
  int64_t tokens = 0;
  int64_t events = 0;
  int64_t pieces = 0;        // shards (HCA) or leaves (CSA), over all tokens
  int64_t merges = 0;        // CSA, over all tokens
  int64_t ragged_pages = 0;  // pages of a ragged list that cover the rows after the step

  constexpr int64_t work_items() const { return tokens + events + pieces + merges; }
};

// The counts of tokens [start, start + num_tokens) of one request.
constexpr StepCounts CountStep(AttentionKind kind, int64_t start, int64_t num_tokens) {
  StepCounts counts;
  counts.tokens = num_tokens;
  if (kind == AttentionKind::kSwa || num_tokens == 0) return counts;
  const int64_t end = start + num_tokens;
  const int64_t rows = CompressedRows(kind, end);
  counts.events = rows - CompressedRows(kind, start);
  counts.ragged_pages = PagesForRows(rows);
  // A token has a piece if it sees the piece's first row, so from that row's boundary token on.
  for (int64_t first_row = 0; first_row < rows; first_row += PieceRows(kind)) {
    counts.pieces += end - std::max(start, BoundaryToken(kind, first_row));
  }
  if (kind == AttentionKind::kCsa && rows > 0) {
    const int64_t tokens_with_pieces = end - std::max(start, BoundaryToken(kind, 0));
    counts.merges = counts.pieces - tokens_with_pieces;
  }
  return counts;
}

}  // namespace millipede

#endif  // MILLIPEDE_GEOMETRY_STEP_COUNTS_H_
