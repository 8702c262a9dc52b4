#include "plan/validate.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "geometry/rings.h"
#include "pages/request_state.h"
#include "pages/view_checks.h"
#include "plan/page_map.h"

namespace millipede {
namespace {

constexpr PoolFormat kRaw = FormatOf(PoolKind::kRaw);

std::string EntryField(const char* list, int64_t index, const char* member = "") {
  return fmt::format("{}.pages[{}]{}", list, index, member);
}

// The numbers of one request, its lists aside.
Status CheckNumbers(const ModelConfig& config, const StepRequest& request, int64_t r) {
  if (!request.active && request.num_tokens != 0) {
    return MakeRequestError(ErrorCode::kInactiveTokens, r, "num_tokens",
                            "{}; allowed: 0 for an inactive request", request.num_tokens);
  }
  if (request.num_tokens < 0) {
    return MakeRequestError(ErrorCode::kInvalidArgument, r, "num_tokens", "{}; allowed: at least 0",
                            request.num_tokens);
  }
  if (!TakesPart(request)) return {};
  const int64_t ceiling = config.max_context_tokens;
  if (request.start_pos < 0) {
    return MakeRequestError(ErrorCode::kInvalidArgument, r, "start_pos", "{}; allowed: 0 to {}",
                            request.start_pos, ceiling - 1);
  }
  if (request.start_pos >= ceiling) {
    return MakeRequestError(ErrorCode::kContextCeiling, r, "start_pos", "{}; allowed: 0 to {}",
                            request.start_pos, ceiling - 1);
  }
  if (request.num_tokens > ceiling - request.start_pos) {
    return MakeRequestError(ErrorCode::kContextCeiling, r, "num_tokens",
                            "{} at start_pos {}; allowed: at most {}", request.num_tokens,
                            request.start_pos, ceiling - request.start_pos);
  }
  return {};
}

// A Request object has to be alive and to draw from the spaces the plan is made for.
Status CheckOwner(const StepRequest& request, AttentionKind kind, const KindSpaces& spaces,
                  int64_t r) {
  if (request.request == nullptr) return {};
  const auto& state = request.request->state();
  if (state == nullptr || state->released) {
    return MakeRequestError(ErrorCode::kInvalidArgument, r, "request",
                            "released or moved from; allowed: a live request");
  }
  const PageSpaceView own = state->spaces.views(kind).raw;
  if (own.epochs != spaces.raw.epochs || own.ref_counts != spaces.raw.ref_counts ||
      own.generation != spaces.raw.generation) {
    return MakeRequestError(ErrorCode::kInvalidArgument, r, "request",
                            "its raw pages are of another space; allowed: the plan's spaces.raw");
  }
  return {};
}

Status CheckRing(const PageSpaceView& space, const PoolFormat& format, const PageListView& list,
                 uint32_t written, int64_t r, const char* name) {
  const auto num_pages = static_cast<int64_t>(list.pages.size());
  if (num_pages != format.ring_pages) {
    return MakeRequestError(ErrorCode::kRingPages, r, fmt::format("{}.pages", name),
                            "{} pages; allowed: exactly {}", num_pages, format.ring_pages);
  }
  for (int64_t i = 0; i < num_pages; ++i) {
    const PageEntry& entry = list.pages[static_cast<size_t>(i)];
    MILLIPEDE_RETURN_IF_ERROR(CheckEntry(space, entry, (written >> i & 1) != 0, r, name, i));
    for (int64_t j = 0; j < i; ++j) {
      if (list.pages[static_cast<size_t>(j)].page == entry.page) {
        return MakeRequestError(ErrorCode::kDuplicatePage, r, EntryField(name, i, ".page"),
                                "page {} also stands at pages[{}]; allowed: each page once",
                                entry.page, j);
      }
    }
  }
  return {};
}

// The range of a ring: well formed, ending where the step starts, with the rows the step reads.
Status CheckRingRange(const PoolFormat& format, RowRange valid, RowRange needed, int64_t ceiling,
                      int64_t r, const char* name) {
  const auto field = [name](const char* member) { return fmt::format("{}.valid{}", name, member); };
  if (valid.begin < 0 || valid.begin > valid.end) {
    return MakeRequestError(ErrorCode::kRangeMismatch, r, field(""),
                            "[{}, {}); allowed: 0 <= begin <= end", valid.begin, valid.end);
  }
  if (valid.end > ceiling) {
    return MakeRequestError(ErrorCode::kContextCeiling, r, field(".end"), "{}; allowed: at most {}",
                            valid.end, ceiling);
  }
  if (valid.end != needed.end) {
    return MakeRequestError(ErrorCode::kRangeMismatch, r, field(".end"),
                            "{}; allowed: {}, where the step starts", valid.end, needed.end);
  }
  if (valid.end - valid.begin > format.ring_rows()) {
    return MakeRequestError(ErrorCode::kRangeMismatch, r, field(".begin"),
                            "{}; allowed: at least {}, as the ring has {} rows", valid.begin,
                            valid.end - format.ring_rows(), format.ring_rows());
  }
  if (valid.begin > needed.begin) {
    return MakeRequestError(ErrorCode::kRangeMissingRows, r, field(".begin"),
                            "{}; allowed: at most {}, the first row the step reads", valid.begin,
                            needed.begin);
  }
  return {};
}

// A page that a request may write is named by no other request of the step.
Status CheckWriteConflicts(AttentionKind kind, std::span<const StepRequest> requests) {
  int64_t num_taking_part = 0;
  for (const StepRequest& request : requests) num_taking_part += TakesPart(request) ? 1 : 0;
  PageMap writers(num_taking_part * kRaw.ring_pages);
  // Visits every raw page of the step: (request, list index, page, whether it may be written).
  const auto visit = [&](const auto& visitor) -> Status {
    for (size_t r = 0; r < requests.size(); ++r) {
      if (!TakesPart(requests[r])) continue;
      const auto lists = ListsOf(requests[r], kind);
      const uint32_t written = RawPagesWritten(requests[r].start_pos, requests[r].num_tokens);
      for (int32_t i = 0; i < kRaw.ring_pages; ++i) {
        const int32_t page = lists.raw.pages[static_cast<size_t>(i)].page;
        MILLIPEDE_RETURN_IF_ERROR(
            visitor(static_cast<int32_t>(r), i, page, (written >> i & 1) != 0));
      }
    }
    return {};
  };
  const auto conflict = [](int32_t r, int32_t i, int32_t page, int32_t writer) -> Status {
    return MakeRequestError(ErrorCode::kWriteConflict, r, EntryField("raw", i, ".page"),
                            "page {} is also named by request {}, which writes it; allowed: a page "
                            "no other request writes",
                            page, writer);
  };
  MILLIPEDE_RETURN_IF_ERROR(visit([&](int32_t r, int32_t i, int32_t page, bool write) -> Status {
    if (!write) return {};
    const int32_t writer = writers.FindOrInsert(page, r);
    return writer == r ? Status() : conflict(r, i, page, writer);
  }));
  return visit([&](int32_t r, int32_t i, int32_t page, bool write) -> Status {
    if (write) return {};
    const int32_t writer = writers.Find(page);
    return writer < 0 || writer == r ? Status() : conflict(r, i, page, writer);
  });
}

}  // namespace

RequestPages ListsOf(const StepRequest& request, AttentionKind kind) {
  return request.request != nullptr ? request.request->pages(kind) : request.pages;
}

uint32_t RawPagesWritten(int64_t start_pos, int64_t num_tokens) {
  return RingPageMask(kRaw, {start_pos, start_pos + num_tokens});
}

Status CheckEntry(const PageSpaceView& space, const PageEntry& entry, bool written, int64_t request,
                  const char* list, int64_t index) {
  if (entry.page < 0 || entry.page >= space.num_pages) {
    return MakeRequestError(ErrorCode::kPageOutOfRange, request, EntryField(list, index, ".page"),
                            "{}; allowed: 0 to {}", entry.page, space.num_pages - 1);
  }
  const int32_t ref_count = space.ref_counts[entry.page];
  if (ref_count <= 0) {
    return MakeRequestError(ErrorCode::kPageNotAcquired, request, EntryField(list, index, ".page"),
                            "page {} has no owner; allowed: an acquired page", entry.page);
  }
  if (space.epochs[entry.page] != entry.epoch) {
    return MakeRequestError(ErrorCode::kStaleEpoch, request, EntryField(list, index, ".epoch"),
                            "{}; allowed: {}, the epoch of page {}", entry.epoch,
                            space.epochs[entry.page], entry.page);
  }
  if (written && ref_count > 1) {
    return MakeRequestError(ErrorCode::kSharedWritePage, request, EntryField(list, index, ".page"),
                            "page {} has {} references; allowed: 1, as the step writes it",
                            entry.page, ref_count);
  }
  return {};
}

Status CheckStep(const ModelConfig& config, AttentionKind kind, int32_t num_layers,
                 const KindSpaces& spaces, std::span<const StepRequest> requests) {
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  if (kind != AttentionKind::kSwa) {
    return MakeError(ErrorCode::kInvalidArgument, "kind", "{}; allowed: swa", KindName(kind));
  }
  if (num_layers < 1 || num_layers > kMaxPlanLayers) {
    return MakeError(ErrorCode::kInvalidArgument, "num_layers", "{}; allowed: 1 to {}", num_layers,
                     kMaxPlanLayers);
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckSpaceView(spaces.raw, "spaces.raw"));

  if (requests.size() > static_cast<size_t>(kMaxStepTokens)) {
    return MakeError(ErrorCode::kTooMuchWork, "requests", "{} requests; allowed: at most {}",
                     requests.size(), kMaxStepTokens);
  }
  // The numbers of all requests come before any list: a step too large is refused cheaply.
  int64_t num_tokens = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto r = static_cast<int64_t>(i);
    MILLIPEDE_RETURN_IF_ERROR(CheckNumbers(config, requests[i], r));
    if (!TakesPart(requests[i])) continue;
    num_tokens += requests[i].num_tokens;
    if (num_tokens > kMaxStepTokens) {
      return MakeRequestError(ErrorCode::kTooMuchWork, r, "num_tokens",
                              "{} makes {} tokens up to here; allowed: at most {} in a step",
                              requests[i].num_tokens, num_tokens, kMaxStepTokens);
    }
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const StepRequest& request = requests[i];
    if (!TakesPart(request)) continue;
    const auto r = static_cast<int64_t>(i);
    MILLIPEDE_RETURN_IF_ERROR(CheckOwner(request, kind, spaces, r));
    const RequestPages lists = ListsOf(request, kind);
    const uint32_t written = RawPagesWritten(request.start_pos, request.num_tokens);
    MILLIPEDE_RETURN_IF_ERROR(CheckRing(spaces.raw, kRaw, lists.raw, written, r, "raw"));
    MILLIPEDE_RETURN_IF_ERROR(CheckRingRange(kRaw, lists.raw.valid, RawRowsRead(request.start_pos),
                                             config.max_context_tokens, r, "raw"));
  }
  return CheckWriteConflicts(kind, requests);
}

}  // namespace millipede
