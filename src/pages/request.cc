#include "millipede/request.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "geometry/rings.h"
#include "geometry/visibility.h"
#include "pages/request_copy.h"
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

// The request's mark whose length is nearest to `position`, null without marks.
std::shared_ptr<const Request::State> NearestMark(const Request::State& state, int64_t position) {
  std::shared_ptr<const Request::State> nearest;
  int64_t distance = 0;
  position = std::clamp<int64_t>(position, 0, kMaxContextTokens);
  for (const auto& weak : state.marks) {
    auto mark = weak.lock();
    if (mark == nullptr) continue;
    const int64_t mark_distance = std::abs(*CommonPosition(*mark) - position);
    if (nearest != nullptr && mark_distance >= distance) continue;
    nearest = std::move(mark);
    distance = mark_distance;
  }
  return nearest;
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

Request::State::~State() { static_cast<void>(ReleasePages(*this)); }

bool HasLivePlan(const Request::State& state, AttentionKind kind) {
  return !state.live_plans[static_cast<size_t>(kind)].expired();
}

void SetLivePlan(Request::State& state, AttentionKind kind, const std::shared_ptr<void>& plan) {
  state.live_plans[static_cast<size_t>(kind)] = plan;
}

Result<Request> Request::Create(const RequestSpaces& spaces, int64_t start_pos) try {
  if (spaces.raw == nullptr) {
    return MakeError(ErrorCode::kInvalidArgument, "spaces.raw", "null; allowed: a page space");
  }
  if (std::ranges::none_of(kAttentionKinds, [&](AttentionKind kind) { return spaces.Has(kind); })) {
    return MakeError(ErrorCode::kInvalidArgument, "spaces",
                     "raw alone and no SWA; allowed: swa, or the spaces of hca or csa");
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
} catch (const std::bad_alloc&) {
  return OutOfMemory("request", "its page lists");
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

Status Request::Prepare(int64_t num_tokens, const RequestPools& pools) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckLive(state_.get()));
  if (num_tokens < 0) {
    return MakeError(ErrorCode::kInvalidArgument, "num_tokens", "{}; allowed: at least 0",
                     num_tokens);
  }
  for (const AttentionKind kind : kAttentionKinds) {
    const int64_t room = kMaxContextTokens - position(kind);
    if (state_->spaces.Has(kind) && num_tokens > room) {
      return MakeError(ErrorCode::kContextCeiling, "num_tokens",
                       "{} at position {}; allowed: at most {}", num_tokens, position(kind), room);
    }
  }
  return PrepareStep(*state_, num_tokens, pools);
} catch (const std::bad_alloc&) {
  return OutOfMemory("request", "its page lists");
}

Status Request::Rewind(int64_t position) try {
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
  // What comes next need not be what came then.
  std::erase_if(state_->marks, [position](const std::weak_ptr<const State>& weak) {
    const auto mark = weak.lock();
    return mark == nullptr || *CommonPosition(*mark) > position;
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("request", "an error message");
}

int64_t Request::EarliestRewind() const {
  return state_ == nullptr || state_->released ? 0 : EarliestStart(*state_);
}

Result<RequestMark> Request::Mark(const RequestPools& pools) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckLive(state_.get()));
  MILLIPEDE_RETURN_IF_ERROR(CheckUnplanned(*state_));
  const auto position = CommonPosition(*state_);
  if (!position) return tl::make_unexpected(position.error());
  std::erase_if(state_->marks, [](const auto& mark) { return mark.expired(); });
  state_->marks.reserve(state_->marks.size() + 1);
  auto copy = CopyRequest(*state_, *position, pools);
  if (!copy) return tl::make_unexpected(std::move(copy).error());
  state_->marks.emplace_back(*copy);
  return RequestMark(*std::move(copy));
} catch (const std::bad_alloc&) {
  return OutOfMemory("request", "the page lists of a copy");
}

Result<Request> Request::Fork(int64_t position, const RequestPools& pools) const try {
  MILLIPEDE_RETURN_IF_ERROR(CheckLive(state_.get()));
  const auto current = CommonPosition(*state_);
  if (!current) return tl::make_unexpected(current.error());
  if (position != *current) {
    // A mark stands for itself: a live plan of this request does not matter to it.
    const auto nearest = NearestMark(*state_, position);
    const int64_t length = nearest == nullptr ? -1 : *CommonPosition(*nearest);
    if (nearest != nullptr && length == position) return ForkOf(*nearest, position, pools);
    if (position != *current - 1 || position < 0) {
      return MakeError(
          ErrorCode::kInvalidArgument, "position", "{}; allowed: {}{}", position, *current,
          nearest == nullptr ? std::string(", one token less, or the length of a mark; it has none")
                             : fmt::format(", one token less, or the length of a mark; the nearest "
                                           "is at {}",
                                           length));
    }
    MILLIPEDE_RETURN_IF_ERROR(CheckRewind(*state_, position));
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckUnplanned(*state_));
  return ForkOf(*state_, position, pools);
} catch (const std::bad_alloc&) {
  return OutOfMemory("request", "the page lists of a copy");
}

int64_t Request::position(AttentionKind kind) const {
  return state_ == nullptr || !state_->spaces.Has(kind) ? 0 : RangesOf(*state_, kind).raw.end;
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

Status Request::Release() { return state_ == nullptr ? Status() : ReleasePages(*state_); }

Result<Request> Request::ForkOf(const State& source, int64_t position, const RequestPools& pools) {
  auto copy = CopyRequest(source, position, pools);
  if (!copy) return tl::make_unexpected(std::move(copy).error());
  return Request(*std::move(copy));
}

RequestMark::RequestMark(std::shared_ptr<Request::State> state) : state_(std::move(state)) {}

int64_t RequestMark::position() const { return state_ == nullptr ? 0 : *CommonPosition(*state_); }

Result<Request> RequestMark::Fork(const RequestPools& pools) const try {
  MILLIPEDE_RETURN_IF_ERROR(CheckLive(state_.get()));
  return Request::ForkOf(*state_, position(), pools);
} catch (const std::bad_alloc&) {
  return OutOfMemory("request", "the page lists of a copy");
}

}  // namespace millipede
