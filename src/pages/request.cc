#include <algorithm>

#include "base/error.h"
#include "geometry/rings.h"
#include "geometry/visibility.h"
#include "millipede/pages.h"
#include "pages/request_state.h"

namespace millipede {
namespace {

constexpr std::array<AttentionKind, kNumAttentionKinds> kKinds = {
    AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa};

// One of a request's lists and the space it draws from.
struct List {
  const char* name;
  PageSpace* RequestSpaces::*space;
  std::vector<PageEntry> Request::State::*pages;
};
constexpr std::array<List, 7> kLists = {{
    {"raw", &RequestSpaces::raw, &Request::State::raw},
    {"hca_main", &RequestSpaces::hca_main, &Request::State::hca_main},
    {"hca_state", &RequestSpaces::hca_state, &Request::State::hca_state},
    {"csa_main", &RequestSpaces::csa_main, &Request::State::csa_main},
    {"csa_index", &RequestSpaces::csa_index, &Request::State::csa_index},
    {"csa_state", &RequestSpaces::csa_state, &Request::State::csa_state},
    {"csa_inner_state", &RequestSpaces::csa_inner_state, &Request::State::csa_inner_state},
}};

// Pages of each of kLists.
using PageCounts = std::array<int64_t, kLists.size()>;

// Pages of a request with `hca_tokens` and `csa_tokens` tokens.
PageCounts CountPages(const RequestSpaces& spaces, int64_t hca_tokens, int64_t csa_tokens) {
  PageCounts counts{};
  counts[0] = FormatOf(PoolKind::kRaw).ring_pages;
  if (spaces.Has(AttentionKind::kHca)) {
    counts[1] = PagesForRows(CompressedRows(AttentionKind::kHca, hca_tokens));
    counts[2] = FormatOf(PoolKind::kHcaState).ring_pages;
  }
  if (spaces.Has(AttentionKind::kCsa)) {
    counts[3] = PagesForRows(CompressedRows(AttentionKind::kCsa, csa_tokens));
    counts[4] = counts[3];
    counts[5] = FormatOf(PoolKind::kCsaState).ring_pages;
    counts[6] = FormatOf(PoolKind::kCsaInnerState).ring_pages;
  }
  return counts;
}

// Grows every list to `counts` pages at least, or none: what is missing is compared with what is
// free before anything is acquired. Lists may draw from one space.
Status Grow(Request::State& state, const PageCounts& counts) {
  PageCounts missing{};
  for (size_t i = 0; i < kLists.size(); ++i) {
    const auto num_pages = static_cast<int64_t>((state.*kLists[i].pages).size());
    missing[i] = std::max<int64_t>(0, counts[i] - num_pages);
  }
  for (size_t i = 0; i < kLists.size(); ++i) {
    if (missing[i] == 0) continue;
    const PageSpace* space = state.spaces.*kLists[i].space;
    int64_t wanted = 0;
    for (size_t j = 0; j < kLists.size(); ++j) {
      if (state.spaces.*kLists[j].space == space) wanted += missing[j];
    }
    if (wanted > space->num_free()) {
      return MakeError(ErrorCode::kOutOfPages, kLists[i].name,
                       "{} pages needed; allowed: at most {} free", wanted, space->num_free());
    }
  }
  for (size_t i = 0; i < kLists.size(); ++i) {
    std::vector<PageEntry>& pages = state.*kLists[i].pages;
    pages.reserve(pages.size() + static_cast<size_t>(missing[i]));
  }
  for (size_t i = 0; i < kLists.size(); ++i) {
    if (missing[i] == 0) continue;
    std::vector<PageEntry>& pages = state.*kLists[i].pages;
    const size_t old_size = pages.size();
    pages.resize(old_size + static_cast<size_t>(missing[i]));
    MILLIPEDE_RETURN_IF_ERROR(
        (state.spaces.*kLists[i].space)->Acquire(std::span(pages).subspan(old_size)));
  }
  return {};
}

// The ranges of a kind after `position` tokens.
RequestRanges RangesAt(AttentionKind kind, int64_t position) {
  const RowRange rows{0, CompressedRows(kind, position)};
  const RowRange state = StateRowsHeld(kind, position);
  RequestRanges ranges;
  ranges.raw = {std::max<int64_t>(0, position - FormatOf(PoolKind::kRaw).ring_rows()), position};
  ranges.main = rows;
  ranges.state = state;
  if (kind == AttentionKind::kCsa) {
    ranges.index = rows;
    ranges.inner_state = state;
  }
  return ranges;
}

PageSpaceView ViewOf(const PageSpace* space) {
  return space == nullptr ? PageSpaceView{} : space->view();
}

}  // namespace

bool RequestSpaces::Has(AttentionKind kind) const {
  if (raw == nullptr) return false;
  switch (kind) {
    case AttentionKind::kSwa:
      return true;
    case AttentionKind::kHca:
      return hca_main != nullptr && hca_state != nullptr;
    case AttentionKind::kCsa:
      return csa_main != nullptr && csa_index != nullptr && csa_state != nullptr &&
             csa_inner_state != nullptr;
  }
  return false;
}

KindSpaces RequestSpaces::views(AttentionKind kind) const {
  KindSpaces spaces;
  spaces.raw = ViewOf(raw);
  if (kind == AttentionKind::kHca) {
    spaces.main = ViewOf(hca_main);
    spaces.state = ViewOf(hca_state);
  } else if (kind == AttentionKind::kCsa) {
    spaces.main = ViewOf(csa_main);
    spaces.index = ViewOf(csa_index);
    spaces.state = ViewOf(csa_state);
    spaces.inner_state = ViewOf(csa_inner_state);
  }
  return spaces;
}

const RequestRanges& RangesOf(const Request::State& state, AttentionKind kind) {
  return state.ranges[static_cast<size_t>(kind)];
}

void SetRanges(Request::State& state, AttentionKind kind, const RequestRanges& ranges) {
  state.ranges[static_cast<size_t>(kind)] = ranges;
}

bool HasLivePlan(const Request::State& state, AttentionKind kind) {
  return !state.live_plans[static_cast<size_t>(kind)].expired();
}

void SetLivePlan(Request::State& state, AttentionKind kind, const std::shared_ptr<void>& plan) {
  state.live_plans[static_cast<size_t>(kind)] = plan;
}

Result<Request> Request::Create(const RequestSpaces& spaces, int64_t start_pos) {
  if (spaces.raw == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "spaces.raw", "null; allowed: a page space");
  }
  if (start_pos < 0 || start_pos > kMaxContextTokens) {
    return MakeError(ErrorCode::kInvalidArgument, "start_pos", "{}; allowed: 0 to {}", start_pos,
                     kMaxContextTokens);
  }
  auto state = std::make_shared<State>();
  state->spaces = spaces;
  MILLIPEDE_RETURN_IF_ERROR(Grow(*state, CountPages(spaces, start_pos, start_pos)));
  for (const AttentionKind kind : kKinds) {
    if (spaces.Has(kind)) SetRanges(*state, kind, RangesAt(kind, start_pos));
  }
  return Request(std::move(state));
}

