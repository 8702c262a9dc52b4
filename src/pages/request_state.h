// What a Request owns. Plans made from a request share it, so that the commit of a plan can advance
// the request's ranges, and a plan can tell that its request was released.
#ifndef MILLIPEDE_PAGES_REQUEST_STATE_H_
#define MILLIPEDE_PAGES_REQUEST_STATE_H_

#include <array>
#include <memory>
#include <vector>

#include "millipede/config.h"
#include "millipede/request.h"

namespace millipede {

inline constexpr int kNumAttentionKinds = 3;

struct Request::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();  // gives its pages back

  RequestSpaces spaces;
  bool released = false;

  // The entries of RequestSpaces' members of the same names.
  std::vector<PageEntry> raw;
  std::vector<PageEntry> hca_main;
  std::vector<PageEntry> hca_state;
  std::vector<PageEntry> csa_main;
  std::vector<PageEntry> csa_index;
  std::vector<PageEntry> csa_state;
  std::vector<PageEntry> csa_inner_state;

  std::array<RequestRanges, kNumAttentionKinds> ranges;  // by AttentionKind

  // What plans found of the lists, by AttentionKind and place among the kind's lists: when the
  // space's generation was `generation`, the first `num_entries` pages were the request's own and
  // all different. That holds while the generation stands, as entries are only appended under it.
  struct Verified {
    uint64_t generation = 0;
    int64_t num_entries = 0;
  };
  static constexpr size_t kMaxLists = 5;
  std::array<std::array<Verified, kMaxLists>, kNumAttentionKinds> verified;

  // By AttentionKind, the plan that is live: made, and neither committed nor dropped. Expired if
  // there is none.
  std::array<std::weak_ptr<const void>, kNumAttentionKinds> live_plans;

  // The marks at lengths that the request still goes through, and those that are gone.
  std::vector<std::weak_ptr<const State>> marks;
};

const RequestRanges& RangesOf(const Request::State& state, AttentionKind kind);
void SetRanges(Request::State& state, AttentionKind kind, const RequestRanges& ranges);

// Whether a plan of the kind is live.
bool HasLivePlan(const Request::State& state, AttentionKind kind);

// `plan` is live from now on; null ends the present one's life.
void SetLivePlan(Request::State& state, AttentionKind kind, const std::shared_ptr<void>& plan);

}  // namespace millipede

#endif  // MILLIPEDE_PAGES_REQUEST_STATE_H_
