// The checks of page lists. Nothing here writes, but for what a Request object remembers of them.
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

// The first of a list's `entries` that is not a page of the space, owned under the entry's epoch,
// and by one owner alone if it is among the `written` pages; -1 if there is none. Of the first
// `num_known` entries it is known that they are owned under their epochs.
int64_t FindBadEntry(const PageSpaceView& space, std::span<const PageEntry> entries,
                     const PageSpan& written, int64_t num_known = 0);

// What is bad about an entry: kPageOutOfRange, kPageNotAcquired, kStaleEpoch, kSharedWritePage;
// kHole for an empty entry of a ragged list. `index` is the entry's place in the list.
tl::unexpected<Error> EntryError(const PageSpaceView& space, const ListSpec& spec,
                                 const PageEntry& entry, int64_t request, int64_t index);

// One list of one request that takes part: its pages and its range. `ceiling` is in tokens. `seen`
// is scratch.
Status CheckList(const PageSpaceView& space, const ListSpec& spec, AttentionKind kind,
                 const StepRequest& request, int64_t r, int64_t ceiling, PageSet& seen);

// The pages a request may write of this list are named by no other request of the step. Each list
// is compared with itself alone: the rows of two lists lie in two pools, even on pages of one
// space.
Status CheckWriteConflicts(const ListSpec& spec, AttentionKind kind,
                           std::span<const StepRequest> requests);

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_CHECK_LISTS_H_