Request::Request(std::shared_ptr<State> state) : state_(std::move(state)) {}
Request::Request(Request&&) noexcept = default;

Request& Request::operator=(Request&& other) noexcept {
  if (this != &other) {
    static_cast<void>(Release());
    state_ = std::move(other.state_);
  }
  return *this;
}

Request::~Request() { static_cast<void>(Release()); }

Status Request::Prepare(int64_t num_tokens) {
  if (state_ == nullptr || state_->released) {
    return MakeError(ErrorCode::kCallOrder, "request", "released; allowed: a live request");
  }
  if (num_tokens < 0) {
    return MakeError(ErrorCode::kInvalidArgument, "num_tokens", "{}; allowed: at least 0",
                     num_tokens);
  }
  for (const AttentionKind kind : kKinds) {
    const int64_t room = kMaxContextTokens - position(kind);
    if (state_->spaces.Has(kind) && num_tokens > room) {
      return MakeError(ErrorCode::kContextCeiling, "num_tokens",
                       "{} at position {}; allowed: at most {}", num_tokens, position(kind), room);
    }
  }
  return Grow(*state_, CountPages(state_->spaces, position(AttentionKind::kHca) + num_tokens,
                                  position(AttentionKind::kCsa) + num_tokens));
}

int64_t Request::position(AttentionKind kind) const {
  return state_ == nullptr ? 0 : RangesOf(*state_, kind).raw.end;
}

RequestPages Request::pages(AttentionKind kind) const {
  RequestPages pages;
  if (state_ == nullptr) return pages;
  const State& s = *state_;
  if (!s.spaces.Has(kind)) return pages;
  const RequestRanges& ranges = RangesOf(s, kind);
  pages.raw = {s.raw, ranges.raw};
  if (kind == AttentionKind::kHca) {
    pages.main = {s.hca_main, ranges.main};
    pages.state = {s.hca_state, ranges.state};
  } else if (kind == AttentionKind::kCsa) {
    pages.main = {s.csa_main, ranges.main};
    pages.index = {s.csa_index, ranges.index};
    pages.state = {s.csa_state, ranges.state};
    pages.inner_state = {s.csa_inner_state, ranges.inner_state};
  }
  return pages;
}

Status Request::Release() {
  if (state_ == nullptr || state_->released) return {};
  State& s = *state_;
  s.released = true;
  Status first_error;
  for (const List& list : kLists) {
    std::vector<PageEntry>& pages = s.*list.pages;
    // Without pages the space is not touched: it may be null.
    if (pages.empty()) continue;
    Status status = (s.spaces.*list.space)->Release(pages);
    if (!status && first_error) first_error = std::move(status);
    pages.clear();
  }
  s.ranges = {};
  return first_error;
}

}  // namespace millipede
