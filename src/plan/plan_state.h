// What a plan holds, and the order of calls on it. Everything but `progress` and the remembered
// generation is fixed when the plan is made. Calls that share one plan do not overlap in time.
#ifndef MILLIPEDE_PLAN_PLAN_STATE_H_
#define MILLIPEDE_PLAN_PLAN_STATE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/status.h"
#include "pages/request_state.h"

namespace millipede {

// A request's lists as planned; empty for one that does not take part.
struct PlannedLists {
  std::shared_ptr<Request::State> owner;  // null for raw descriptors
  RequestRanges ranges;
  std::array<PageEntry, FormatOf(PoolKind::kRaw).ring_pages> raw{};
  uint32_t raw_pages_read = 0;  // masks over `raw`
  uint32_t raw_pages_written = 0;
};

enum class LayerProgress : uint8_t { kPlanned, kRun, kCommitted };

struct PlanProgress {
  std::vector<LayerProgress> layers;  // [num_layers]
  int32_t num_committed = 0;
  std::vector<int64_t> accepted;  // [requests], fixed by the first commit
};

struct Plan::State {
  ModelConfig config;
  AttentionKind kind = AttentionKind::kSwa;
  int32_t num_layers = 0;
  KindSpaces spaces;
  std::vector<PlannedLists> lists;  // [requests]
  PackedWork work;
  int64_t num_raw_pages = 0;  // distinct raw pages the step reads or may write
  uint64_t fingerprint = 0;

  uint64_t raw_generation = 0;  // of the space when its pages were last found good
  PlanProgress progress;
};

// Whether the plan's pages are still its requests' own. O(1) while the generation stands; if it
// moved, every page is checked again: kPageNotAcquired, kStaleEpoch, kSharedWritePage.
Status RecheckPages(Plan::State& plan);

// Before layer `layer` of the plan runs: kInvalidArgument if there is no such layer, kCallOrder if
// it is committed, kRangeMismatch if a Request object has moved on since the plan was made (another
// plan of it was committed), and the errors of RecheckPages.
Status BeginRun(Plan::State& plan, int32_t layer);

// After it ran.
void MarkRun(Plan::State& plan, int32_t layer);

// Before the rows of a layer are committed: kCallOrder if the layer was not run or is committed
// already; kInvalidArgument unless `accepted` has one count in [0, num_tokens] per request, the
// same as the first commit's; and the errors of BeginRun. Changes nothing.
Status BeginCommit(Plan::State& plan, int32_t layer, std::span<const int64_t> accepted);

// After they were written, with the counts BeginCommit let pass. The last layer's call advances the
// ranges of Request objects and returns [requests] new ranges, zero for requests without tokens;
// the others' return none.
std::vector<RequestRanges> FinishCommit(Plan::State& plan, int32_t layer,
                                        std::span<const int64_t> accepted);

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_PLAN_STATE_H_
