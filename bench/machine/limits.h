// A kernel's time against the time that the machine's binding limit allows, measured side by side.
#ifndef MILLIPEDE_BENCH_MACHINE_LIMITS_H_
#define MILLIPEDE_BENCH_MACHINE_LIMITS_H_

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/mapped_memory.h"
#include "bench/machine/thread_team.h"

namespace millipede::bench {

double Median(std::vector<double> values);

// Memory larger than any cache, filled by `fill(index)`, 32 bits at a time.
class BigBuffer {
 public:
  // At least 256 MiB, four times the last cache and min_bytes. Ends the program if it cannot be
  // had.
  BigBuffer(size_t min_bytes, const std::function<uint32_t(size_t index)>& fill);

  std::span<const std::byte> bytes() const {
    return {memory_.data(), static_cast<size_t>(memory_.num_bytes())};
  }

 private:
  MappedMemory memory_;
};

// Memory to measure the read bandwidth on; random bits, never written.
std::span<const std::byte> SampleMemory();

enum class Arithmetic { kFma, kInt16Madd };

// What one run of a kernel has to do.
struct KernelWork {
  double operations = 0;  // 2 per multiply-add
  double bytes = 0;       // to read from memory
  Arithmetic arithmetic = Arithmetic::kFma;
};

// Pairs of samples: the machine's limits, then the kernel.
class LimitSampler {
 public:
  // `memory` is read to measure the bandwidth, a different slice each time.
  LimitSampler(ThreadTeam& team, const KernelWork& work, std::span<const std::byte> memory)
      : team_(team), work_(work), memory_(memory) {}

  // Measures the limits now and sets the kernel's time beside them.
  void Add(const RegionTime& kernel);

  double seconds() const { return Median(seconds_); }     // the kernel's
  double fraction() const { return Median(fractions_); }  // of the binding limit, 1 at best
  // The same by processor time: what remains comparable while other programs run.
  double cpu_fraction() const { return Median(cpu_fractions_); }
  double arithmetic_peak() const { return Median(peaks_); }  // operations per second
  double bandwidth() const { return Median(bandwidths_); }   // bytes per second
  const char* binding() const;                               // the limit that allows least

 private:
  ThreadTeam& team_;
  KernelWork work_;
  std::span<const std::byte> memory_;
  size_t memory_offset_ = 0;
  std::vector<double> seconds_;
  std::vector<double> fractions_;
  std::vector<double> cpu_fractions_;
  std::vector<double> peaks_;
  std::vector<double> bandwidths_;
};

// Writes what was sampled to the benchmark's counters; its label is the binding limit.
void Report(benchmark::State& state, const LimitSampler& sampler, const KernelWork& work);

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_MACHINE_LIMITS_H_
