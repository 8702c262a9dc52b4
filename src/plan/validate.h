// The checks of a step's inputs, made before anything is packed. Nothing here writes.
#ifndef MILLIPEDE_PLAN_VALIDATE_H_
#define MILLIPEDE_PLAN_VALIDATE_H_

#include <cstdint>
#include <limits>
#include <span>

#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/status.h"

namespace millipede {

// Step tokens are named by int32 sources -2 - t.
inline constexpr int64_t kMaxStepTokens = std::numeric_limits<int32_t>::max();
static_assert(-2 - (kMaxStepTokens - 1) == std::numeric_limits<int32_t>::min());

inline constexpr int32_t kMaxPlanLayers = 1 << 16;

// Whether the request takes part in the step; the lists of one that does not are never looked at.
inline bool TakesPart(const StepRequest& request) {
  return request.active && request.num_tokens > 0;
}

// The lists of a request that takes part.
RequestPages ListsOf(const StepRequest& request, AttentionKind kind);

// The raw pages of a ring that a step may write, a mask over the list.
uint32_t RawPagesWritten(int64_t start_pos, int64_t num_tokens);

// Everything Plan::Create refuses.
Status CheckStep(const ModelConfig& config, AttentionKind kind, int32_t num_layers,
                 const KindSpaces& spaces, std::span<const StepRequest> requests);

// One entry of a list: a page of the space, owned under the entry's epoch, and by one owner alone
// if it is `written`. `list` names the list, for example "raw".
Status CheckEntry(const PageSpaceView& space, const PageEntry& entry, bool written, int64_t request,
                  const char* list, int64_t index);

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_VALIDATE_H_
