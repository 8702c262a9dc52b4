#include "bench/attend/attend_bench.h"

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "bench/machine/limits.h"
#include "geometry/tiles.h"
#include "kernels/attend_layout.h"
#include "kernels/attend_load.h"
#include "kernels/attend_merge.h"
#include "kernels/attend_tile.h"
#include "millipede/config.h"
#include "millipede/rope.h"
#include "millipede/tensor.h"

namespace millipede::bench {
namespace {

constexpr int64_t kNumHeads = 64;
constexpr int64_t kNumHeadBlocks = kNumHeads / kHeadBlock;
constexpr int64_t kNumRequests = 4;
constexpr int64_t kUnionRows = kAttendRows + kQueryBlock - 1;
constexpr int64_t kTilesPerItem = 16;

// Two bf16 of magnitude 1/2 to 2, both signs, in every 32 bits.
uint32_t TwoValues(size_t index) {
  uint64_t z = index + 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return (static_cast<uint32_t>(z >> 32) & 0x80FF80FFU) + 0x3F003F00U;
}

// Random bf16, more than the caches hold: the rows and queries of a step come from memory.
const BigBuffer& Values() {
  static const BigBuffer buffer(0, TwoValues);
  return buffer;
}

struct AlignedFree {
  void operator()(float* memory) const { ::operator delete (memory, std::align_val_t{64}); }
};
using Floats = std::unique_ptr<float, AlignedFree>;

Floats MakeFloats(int64_t size) {
  return Floats(static_cast<float*>(
      ::operator new (static_cast<size_t>(size) * sizeof(float), std::align_val_t{64})));
}

struct ThreadScratch {
  Floats kv = MakeFloats(kUnionRows * kHeadDim);
  Floats q_t = MakeFloats(kHeadDim * kHeadBlock);
  Floats scores = MakeFloats(kAttendRows * kHeadBlock);
  Floats partial = MakeFloats(kAttendPartialFloats);
};

void Widen(const Bf16* rows, int64_t num_rows, const ThreadScratch& scratch) {
  std::array<const Bf16*, kUnionRows> pointers{};
  for (int64_t r = 0; r < num_rows; ++r) {
    pointers[static_cast<size_t>(r)] = rows + r * kHeadDim;
  }
  AttendWiden({.rows = pointers.data(),
               .num_rows = num_rows,
               .kv = scratch.kv.get(),
               .panel_rows = kUnionRows,
               .first_row = 0});
}

void TransposeQ(const Bf16* q, const ThreadScratch& scratch) {
  AttendTransposeQ(
      {.q = q, .head_stride = kHeadDim, .num_heads = kHeadBlock, .q_t = scratch.q_t.get()});
}

void Tile(int64_t first_row, int64_t num_rows, const ThreadScratch& scratch) {
  AttendTile({.q_t = scratch.q_t.get(),
              .kv = scratch.kv.get(),
              .panel_rows = kUnionRows,
              .first_row = first_row,
              .num_rows = num_rows,
              .scores = scratch.scores.get(),
              .out = AttendPartialAt(scratch.partial.get())});
}

// Each item: kTilesPerItem tiles of num_rows rows on the thread's own, cached rows.
class TileTask final : public Task {
 public:
  TileTask(int num_threads, int64_t num_rows) : scratch_(num_threads), num_rows_(num_rows) {
    const auto* values = reinterpret_cast<const Bf16*>(Values().bytes().data());
    for (const ThreadScratch& scratch : scratch_) {
      Widen(values, kUnionRows, scratch);
      TransposeQ(values + kUnionRows * kHeadDim, scratch);
    }
  }

  void Run(int64_t /*item*/, int thread) const override {
    for (int64_t i = 0; i < kTilesPerItem; ++i) {
      Tile(i % kQueryBlock, num_rows_, scratch_[static_cast<size_t>(thread)]);
    }
  }

 private:
  std::vector<ThreadScratch> scratch_;
  int64_t num_rows_;
};

// A step of num_tokens tokens for each request, full windows; items are (request, head block).
class SwaTask final : public Task {
 public:
  SwaTask(int num_threads, int64_t num_tokens)
      : scratch_(static_cast<size_t>(num_threads)),
        num_tokens_(num_tokens),
        heads_(static_cast<size_t>(kNumRequests * num_tokens * kNumHeads * kHeadDim)) {
    cos_.fill(0.6F);
    sin_.fill(0.8F);
  }

  int64_t window_elements() const { return (kWindowRows + num_tokens_ - 1) * kHeadDim; }
  int64_t query_elements() const { return num_tokens_ * kNumHeads * kHeadDim; }
  // bf16 values a step reads: each request's rows, then each request's queries.
  int64_t step_elements() const { return kNumRequests * (window_elements() + query_elements()); }
  void set_values(const Bf16* values) { values_ = values; }

