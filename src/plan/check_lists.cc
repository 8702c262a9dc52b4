#include "plan/check_lists.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "geometry/visibility.h"
#include "pages/request_state.h"
#include "plan/validate.h"

namespace millipede {
namespace {

std::string PagesField(const ListSpec& spec) { return fmt::format("{}.pages", spec.name); }

std::string EntryField(const ListSpec& spec, int64_t index, const char* member) {
  return fmt::format("{}.pages[{}].{}", spec.name, index, member);
}

std::string RangeField(const ListSpec& spec, const char* member = "") {
  return fmt::format("{}.valid{}", spec.name, member);
}

Status CheckNumPages(const ListSpec& spec, int64_t num_pages, const ListUse& use, int64_t r) {
  if (spec.is_ring() && num_pages != use.num_pages) {
    return MakeRequestError(ErrorCode::kRingPages, r, PagesField(spec),
                            "{} pages; allowed: exactly {}", num_pages, use.num_pages);
  }
  if (num_pages < use.num_pages) {
    return MakeRequestError(ErrorCode::kShortList, r, PagesField(spec),
                            "{} pages; allowed: at least {}, for {} rows after the step", num_pages,
                            use.num_pages, use.held.end + (use.written.end - use.written.begin));
  }
  return {};
}

// The first entry whose page stands before it too, or -1. Ascending pages, as they come from a
// fresh space, need no table.
int64_t FindDuplicate(std::span<const PageEntry> entries, PageSet& seen) {
  const auto not_above = [](const PageEntry& a, const PageEntry& b) { return b.page <= a.page; };
  if (std::ranges::adjacent_find(entries, not_above) == entries.end()) return -1;
  seen.Reset(static_cast<int64_t>(entries.size()));
  for (size_t i = 0; i < entries.size(); ++i) {
    if (!seen.Insert(entries[i].page)) return static_cast<int64_t>(i);
  }
  return -1;
}

Status DuplicateError(const ListSpec& spec, std::span<const PageEntry> pages, int64_t index,
                      int64_t r) {
  const int32_t page = pages[static_cast<size_t>(index)].page;
  int64_t first = 0;
  while (pages[static_cast<size_t>(first)].page != page) ++first;
  return MakeRequestError(ErrorCode::kDuplicatePage, r, EntryField(spec, index, "page"),
                          "page {} also stands at pages[{}]; allowed: each page once", page, first);
}

// The range of a ring: well formed, ending where the step starts, with the rows the step reads.
Status CheckRingRange(const ListSpec& spec, RowRange valid, const ListUse& use, int64_t ceiling,
                      int64_t r) {
  if (valid.begin < 0 || valid.begin > valid.end) {
    return MakeRequestError(ErrorCode::kRangeMismatch, r, RangeField(spec),
                            "[{}, {}); allowed: 0 <= begin <= end", valid.begin, valid.end);
  }
  if (valid.end > ceiling) {
    return MakeRequestError(ErrorCode::kContextCeiling, r, RangeField(spec, ".end"),
                            "{}; allowed: at most {}", valid.end, ceiling);
  }
  if (valid.end != use.held.end) {
    return MakeRequestError(ErrorCode::kRangeMismatch, r, RangeField(spec, ".end"),
                            "{}; allowed: {}, where the step starts", valid.end, use.held.end);
  }
  const int64_t ring_rows = spec.format().ring_rows();
  if (valid.end - valid.begin > ring_rows) {
    return MakeRequestError(ErrorCode::kRangeMismatch, r, RangeField(spec, ".begin"),
                            "{}; allowed: at least {}, as the ring has {} rows", valid.begin,
                            valid.end - ring_rows, ring_rows);
  }
  if (valid.begin > use.held.begin) {
    return MakeRequestError(ErrorCode::kRangeMissingRows, r, RangeField(spec, ".begin"),
                            "{}; allowed: at most {}, the first row the step needs", valid.begin,
                            use.held.begin);
  }
  return {};
}

// The range of a ragged list: from row 0, exactly the rows that the tokens before the step made.
Status CheckRaggedRange(const ListSpec& spec, RowRange valid, const ListUse& use, int64_t max_rows,
                        int64_t r) {
  if (valid.begin != 0) {
    return MakeRequestError(ErrorCode::kHole, r, RangeField(spec, ".begin"), "{}; allowed: 0",
                            valid.begin);
  }
  if (valid.end > max_rows) {
    return MakeRequestError(ErrorCode::kContextCeiling, r, RangeField(spec, ".end"),
                            "{}; allowed: at most {}", valid.end, max_rows);
  }
  if (valid.end != use.held.end) {
    return MakeRequestError(ErrorCode::kRangeMismatch, r, RangeField(spec, ".end"),
                            "{}; allowed: {}, the rows of the tokens before the step", valid.end,
                            use.held.end);
  }
  return {};
}

Status ConflictError(const ListSpec& spec, int64_t r, int64_t index, int32_t page, int32_t writer) {
  return MakeRequestError(ErrorCode::kWriteConflict, r, EntryField(spec, index, "page"),
                          "page {} is also named by request {}, which writes it; allowed: a page "
                          "no other request writes",
                          page, writer);
}

bool IsGoodEntry(const PageSpaceView& space, const PageEntry& entry, bool written) {
  if (entry.page < 0 || entry.page >= space.num_pages) return false;
  const int32_t ref_count = space.ref_counts[entry.page];
  return ref_count > 0 && (!written || ref_count == 1) && space.epochs[entry.page] == entry.epoch;
}

// Whether all entries are owned under their epochs. No branch waits for a load: the pages of a long
// list are anywhere in the space, and many loads have to be under way at once.
bool AllOwned(const PageSpaceView& space, std::span<const PageEntry> entries) {
  bool owned = true;
  for (const PageEntry& entry : entries) {
    const bool in_range =
        static_cast<uint32_t>(entry.page) < static_cast<uint32_t>(space.num_pages);
    const int32_t page = in_range ? entry.page : 0;
    owned &= in_range & (space.ref_counts[page] > 0) & (space.epochs[page] == entry.epoch);
  }
  return owned;
}

// Whether one of the `written` pages, which are owned, has more than one owner.
bool AnyShared(const PageSpaceView& space, std::span<const PageEntry> entries,
               const PageSpan& written) {
  for (int64_t i = 0; i < written.count; ++i) {
    const PageEntry& entry = entries[static_cast<size_t>(written.index(i))];
    if (space.ref_counts[entry.page] != 1) return true;
  }
  return false;
}

// What is known of a list of a Request object; null for raw descriptors.
Request::State::Verified* VerifiedOf(const StepRequest& request, AttentionKind kind,
                                     const ListSpec& spec) {
  if (request.request == nullptr) return nullptr;
  const ptrdiff_t place = &spec - ListsOfKind(kind).data();
  return &request.request->state()->verified[static_cast<size_t>(kind)][static_cast<size_t>(place)];
}

}  // namespace

int64_t FindBadEntry(const PageSpaceView& space, std::span<const PageEntry> entries,
                     const PageSpan& written, int64_t num_known) {
  if (AllOwned(space, entries.subspan(static_cast<size_t>(num_known))) &&
      !AnyShared(space, entries, written)) {
    return -1;
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    if (!IsGoodEntry(space, entries[i], written.Contains(index))) return index;
  }
  return -1;
}

tl::unexpected<Error> EntryError(const PageSpaceView& space, const ListSpec& spec,
                                 const PageEntry& entry, int64_t request, int64_t index) {
  if (entry.page == -1 && !spec.is_ring()) {
    return MakeRequestError(ErrorCode::kHole, request, EntryField(spec, index, "page"),
                            "-1, a hole; allowed: 0 to {}", space.num_pages - 1);
  }
  if (entry.page < 0 || entry.page >= space.num_pages) {
    return MakeRequestError(ErrorCode::kPageOutOfRange, request, EntryField(spec, index, "page"),
                            "{}; allowed: 0 to {}", entry.page, space.num_pages - 1);
  }
  const int32_t ref_count = space.ref_counts[entry.page];
  if (ref_count <= 0) {
    return MakeRequestError(ErrorCode::kPageNotAcquired, request, EntryField(spec, index, "page"),
                            "page {} has no owner; allowed: an acquired page", entry.page);
  }
  if (space.epochs[entry.page] != entry.epoch) {
    return MakeRequestError(ErrorCode::kStaleEpoch, request, EntryField(spec, index, "epoch"),
                            "{}; allowed: {}, the epoch of page {}", entry.epoch,
                            space.epochs[entry.page], entry.page);
  }
  return MakeRequestError(ErrorCode::kSharedWritePage, request, EntryField(spec, index, "page"),
                          "page {} has {} references; allowed: 1, as the step writes it",
                          entry.page, ref_count);
}

Status CheckList(const PageSpaceView& space, const ListSpec& spec, AttentionKind kind,
                 const StepRequest& request, int64_t r, int64_t ceiling, PageSet& seen) {
  const PageListView list = ListsOf(request, kind).*spec.list;
  const ListUse use = UseOf(spec, kind, request.start_pos, request.num_tokens);
  MILLIPEDE_RETURN_IF_ERROR(CheckNumPages(spec, static_cast<int64_t>(list.pages.size()), use, r));
  const auto entries = list.pages.first(static_cast<size_t>(use.num_pages));
  Request::State::Verified* const verified = VerifiedOf(request, kind, spec);
  const int64_t num_known = verified != nullptr && verified->generation == *space.generation
                                ? std::min(verified->num_entries, use.num_pages)
                                : 0;
  const int64_t bad = FindBadEntry(space, entries, use.written_pages, num_known);
  if (bad >= 0) return EntryError(space, spec, entries[static_cast<size_t>(bad)], r, bad);
  if (num_known < use.num_pages) {
    const int64_t twice = FindDuplicate(entries, seen);
    if (twice >= 0) return DuplicateError(spec, entries, twice, r);
    if (verified != nullptr) *verified = {*space.generation, use.num_pages};
  }
  if (spec.is_ring()) return CheckRingRange(spec, list.valid, use, ceiling, r);
  return CheckRaggedRange(spec, list.valid, use, CompressedRows(kind, ceiling), r);
}

Status CheckWriteConflicts(const ListSpec& spec, AttentionKind kind,
                           std::span<const StepRequest> requests) {
  int64_t num_taking_part = 0;
  int64_t num_written = 0;
  bool all_own_references = true;
  for (const StepRequest& request : requests) {
    if (!TakesPart(request)) continue;
    ++num_taking_part;
    all_own_references &= request.request != nullptr;
    num_written += UseOf(spec, kind, request.start_pos, request.num_tokens).written_pages.count;
  }
  if (num_taking_part < 2 || num_written == 0) return {};

  PageMap writers(num_written);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!TakesPart(requests[i])) continue;
    const auto r = static_cast<int32_t>(i);
    const PageListView list = ListsOf(requests[i], kind).*spec.list;
    const PageSpan written =
        UseOf(spec, kind, requests[i].start_pos, requests[i].num_tokens).written_pages;
    for (int64_t j = 0; j < written.count; ++j) {
      const int64_t index = written.index(j);
      const int32_t page = list.pages[static_cast<size_t>(index)].page;
      const int32_t writer = writers.FindOrInsert(page, r);
      if (writer != r) return ConflictError(spec, r, index, page, writer);
    }
  }
  // A Request object holds a reference of its own to each of its pages, and a written page has one
  // reference: so no other Request names it. (One that stands twice in the step writes a ring
  // twice.)
  if (all_own_references) return {};
  for (size_t i = 0; i < requests.size(); ++i) {
    if (!TakesPart(requests[i])) continue;
    const auto r = static_cast<int32_t>(i);
    const PageListView list = ListsOf(requests[i], kind).*spec.list;
    const ListUse use = UseOf(spec, kind, requests[i].start_pos, requests[i].num_tokens);
    for (int64_t index = 0; index < use.num_pages; ++index) {
      const int32_t page = list.pages[static_cast<size_t>(index)].page;
      const int32_t writer = writers.Find(page);
      if (writer >= 0 && writer != r) return ConflictError(spec, r, index, page, writer);
    }
  }
  return {};
}

}  // namespace millipede
