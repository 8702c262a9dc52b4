// The page lists of each attention kind, and what a step does with them. Checks, packing, rechecks
// and commits go over these tables, so every list is treated alike.
#ifndef MILLIPEDE_PLAN_LIST_SPECS_H_
#define MILLIPEDE_PLAN_LIST_SPECS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "geometry/page_span.h"
#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/plan.h"

namespace millipede {

// One list of a kind: its place in the public structs.
struct ListSpec {
  const char* name;  // of those members
  PoolKind pool;     // gives rows per page and ring pages
  PageSpaceView KindSpaces::*space;
  PageListView RequestPages::*list;
  RowRange RequestRanges::*range;
  std::vector<int32_t> PackedWork::*packed_pages;  // of a ragged list; null for a ring

  constexpr PoolFormat format() const { return FormatOf(pool); }
  constexpr bool is_ring() const { return format().ring_pages > 0; }
};

// The lists of `kind` in the order of the public structs; none for an unknown kind.
std::span<const ListSpec> ListsOfKind(AttentionKind kind);

// What a step of one request does with one of its lists.
struct ListUse {
  int64_t num_pages = 0;  // the list's first pages; entries behind them are not looked at
  RowRange held;          // positions a ring has to hold, or the rows of a ragged list
  RowRange written;       // positions or rows it may write
  PageSpan written_pages;
};
ListUse UseOf(const ListSpec& spec, AttentionKind kind, int64_t start, int64_t num_tokens);

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_LIST_SPECS_H_
