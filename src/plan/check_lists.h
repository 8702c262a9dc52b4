// The checks of page lists. Nothing here writes.
#ifndef MILLIPEDE_PLAN_CHECK_LISTS_H_
#define MILLIPEDE_PLAN_CHECK_LISTS_H_

#include <cstdint>
#include <span>

#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/status.h"
#include "plan/list_specs.h"
#include "plan/page_map.h"

namespace millipede {

// Whether an entry is a page of the space, owned under the entry's epoch, and by one owner alone if
// it is `written`.
inline bool IsGoodEntry(const PageSpaceView& space, const PageEntry& entry, bool written) {
  if (entry.page < 0 || entry.page >= space.num_pages) return false;
  const int32_t ref_count = space.ref_counts[entry.page];
  return ref_count > 0 && (!written || ref_count == 1) && space.epochs[entry.page] == entry.epoch;
}

// The same with the reason: kPageOutOfRange, kPageNotAcquired, kStaleEpoch, kSharedWritePage; kHole
// for an empty entry of a ragged list. `index` is the entry's place in the list.
Status CheckEntry(const PageSpaceView& space, const ListSpec& spec, const PageEntry& entry,
                  bool written, int64_t request, int64_t index);

// One list of one request that takes part: its pages and its range. `ceiling` is in tokens. `seen`
// is scratch.
Status CheckList(const PageSpaceView& space, const ListSpec& spec, AttentionKind kind,
                 const StepRequest& request, int64_t r, int64_t ceiling, PageSet& seen);

// The pages a request may write of this list are named by no other request of the step.
Status CheckWriteConflicts(const ListSpec& spec, AttentionKind kind,
                           std::span<const StepRequest> requests);

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_CHECK_LISTS_H_
