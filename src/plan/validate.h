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

// Tokens, events, shards, leaves and merges of a step together; and the pages of its ragged lists.
// Step tokens are named by int32 sources -2 - t, and everything else by int32 offsets.
inline constexpr int64_t kMaxWorkItems = std::numeric_limits<int32_t>::max();
static_assert(-2 - (kMaxWorkItems - 1) == std::numeric_limits<int32_t>::min());

inline constexpr int32_t kMaxPlanLayers = 1 << 16;

// Whether the request takes part in the step; the lists of one that does not are never looked at.
inline bool TakesPart(const StepRequest& request) {
  return request.active && request.num_tokens > 0;
}

// The lists of a request that takes part.
RequestPages ListsOf(const StepRequest& request, AttentionKind kind);

// Everything Plan::Create refuses.
Status CheckStep(const ModelConfig& config, AttentionKind kind, int32_t num_layers,
                 const KindSpaces& spaces, std::span<const StepRequest> requests);

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_VALIDATE_H_
