// What a plan holds, and the order of calls on it. Everything but `progress` and the remembered
// generations is fixed when the plan is made. Calls that share one plan do not overlap in time.
#ifndef MILLIPEDE_PLAN_PLAN_STATE_H_
#define MILLIPEDE_PLAN_PLAN_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/status.h"
#include "pages/request_state.h"
#include "plan/list_specs.h"

namespace millipede {

// One of the kind's lists: the entries of every request that the step may touch. Lists are long, so
// the packed work and this share the page ids of ragged ones.
struct PlannedList {
  const ListSpec* spec = nullptr;
  std::vector<size_t>
      offsets;  // [requests + 1]: request r has entries [offsets[r], offsets[r + 1])
  std::vector<uint64_t> epochs;
  std::vector<int32_t> ring_pages;  // [entries] of a ring; spec->packed_pages of a ragged list
  uint64_t generation = 0;          // of the space when the entries were last found good

  std::span<const int32_t> pages(const PackedWork& work) const {
    return spec->is_ring() ? ring_pages : work.*spec->packed_pages;
  }
};

// A request as it was when the plan was made; empty for one that does not take part.
struct PlannedOwner {
  std::shared_ptr<Request::State> state;  // null for raw descriptors
  RequestRanges ranges;
};

enum class LayerProgress : uint8_t { kPlanned, kRun, kCommitted };

struct PlanProgress {
  std::vector<LayerProgress> layers;  // [num_layers]
  int32_t num_committed = 0;
  std::vector<int64_t> accepted;      // [requests], fixed by the first commit
  std::vector<RequestRanges> ranges;  // [requests], room for what the last commit returns
};

struct Plan::State {
  ModelConfig config;
  AttentionKind kind = AttentionKind::kSwa;
  int32_t num_layers = 0;
  KindSpaces spaces;                 // those of the kind
  std::vector<PlannedOwner> owners;  // [requests]
  std::vector<PlannedList> lists;    // in the order of ListsOfKind; raw is the first
  PackedWork work;
  int64_t num_raw_pages = 0;  // distinct raw pages the step reads or may write
  uint64_t fingerprint = 0;

  PlanProgress progress;
};

// Whether the plan's pages are still its requests' own. O(1) while the generations of the kind's
// spaces stand; where one moved, every page of it that the step may touch is checked again:
// kPageNotAcquired, kStaleEpoch, kSharedWritePage.
Status RecheckPages(Plan::State& plan);

// Before layer `layer` of the plan runs: kInvalidArgument if there is no such layer, kCallOrder if
// it is committed or a Request object was released since the plan was made, and the errors of
// RecheckPages.
Status BeginRun(Plan::State& plan, int32_t layer);

// After it ran.
void MarkRun(Plan::State& plan, int32_t layer);

// Before the rows of a layer are committed: kCallOrder if the layer was not run or is committed
// already; kInvalidArgument unless `accepted` has one count in [0, num_tokens] per request, the
// same as the first commit's; and the errors of BeginRun. Changes nothing, but makes the room that
// FinishCommit needs.
Status BeginCommit(Plan::State& plan, int32_t layer, std::span<const int64_t> accepted);

// After they were written, with the counts BeginCommit let pass. The last layer's call advances the
// ranges of Request objects and returns [requests] new ranges, zero for requests without tokens;
// the others' return none, but the first one's cuts off the ranges of Request objects the old ring
// rows that its layer no longer has.
std::vector<RequestRanges> FinishCommit(Plan::State& plan, int32_t layer,
                                        std::span<const int64_t> accepted);

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_PLAN_STATE_H_
