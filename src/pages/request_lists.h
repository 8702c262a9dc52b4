// The lists of a request and the pools their rows lie in, as tables: creating, growing, copying and
// releasing go over them, so every list is treated alike.
#ifndef MILLIPEDE_PAGES_REQUEST_LISTS_H_
#define MILLIPEDE_PAGES_REQUEST_LISTS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "millipede/config.h"
#include "millipede/request.h"
#include "millipede/status.h"
#include "pages/request_state.h"

namespace millipede {

inline constexpr std::array<AttentionKind, kNumAttentionKinds> kAttentionKinds = {
    AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa};

// One of a request's lists and the space it draws from.
struct RequestList {
  const char* name;
  AttentionKind kind;  // whose rows its pages hold; raw ones serve every kind
  PageSpace* RequestSpaces::*space;
  std::vector<PageEntry> Request::State::*pages;
  PoolKind pool;  // gives rows per page and ring pages

  constexpr PoolFormat format() const { return FormatOf(pool); }
  constexpr bool is_ring() const { return format().ring_pages > 0; }
};
inline constexpr size_t kRawList = 0;
inline constexpr std::array<RequestList, 7> kRequestLists = {{
    {"raw", AttentionKind::kSwa, &RequestSpaces::raw, &Request::State::raw, PoolKind::kRaw},
    {"hca_main", AttentionKind::kHca, &RequestSpaces::hca_main, &Request::State::hca_main,
     PoolKind::kHcaMain},
    {"hca_state", AttentionKind::kHca, &RequestSpaces::hca_state, &Request::State::hca_state,
     PoolKind::kHcaState},
    {"csa_main", AttentionKind::kCsa, &RequestSpaces::csa_main, &Request::State::csa_main,
     PoolKind::kCsaMain},
    {"csa_index", AttentionKind::kCsa, &RequestSpaces::csa_index, &Request::State::csa_index,
     PoolKind::kCsaIndexRows},
    {"csa_state", AttentionKind::kCsa, &RequestSpaces::csa_state, &Request::State::csa_state,
     PoolKind::kCsaState},
    {"csa_inner_state", AttentionKind::kCsa, &RequestSpaces::csa_inner_state,
     &Request::State::csa_inner_state, PoolKind::kCsaInnerState},
}};

// One number of pages for each of kRequestLists.
using PageCounts = std::array<int64_t, kRequestLists.size()>;

// What the layers of one kind keep in the pages of a list: the rows of one of their pools.
struct RequestRows {
  AttentionKind kind;
  const char* name;  // of the members
  size_t list;       // of kRequestLists
  RowRange RequestRanges::*range;
  PoolKind pool;
  PoolView LayerPools::*view;

  constexpr PoolFormat format() const { return FormatOf(pool); }
  constexpr bool is_ring() const { return format().ring_pages > 0; }
};
inline constexpr std::array<RequestRows, 10> kRequestRows = {{
    {AttentionKind::kSwa, "raw", 0, &RequestRanges::raw, PoolKind::kRaw, &LayerPools::raw},
    {AttentionKind::kHca, "raw", 0, &RequestRanges::raw, PoolKind::kRaw, &LayerPools::raw},
    {AttentionKind::kHca, "main", 1, &RequestRanges::main, PoolKind::kHcaMain, &LayerPools::main},
    {AttentionKind::kHca, "state", 2, &RequestRanges::state, PoolKind::kHcaState,
     &LayerPools::state},
    {AttentionKind::kCsa, "raw", 0, &RequestRanges::raw, PoolKind::kRaw, &LayerPools::raw},
    {AttentionKind::kCsa, "main", 3, &RequestRanges::main, PoolKind::kCsaMain, &LayerPools::main},
    {AttentionKind::kCsa, "index_rows", 4, &RequestRanges::index, PoolKind::kCsaIndexRows,
     &LayerPools::index_rows},
    {AttentionKind::kCsa, "index_scales", 4, &RequestRanges::index, PoolKind::kCsaIndexScales,
     &LayerPools::index_scales},
    {AttentionKind::kCsa, "state", 5, &RequestRanges::state, PoolKind::kCsaState,
     &LayerPools::state},
    {AttentionKind::kCsa, "inner_state", 6, &RequestRanges::inner_state, PoolKind::kCsaInnerState,
     &LayerPools::inner_state},
}};

// Pages of a request that holds `tokens[kind]` tokens of each kind.
PageCounts CountPages(const RequestSpaces& spaces,
                      const std::array<int64_t, kNumAttentionKinds>& tokens);

// kOutOfPages unless every space has the free pages that its lists ask for together.
Status CheckFree(const RequestSpaces& spaces, const PageCounts& wanted);

// The pages that each list lacks of `counts`.
PageCounts MissingPages(const Request::State& state, const PageCounts& counts);

// Makes room for `missing` entries behind each list.
void ReserveRoom(Request::State& state, const PageCounts& missing);

// Acquires `missing` pages behind each list, or none: kOutOfPages. After ReserveRoom and CheckFree
// it cannot fail.
Status Grow(Request::State& state, const PageCounts& missing);

// Gives every page back, once.
Status ReleasePages(Request::State& state);

// kCallOrder if the request was released, or moved from (null).
Status CheckLive(const Request::State* state);

// kCallOrder if a plan of any kind is live.
Status CheckUnplanned(const Request::State& state);

// The one position at which all kinds are; kCallOrder if they are not.
Result<int64_t> CommonPosition(const Request::State& state);

// The lowest position a step can start at, given what the rings hold.
int64_t EarliestStart(const Request::State& state);

// Every kind's ranges cut down to `position` tokens, at most as many as it has. CheckRewind says
// whether the rings hold the rows the next step then reads: kRangeMissingRows naming the ring.
Status CheckRewind(const Request::State& state, int64_t position);
void RewindRanges(Request::State& state, int64_t position);

}  // namespace millipede

#endif  // MILLIPEDE_PAGES_REQUEST_LISTS_H_
