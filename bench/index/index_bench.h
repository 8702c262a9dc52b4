// The indexer's scores and selection, 64 heads, against the machine's limits.
#ifndef MILLIPEDE_BENCH_INDEX_INDEX_BENCH_H_
#define MILLIPEDE_BENCH_INDEX_INDEX_BENCH_H_

#include "bench/machine/thread_team.h"

namespace millipede::bench {

// `team` outlives the benchmarks.
void RegisterIndexBenches(ThreadTeam& team);

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_INDEX_INDEX_BENCH_H_
