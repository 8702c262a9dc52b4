// The hyper-connection kernels of the Flash model, inputs and weights in cache.
#ifndef MILLIPEDE_BENCH_HC_HC_BENCH_H_
#define MILLIPEDE_BENCH_HC_HC_BENCH_H_

#include "bench/machine/thread_team.h"

namespace millipede::bench {

// `team` outlives the benchmarks.
void RegisterHcBenches(ThreadTeam& team);

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_HC_HC_BENCH_H_
