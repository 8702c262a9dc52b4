#include "plan/plan_state.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "geometry/visibility.h"
#include "plan/check_lists.h"

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

// The pages of a released request are not always free: others may share them.
Status CheckOwnersAlive(const Plan::State& plan) {
  for (size_t r = 0; r < plan.owners.size(); ++r) {
    const PlannedOwner& owner = plan.owners[r];
    if (owner.state != nullptr && owner.state->released) {
      return MakeRequestError(ErrorCode::kCallOrder, static_cast<int64_t>(r), "request",
                              "released since the plan was made; allowed: a live request");
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

// A list's range after the first `accepted` of the step's tokens.
RowRange Advance(const ListSpec& spec, AttentionKind kind, RowRange range, int64_t start,
                 int64_t accepted) {
  const int64_t end = start + accepted;
  if (!spec.is_ring()) return {0, CompressedRows(kind, end)};
  return {std::max(range.begin, end - spec.format().ring_rows()), end};
}

// Once a layer has committed, its rings lack the rows that the new ones took the place of, whether
// or not the other layers follow: if the plan is dropped before they do, the request must not be
// planned as if it still had them.
void ForgetOverwrittenRows(Plan::State& plan, std::span<const int64_t> accepted) {
  for (size_t r = 0; r < plan.owners.size(); ++r) {
    const PlannedRequest& request = plan.work.requests[r];
    const PlannedOwner& owner = plan.owners[r];
    if (owner.state == nullptr) continue;
    RequestRanges ranges = owner.ranges;
    for (const ListSpec& spec : ListsOfKind(plan.kind)) {
      if (!spec.is_ring()) continue;
      RowRange& range = ranges.*spec.range;
      const RowRange after = Advance(spec, plan.kind, range, request.start_pos, accepted[r]);
      range.begin = std::min(after.begin, range.end);
    }
    SetRanges(*owner.state, plan.kind, ranges);
  }
}

Status RecheckList(const Plan::State& plan, const PlannedList& list) {
  const ListSpec& spec = *list.spec;
  const PageSpaceView& space = plan.spaces.*spec.space;
  const std::span<const int32_t> pages = list.pages(plan.work);
  std::vector<PageEntry> entries;
  for (size_t r = 0; r < plan.work.requests.size(); ++r) {
    const PlannedRequest& request = plan.work.requests[r];
    if (request.num_tokens == 0) continue;
    entries.clear();
    for (size_t i = list.offsets[r]; i < list.offsets[r + 1]; ++i) {
      entries.push_back({pages[i], list.epochs[i]});
    }
    const ListUse use = UseOf(spec, plan.kind, request.start_pos, request.num_tokens);
    const int64_t bad = FindBadEntry(space, entries, use.written_pages);
    if (bad < 0) continue;
    return EntryError(space, spec, entries[static_cast<size_t>(bad)], static_cast<int64_t>(r), bad);
  }
  return {};
}

}  // namespace

Status RecheckPages(Plan::State& plan) {
  for (PlannedList& list : plan.lists) {
    const uint64_t generation = *(plan.spaces.*list.spec->space).generation;
    if (generation == list.generation) continue;
    MILLIPEDE_RETURN_IF_ERROR(RecheckList(plan, list));
    list.generation = generation;
  }
  return {};
}

Status BeginRun(Plan::State& plan, int32_t layer) {
  MILLIPEDE_RETURN_IF_ERROR(CheckLayer(plan, layer));
  MILLIPEDE_RETURN_IF_ERROR(CheckOwnersAlive(plan));
  return RecheckPages(plan);
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
  MILLIPEDE_RETURN_IF_ERROR(CheckOwnersAlive(plan));
  MILLIPEDE_RETURN_IF_ERROR(RecheckPages(plan));
  PlanProgress& progress = plan.progress;
  progress.accepted.reserve(accepted.size());
  if (progress.num_committed + 1 == plan.num_layers) progress.ranges.resize(plan.owners.size());
  return {};
}

std::vector<RequestRanges> FinishCommit(Plan::State& plan, int32_t layer,
                                        std::span<const int64_t> accepted) {
  PlanProgress& progress = plan.progress;
  progress.layers[static_cast<size_t>(layer)] = LayerProgress::kCommitted;
  progress.accepted.assign(accepted.begin(), accepted.end());
  if (++progress.num_committed < plan.num_layers) {
    if (progress.num_committed == 1) ForgetOverwrittenRows(plan, accepted);
    return {};
  }

  std::vector<RequestRanges> ranges = std::move(progress.ranges);
  for (size_t r = 0; r < ranges.size(); ++r) {
    const PlannedRequest& request = plan.work.requests[r];
    if (request.num_tokens == 0) continue;
    const PlannedOwner& owner = plan.owners[r];
    for (const ListSpec& spec : ListsOfKind(plan.kind)) {
      ranges[r].*spec.range =
          Advance(spec, plan.kind, owner.ranges.*spec.range, request.start_pos, accepted[r]);
    }
    if (owner.state == nullptr) continue;
    SetRanges(*owner.state, plan.kind, ranges[r]);
    SetLivePlan(*owner.state, plan.kind, nullptr);
  }
  return ranges;
}

}  // namespace millipede
