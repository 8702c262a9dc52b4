// Requests: who holds which pages, from creation to release.
#ifndef MILLIPEDE_REQUEST_H_
#define MILLIPEDE_REQUEST_H_

#include <cstdint>
#include <memory>

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

// The pages of one request in every space, and how far each kind has got. Its pages go back to the
// spaces when it is destroyed or released. All kinds share the raw entries, each with a range of
// its own. docs/lifecycle.md tells a request's whole life.
//
// Moving a request keeps its plans; calls on a request that was moved from are as after Release.
// What a live plan (see Plan) allows: Prepare, as long as no page has to be copied, does not
// disturb it; Rewind is refused; after Release its run and commit are refused.
class Request {
 public:
  // Acquires the pages of a request that holds `start_pos` tokens of history; with start_pos > 0
  // the caller then fills the rows itself (an imported cache): raw positions max(0, start_pos -
  // 128) and up, all compressed rows, and state rows from the open block on, for CSA from the block
  // before it. kInvalidArgument if raw is null or start_pos lies outside [0, kMaxContextTokens];
  // kOutOfPages with nothing acquired.
  static Result<Request> Create(const RequestSpaces& spaces, int64_t start_pos = 0);

  Request(Request&&) noexcept;
  Request& operator=(Request&&) noexcept;
  ~Request();

  // Acquires what ragged lists lack for `num_tokens` more tokens of every kind. All or nothing:
  // kInvalidArgument if num_tokens is negative, kContextCeiling past kMaxContextTokens,
  // kOutOfPages, kCallOrder after Release.
  Status Prepare(int64_t num_tokens);

  // Takes committed tokens back: every kind ends at `position` and goes on from there as if it had
  // never gone further. That takes the rows the next step reads, and rings hold just so many: any
  // position from EarliestRewind() on will do. Pages stay, for the tokens to come. All or nothing:
  // kInvalidArgument unless 0 <= position <= that of every kind; kRangeMissingRows naming ring and
  // row; kCallOrder while a plan is live, or after Release.
  Status Rewind(int64_t position);

  // The lowest position that every ring can go back to. A token back from where rings decoded here
  // stand is always possible; once every ring has wrapped, no more is.
  int64_t EarliestRewind() const;

  // Tokens committed for the kind; 0 for a kind whose spaces were not given.
  int64_t position(AttentionKind kind) const;

  // Views of this request's lists for the kind; valid until the next call that changes them.
  RequestPages pages(AttentionKind kind) const;

  // Gives every page back; the request is empty afterwards, and a second call does nothing.
  Status Release();

  struct State;  // internal
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  explicit Request(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace millipede

#endif  // MILLIPEDE_REQUEST_H_
