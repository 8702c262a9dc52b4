#include "bench/hc/hc_bench.h"

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <vector>

#include "bench/machine/limits.h"
#include "bench/machine/peaks.h"
#include "bench/machine/random.h"
#include "geometry/tiles.h"
#include "kernels/hc_post.h"
#include "kernels/hc_pre.h"
#include "millipede/config.h"
#include "millipede/tensor.h"

namespace millipede::bench {
namespace {

constexpr int64_t kHidden = 4096;
constexpr int64_t kNumInputs = kHcStreams * kHidden;
constexpr int64_t kPartialsOfToken = kHcInputRanges * kHcPartialFloats;
constexpr int64_t kPostRanges = 4;

struct AlignedFree {
  void operator()(float* memory) const { ::operator delete (memory, std::align_val_t{64}); }
};
using Floats = std::unique_ptr<float, AlignedFree>;

Floats RandomFloats(int64_t size) {
  Floats floats(static_cast<float*>(
      ::operator new (static_cast<size_t>(size) * sizeof(float), std::align_val_t{64})));
  std::mt19937_64 random(static_cast<uint64_t>(size));
  std::uniform_real_distribution<float> uniform(-1.0F, 1.0F);
  for (int64_t i = 0; i < size; ++i) floats.get()[i] = uniform(random);
  return floats;
}

// The tokens' streams and coefficients, and room for what is computed of them.
struct Tokens {
  explicit Tokens(int64_t count)
      : num_tokens(count),
        x(RandomFloats(count * kNumInputs)),
        x_out(RandomFloats(count * kNumInputs)),
        own_fn(RandomFloats(PackedHcFnFloats(kNumInputs))),
        fn(own_fn.get()),
        partials(RandomFloats(count * kPartialsOfToken)),
        coefficients(RandomFloats(count * kHcMixes)),
        mixed(static_cast<size_t>(count * kHidden)) {}

  float* pre(int64_t token) const { return coefficients.get() + token * kHcMixes; }
  float* post(int64_t token) const { return pre(token) + kHcStreams; }
  float* comb(int64_t token) const { return post(token) + kHcStreams; }

  int64_t num_tokens;
  Floats x;                 // [tokens, 4, hidden]
  Floats x_out;             // [tokens, 4, hidden]
  Floats own_fn;            // packed
  const float* fn;          // what is used: own_fn, or weights elsewhere
  Floats partials;          // [tokens, 8, 32]
  Floats coefficients;      // [tokens, 24]
  std::vector<Bf16> mixed;  // [tokens, hidden]
};

// Items are the ranges of hc_fn, each for all tokens.
class ProductTask final : public Task {
 public:
  explicit ProductTask(const Tokens& tokens) : tokens_(tokens) {}

  void Run(int64_t range, int /*thread*/) const override {
    const HcInputs inputs = HcInputRange(kNumInputs, range);
    HcPartial({.x = tokens_.x.get(),
               .x_stride = kNumInputs,
               .packed_fn = tokens_.fn,
               .begin = inputs.begin,
               .end = inputs.end,
               .partials = tokens_.partials.get() + range * kHcPartialFloats,
               .partials_stride = kPartialsOfToken,
               .num_rows = tokens_.num_tokens});
  }

 private:
  const Tokens& tokens_;
};

// Items are tokens.
class MixTask final : public Task {
 public:
  explicit MixTask(Tokens& tokens) : tokens_(tokens) {}

  void Run(int64_t token, int /*thread*/) const override {
    HcFinish({.partials = tokens_.partials.get() + token * kPartialsOfToken,
              .scale = scale_.data(),
              .base = base_.data(),
              .num_inputs = kNumInputs,
              .rms_eps = 1e-6F,
              .hc_eps = 1e-6F,
              .sinkhorn_rounds = 20,
              .pre = tokens_.pre(token),
              .post = tokens_.post(token),
              .comb = tokens_.comb(token)});
    HcCombine({.x = tokens_.x.get() + token * kNumInputs,
               .pre = tokens_.pre(token),
               .x_mixed = tokens_.mixed.data() + token * kHidden,
               .hidden = kHidden});
  }

 private:
  Tokens& tokens_;
  std::array<float, 3> scale_{0.1F, 0.1F, 0.1F};
  std::array<float, kHcMixes> base_{};
};

// Items are ranges of lanes of a token.
class PostTask final : public Task {
 public:
  explicit PostTask(const Tokens& tokens) : tokens_(tokens) {}

