// Random bf16 rows for benchmarks of whole stages.
#ifndef MILLIPEDE_BENCH_STAGES_RANDOM_ROWS_H_
#define MILLIPEDE_BENCH_STAGES_RANDOM_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millipede/pages.h"
#include "millipede/tensor.h"

namespace millipede::bench {

// More bytes than the caches hold, random bf16 of magnitude 1/2 to 2.
std::span<const std::byte> RandomMemory();

// A pool of raw or main pages in random memory. Never written.
PoolView PoolOfRandomRows(int32_t num_pages);

// [num_rows, 512]
std::vector<Bf16> RandomRows(int64_t num_rows);

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_STAGES_RANDOM_ROWS_H_
