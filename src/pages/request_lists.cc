#include "pages/request_lists.h"

#include <algorithm>
#include <span>

#include "base/error.h"
#include "geometry/rings.h"
#include "geometry/visibility.h"

namespace millipede {
namespace {

// The rows a step at `start` reads of a ring.
RowRange RowsRead(const RequestRows& ring, int64_t start) {
  return ring.list == kRawList ? RawRowsRead(start) : StateRowsHeld(ring.kind, start);
}

}  // namespace

PageCounts CountPages(const RequestSpaces& spaces,
                      const std::array<int64_t, kNumAttentionKinds>& tokens) {
  PageCounts counts{};
  counts[kRawList] = FormatOf(PoolKind::kRaw).ring_pages;
  if (spaces.Has(AttentionKind::kHca)) {
    const int64_t hca_tokens = tokens[static_cast<size_t>(AttentionKind::kHca)];
    counts[1] = PagesForRows(CompressedRows(AttentionKind::kHca, hca_tokens));
    counts[2] = FormatOf(PoolKind::kHcaState).ring_pages;
  }
  if (spaces.Has(AttentionKind::kCsa)) {
    const int64_t csa_tokens = tokens[static_cast<size_t>(AttentionKind::kCsa)];
    counts[3] = PagesForRows(CompressedRows(AttentionKind::kCsa, csa_tokens));
    counts[4] = counts[3];
    counts[5] = FormatOf(PoolKind::kCsaState).ring_pages;
    counts[6] = FormatOf(PoolKind::kCsaInnerState).ring_pages;
  }
  return counts;
}

Status CheckFree(const RequestSpaces& spaces, const PageCounts& wanted) {
  for (size_t i = 0; i < kRequestLists.size(); ++i) {
    if (wanted[i] == 0) continue;
    const PageSpace* space = spaces.*kRequestLists[i].space;
    int64_t together = 0;
    for (size_t j = 0; j < kRequestLists.size(); ++j) {
      if (spaces.*kRequestLists[j].space == space) together += wanted[j];
    }
    if (together > space->num_free()) {
      return MakeError(ErrorCode::kOutOfPages, kRequestLists[i].name,
                       "{} pages needed; allowed: at most {} free", together, space->num_free());
    }
  }
  return {};
}

PageCounts MissingPages(const Request::State& state, const PageCounts& counts) {
  PageCounts missing{};
  for (size_t i = 0; i < kRequestLists.size(); ++i) {
    const auto num_pages = static_cast<int64_t>((state.*kRequestLists[i].pages).size());
    missing[i] = std::max<int64_t>(0, counts[i] - num_pages);
  }
  return missing;
}

void ReserveRoom(Request::State& state, const PageCounts& missing) {
  for (size_t i = 0; i < kRequestLists.size(); ++i) {
    std::vector<PageEntry>& pages = state.*kRequestLists[i].pages;
    pages.reserve(pages.size() + static_cast<size_t>(missing[i]));
  }
}

Status Grow(Request::State& state, const PageCounts& missing) {
  MILLIPEDE_RETURN_IF_ERROR(CheckFree(state.spaces, missing));
  ReserveRoom(state, missing);
  for (size_t i = 0; i < kRequestLists.size(); ++i) {
    if (missing[i] == 0) continue;
    std::vector<PageEntry>& pages = state.*kRequestLists[i].pages;
    const size_t old_size = pages.size();
    pages.resize(old_size + static_cast<size_t>(missing[i]));
    MILLIPEDE_RETURN_IF_ERROR(
        (state.spaces.*kRequestLists[i].space)->Acquire(std::span(pages).subspan(old_size)));
  }
  return {};
}

Status ReleasePages(Request::State& state) {
  if (state.released) return {};
  state.released = true;
  Status first_error;
  for (const RequestList& list : kRequestLists) {
    std::vector<PageEntry>& pages = state.*list.pages;
    // Without pages the space is not touched: it may be null.
    if (pages.empty()) continue;
    PageSpace& space = *(state.spaces.*list.space);
    Status status = space.Release(pages);
    if (!status) {
      // A page that is no longer the request's does not keep the others.
      for (const PageEntry& entry : pages) static_cast<void>(space.Release({&entry, 1}));
      if (first_error) first_error = std::move(status);
    }
    pages.clear();
  }
  state.ranges = {};
  return first_error;
}

Status CheckLive(const Request::State* state) {
  if (state != nullptr && !state->released) return {};
  return MakeError(ErrorCode::kCallOrder, "request", "released; allowed: a live request");
}

Status CheckUnplanned(const Request::State& state) {
  for (const AttentionKind kind : kAttentionKinds) {
    if (!HasLivePlan(state, kind)) continue;
    return MakeError(ErrorCode::kCallOrder, "request",
                     "a {} plan of it is live; allowed: none, each committed or dropped",
                     KindName(kind));
  }
  return {};
}

Result<int64_t> CommonPosition(const Request::State& state) {
  const AttentionKind* first = nullptr;
  int64_t position = 0;
  for (const AttentionKind& kind : kAttentionKinds) {
    if (!state.spaces.Has(kind)) continue;
    const int64_t end = RangesOf(state, kind).raw.end;
    if (first != nullptr && end != position) {
      return MakeError(ErrorCode::kCallOrder, "request",
                       "{} is at position {} and {} at {}; allowed: every kind at one",
                       KindName(*first), position, KindName(kind), end);
    }
    first = &kind;
    position = end;
  }
  return position;
}

int64_t EarliestStart(const Request::State& state) {
  int64_t earliest = 0;
  for (const RequestRows& ring : kRequestRows) {
    if (!ring.is_ring() || !state.spaces.Has(ring.kind)) continue;
    const int64_t begin = (RangesOf(state, ring.kind).*ring.range).begin;
    earliest = std::max(earliest, ring.list == kRawList ? EarliestRawStart(begin)
                                                        : EarliestStateStart(ring.kind, begin));
  }
  return earliest;
}

Status CheckRewind(const Request::State& state, int64_t position) {
  for (const RequestRows& ring : kRequestRows) {
    if (!ring.is_ring() || !state.spaces.Has(ring.kind)) continue;
    const RowRange held = RangesOf(state, ring.kind).*ring.range;
    const int64_t first_read = RowsRead(ring, position).begin;
    if (first_read >= held.begin) continue;
    return MakeError(ErrorCode::kRangeMissingRows, "position",
                     "{} reads rows from {} of the ring {}.{}, which holds [{}, {}); allowed: at "
                     "least {}",
                     position, first_read, KindName(ring.kind), ring.name, held.begin, held.end,
                     EarliestStart(state));
  }
  return {};
}

void RewindRanges(Request::State& state, int64_t position) {
  for (const AttentionKind kind : kAttentionKinds) {
    if (!state.spaces.Has(kind)) continue;
    RequestRanges ranges = RangesOf(state, kind);
    ranges.raw.end = position;
    if (kind != AttentionKind::kSwa) {
      ranges.main.end = CompressedRows(kind, position);
      ranges.state.end = position;
    }
    if (kind == AttentionKind::kCsa) {
      ranges.index.end = ranges.main.end;
      ranges.inner_state.end = position;
    }
    SetRanges(state, kind, ranges);
  }
}

}  // namespace millipede
