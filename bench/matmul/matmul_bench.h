// Matrix products of the Flash model's shapes against the machine's limits.
#ifndef MILLIPEDE_BENCH_MATMUL_MATMUL_BENCH_H_
#define MILLIPEDE_BENCH_MATMUL_MATMUL_BENCH_H_

#include "bench/machine/thread_team.h"

namespace millipede::bench {

// `team` outlives the benchmarks.
void RegisterMatmulBenches(ThreadTeam& team);

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_MATMUL_MATMUL_BENCH_H_
