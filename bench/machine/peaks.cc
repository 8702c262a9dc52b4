#include "bench/machine/peaks.h"

#include <atomic>
#include <cstdint>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/machine/peaks.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace millipede::bench {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Independent chains: more than latency times pipes, few enough for 16 registers.
inline constexpr int kChains = 12;

// A value the compiler knows nothing of, so that the work on it is neither hoisted nor merged.
template <class V>
HWY_INLINE void Forget(V& v) {
#if HWY_ARCH_X86
  asm volatile("" : "+x"(v.raw));
#elif HWY_ARCH_ARM
  asm volatile("" : "+w"(v.raw));
#else
#error "Forget is not written for this architecture"
#endif
}

template <int... kI>
double RunFmaChains(int64_t steps, std::integer_sequence<int, kI...> /*chains*/) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, 0.75F);
  const auto term = hn::Set(d, 0.25F);
  hn::Vec<decltype(d)> sums[kChains] = {hn::Set(d, static_cast<float>(kI))...};
  for (int64_t step = 0; step < steps; ++step) {
    ((sums[kI] = hn::MulAdd(sums[kI], factor, term)), ...);
  }
  (Forget(sums[kI]), ...);
  return static_cast<double>(steps) * kChains * static_cast<double>(hn::Lanes(d)) * 2;
}

// Two products, then their two sums: in other orders the sums take turns away from the products.
template <int... kI>
double RunMaddChains(int64_t steps, std::integer_sequence<int, kI...> /*pairs of chains*/) {
  const hn::ScalableTag<int32_t> d32;
  const hn::RepartitionToNarrow<decltype(d32)> d16;
  const auto a = hn::Set(d16, static_cast<int16_t>(-37));
  auto b = hn::Set(d16, static_cast<int16_t>(91));
  auto unused = hn::Zero(d32);
  hn::Vec<decltype(d32)> even[kChains / 2] = {hn::Set(d32, kI)...};
  hn::Vec<decltype(d32)> odd[kChains / 2] = {hn::Set(d32, -kI)...};
  hn::Vec<decltype(d32)> even_product, odd_product;
  for (int64_t step = 0; step < steps; ++step) {
    ((even_product = hn::ReorderWidenMulAccumulate(d32, a, b, hn::Zero(d32), unused), Forget(b),
      odd_product = hn::ReorderWidenMulAccumulate(d32, a, b, hn::Zero(d32), unused), Forget(b),
      Forget(even_product), Forget(odd_product), even[kI] = hn::Add(even[kI], even_product),
      odd[kI] = hn::Add(odd[kI], odd_product)),
     ...);
  }
  (Forget(even[kI]), ...);
  (Forget(odd[kI]), ...);
  return static_cast<double>(steps) * kChains * static_cast<double>(hn::Lanes(d16)) * 2;
}

double RunFma(int64_t steps) {
  return RunFmaChains(steps, std::make_integer_sequence<int, kChains>());
}

double RunMadd(int64_t steps) {
  return RunMaddChains(steps, std::make_integer_sequence<int, kChains / 2>());
}

void ReadBytes(const uint8_t* from, size_t num_bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  for (size_t i = 0; i + 2 * lanes <= num_bytes; i += 2 * lanes) {
    sum0 = hn::Xor(sum0, hn::LoadU(d, from + i));
    sum1 = hn::Xor(sum1, hn::LoadU(d, from + i + lanes));
  }
  sum0 = hn::Xor(sum0, sum1);
  Forget(sum0);
}

const char* TargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede::bench {
namespace {

HWY_EXPORT(RunFma);
HWY_EXPORT(RunMadd);
HWY_EXPORT(ReadBytes);
HWY_EXPORT(TargetName);

constexpr int64_t kSteps = 200'000;  // about half a millisecond

class ArithmeticTask final : public Task {
 public:
  explicit ArithmeticTask(double (*run)(int64_t)) : run_(run) {}
  void Run(int64_t /*item*/, int /*thread*/) const override {
    operations_.fetch_add(static_cast<int64_t>(run_(kSteps)));
  }
  double operations() const { return static_cast<double>(operations_.load()); }

 private:
  double (*run_)(int64_t);
  mutable std::atomic<int64_t> operations_{0};
};

double MeasureArithmetic(ThreadTeam& team, double (*run)(int64_t)) {
  const ArithmeticTask task(run);
  const double seconds = TimeRegion(team, team.num_threads(), task).seconds;
  return task.operations() / seconds;
}

class ReadTask final : public Task {
 public:
  ReadTask(std::span<const std::byte> memory, int num_parts)
      : memory_(memory), part_bytes_(memory.size() / static_cast<size_t>(num_parts)) {}
  void Run(int64_t item, int /*thread*/) const override {
    const auto part = memory_.subspan(static_cast<size_t>(item) * part_bytes_, part_bytes_);
    HWY_DYNAMIC_DISPATCH(ReadBytes)
    (reinterpret_cast<const uint8_t*>(part.data()), part.size());
  }

 private:
  std::span<const std::byte> memory_;
  size_t part_bytes_;
};

}  // namespace

double MeasureFmaPeak(ThreadTeam& team) {
  return MeasureArithmetic(team, HWY_DYNAMIC_DISPATCH(RunFma));
}

double MeasureInt16MaddPeak(ThreadTeam& team) {
  return MeasureArithmetic(team, HWY_DYNAMIC_DISPATCH(RunMadd));
}

double MeasureReadBandwidth(ThreadTeam& team, std::span<const std::byte> memory) {
  const ReadTask task(memory, team.num_threads());
  return static_cast<double>(memory.size()) / TimeRegion(team, team.num_threads(), task).seconds;
}

const char* PeaksTargetName() { return HWY_DYNAMIC_DISPATCH(TargetName)(); }

}  // namespace millipede::bench
#endif  // HWY_ONCE
