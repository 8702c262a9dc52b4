// Copies of a request: its rings and its open pages copied in every layer's pools, its full pages
// shared.
#ifndef MILLIPEDE_PAGES_REQUEST_COPY_H_
#define MILLIPEDE_PAGES_REQUEST_COPY_H_

#include <cstdint>
#include <memory>

#include "millipede/request.h"
#include "millipede/status.h"

namespace millipede {

// Another request that holds the first `position` tokens of `source`, which is at one position for
// all kinds and whose rings hold what a step at `position` reads. All or nothing: kInvalidArgument
// for a kind without pools, kPlanMismatch for pools of other spaces, kOutOfPages, and
// kPageNotAcquired or kStaleEpoch if a page is no longer the source's.
Result<std::shared_ptr<Request::State>> CopyRequest(const Request::State& source, int64_t position,
                                                    const RequestPools& pools);

// Acquires what the lists lack for `num_tokens` more tokens of every kind, and copies the pages the
// step may write that have other owners too. All or nothing: the errors of CopyRequest,
// kSharedWritePage if pages have to be copied and no pools are given, kCallOrder if they have to be
// while a plan is live.
Status PrepareStep(Request::State& state, int64_t num_tokens, const RequestPools& pools);

}  // namespace millipede

#endif  // MILLIPEDE_PAGES_REQUEST_COPY_H_
