#include "plan/pack.h"

#include <algorithm>
#include <bit>

#include "geometry/rings.h"
#include "geometry/visibility.h"
#include "plan/validate.h"

namespace millipede {
namespace {

constexpr PoolFormat kRaw = FormatOf(PoolKind::kRaw);

// The row of `position` in the space, for a ring of `pages`.
int32_t RawRow(std::span<const PageEntry> pages, int64_t position) {
  const auto ring_page = static_cast<size_t>(RingPage(kRaw, position));
  return pages[ring_page].page * kRaw.rows_per_page + RingSlot(kRaw, position);
}

// Appends the query tokens of request `r`.
void PackQueries(const StepRequest& request, int32_t r, PackedWork& work) {
  const auto pages = ListsOf(request, AttentionKind::kSwa).raw.pages;
  const int64_t start = request.start_pos;
  const RowRange old = RawRowsRead(start);
  const auto first_query = static_cast<int32_t>(work.queries.size());
  work.requests[static_cast<size_t>(r)] = {start, static_cast<int32_t>(request.num_tokens),
                                           first_query};

  std::array<int32_t, kWindowRows> old_rows{};  // of positions [old.begin, start)
  for (int64_t p = old.begin; p < old.end; ++p) {
    old_rows[static_cast<size_t>(p - old.begin)] = RawRow(pages, p);
  }
  for (int64_t p = start; p < start + request.num_tokens; ++p) {
    const RowRange window = WindowRange(p);
    int32_t* out = work.window_sources.data() + work.queries.size() * kWindowRows;
    int32_t* const end = out + kWindowRows;
    if (window.begin < old.end) {
      out = std::copy(old_rows.begin() + (window.begin - old.begin),
                      old_rows.begin() + (old.end - old.begin), out);
    }
    for (int64_t q = std::max(window.begin, start); q <= p; ++q) {
      *out++ = -2 - (first_query + static_cast<int32_t>(q - start));
    }
    std::fill(out, end, -1);
    const auto window_rows = static_cast<int32_t>(window.end - window.begin);
    work.queries.push_back({r, window_rows, p, RawRow(pages, p)});
    work.window_rows += window_rows;
  }
  work.raw_pages_read += std::popcount(RingPageMask(kRaw, old));
  work.raw_pages_written += std::popcount(RawPagesWritten(start, request.num_tokens));
}

}  // namespace

PackedWork PackSwa(std::span<const StepRequest> requests) {
  int64_t num_tokens = 0;
  for (const StepRequest& request : requests) {
    if (TakesPart(request)) num_tokens += request.num_tokens;
  }
  PackedWork work;
  work.requests.resize(requests.size());
  work.queries.reserve(static_cast<size_t>(num_tokens));
  work.window_sources.resize(static_cast<size_t>(num_tokens) * kWindowRows);
  for (size_t r = 0; r < requests.size(); ++r) {
    if (TakesPart(requests[r])) PackQueries(requests[r], static_cast<int32_t>(r), work);
  }
  return work;
}

}  // namespace millipede
