#include "bench/attend/attend_bench.h"

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "bench/machine/limits.h"
#include "bench/machine/random.h"
#include "geometry/tiles.h"
#include "kernels/attend_layout.h"
#include "kernels/attend_load.h"
#include "kernels/attend_tile.h"
#include "millipede/config.h"
#include "millipede/tensor.h"

namespace millipede::bench {
namespace {

constexpr int64_t kUnionRows = kAttendRows + kQueryBlock - 1;
constexpr int64_t kTilesPerItem = 16;

// Random bf16, more than the caches hold: the rows and queries of a step come from memory.
const BigBuffer& Values() {
  static const BigBuffer buffer(0, TwoBf16);
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
  AttendWiden({.rows = {.rows = pointers.data(), .num_rows = num_rows},
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

// Operations of attention proper: both products of every head with every row.
double Operations(int64_t heads, int64_t rows) {
  return 2.0 * 2.0 * static_cast<double>(heads * rows * kHeadDim);
}

void BenchTile(benchmark::State& state, ThreadTeam& team) {
  const int64_t num_rows = state.range(0);
  const TileTask task(team.num_threads(), num_rows);
  const KernelWork work{team.num_threads() * kTilesPerItem * Operations(kHeadBlock, num_rows), 0,
                        Arithmetic::kFma};
  LimitSampler sampler(team, work, Values().bytes());
  for (auto _ : state) {
    const RegionTime time = TimeRegion(team, team.num_threads(), task);
    state.SetIterationTime(time.seconds);
    sampler.Add(time);
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
}

}  // namespace millipede::bench
