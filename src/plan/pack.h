// Packing of a checked step.
#ifndef MILLIPEDE_PLAN_PACK_H_
#define MILLIPEDE_PLAN_PACK_H_

#include <span>

#include "millipede/config.h"
#include "millipede/plan.h"

namespace millipede {

// The work of a step that CheckStep accepted.
PackedWork PackStep(AttentionKind kind, std::span<const StepRequest> requests);

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_PACK_H_
