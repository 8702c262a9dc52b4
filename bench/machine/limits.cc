#include "bench/machine/limits.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/large_pages.h"
#include "bench/machine/peaks.h"

namespace millipede::bench {
namespace {

constexpr size_t kReadSampleBytes = size_t{16} << 20;

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

BigBuffer::BigBuffer(size_t min_bytes, const std::function<uint32_t(size_t index)>& fill) {
  const auto last_cache = static_cast<size_t>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)));
  const size_t num_bytes = std::max({size_t{256} << 20, 4 * last_cache, min_bytes});
  auto memory = MappedMemory::Map(static_cast<int64_t>(num_bytes), "benchmark buffer");
  if (!memory) {
    std::fprintf(stderr, "%s\n", memory.error().message.c_str());
    std::exit(1);
  }
  memory_ = std::move(*memory);
  WishForLargePages(memory_.data(), num_bytes);
  auto* words = reinterpret_cast<uint32_t*>(memory_.data());
  for (size_t i = 0; i < num_bytes / sizeof(uint32_t); ++i) words[i] = fill(i);
}

std::span<const std::byte> SampleMemory() {
  static const BigBuffer buffer(
      0, [](size_t index) { return static_cast<uint32_t>(index * 2'654'435'761U); });
  return buffer.bytes();
}

void LimitSampler::Add(const RegionTime& kernel) {
  // Seconds of real time per second of processor time in the team's last region.
  const auto stretch = [this] {
    return team_.last_region().seconds / team_.last_region().cpu_seconds;
  };
  const double peak =
      work_.arithmetic == Arithmetic::kFma ? MeasureFmaPeak(team_) : MeasureInt16MaddPeak(team_);
  const double cpu_peak = peak * stretch();
  if (memory_offset_ + kReadSampleBytes > memory_.size()) memory_offset_ = 0;
  const double bandwidth =
      MeasureReadBandwidth(team_, memory_.subspan(memory_offset_, kReadSampleBytes));
  const double cpu_bandwidth = bandwidth * stretch();
  memory_offset_ += kReadSampleBytes;

  seconds_.push_back(kernel.seconds);
  peaks_.push_back(peak);
  bandwidths_.push_back(bandwidth);
  fractions_.push_back(std::max(work_.operations / peak, work_.bytes / bandwidth) / kernel.seconds);
  cpu_fractions_.push_back(std::max(work_.operations / cpu_peak, work_.bytes / cpu_bandwidth) /
                           kernel.cpu_seconds);
}

const char* LimitSampler::binding() const {
  if (work_.bytes / bandwidth() > work_.operations / arithmetic_peak()) return "memory read";
  return work_.arithmetic == Arithmetic::kFma ? "fma" : "int16 madd";
}

void Report(benchmark::State& state, const LimitSampler& sampler, const KernelWork& work) {
  state.SetLabel(sampler.binding());
  state.counters["of_limit"] = sampler.fraction();
  state.counters["of_limit_cpu"] = sampler.cpu_fraction();
  state.counters["median_us"] = sampler.seconds() * 1e6;
  state.counters["GOP/s"] = work.operations / sampler.seconds() * 1e-9;
  state.counters["peak_GOP/s"] = sampler.arithmetic_peak() * 1e-9;
  state.counters["GB/s"] = work.bytes / sampler.seconds() * 1e-9;
  state.counters["peak_GB/s"] = sampler.bandwidth() * 1e-9;
}

}  // namespace millipede::bench
