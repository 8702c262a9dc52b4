// Checks of views an engine made itself.
#ifndef MILLIPEDE_PAGES_VIEW_CHECKS_H_
#define MILLIPEDE_PAGES_VIEW_CHECKS_H_

#include <cstdint>
#include <string_view>

#include "millipede/pages.h"
#include "millipede/status.h"

namespace millipede {

// kInvalidArgument for a null array or a number of pages outside [1, kMaxPagesPerSpace]. `field`
// names the view, for example "spaces.raw".
Status CheckSpaceView(const PageSpaceView& space, std::string_view field);

// kPlanMismatch unless `pool` holds rows of `kind` for a space of `space_pages` pages: not null,
// one page for each of the space's, pages that do not overlap, rows aligned to their elements.
Status CheckPoolView(const PoolView& pool, PoolKind kind, int32_t space_pages,
                     std::string_view field);

}  // namespace millipede

#endif  // MILLIPEDE_PAGES_VIEW_CHECKS_H_
