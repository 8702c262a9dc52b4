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
  PageSpace* RequestSpaces::*space;
  std::vector<PageEntry> Request::State::*pages;
  PoolKind pool;  // gives rows per page and ring pages
};
inline constexpr size_t kRawList = 0;
inline constexpr std::array<RequestList, 7> kRequestLists = {{
    {"raw", &RequestSpaces::raw, &Request::State::raw, PoolKind::kRaw},
    {"hca_main", &RequestSpaces::hca_main, &Request::State::hca_main, PoolKind::kHcaMain},
    {"hca_state", &RequestSpaces::hca_state, &Request::State::hca_state, PoolKind::kHcaState},
    {"csa_main", &RequestSpaces::csa_main, &Request::State::csa_main, PoolKind::kCsaMain},
    {"csa_index", &RequestSpaces::csa_index, &Request::State::csa_index, PoolKind::kCsaIndexRows},
    {"csa_state", &RequestSpaces::csa_state, &Request::State::csa_state, PoolKind::kCsaState},
    {"csa_inner_state", &RequestSpaces::csa_inner_state, &Request::State::csa_inner_state,
     PoolKind::kCsaInnerState},
}};

// One number of pages for each of kRequestLists.
using PageCounts = std::array<int64_t, kRequestLists.size()>;

// A ring of one kind, whose range says how far back the request can go.
struct RequestRing {
  AttentionKind kind;
  const char* name;
  RowRange RequestRanges::*range;
};
inline constexpr std::array<RequestRing, 6> kRequestRings = {{
    {AttentionKind::kSwa, "swa.raw", &RequestRanges::raw},
    {AttentionKind::kHca, "hca.raw", &RequestRanges::raw},
    {AttentionKind::kHca, "hca.state", &RequestRanges::state},
    {AttentionKind::kCsa, "csa.raw", &RequestRanges::raw},
    {AttentionKind::kCsa, "csa.state", &RequestRanges::state},
    {AttentionKind::kCsa, "csa.inner_state", &RequestRanges::inner_state},
}};

// Pages of a request that holds `tokens[kind]` tokens of each kind.
PageCounts CountPages(const RequestSpaces& spaces,
                      const std::array<int64_t, kNumAttentionKinds>& tokens);

// kOutOfPages unless every space has the free pages that its lists ask for together.
Status CheckFree(const RequestSpaces& spaces, const PageCounts& wanted);

// Grows every list to `counts` pages at least, or none.
Status Grow(Request::State& state, const PageCounts& counts);

// kCallOrder if the request was released, or moved from (null).
Status CheckLive(const Request::State* state);

// kCallOrder if a plan of any kind is live.
Status CheckUnplanned(const Request::State& state);

// The lowest position a step can start at, given what the rings hold.
int64_t EarliestStart(const Request::State& state);

// Every kind's ranges cut down to `position` tokens, at most as many as it has. CheckRewind says
// whether the rings hold the rows the next step then reads: kRangeMissingRows naming the ring.
Status CheckRewind(const Request::State& state, int64_t position);
void RewindRanges(Request::State& state, int64_t position);

}  // namespace millipede

#endif  // MILLIPEDE_PAGES_REQUEST_LISTS_H_
