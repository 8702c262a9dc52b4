// Requests: who holds which pages, from creation to release.
#ifndef MILLIPEDE_REQUEST_H_
#define MILLIPEDE_REQUEST_H_

#include <cstdint>
#include <memory>
#include <span>

#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/status.h"

namespace millipede {

// The page spaces a Request draws from; borrowed, and outliving it. A null space means that kinds
// which need it are not used. The raw space is shared by all kinds.
struct RequestSpaces {
  PageSpace* raw = nullptr;
  PageSpace* hca_main = nullptr;
  PageSpace* hca_state = nullptr;
  PageSpace* csa_main = nullptr;
  PageSpace* csa_index = nullptr;
  PageSpace* csa_state = nullptr;
  PageSpace* csa_inner_state = nullptr;
  bool swa = true;  // false: no layer is SWA, and raw serves the other kinds

  bool Has(AttentionKind kind) const;
  KindSpaces views(AttentionKind kind) const;
};

// The pools of every layer of each kind that a request's rows lie in; borrowed for one call. A page
// is the same place in all of them, so a copied page is copied in all. Kinds that the request does
// not use are left empty.
struct RequestPools {
  std::span<const LayerPools> swa;
  std::span<const LayerPools> hca;
  std::span<const LayerPools> csa;
};

class RequestMark;

// The pages of one request in every space, and how far each kind has got. Its pages go back to the
// spaces when it is destroyed or released. All kinds share the raw entries, each with a range of
// its own. docs/lifecycle.md tells a request's whole life.
//
// Moving a request keeps its plans; calls on a request that was moved from are as after Release.
// While a plan of the request is live (see Plan): Prepare is allowed as long as no page has to be
// copied, Rewind, Mark and Fork are refused, and after Release the plan's run and commit are.
//
// Not thread-safe, as its spaces are not: no two calls on requests of a space overlap.
class Request {
 public:
  // Acquires the pages of a request that holds `start_pos` tokens of history; with start_pos > 0
  // the caller then fills the rows itself (an imported cache): raw positions max(0, start_pos -
  // 128) and up, all compressed rows, and state rows from the open block on, for CSA from the block
  // before it. kInvalidArgument if raw is null, if the spaces are those of no kind, or if
  // start_pos lies outside [0, kMaxContextTokens]; kOutOfPages and kOutOfMemory with nothing
  // acquired.
  static Result<Request> Create(const RequestSpaces& spaces, int64_t start_pos = 0);

  Request(Request&&) noexcept;
  Request& operator=(Request&&) noexcept;
  ~Request();

  // Acquires what ragged lists lack for `num_tokens` more tokens of every kind, and copies on
  // write: a page those tokens go to that others own too becomes one of this request's own, which
  // may happen after Rewind to rows that a fork or a mark shares, and to pages that the caller has
  // shared. All or nothing: kInvalidArgument if num_tokens is negative, kContextCeiling past
  // kMaxContextTokens, kOutOfPages, kOutOfMemory, kCallOrder after Release. If pages have to be
  // copied: kSharedWritePage without pools, the errors of Mark that concern pools, kStaleEpoch or
  // kPageNotAcquired if one is no longer the request's, kCallOrder while a plan is live.
  Status Prepare(int64_t num_tokens, const RequestPools& pools = {});

  // Takes committed tokens back: every kind ends at `position` and goes on from there as if it had
  // never gone further. That takes the rows the next step reads, and rings hold just so many: any
  // position from EarliestRewind() on will do. Pages stay, for the tokens to come. All or nothing:
  // kInvalidArgument unless 0 <= position <= that of every kind; kRangeMissingRows naming ring and
  // row; kCallOrder while a plan is live, or after Release.
  Status Rewind(int64_t position);

  // The lowest position that every ring can go back to. A token back from where rings decoded here
  // stand is always possible; once every ring has wrapped, no more is.
  int64_t EarliestRewind() const;

  // Remembers the present length: a copy of the rings and of ragged pages that are not full yet,
  // and a share in the full ones. All or nothing: kInvalidArgument for a kind of the request
  // without pools, kPlanMismatch for pools that do not fit its spaces, kOutOfPages, kOutOfMemory,
  // kCallOrder while a plan is live, after Release or while the kinds are at different positions;
  // kStaleEpoch and kPageNotAcquired if a page is no longer the request's.
  Result<RequestMark> Mark(const RequestPools& pools);

  // Another request that holds the first `position` tokens of this one: its present length, one
  // token less, or the length of a mark (one of this request that lives, and that it was not
  // rewound past; of several the first made). Pages are copied and shared as by Mark, and the
  // errors are the same, but that a live plan does not matter at a mark. Any other position is
  // refused with kInvalidArgument naming the nearest mark; one token less needs its rows as Rewind
  // does, kRangeMissingRows.
  Result<Request> Fork(int64_t position, const RequestPools& pools) const;

  // Tokens committed for the kind; 0 for a kind whose spaces were not given.
  int64_t position(AttentionKind kind) const;

  // Views of this request's lists for the kind; valid until the next call that changes them.
  RequestPages pages(AttentionKind kind) const;

  // Gives every page back; the request is empty afterwards, and a second call does nothing. If a
  // page is no longer the request's (kDoubleFree, kStaleEpoch), all others go back all the same.
  Status Release();

  struct State;  // internal
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  friend class RequestMark;
  explicit Request(std::shared_ptr<State> state);
  static Result<Request> ForkOf(const State& source, int64_t position, const RequestPools& pools);
  std::shared_ptr<State> state_;
};

// A request as it was at one length. Its pages are its own or shared, so it outlives the request it
// was taken of, and gives them back when it is destroyed. It may be forked any number of times.
class RequestMark {
 public:
  RequestMark(RequestMark&&) noexcept = default;
  RequestMark& operator=(RequestMark&&) noexcept = default;

  int64_t position() const;

  // A request that goes on from the mark. The errors of Request::Mark; kCallOrder if the mark was
  // moved from.
  Result<Request> Fork(const RequestPools& pools) const;

 private:
  friend class Request;
  explicit RequestMark(std::shared_ptr<Request::State> state);
  std::shared_ptr<Request::State> state_;
};

}  // namespace millipede

#endif  // MILLIPEDE_REQUEST_H_
