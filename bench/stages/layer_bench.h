// Whole layers, and the plans of steps.
#ifndef MILLIPEDE_BENCH_STAGES_LAYER_BENCH_H_
#define MILLIPEDE_BENCH_STAGES_LAYER_BENCH_H_

#include "bench/machine/thread_team.h"

namespace millipede::bench {

void RegisterLayerBenches(ThreadTeam& team);
void RegisterPlanBenches();

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_STAGES_LAYER_BENCH_H_
