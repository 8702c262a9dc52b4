// What the ceiling implies. The numbers are capacities that other code relies on: a row of a page
// space is an int32.
#include <cstdint>
#include <limits>

#include "geometry/events.h"
#include "geometry/rings.h"
#include "geometry/visibility.h"
#include "millipede/config.h"
#include "millipede/pages.h"

namespace millipede {
namespace {

constexpr int64_t kLastPosition = kMaxContextTokens - 1;

static_assert(VisibleRows(AttentionKind::kHca, kLastPosition) == 8192);
static_assert(NumShards(VisibleRows(AttentionKind::kHca, kLastPosition)) == 64);
static_assert(VisibleRows(AttentionKind::kCsa, kLastPosition) == 262'144);
static_assert(NumLeaves(VisibleRows(AttentionKind::kCsa, kLastPosition)) == 128);
static_assert(BoundaryToken(AttentionKind::kCsa, 262'143) == kLastPosition);

static_assert(FormatOf(PoolKind::kRaw).ring_rows() == kWindowRows);
static_assert(FormatOf(PoolKind::kHcaState).ring_rows() == kHcaRatio);
static_assert(FormatOf(PoolKind::kCsaState).ring_rows() == 2 * kCsaRatio);
static_assert(FormatOf(PoolKind::kCsaInnerState).ring_rows() == 2 * kCsaRatio);
static_assert(PooledRows(AttentionKind::kHca) == FormatOf(PoolKind::kHcaState).ring_rows());
static_assert(PooledRows(AttentionKind::kCsa) == FormatOf(PoolKind::kCsaState).ring_rows());

static_assert(int64_t{kMaxPagesPerSpace} * kPageRows <= std::numeric_limits<int32_t>::max());

}  // namespace
}  // namespace millipede
