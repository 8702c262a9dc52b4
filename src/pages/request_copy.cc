#include "pages/request_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "geometry/events.h"
#include "geometry/page_span.h"
#include "geometry/visibility.h"
#include "pages/request_lists.h"
#include "pages/view_checks.h"

namespace millipede {
namespace {

// Pages of one list that become others, both as entries.
struct PageMove {
  size_t index;  // in the list
  PageEntry from;
  PageEntry to;
};
using PageMoves = std::array<std::vector<PageMove>, kRequestLists.size()>;

std::span<const LayerPools> LayersOf(const RequestPools& pools, AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kSwa:
      return pools.swa;
    case AttentionKind::kHca:
      return pools.hca;
    case AttentionKind::kCsa:
      return pools.csa;
  }
  return {};
}

// A kind without pools would come out of a copy with rows nobody wrote.
Status CheckPools(const RequestSpaces& spaces, const RequestPools& pools) {
  for (const AttentionKind kind : kAttentionKinds) {
    if (spaces.Has(kind) && LayersOf(pools, kind).empty()) {
      return MakeError(ErrorCode::kInvalidArgument, fmt::format("pools.{}", KindName(kind)),
                       "none; allowed: those of every layer of the kind");
    }
  }
  for (const RequestRows& rows : kRequestRows) {
    if (!spaces.Has(rows.kind)) continue;
    const int32_t num_pages = (spaces.*kRequestLists[rows.list].space)->num_pages();
    const std::span<const LayerPools> layers = LayersOf(pools, rows.kind);
    for (size_t i = 0; i < layers.size(); ++i) {
      MILLIPEDE_RETURN_IF_ERROR(
          CheckPoolView(layers[i].*rows.view, rows.pool, num_pages,
                        fmt::format("pools.{}[{}].{}", KindName(rows.kind), i, rows.name)));
    }
  }
  return {};
}

// Whether an entry of a list is still a page of its request.
Status CheckEntry(const Request::State& state, const RequestList& list, size_t index) {
  const PageEntry& entry = (state.*list.pages)[index];
  const PageSpace& space = *(state.spaces.*list.space);
  if (space.ref_count(entry.page) == 0) {
    return MakeError(ErrorCode::kPageNotAcquired,
                     fmt::format("{}.pages[{}].page", list.name, index),
                     "page {} has no owner; allowed: an acquired page", entry.page);
  }
  const uint64_t epoch = space.view().epochs[entry.page];
  if (epoch != entry.epoch) {
    return MakeError(ErrorCode::kStaleEpoch, fmt::format("{}.pages[{}].epoch", list.name, index),
                     "{}; allowed: {}, the epoch of page {}", entry.epoch, epoch, entry.page);
  }
  return {};
}

std::byte* PageAt(const PoolView& pool, int32_t page) {
  return pool.base + page * pool.page_stride_bytes;
}

// Copies what the moved pages hold of a request's rows, in every layer's pools. Of ragged lists
// that is what lies before the readable end.
void CopyRows(const Request::State& state, const PageMoves& moves, const RequestPools& pools) {
  for (const RequestRows& rows : kRequestRows) {
    if (!state.spaces.Has(rows.kind)) continue;
    const PoolFormat format = rows.format();
    const RowRange held = RangesOf(state, rows.kind).*rows.range;
    const PageSpan held_pages = PagesOf(format, held);
    for (const PageMove& move : moves[rows.list]) {
      const auto index = static_cast<int64_t>(move.index);
      int64_t num_rows = held_pages.Contains(index) ? format.rows_per_page : 0;
      if (!rows.is_ring()) {
        num_rows = std::min(num_rows, held.end - index * format.rows_per_page);
      }
      for (const LayerPools& layer : LayersOf(pools, rows.kind)) {
        const PoolView& pool = layer.*rows.view;
        std::memcpy(PageAt(pool, move.to.page), PageAt(pool, move.from.page),
                    static_cast<size_t>(num_rows * format.row_bytes));
      }
    }
  }
}

// The pages of each list that the next `num_tokens` tokens may write and others own too.
Result<PageMoves> SharedWritePages(const Request::State& state, int64_t num_tokens) {
  PageMoves moves;
  for (const RequestRows& rows : kRequestRows) {
    // Scales lie in the pages of their index rows.
    if (!state.spaces.Has(rows.kind) || rows.pool == PoolKind::kCsaIndexScales) continue;
    const RequestList& list = kRequestLists[rows.list];
    const std::vector<PageEntry>& pages = state.*list.pages;
    const int64_t start = RangesOf(state, rows.kind).raw.end;
    const PageSpan written =
        PagesOf(rows.format(), rows.is_ring() ? RowRange{start, start + num_tokens}
                                              : EventRows(rows.kind, start, num_tokens));
    for (int64_t i = 0; i < written.count; ++i) {
      const auto index = static_cast<size_t>(written.index(i));
      if (index >= pages.size()) break;  // not acquired yet
      if ((state.spaces.*list.space)->ref_count(pages[index].page) < 2) continue;
      MILLIPEDE_RETURN_IF_ERROR(CheckEntry(state, list, index));
      const auto listed = [index](const PageMove& move) { return move.index == index; };
      // Kinds share the raw list.
      if (std::ranges::any_of(moves[rows.list], listed)) continue;
      moves[rows.list].push_back({index, pages[index], {}});
    }
  }
  return moves;
}

// Acquires the pages that the moves lead to; as many are free.
Status AcquireTargets(const RequestSpaces& spaces, PageMoves& moves) {
  for (size_t i = 0; i < moves.size(); ++i) {
    for (PageMove& move : moves[i]) {
      MILLIPEDE_RETURN_IF_ERROR((spaces.*kRequestLists[i].space)->Acquire({&move.to, 1}));
    }
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Request::State>> CopyRequest(const Request::State& source, int64_t position,
                                                    const RequestPools& pools) {
  MILLIPEDE_RETURN_IF_ERROR(CheckPools(source.spaces, pools));
  const PageCounts counts = CountPages(source.spaces, {position, position, position});
  PageCounts shared{};
  PageCounts acquired{};
  for (size_t i = 0; i < kRequestLists.size(); ++i) {
    const RequestList& list = kRequestLists[i];
    if (!list.is_ring() && counts[i] > 0) {
      shared[i] = CompressedRows(list.kind, position) / kPageRows;
    }
    acquired[i] = counts[i] - shared[i];
    for (auto index = static_cast<size_t>(shared[i]); index < static_cast<size_t>(counts[i]);
         ++index) {
      MILLIPEDE_RETURN_IF_ERROR(CheckEntry(source, list, index));
    }
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckFree(source.spaces, acquired));

  // From here on the copy gives back what it has if anything fails.
  auto copy = std::make_shared<Request::State>();
  copy->spaces = source.spaces;
  copy->ranges = source.ranges;
  RewindRanges(*copy, position);
  PageMoves moves;
  for (size_t i = 0; i < kRequestLists.size(); ++i) {
    const RequestList& list = kRequestLists[i];
    const std::vector<PageEntry>& from = source.*list.pages;
    std::vector<PageEntry>& to = copy.get()->*list.pages;
    to.reserve(static_cast<size_t>(counts[i]));
    if (shared[i] > 0) {
      const auto full = std::span(from).first(static_cast<size_t>(shared[i]));
      MILLIPEDE_RETURN_IF_ERROR((source.spaces.*list.space)->Share(full));
      to.assign(full.begin(), full.end());
    }
  }
  MILLIPEDE_RETURN_IF_ERROR(Grow(*copy, acquired));
  for (size_t i = 0; i < kRequestLists.size(); ++i) {
    const std::vector<PageEntry>& from = source.*kRequestLists[i].pages;
    const std::vector<PageEntry>& to = copy.get()->*kRequestLists[i].pages;
    for (auto index = static_cast<size_t>(shared[i]); index < to.size(); ++index) {
      moves[i].push_back({index, from[index], to[index]});
    }
  }
  CopyRows(*copy, moves, pools);
  return copy;
}

Status PrepareStep(Request::State& state, int64_t num_tokens, const RequestPools& pools) {
  std::array<int64_t, kNumAttentionKinds> tokens{};
  for (const AttentionKind kind : kAttentionKinds) {
    tokens[static_cast<size_t>(kind)] = RangesOf(state, kind).raw.end + num_tokens;
  }
  const PageCounts missing = MissingPages(state, CountPages(state.spaces, tokens));
  auto found = SharedWritePages(state, num_tokens);
  if (!found) return tl::make_unexpected(std::move(found).error());
  PageMoves& moves = *found;
  PageCounts wanted = missing;
  for (size_t i = 0; i < moves.size(); ++i) {
    if (moves[i].empty()) continue;
    wanted[i] += static_cast<int64_t>(moves[i].size());
    MILLIPEDE_RETURN_IF_ERROR(CheckUnplanned(state));
    if (pools.swa.empty() && pools.hca.empty() && pools.csa.empty()) {
      const PageMove& move = moves[i].front();
      return MakeError(ErrorCode::kSharedWritePage,
                       fmt::format("{}.pages[{}].page", kRequestLists[i].name, move.index),
                       "page {} has {} references; allowed: 1, or the layers' pools to copy it in",
                       move.from.page,
                       (state.spaces.*kRequestLists[i].space)->ref_count(move.from.page));
    }
    MILLIPEDE_RETURN_IF_ERROR(CheckPools(state.spaces, pools));
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckFree(state.spaces, wanted));
  ReserveRoom(state, missing);
  // Nothing fails from here on.
  MILLIPEDE_RETURN_IF_ERROR(AcquireTargets(state.spaces, moves));
  CopyRows(state, moves, pools);
  for (size_t i = 0; i < moves.size(); ++i) {
    for (const PageMove& move : moves[i]) {
      MILLIPEDE_RETURN_IF_ERROR((state.spaces.*kRequestLists[i].space)->Release({&move.from, 1}));
      (state.*kRequestLists[i].pages)[move.index] = move.to;
    }
  }
  return Grow(state, missing);
}

}  // namespace millipede
