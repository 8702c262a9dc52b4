// Attention as a whole stage: plan, gathering of pages, dealing to threads.
#ifndef MILLIPEDE_BENCH_STAGES_ATTEND_STAGE_BENCH_H_
#define MILLIPEDE_BENCH_STAGES_ATTEND_STAGE_BENCH_H_

#include "bench/machine/thread_team.h"

namespace millipede::bench {

void RegisterAttendStageBenches(ThreadTeam& team);

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_STAGES_ATTEND_STAGE_BENCH_H_
