// The attention kernels, alone and composed as a sliding-window step runs them, against the
// machine's limits.
#ifndef MILLIPEDE_BENCH_ATTEND_ATTEND_BENCH_H_
#define MILLIPEDE_BENCH_ATTEND_ATTEND_BENCH_H_

#include "bench/machine/thread_team.h"

namespace millipede::bench {

// `team` outlives the benchmarks.
void RegisterAttendBenches(ThreadTeam& team);

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_ATTEND_ATTEND_BENCH_H_
