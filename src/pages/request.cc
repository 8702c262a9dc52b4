#include "millipede/request.h"

#include <algorithm>

#include "base/error.h"
#include "geometry/rings.h"
#include "geometry/visibility.h"
#include "pages/request_lists.h"

namespace millipede {
namespace {

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
      return swa;
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
  MILLIPEDE_RETURN_IF_ERROR(Grow(*state, CountPages(spaces, {start_pos, start_pos, start_pos})));
  for (const AttentionKind kind : kAttentionKinds) {
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
  MILLIPEDE_RETURN_IF_ERROR(CheckLive(state_.get()));
  if (num_tokens < 0) {
    return MakeError(ErrorCode::kInvalidArgument, "num_tokens", "{}; allowed: at least 0",
                     num_tokens);
  }
  std::array<int64_t, kNumAttentionKinds> tokens{};
  for (const AttentionKind kind : kAttentionKinds) {
    const int64_t room = kMaxContextTokens - position(kind);
    if (state_->spaces.Has(kind) && num_tokens > room) {
      return MakeError(ErrorCode::kContextCeiling, "num_tokens",
                       "{} at position {}; allowed: at most {}", num_tokens, position(kind), room);
    }
    tokens[static_cast<size_t>(kind)] = position(kind) + std::min(num_tokens, room);
  }
  return Grow(*state_, CountPages(state_->spaces, tokens));
}

Status Request::Rewind(int64_t position) {
  MILLIPEDE_RETURN_IF_ERROR(CheckLive(state_.get()));
  MILLIPEDE_RETURN_IF_ERROR(CheckUnplanned(*state_));
  for (const AttentionKind kind : kAttentionKinds) {
    if (!state_->spaces.Has(kind)) continue;
    if (position < 0 || position > this->position(kind)) {
      return MakeError(ErrorCode::kInvalidArgument, "position",
                       "{}; allowed: 0 to {}, the position of {}", position, this->position(kind),
                       KindName(kind));
    }
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckRewind(*state_, position));
  RewindRanges(*state_, position);
  return {};
}

int64_t Request::EarliestRewind() const {
  return CheckLive(state_.get()) ? EarliestStart(*state_) : 0;
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
  for (const RequestList& list : kRequestLists) {
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
