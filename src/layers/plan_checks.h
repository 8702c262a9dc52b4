// Whether a plan was made for the model a stage is called with.
#ifndef MILLIPEDE_LAYERS_PLAN_CHECKS_H_
#define MILLIPEDE_LAYERS_PLAN_CHECKS_H_

#include "base/error.h"
#include "millipede/config.h"
#include "plan/plan_state.h"

namespace millipede {

// kPlanMismatch if a shape of `config` is not the one the plan was made with.
inline Status CheckPlanConfig(const Plan::State& plan, const ModelConfig& config) {
  const auto check = [](const char* field, int64_t actual, int64_t planned) -> Status {
    if (actual == planned) return {};
    return MakeError(ErrorCode::kPlanMismatch, field, "{}; allowed: {}, as planned", actual,
                     planned);
  };
  const ModelConfig& planned = plan.config;
  MILLIPEDE_RETURN_IF_ERROR(check("config.hidden", config.hidden, planned.hidden));
  MILLIPEDE_RETURN_IF_ERROR(check("config.num_heads", config.num_heads, planned.num_heads));
  MILLIPEDE_RETURN_IF_ERROR(check("config.q_rank", config.q_rank, planned.q_rank));
  MILLIPEDE_RETURN_IF_ERROR(check("config.o_rank", config.o_rank, planned.o_rank));
  MILLIPEDE_RETURN_IF_ERROR(check("config.o_groups", config.o_groups, planned.o_groups));
  MILLIPEDE_RETURN_IF_ERROR(
      check("config.num_index_heads", config.num_index_heads, planned.num_index_heads));
  return check("config.index_topk", config.index_topk, planned.index_topk);
}

}  // namespace millipede

#endif  // MILLIPEDE_LAYERS_PLAN_CHECKS_H_