  void Run(int64_t item, int /*thread*/) const override {
    const int64_t token = item / kPostRanges;
    const int64_t range = item % kPostRanges;
    HcPost({.x = tokens_.x.get() + token * kNumInputs,
            .attn_out = tokens_.mixed.data() + token * kHidden,
            .post = tokens_.post(token),
            .comb = tokens_.comb(token),
            .x_out = tokens_.x_out.get() + token * kNumInputs,
            .hidden = kHidden,
            .begin = range * kHidden / kPostRanges,
            .end = (range + 1) * kHidden / kPostRanges});
  }

 private:
  const Tokens& tokens_;
};

void BenchPre(benchmark::State& state, ThreadTeam& team) {
  Tokens tokens(state.range(0));
  const ProductTask product(tokens);
  const MixTask mix(tokens);
  std::vector<double> seconds;
  std::vector<double> product_seconds;
  std::vector<double> mix_seconds;
  std::vector<double> fractions;
  // 24 dots and one sum of squares.
  const double operations =
      2.0 * static_cast<double>(tokens.num_tokens * (kHcMixes + 1) * kNumInputs);
  for (auto _ : state) {
    const double peak = MeasureFmaPeak(team);
    TimeRegion(team, kHcInputRanges, product);  // brings the weights back into the caches
    product_seconds.push_back(TimeRegion(team, kHcInputRanges, product).seconds);
    mix_seconds.push_back(TimeRegion(team, tokens.num_tokens, mix).seconds);
    fractions.push_back(operations / product_seconds.back() / peak);
    seconds.push_back(product_seconds.back() + mix_seconds.back());
    state.SetIterationTime(seconds.back());
  }
  const double weight_bytes = sizeof(float) * static_cast<double>(PackedHcFnFloats(kNumInputs));
  state.counters["median_us"] = Median(seconds) * 1e6;
  state.counters["product_us"] = Median(product_seconds) * 1e6;
  state.counters["mix_us"] = Median(mix_seconds) * 1e6;
  state.counters["of_fma_peak"] = Median(fractions);
  state.counters["weight_GB/s"] = weight_bytes / Median(product_seconds) * 1e-9;
}

// Weights come from memory, as in a step of many layers.
void BenchPreCold(benchmark::State& state, ThreadTeam& team) {
  Tokens tokens(state.range(0));
  const ProductTask product(tokens);
  const MixTask mix(tokens);
  static const BigBuffer buffer(0, [](size_t i) {
    return (Mix(i) & 0x807FFFFFU) + 0x3F000000U;  // floats of magnitude 1/2 to 1
  });
  const std::span<const std::byte> weights = buffer.bytes();
  const auto weight_bytes = static_cast<size_t>(PackedHcFnFloats(kNumInputs)) * sizeof(float);
  const KernelWork work{2.0 * static_cast<double>(tokens.num_tokens * (kHcMixes + 1) * kNumInputs),
                        static_cast<double>(weight_bytes), Arithmetic::kFma};
  LimitSampler sampler(team, work, SampleMemory());
  size_t offset = 0;
  for (auto _ : state) {
    tokens.fn = reinterpret_cast<const float*>(weights.data() + offset);
    offset = offset + 2 * weight_bytes > weights.size() ? 0 : offset + weight_bytes;
    team.ResetTotal();
    team.Run(kHcInputRanges, product);
    team.Run(tokens.num_tokens, mix);
    const RegionTime time = team.total();
    state.SetIterationTime(time.seconds);
    sampler.Add(time);
  }
  Report(state, sampler, work);
}

void BenchPost(benchmark::State& state, ThreadTeam& team) {
  Tokens tokens(state.range(0));
  const PostTask task(tokens);
  const int64_t num_items = tokens.num_tokens * kPostRanges;
  std::vector<double> seconds;
  TimeRegion(team, num_items, task);
  for (auto _ : state) {
    seconds.push_back(TimeRegion(team, num_items, task).seconds);
    state.SetIterationTime(seconds.back());
  }
  const double bytes = static_cast<double>(tokens.num_tokens * kHidden) *
                       (size_t{2} * kHcStreams * sizeof(float) + sizeof(Bf16));
  state.counters["median_us"] = Median(seconds) * 1e6;
  state.counters["GB/s"] = bytes / Median(seconds) * 1e-9;
}

}  // namespace

void RegisterHcBenches(ThreadTeam& team) {
  const auto add = [&team](const char* name, void (*bench)(benchmark::State&, ThreadTeam&)) {
    benchmark::RegisterBenchmark(name,
                                 [&team, bench](benchmark::State& state) { bench(state, team); })
        ->ArgName("tokens")
        ->Arg(1)
        ->Arg(8)
        ->Arg(64)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->MinTime(0.02);
  };
  add("hc/pre", BenchPre);
  add("hc/pre_cold", BenchPreCold);
  add("hc/post", BenchPost);
}

}  // namespace millipede::bench
