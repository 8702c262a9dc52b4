// Scores of the lightning indexer: every candidate's key against all indexer heads of a query.
#ifndef MILLIPEDE_KERNELS_INDEX_SCORE_H_
#define MILLIPEDE_KERNELS_INDEX_SCORE_H_

#include <cstdint>

#include "geometry/tiles.h"
#include "millipede/pages.h"

namespace millipede {

// Packs one query as geometry/tiles.h lays it out, so that vectors run along the heads.
struct IndexPackQueryArgs {
  const int8_t* codes = nullptr;   // [num_heads, 128]
  const float* scales = nullptr;   // [num_heads]
  const float* weights = nullptr;  // [num_heads] head weights
  int64_t num_heads = 0;           // >= 1
  void* packed = nullptr;          // PackedIndexQueryBytes(num_heads), 64-byte aligned, written
};

void IndexPackQuery(const IndexPackQueryArgs& args);

// --- Scores --------------------------------------------------------------------------------------

// A page of index keys.
struct IndexPage {
  const int8_t* rows = nullptr;   // [32, 128]
  const float* scales = nullptr;  // [32]
};

// Most queries of one call.
inline constexpr int64_t kMaxIndexQueries = 8;

struct IndexScoreArgs {
  const void* const* queries = nullptr;  // [num_queries] packed by IndexPackQuery
  int64_t num_queries = 0;               // 1 to kMaxIndexQueries
  int64_t num_heads = 0;                 // >= 1, of every query

  // Candidate c is row c % 32 of pages[c / 32]. Rows past the last candidate are not read.
  const IndexPage* pages = nullptr;  // [ceil(num_candidates / 32)]
  int64_t num_candidates = 0;        // >= 0

  float* const* scores = nullptr;  // [num_queries] pointers to [num_candidates], written
};

// scores[q][c] = key_scale[c] * sum over heads h of max(float(q_codes[h] . key[c]) * q_scale[h], 0)
// * weight[h]; a NaN product stays a NaN. The dot products are exact for all int8 codes. The sum
// over heads has one order, so a score's bits depend neither on the other queries nor on the other
// candidates of the call.
void IndexScore(const IndexScoreArgs& args);

// The SIMD target that these kernels run on.
const char* IndexScoreTargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_INDEX_SCORE_H_
