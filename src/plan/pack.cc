#include "plan/pack.h"

#include <algorithm>
#include <array>

#include "geometry/events.h"
#include "geometry/page_span.h"
#include "geometry/rings.h"
#include "geometry/step_counts.h"
#include "geometry/visibility.h"
#include "plan/validate.h"

namespace millipede {
namespace {

constexpr PoolFormat kRaw = FormatOf(PoolKind::kRaw);

// One request's tokens [start, end), and where its pages and queries lie.
struct Tokens {
  AttentionKind kind;
  int32_t request;
  int32_t first_query;
  int64_t start;
  int64_t end;
  RequestPages lists;

  int32_t query(int64_t position) const {
    return first_query + static_cast<int32_t>(position - start);
  }
};

// The pool row of `position` on a ring.
int32_t RingRow(const PoolFormat& format, const PageListView& ring, int64_t position) {
  const auto ring_page = static_cast<size_t>(RingPage(format, position));
  return ring.pages[ring_page].page * format.rows_per_page + RingSlot(format, position);
}

// The pool row of `row` of a ragged list.
int32_t RaggedRow(const PageListView& list, int64_t row) {
  return list.pages[static_cast<size_t>(row / kPageRows)].page * kPageRows +
         static_cast<int32_t>(row % kPageRows);
}

// Window rows: old ones from the ring, this step's by token.
void PackWindow(const Tokens& tokens, std::span<const int32_t> old_rows, RowRange old,
                int64_t position, PackedWork& work) {
  const RowRange window = WindowRange(position);
  int32_t* out = work.window_sources.data() + work.queries.size() * kWindowRows;
  int32_t* const end = out + kWindowRows;
  if (window.begin < old.end) {
    out = std::copy(old_rows.begin() + (window.begin - old.begin),
                    old_rows.begin() + (old.end - old.begin), out);
  }
  for (int64_t p = std::max(window.begin, tokens.start); p <= position; ++p) {
    *out++ = -2 - tokens.query(p);
  }
  std::fill(out, end, -1);
}

// Where the state rows lie that one event pools.
void PackEventSources(const Tokens& tokens, const PoolFormat& format, const PageListView& ring,
                      int64_t boundary, std::vector<int32_t>& sources) {
  for (int64_t p = boundary + 1 - PooledRows(tokens.kind); p <= boundary; ++p) {
    if (p >= tokens.start) {
      sources.push_back(-2 - tokens.query(p));
    } else {
      sources.push_back(p < 0 ? -1 : RingRow(format, ring, p));
    }
  }
}

void PackEvents(const Tokens& tokens, PackedWork& work) {
  const bool is_csa = tokens.kind == AttentionKind::kCsa;
  const PoolFormat state = FormatOf(is_csa ? PoolKind::kCsaState : PoolKind::kHcaState);
  const RowRange rows = EventRows(tokens.kind, tokens.start, tokens.end - tokens.start);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t boundary = BoundaryToken(tokens.kind, row);
    CompressEvent event;
    event.request = tokens.request;
    event.query = tokens.query(boundary);
    event.row = static_cast<int32_t>(row);
    event.main_write_row = RaggedRow(tokens.lists.main, row);
    event.rope_position = static_cast<int32_t>(RopePosition(tokens.kind, row));
    PackEventSources(tokens, state, tokens.lists.state, boundary, work.event_sources);
    if (is_csa) {
      event.index_write_row = RaggedRow(tokens.lists.index, row);
      PackEventSources(tokens, FormatOf(PoolKind::kCsaInnerState), tokens.lists.inner_state,
                       boundary, work.inner_event_sources);
    }
    work.events.push_back(event);
  }
}

// Cuts `num_rows` rows of a query, which lie in pages from `first_page` on.
template <typename Piece>
void PackPieces(AttentionKind kind, int64_t num_rows, int32_t query, int32_t first_page,
                std::vector<Piece>& pieces) {
  const auto piece_rows = static_cast<int32_t>(PieceRows(kind));
  const auto end = static_cast<int32_t>(num_rows);
  for (int32_t first = 0; first < end; first += piece_rows) {
    pieces.push_back(
        {query, first, std::min(piece_rows, end - first), first_page + first / kPageRows});
  }
}

// Pairs level by level: at each level the selections stand in slots that are multiples of `step`,
// and one without a partner stays for the next.
void PackMerges(int32_t num_leaves, std::vector<CsaMerge>& merges) {
  for (int32_t step = 1; step < num_leaves; step *= 2) {
    for (int32_t left = 0; left + step < num_leaves; left += 2 * step) {
      merges.push_back({left, left + step});
    }
  }
}

void PackQueries(const Tokens& tokens, PackedWork& work) {
  const RowRange old = RawRowsRead(tokens.start);
  std::array<int32_t, kWindowRows> old_rows{};  // of positions [old.begin, start)
  for (int64_t p = old.begin; p < old.end; ++p) {
    old_rows[static_cast<size_t>(p - old.begin)] = RingRow(kRaw, tokens.lists.raw, p);
  }
  const auto r = static_cast<size_t>(tokens.request);
  for (int64_t p = tokens.start; p < tokens.end; ++p) {
    PackWindow(tokens, old_rows, old, p, work);
    const RowRange window = WindowRange(p);
    QueryToken query;
    query.request = tokens.request;
    query.window_rows = static_cast<int32_t>(window.end - window.begin);
    query.position = p;
    query.raw_write_row = RingRow(kRaw, tokens.lists.raw, p);
    work.window_rows += query.window_rows;
    const int64_t rows = VisibleRows(tokens.kind, p);
    work.compressed_rows += rows;
    if (tokens.kind == AttentionKind::kHca) {
      query.state_write_row = RingRow(FormatOf(PoolKind::kHcaState), tokens.lists.state, p);
      PackPieces(tokens.kind, rows, tokens.query(p), work.main_page_offsets[r], work.shards);
      work.shard_offsets.push_back(static_cast<int32_t>(work.shards.size()));
    } else if (tokens.kind == AttentionKind::kCsa) {
      query.state_write_row = RingRow(FormatOf(PoolKind::kCsaState), tokens.lists.state, p);
      query.inner_state_write_row =
          RingRow(FormatOf(PoolKind::kCsaInnerState), tokens.lists.inner_state, p);
      PackPieces(tokens.kind, rows, tokens.query(p), work.index_page_offsets[r], work.leaves);
      PackMerges(static_cast<int32_t>(NumLeaves(rows)), work.merges);
      work.leaf_offsets.push_back(static_cast<int32_t>(work.leaves.size()));
      work.merge_offsets.push_back(static_cast<int32_t>(work.merges.size()));
    }
    work.queries.push_back(query);
  }
}

// The first pages of a ragged list, those that hold the rows after the step.
void PackPages(const PageListView& list, int64_t num_pages, std::vector<int32_t>& pages) {
  for (const PageEntry& entry : list.pages.first(static_cast<size_t>(num_pages))) {
    pages.push_back(entry.page);
  }
}

// Arrays at their final size, and the zero at the start of each array of offsets.
PackedWork Reserve(AttentionKind kind, std::span<const StepRequest> requests) {
  StepCounts sum;
  for (const StepRequest& request : requests) {
    if (!TakesPart(request)) continue;
    const StepCounts counts = CountStep(kind, request.start_pos, request.num_tokens);
    sum.tokens += counts.tokens;
    sum.events += counts.events;
    sum.pieces += counts.pieces;
    sum.merges += counts.merges;
    sum.ragged_pages += counts.ragged_pages;
  }
  const auto tokens = static_cast<size_t>(sum.tokens);
  const auto events = static_cast<size_t>(sum.events);
  const auto pooled_rows = events * static_cast<size_t>(PooledRows(kind));
  const auto open = [](std::vector<int32_t>& offsets, size_t count) {
    offsets.reserve(count + 1);
    offsets.push_back(0);
  };
  PackedWork work;
  work.requests.resize(requests.size());
  work.queries.reserve(tokens);
  work.window_sources.resize(tokens * kWindowRows);
  if (kind == AttentionKind::kSwa) return work;
  work.events.reserve(events);
  work.event_sources.reserve(pooled_rows);
  open(work.main_page_offsets, requests.size());
  work.main_pages.reserve(static_cast<size_t>(sum.ragged_pages));
  if (kind == AttentionKind::kHca) {
    open(work.shard_offsets, tokens);
    work.shards.reserve(static_cast<size_t>(sum.pieces));
    return work;
  }
  work.inner_event_sources.reserve(pooled_rows);
  open(work.index_page_offsets, requests.size());
  work.index_pages.reserve(static_cast<size_t>(sum.ragged_pages));
  open(work.leaf_offsets, tokens);
  work.leaves.reserve(static_cast<size_t>(sum.pieces));
  open(work.merge_offsets, tokens);
  work.merges.reserve(static_cast<size_t>(sum.merges));
  return work;
}

void PackRequest(AttentionKind kind, const StepRequest& request, int32_t r, PackedWork& work) {
  const Tokens tokens{kind,
                      r,
                      static_cast<int32_t>(work.queries.size()),
                      request.start_pos,
                      request.start_pos + request.num_tokens,
                      ListsOf(request, kind)};
  work.requests[static_cast<size_t>(r)] = {tokens.start, static_cast<int32_t>(request.num_tokens),
                                           tokens.first_query};
  const int64_t num_pages = CountStep(kind, request.start_pos, request.num_tokens).ragged_pages;
  PackPages(tokens.lists.main, num_pages, work.main_pages);
  if (kind == AttentionKind::kCsa) PackPages(tokens.lists.index, num_pages, work.index_pages);
  if (kind != AttentionKind::kSwa) PackEvents(tokens, work);
  PackQueries(tokens, work);
  work.raw_pages_read += PagesOf(kRaw, RawRowsRead(tokens.start)).count;
  work.raw_pages_written += PagesOf(kRaw, {tokens.start, tokens.end}).count;
}

}  // namespace

PackedWork PackStep(AttentionKind kind, std::span<const StepRequest> requests) {
  PackedWork work = Reserve(kind, requests);
  for (size_t r = 0; r < requests.size(); ++r) {
    if (TakesPart(requests[r])) PackRequest(kind, requests[r], static_cast<int32_t>(r), work);
    if (kind != AttentionKind::kSwa) {
      work.main_page_offsets.push_back(static_cast<int32_t>(work.main_pages.size()));
    }
    if (kind == AttentionKind::kCsa) {
      work.index_page_offsets.push_back(static_cast<int32_t>(work.index_pages.size()));
    }
  }
  return work;
}

}  // namespace millipede
