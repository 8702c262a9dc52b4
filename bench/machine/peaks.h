// The machine's own limits, each measured by one short run on all threads of a team. A machine's
// speed wanders: measure a limit right beside what is compared with it, many times, and take
// medians.
#ifndef MILLIPEDE_BENCH_MACHINE_PEAKS_H_
#define MILLIPEDE_BENCH_MACHINE_PEAKS_H_

#include <cstddef>
#include <span>

#include "bench/machine/thread_team.h"

namespace millipede::bench {

// Float32 fused multiply-adds on registers, two operations per lane. Operations per second.
double MeasureFmaPeak(ThreadTeam& team);

// Int16 products summed in pairs and added to int32 sums (vpmaddwd and vpaddd on x86) on registers,
// two operations per int16 lane. Operations per second.
double MeasureInt16MaddPeak(ThreadTeam& team);

// Reads `memory` once, an equal part per thread. Bytes per second; of memory, not of a cache, only
// if the caller passes bytes that no cache holds.
double MeasureReadBandwidth(ThreadTeam& team, std::span<const std::byte> memory);

// The SIMD target of these measurements.
const char* PeaksTargetName();

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_MACHINE_PEAKS_H_