  void Run(int64_t item, int thread) const override {
    const ThreadScratch& scratch = scratch_[static_cast<size_t>(thread)];
    const int64_t request = item / kNumHeadBlocks;
    const int64_t head = item % kNumHeadBlocks * kHeadBlock;
    const Bf16* rows = values_ + request * window_elements();
    const Bf16* q = values_ + kNumRequests * window_elements() + request * query_elements();
    Widen(rows, kWindowRows + num_tokens_ - 1, scratch);
    for (int64_t t = 0; t < num_tokens_; ++t) {
      TransposeQ(q + (t * kNumHeads + head) * kHeadDim, scratch);
      Tile(t, kWindowRows, scratch);
      const int64_t token = request * num_tokens_ + t;
      AttendFinish({.partial = AttendPartialAt(scratch.partial.get()),
                    .sink = sink_.data() + head,
                    .cos = cos_.data(),
                    .sin = sin_.data(),
                    .num_heads = kHeadBlock,
                    .heads = heads_.data() + (token * kNumHeads + head) * kHeadDim,
                    .head_stride = kHeadDim,
                    .log_sum_exp = nullptr});
    }
  }

 private:
  std::vector<ThreadScratch> scratch_;
  int64_t num_tokens_;
  const Bf16* values_ = nullptr;
  std::array<float, kNumHeads> sink_{};
  std::array<float, kRopePairs> cos_{};
  std::array<float, kRopePairs> sin_{};
  mutable std::vector<Bf16> heads_;  // items write disjoint parts
};

// Operations of attention proper: both products of every head with every row.
double Operations(int64_t heads, int64_t rows) {
  return 2.0 * 2.0 * static_cast<double>(heads * rows * kHeadDim);
}

void Report(benchmark::State& state, const LimitSampler& sampler, const KernelWork& work) {
  state.SetLabel(sampler.binding());
  state.counters["of_limit"] = sampler.fraction();
  state.counters["median_us"] = sampler.seconds() * 1e6;
  state.counters["GOP/s"] = work.operations / sampler.seconds() * 1e-9;
  state.counters["peak_GOP/s"] = sampler.arithmetic_peak() * 1e-9;
  state.counters["GB/s"] = work.bytes / sampler.seconds() * 1e-9;
}

void BenchTile(benchmark::State& state, ThreadTeam& team) {
  const int64_t num_rows = state.range(0);
  const TileTask task(team.num_threads(), num_rows);
  const KernelWork work{team.num_threads() * kTilesPerItem * Operations(kHeadBlock, num_rows), 0,
                        Arithmetic::kFma};
  LimitSampler sampler(team, work, Values().bytes());
  for (auto _ : state) {
    const double seconds = TimeRegion(team, team.num_threads(), task);
    state.SetIterationTime(seconds);
    sampler.Add(seconds);
  }
  Report(state, sampler, work);
}

void BenchSwa(benchmark::State& state, ThreadTeam& team) {
  const int64_t num_tokens = state.range(0);
  SwaTask task(team.num_threads(), num_tokens);
  const auto step_bytes = static_cast<size_t>(task.step_elements()) * sizeof(Bf16);
  const KernelWork work{Operations(kNumHeads, kNumRequests * num_tokens * kWindowRows),
                        static_cast<double>(step_bytes), Arithmetic::kFma};
  LimitSampler sampler(team, work, Values().bytes());
  const size_t num_steps = Values().bytes().size() / step_bytes;
  size_t step = num_steps / 2;  // far from where the bandwidth is being measured
  for (auto _ : state) {
    task.set_values(
        reinterpret_cast<const Bf16*>(Values().bytes().subspan(step * step_bytes).data()));
    step = (step + 1) % num_steps;
    const double seconds = TimeRegion(team, kNumRequests * kNumHeadBlocks, task);
    state.SetIterationTime(seconds);
    sampler.Add(seconds);
  }
  Report(state, sampler, work);
}

}  // namespace

void RegisterAttendBenches(ThreadTeam& team) {
  benchmark::RegisterBenchmark("attend/tile",
                               [&team](benchmark::State& state) { BenchTile(state, team); })
      ->ArgName("rows")
      ->Arg(1)
      ->Arg(16)
      ->Arg(65)
      ->Arg(128)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.3);
  benchmark::RegisterBenchmark("attend/swa",
                               [&team](benchmark::State& state) { BenchSwa(state, team); })
      ->ArgName("tokens")
      ->Arg(1)
      ->Arg(8)
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.3);
}

}  // namespace millipede::bench
