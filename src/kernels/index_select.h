// The exact top k of scored candidates: leaves, their merges, and the result.
//
// The order of candidates: higher score first, equal scores (-0 equals +0) by lower index, NaN
// last, below -inf. A selection is an array of 64-bit keys, best first, whose descending order is
// that order.
#ifndef MILLIPEDE_KERNELS_INDEX_SELECT_H_
#define MILLIPEDE_KERNELS_INDEX_SELECT_H_

#include <bit>
#include <cstdint>

#include "geometry/visibility.h"

namespace millipede {

// --- Keys ----------------------------------------------------------------------------------------
// The upper half rises with the score and is 0 for NaN; the lower half is ~index.

// 0 <= index < 2^31. No key is 0.
constexpr uint64_t SelectionKey(float score, int32_t index) {
  uint32_t rank = 0;
  if (score == score) {
    const uint32_t bits = score == 0 ? 0U : std::bit_cast<uint32_t>(score);
    rank = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  }
  return uint64_t{rank} << 32 | ~static_cast<uint32_t>(index);
}

constexpr int32_t SelectionIndex(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

// The score's bits, except that -0 comes back as +0 and a NaN as some NaN.
constexpr float SelectionScore(uint64_t key) {
  const auto rank = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((rank >> 31) != 0 ? rank & 0x7FFFFFFFU : ~rank);
}

// --- Kernels -------------------------------------------------------------------------------------

struct IndexSelectLeafArgs {
  const float* scores = nullptr;  // [num_candidates]
  int64_t num_candidates = 0;     // 0 to kLeafCandidates
  int64_t first_candidate = 0;    // the index of scores[0]; the last index is below 2^31
  int64_t k = 0;                  // 1 to kLeafCandidates

  // Candidates whose key is below this one may be left out: the k-th key of any other selection of
  // the same query, complete with k keys. 0 leaves out none.
  uint64_t floor = 0;

  uint64_t* keys = nullptr;  // [k], the first (return value) written
};

// Writes the best min(k, num_candidates) candidates, best first, and returns how many it wrote;
// with a floor that may be fewer, those at or above the floor always among them.
int64_t IndexSelectLeaf(const IndexSelectLeafArgs& args);

struct IndexMergeArgs {
  uint64_t* left = nullptr;         // [k], the first left_count a selection; receives the result
  int64_t left_count = 0;           // 0 to k
  const uint64_t* right = nullptr;  // [right_count], a selection; does not overlap left
  int64_t right_count = 0;          // 0 to k
  int64_t k = 0;                    // >= 1
};

// Merges two selections of different candidates into the best min(k, left_count + right_count) of
// both, best first, in `left`; returns their number. Needs no scratch.
int64_t IndexMerge(const IndexMergeArgs& args);

struct IndexUnpackArgs {
  const uint64_t* keys = nullptr;  // [count], a selection
  int64_t count = 0;               // 0 to k
  int64_t k = 0;                   // >= 1
  int32_t* indices = nullptr;      // [k], written; -1 behind the selection
  float* scores = nullptr;         // [k], written; -FLT_MAX behind the selection; or null
};

void IndexUnpack(const IndexUnpackArgs& args);

// The SIMD target that IndexSelectLeaf runs on; the others are plain code.
const char* IndexSelectTargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_INDEX_SELECT_H_
