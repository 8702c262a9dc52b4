#include "plan/validate.h"

#include "base/error.h"
#include "geometry/step_counts.h"
#include "pages/request_state.h"
#include "pages/view_checks.h"
#include "plan/check_lists.h"
#include "plan/list_specs.h"

namespace millipede {
namespace {

// The numbers of one request, its lists aside.
Status CheckNumbers(const ModelConfig& config, const StepRequest& request, int64_t r) {
  if (!request.active && request.num_tokens != 0) {
    return MakeRequestError(ErrorCode::kInactiveTokens, r, "num_tokens",
                            "{}; allowed: 0 for an inactive request", request.num_tokens);
  }
  if (request.num_tokens < 0) {
    return MakeRequestError(ErrorCode::kInvalidArgument, r, "num_tokens", "{}; allowed: at least 0",
                            request.num_tokens);
  }
  if (!TakesPart(request)) return {};
  const int64_t ceiling = config.max_context_tokens;
  if (request.start_pos < 0) {
    return MakeRequestError(ErrorCode::kInvalidArgument, r, "start_pos", "{}; allowed: 0 to {}",
                            request.start_pos, ceiling - 1);
  }
  if (request.start_pos >= ceiling) {
    return MakeRequestError(ErrorCode::kContextCeiling, r, "start_pos", "{}; allowed: 0 to {}",
                            request.start_pos, ceiling - 1);
  }
  if (request.num_tokens > ceiling - request.start_pos) {
    return MakeRequestError(ErrorCode::kContextCeiling, r, "num_tokens",
                            "{} at start_pos {}; allowed: at most {}", request.num_tokens,
                            request.start_pos, ceiling - request.start_pos);
  }
  return {};
}

// The numbers of all requests, and the work they make together.
Status CheckAmount(const ModelConfig& config, AttentionKind kind,
                   std::span<const StepRequest> requests) {
  if (requests.size() > static_cast<size_t>(kMaxWorkItems)) {
    return MakeError(ErrorCode::kTooMuchWork, "requests", "{} requests; allowed: at most {}",
                     requests.size(), kMaxWorkItems);
  }
  int64_t work_items = 0;
  int64_t pages = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const StepRequest& request = requests[i];
    const auto r = static_cast<int64_t>(i);
    MILLIPEDE_RETURN_IF_ERROR(CheckNumbers(config, request, r));
    if (!TakesPart(request)) continue;
    const StepCounts counts = CountStep(kind, request.start_pos, request.num_tokens);
    work_items += counts.work_items();
    pages += counts.ragged_pages;
    if (work_items > kMaxWorkItems || pages > kMaxWorkItems) {
      return MakeRequestError(ErrorCode::kTooMuchWork, r, "num_tokens",
                              "{} makes {} work items and {} main pages up to here; allowed: at "
                              "most {} of each in a step",
                              request.num_tokens, work_items, pages, kMaxWorkItems);
    }
  }
  return {};
}

// A Request object has to be alive, without another live plan of the kind, and to draw from the
// spaces the plan is made for.
Status CheckOwner(const StepRequest& request, AttentionKind kind, const KindSpaces& spaces,
                  int64_t r) {
  if (request.request == nullptr) return {};
  const auto& state = request.request->state();
  if (state == nullptr || state->released) {
    return MakeRequestError(ErrorCode::kInvalidArgument, r, "request",
                            "released or moved from; allowed: a live request");
  }
  if (HasLivePlan(*state, kind)) {
    return MakeRequestError(ErrorCode::kCallOrder, r, "request",
                            "another {} plan of it is live; allowed: one at a time, until its last "
                            "layer is committed or it is dropped",
                            KindName(kind));
  }
  const KindSpaces own_spaces = state->spaces.views(kind);
  for (const ListSpec& spec : ListsOfKind(kind)) {
    const PageSpaceView own = own_spaces.*spec.space;
    const PageSpaceView planned = spaces.*spec.space;
    if (own.epochs != planned.epochs || own.ref_counts != planned.ref_counts ||
        own.generation != planned.generation || own.num_pages != planned.num_pages) {
      return MakeRequestError(ErrorCode::kInvalidArgument, r, "request",
                              "its {} pages are of another space; allowed: the plan's spaces.{}",
                              spec.name, spec.name);
    }
  }
  return {};
}

// The lists of one CSA request name the same rows, main rows and index keys.
Status CheckListsAgree(const RequestPages& lists, int64_t r) {
  const RowRange main = lists.main.valid;
  const RowRange index = lists.index.valid;
  if (main.begin == index.begin && main.end == index.end) return {};
  return MakeRequestError(ErrorCode::kListsDisagree, r, "index.valid",
                          "[{}, {}); allowed: [{}, {}), as main.valid", index.begin, index.end,
                          main.begin, main.end);
}

}  // namespace

RequestPages ListsOf(const StepRequest& request, AttentionKind kind) {
  return request.request != nullptr ? request.request->pages(kind) : request.pages;
}

Status CheckStep(const ModelConfig& config, AttentionKind kind, int32_t num_layers,
                 const KindSpaces& spaces, std::span<const StepRequest> requests) {
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  if (ListsOfKind(kind).empty()) {
    return MakeError(ErrorCode::kInvalidArgument, "kind", "{}; allowed: swa, hca, csa",
                     KindName(kind));
  }
  if (num_layers < 1 || num_layers > kMaxPlanLayers) {
    return MakeError(ErrorCode::kInvalidArgument, "num_layers", "{}; allowed: 1 to {}", num_layers,
                     kMaxPlanLayers);
  }
  for (const ListSpec& spec : ListsOfKind(kind)) {
    MILLIPEDE_RETURN_IF_ERROR(
        CheckSpaceView(spaces.*spec.space, fmt::format("spaces.{}", spec.name)));
  }
  // The numbers of all requests come before any list: a step too large is refused cheaply.
  MILLIPEDE_RETURN_IF_ERROR(CheckAmount(config, kind, requests));
  PageSet seen;
  for (size_t i = 0; i < requests.size(); ++i) {
    const StepRequest& request = requests[i];
    if (!TakesPart(request)) continue;
    const auto r = static_cast<int64_t>(i);
    MILLIPEDE_RETURN_IF_ERROR(CheckOwner(request, kind, spaces, r));
    if (kind == AttentionKind::kCsa) {
      MILLIPEDE_RETURN_IF_ERROR(CheckListsAgree(ListsOf(request, kind), r));
    }
    for (const ListSpec& spec : ListsOfKind(kind)) {
      MILLIPEDE_RETURN_IF_ERROR(
          CheckList(spaces.*spec.space, spec, kind, request, r, config.max_context_tokens, seen));
    }
  }
  for (const ListSpec& spec : ListsOfKind(kind)) {
    MILLIPEDE_RETURN_IF_ERROR(CheckWriteConflicts(spec, kind, requests));
  }
  return {};
}

}  // namespace millipede
