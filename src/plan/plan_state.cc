#include "plan/plan_state.h"

#include <algorithm>

#include "base/error.h"
#include "plan/validate.h"

namespace millipede {
namespace {

Status CheckLayer(const Plan::State& plan, int32_t layer) {
  if (layer < 0 || layer >= plan.num_layers) {
    return MakeError(ErrorCode::kInvalidArgument, "layer_index", "{}; allowed: 0 to {}", layer,
                     plan.num_layers - 1);
  }
  if (plan.progress.layers[static_cast<size_t>(layer)] == LayerProgress::kCommitted) {
    return MakeError(ErrorCode::kCallOrder, "layer_index",
                     "layer {} is committed; allowed: a layer of this plan that is not", layer);
  }
  return {};
}

// Two plans of one request may be live. The commit of one advances the request, and then the rows
// the other names are no longer those it was made for.
Status CheckOwnersUnmoved(const Plan::State& plan) {
  for (size_t r = 0; r < plan.lists.size(); ++r) {
    const PlannedLists& lists = plan.lists[r];
    if (lists.owner == nullptr) continue;
    const RowRange now = RangesOf(*lists.owner, plan.kind).raw;
    const RowRange planned = lists.ranges.raw;
    if (now.begin != planned.begin || now.end != planned.end) {
      return MakeRequestError(ErrorCode::kRangeMismatch, static_cast<int64_t>(r), "raw.valid",
                              "[{}, {}); allowed: [{}, {}), as planned", now.begin, now.end,
                              planned.begin, planned.end);
    }
  }
  return {};
}

Status CheckAccepted(const Plan::State& plan, std::span<const int64_t> accepted) {
  const auto& requests = plan.work.requests;
  if (accepted.size() != requests.size()) {
    return MakeError(ErrorCode::kInvalidArgument, "accepted",
                     "{} counts; allowed: {}, one a request", accepted.size(), requests.size());
  }
  const std::vector<int64_t>& fixed = plan.progress.accepted;
  for (size_t r = 0; r < accepted.size(); ++r) {
    const auto request = static_cast<int64_t>(r);
    if (accepted[r] < 0 || accepted[r] > requests[r].num_tokens) {
      return MakeRequestError(ErrorCode::kInvalidArgument, request, "accepted",
                              "{}; allowed: 0 to {}", accepted[r], requests[r].num_tokens);
    }
    if (!fixed.empty() && accepted[r] != fixed[r]) {
      return MakeRequestError(ErrorCode::kInvalidArgument, request, "accepted",
                              "{}; allowed: {}, as in the first commit", accepted[r], fixed[r]);
    }
  }
  return {};
}

// A ring's range after `accepted` more rows.
RowRange Advance(RowRange range, int64_t accepted, const PoolFormat& format) {
  const int64_t end = range.end + accepted;
  return {std::max(range.begin, end - format.ring_rows()), end};
}

}  // namespace

Status RecheckPages(Plan::State& plan) {
  const uint64_t generation = *plan.spaces.raw.generation;
  if (generation == plan.raw_generation) return {};
  for (size_t r = 0; r < plan.lists.size(); ++r) {
    if (plan.work.requests[r].num_tokens == 0) continue;
    const PlannedLists& lists = plan.lists[r];
    for (size_t i = 0; i < lists.raw.size(); ++i) {
      MILLIPEDE_RETURN_IF_ERROR(
          CheckEntry(plan.spaces.raw, lists.raw[i], (lists.raw_pages_written >> i & 1) != 0,
                     static_cast<int64_t>(r), "raw", static_cast<int64_t>(i)));
    }
  }
  plan.raw_generation = generation;
  return {};
}

Status BeginRun(Plan::State& plan, int32_t layer) {
  MILLIPEDE_RETURN_IF_ERROR(CheckLayer(plan, layer));
  MILLIPEDE_RETURN_IF_ERROR(RecheckPages(plan));
  return CheckOwnersUnmoved(plan);
}

void MarkRun(Plan::State& plan, int32_t layer) {
  plan.progress.layers[static_cast<size_t>(layer)] = LayerProgress::kRun;
}

Status BeginCommit(Plan::State& plan, int32_t layer, std::span<const int64_t> accepted) {
  MILLIPEDE_RETURN_IF_ERROR(CheckLayer(plan, layer));
  if (plan.progress.layers[static_cast<size_t>(layer)] != LayerProgress::kRun) {
    return MakeError(ErrorCode::kCallOrder, "layer_index",
                     "layer {} was not run; allowed: a layer that was", layer);
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckAccepted(plan, accepted));
  MILLIPEDE_RETURN_IF_ERROR(RecheckPages(plan));
  return CheckOwnersUnmoved(plan);
}

std::vector<RequestRanges> FinishCommit(Plan::State& plan, int32_t layer,
                                        std::span<const int64_t> accepted) {
  PlanProgress& progress = plan.progress;
  progress.layers[static_cast<size_t>(layer)] = LayerProgress::kCommitted;
  progress.accepted.assign(accepted.begin(), accepted.end());
  if (++progress.num_committed < plan.num_layers) return {};

  std::vector<RequestRanges> ranges(plan.lists.size());
  for (size_t r = 0; r < ranges.size(); ++r) {
    if (plan.work.requests[r].num_tokens == 0) continue;
    const PlannedLists& lists = plan.lists[r];
    ranges[r] = lists.ranges;
    ranges[r].raw = Advance(lists.ranges.raw, accepted[r], FormatOf(PoolKind::kRaw));
    if (lists.owner != nullptr) SetRanges(*lists.owner, plan.kind, ranges[r]);
  }
  return ranges;
}

}  // namespace millipede
