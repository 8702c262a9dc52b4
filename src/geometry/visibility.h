// What a token sees, as pure functions of its position: window rows, compressed rows, and how those
// rows are cut into shards (HCA), leaves and merges (CSA). Every cut follows from the row count of
// the token alone, never from the batch or from a capacity.
#ifndef MILLIPEDE_GEOMETRY_VISIBILITY_H_
#define MILLIPEDE_GEOMETRY_VISIBILITY_H_

#include <algorithm>
#include <cstdint>

#include "base/checked.h"
#include "millipede/config.h"
#include "millipede/pages.h"

namespace millipede {

inline constexpr int64_t kShardRows = 128;        // compressed rows of one HCA shard
inline constexpr int64_t kLeafCandidates = 2048;  // candidates of one CSA selection leaf

// Tokens per compressed row; 0 for SWA, which has none.
constexpr int64_t RatioOf(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kSwa:
      return 0;
    case AttentionKind::kHca:
      return kHcaRatio;
    case AttentionKind::kCsa:
      return kCsaRatio;
  }
  return 0;
}

// Tokens visible to the token at `position`, its own included.
constexpr int64_t VisibleTokens(int64_t position) { return position + 1; }

// Positions of the window of the token at `position`, its own included.
constexpr RowRange WindowRange(int64_t position) {
  return {std::max<int64_t>(0, position - (kWindowRows - 1)), position + 1};
}

// Compressed rows that `num_tokens` tokens have finished: rows [0, result).
constexpr int64_t CompressedRows(AttentionKind kind, int64_t num_tokens) {
  const int64_t ratio = RatioOf(kind);
  return ratio == 0 ? 0 : num_tokens / ratio;
}

// Compressed rows visible to the token at `position`: HCA attends to all of them, CSA selects among
// them (its candidates).
constexpr int64_t VisibleRows(AttentionKind kind, int64_t position) {
  return CompressedRows(kind, VisibleTokens(position));
}

// Compressed rows the token at `position` attends to.
constexpr int64_t AttendedRows(AttentionKind kind, int64_t position, int64_t index_topk) {
  const int64_t rows = VisibleRows(kind, position);
  return kind == AttentionKind::kCsa ? std::min(rows, index_topk) : rows;
}

// Pieces of `piece` rows that cover `num_rows` rows, and the rows of the last one: 0 if there is
// none.
constexpr int64_t NumPieces(int64_t num_rows, int64_t piece) { return CeilDiv(num_rows, piece); }
constexpr int64_t TailRows(int64_t num_rows, int64_t piece) {
  return num_rows == 0 ? 0 : num_rows - (NumPieces(num_rows, piece) - 1) * piece;
}

// Shards of `num_rows` HCA rows, and the rows of the last shard.
constexpr int64_t NumShards(int64_t num_rows) { return NumPieces(num_rows, kShardRows); }
constexpr int64_t ShardTail(int64_t num_rows) { return TailRows(num_rows, kShardRows); }

// Leaves of `num_candidates` CSA candidates, and the candidates of the last leaf.
constexpr int64_t NumLeaves(int64_t num_candidates) {
  return NumPieces(num_candidates, kLeafCandidates);
}
constexpr int64_t LeafTail(int64_t num_candidates) {
  return TailRows(num_candidates, kLeafCandidates);
}

// Pairwise merges of `num_leaves` leaves into one.
constexpr int64_t NumMerges(int64_t num_leaves) { return num_leaves == 0 ? 0 : num_leaves - 1; }

// Rows of one piece of a token's compressed rows: a shard, a leaf. 0 for SWA, which has none.
constexpr int64_t PieceRows(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kSwa:
      return 0;
    case AttentionKind::kHca:
      return kShardRows;
    case AttentionKind::kCsa:
      return kLeafCandidates;
  }
  return 0;
}

// Pages of a ragged list that cover `num_rows` rows.
constexpr int64_t PagesForRows(int64_t num_rows) { return CeilDiv(num_rows, kPageRows); }

}  // namespace millipede

#endif  // MILLIPEDE_GEOMETRY_VISIBILITY_H_
