#include "plan/plan_state.h"

#include <algorithm>

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

// Two plans of one request may be live. The commit of one advances the request, and then the rows
// the other names are no longer those it was made for.
Status CheckOwnersUnmoved(const Plan::State& plan) {
  for (size_t r = 0; r < plan.owners.size(); ++r) {
    const PlannedOwner& owner = plan.owners[r];
    if (owner.state == nullptr) continue;
    const RequestRanges& ranges = RangesOf(*owner.state, plan.kind);
    for (const ListSpec& spec : ListsOfKind(plan.kind)) {
      const RowRange now = ranges.*spec.range;
      const RowRange planned = owner.ranges.*spec.range;
      if (now.begin != planned.begin || now.end != planned.end) {
        return MakeRequestError(ErrorCode::kRangeMismatch, static_cast<int64_t>(r),
                                fmt::format("{}.valid", spec.name),
                                "[{}, {}); allowed: [{}, {}), as planned", now.begin, now.end,
                                planned.begin, planned.end);
      }
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

  std::vector<RequestRanges> ranges(plan.owners.size());
  for (size_t r = 0; r < ranges.size(); ++r) {
    const PlannedRequest& request = plan.work.requests[r];
    if (request.num_tokens == 0) continue;
    const PlannedOwner& owner = plan.owners[r];
    for (const ListSpec& spec : ListsOfKind(plan.kind)) {
      ranges[r].*spec.range =
          Advance(spec, plan.kind, owner.ranges.*spec.range, request.start_pos, accepted[r]);
    }
    if (owner.state != nullptr) SetRanges(*owner.state, plan.kind, ranges[r]);
  }
  return ranges;
}

}  // namespace millipede
