#include "bench/matmul/matmul_bench.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/machine/limits.h"
#include "bench/machine/random.h"
#include "geometry/tiles.h"
#include "kernels/matmul_bf16.h"
#include "kernels/matmul_int8.h"

namespace millipede::bench {
namespace {

struct Bf16Product {
  using Args = MatmulBf16Args;
  using Value = Bf16;
  using Sum = float;
  static constexpr auto kRun = MatmulBf16;
  static constexpr Arithmetic kArithmetic = Arithmetic::kFma;
  // Two values of magnitude 2^-8 to 2, both signs.
  static uint32_t TwoValues(uint32_t random) { return (random & 0x83FF83FFU) + 0x3B803B80U; }
  static Bf16 OneValue(uint32_t random) { return {static_cast<uint16_t>(TwoValues(random))}; }
};

struct Int8Product {
  using Args = MatmulInt8Args;
  using Value = int8_t;
  using Sum = int32_t;
  static constexpr auto kRun = MatmulInt8;
  static constexpr Arithmetic kArithmetic = Arithmetic::kInt16Madd;
  static uint32_t TwoValues(uint32_t random) { return random; }
  static int8_t OneValue(uint32_t random) { return static_cast<int8_t>(random); }
};

struct AlignedFree {
  void operator()(void* memory) const { ::operator delete (memory, std::align_val_t{64}); }
};
using Scratch = std::unique_ptr<std::byte, AlignedFree>;

Scratch MakeScratch() {
  return Scratch(static_cast<std::byte*>(
      ::operator new (static_cast<size_t>(kMatmulScratchBytes), std::align_val_t{64})));
}

// One product of all rows: items are (panel range, chunk of rows), chunks of a range together.
template <class Product>
class ProductTask final : public Task {
 public:
  ProductTask(const typename Product::Args& whole, int num_threads)
      : whole_(whole),
        num_panels_(NumPanels(whole.num_outputs)),
        num_chunks_(CeilDiv(whole.num_rows, kTileRows)),
        range_panels_(RangePanels(whole.num_rows, num_panels_, num_threads)) {
    for (int thread = 0; thread < num_threads; ++thread) scratch_.push_back(MakeScratch());
  }

  int64_t num_items() const { return num_chunks_ * CeilDiv(num_panels_, range_panels_); }
  void set_weights(const typename Product::Value* weights) { whole_.weights = weights; }

  void Run(int64_t item, int thread) const override {
    typename Product::Args args = whole_;
    const int64_t row = item % num_chunks_ * kTileRows;
    args.x += row * args.x_stride;
    args.num_rows = std::min(kTileRows, whole_.num_rows - row);
    args.panel_begin = item / num_chunks_ * range_panels_;
    args.panel_end = std::min(args.panel_begin + range_panels_, num_panels_);
    args.out += row * args.out_stride + args.panel_begin * kPanelOutputs;
    args.scratch = scratch_[static_cast<size_t>(thread)].get();
    Product::kRun(args);
  }

 private:
  // A few rows stream weights: the longer the stream the better. More rows: a few ranges per
  // thread, none so short that widening the rows shows.
  static int64_t RangePanels(int64_t num_rows, int64_t num_panels, int num_threads) {
    const int64_t thread_panels = CeilDiv(num_panels, num_threads);
    return num_rows <= 2 ? thread_panels : std::clamp<int64_t>(thread_panels / 4, 8, 64);
  }

  typename Product::Args whole_;
  int64_t num_panels_;
  int64_t num_chunks_;
  int64_t range_panels_;
  std::vector<Scratch> scratch_;
};

template <class Product>
void BenchProduct(benchmark::State& state, ThreadTeam& team, int64_t num_inputs,
                  int64_t num_outputs) {
  using Value = typename Product::Value;
  const int64_t num_rows = state.range(0);
  // Weights are taken from a buffer larger than the caches, the next matrix each time, as a model's
  // layers follow each other. Packed or not, random values are random values.
  static const BigBuffer buffer(0, [](size_t i) { return Product::TwoValues(Mix(i)); });
  const auto matrix_bytes =
      static_cast<size_t>(PackedElements(num_outputs, num_inputs)) * sizeof(Value);
  const size_t num_matrices = buffer.bytes().size() / matrix_bytes;

  std::vector<Value> x(static_cast<size_t>(num_rows * num_inputs));
  for (size_t i = 0; i < x.size(); ++i) x[i] = Product::OneValue(Mix(~i));
  std::vector<typename Product::Sum> out(static_cast<size_t>(num_rows * num_outputs));

  typename Product::Args args;
  args.x = x.data();
  args.x_stride = num_inputs;
  args.num_rows = num_rows;
  args.num_inputs = num_inputs;
  args.num_outputs = num_outputs;
  args.out = out.data();
  args.out_stride = num_outputs;
  ProductTask<Product> task(args, team.num_threads());

  const KernelWork work{2.0 * static_cast<double>(num_rows * num_inputs * num_outputs),
                        static_cast<double>(matrix_bytes), Product::kArithmetic};
  LimitSampler sampler(team, work, buffer.bytes());
  size_t matrix = num_matrices / 2;  // far from where the bandwidth is being measured
  for (auto _ : state) {
    task.set_weights(
        reinterpret_cast<const Value*>(buffer.bytes().subspan(matrix * matrix_bytes).data()));
    matrix = (matrix + 1) % num_matrices;
    const RegionTime time = TimeRegion(team, task.num_items(), task);
    state.SetIterationTime(time.seconds);
    sampler.Add(time);
  }
  Report(state, sampler, work);
}

template <class Product>
void Register(ThreadTeam& team, const char* type, int64_t num_inputs, int64_t num_outputs) {
  const std::string name = std::string("matmul/") + type + "/" + std::to_string(num_inputs) + "to" +
                           std::to_string(num_outputs);
  benchmark::RegisterBenchmark(name.c_str(),
                               [&team, num_inputs, num_outputs](benchmark::State& state) {
                                 BenchProduct<Product>(state, team, num_inputs, num_outputs);
                               })
      ->ArgName("rows")
      ->Arg(1)
      ->Arg(8)
      ->Arg(64)
      ->Arg(512)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.3);
}

}  // namespace

void RegisterMatmulBenches(ThreadTeam& team) {
  Register<Bf16Product>(team, "bf16", 4096, 1024);
  Register<Bf16Product>(team, "bf16", 4096, 4096);
  Register<Int8Product>(team, "int8", 1024, 32768);
  Register<Int8Product>(team, "int8", 8192, 4096);
}

}  // namespace millipede::bench
