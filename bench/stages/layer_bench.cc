#include "bench/stages/layer_bench.h"

#include <benchmark/benchmark.h>
#include <malloc.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "base/mapped_memory.h"
#include "bench/machine/limits.h"
#include "bench/stages/batch.h"
#include "fixtures/formula.h"
#include "millipede/layer.h"
#include "millipede/rope.h"

namespace millipede::bench {
namespace {

struct StepShape {
  std::vector<int64_t> starts;
  int64_t num_tokens;
};

StepShape Mixed() { return {{16'384, 16'384, 131'072, 524'288}, 8}; }
StepShape Million() { return {{kMaxContextTokens - 1}, 1}; }
StepShape Many(int64_t start) { return {std::vector<int64_t>(64, start), 8}; }

double ResidentMebibytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0;
  double resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::span<std::byte> SpanOf(MappedMemory& memory) {
  return {memory.data(), static_cast<size_t>(memory.num_bytes())};
}

// RoPE rows of any positions: what they hold does not change the time.
struct Rope {
  explicit Rope(int64_t num_rows)
      : cos(static_cast<size_t>(num_rows * kRopePairs), 0.8F),
        sin(cos.size(), 0.6F),
        rows{MakeView<const float>(cos.data(), num_rows, kRopePairs),
             MakeView<const float>(sin.data(), num_rows, kRopePairs)} {}
  std::vector<float> cos;
  std::vector<float> sin;
  RopeRows rows;
};

// A layer's run, rerun on one plan. Counters: microseconds of each of its regions, the share of the
// run that lies outside of all of them, and the memory that the step needs resident: pages, plan,
// workspace, overlay, input and output, all but the weights.
void BenchLayer(benchmark::State& state, ThreadTeam& team, AttentionKind kind,
                const StepShape& shape) {
  const ModelConfig config = ModelConfig::Flash();
  const Layer layer =
      Get(Layer::Create(config, kind, fixtures::MakeLayerFixture(config, kind, 1).views()));
  malloc_trim(0);  // what the fixture and other benches gave back would be taken again unseen
  const double resident_before = ResidentMebibytes();
  Batch batch(kind, shape.starts, shape.num_tokens);
  const Plan plan = batch.MakePlan();
  const int64_t num_tokens = plan.num_tokens();
  const Rope rope(num_tokens);
  const Rope event_rope(static_cast<int64_t>(plan.work().events.size()));
  std::vector<float> x(static_cast<size_t>(num_tokens * kHcStreams * config.hidden));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(static_cast<int>(i * 2'654'435'761U >> 20 & 4095) - 2048) / 1024.0F;
  }
  std::vector<float> x_out(x.size());
  const StepTensors tensors{
      .x = MakeView<const float>(x.data(), num_tokens, kHcStreams, config.hidden),
      .rope = rope.rows,
      .event_rope = event_rope.rows,
      .x_out = MakeView(x_out.data(), num_tokens, kHcStreams, config.hidden),
      .selection = {}};
  Context context(team);
  MappedMemory workspace =
      Get(MappedMemory::Map(plan.workspace_bytes(context.num_threads()), "workspace"));
  MappedMemory overlay = Get(MappedMemory::Map(plan.overlay_bytes(), "overlay"));
  const LayerPools& pools = batch.pools();
  const auto run = [&] {
    Check(layer.Run(context, plan, 0, pools, tensors, SpanOf(workspace), SpanOf(overlay)));
  };
  run();  // maps the workspace
  context.Reset();
  std::vector<double> seconds;
  std::vector<double> outside;
  double parts_before = 0;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    seconds.push_back(SecondsSince(begin));
    state.SetIterationTime(seconds.back());
    double parts = 0;
    for (const RegionStats& region : context.regions()) parts += region.seconds;
    outside.push_back(1 - (parts - parts_before) / seconds.back());
    parts_before = parts;
  }
  state.counters["resident_MiB"] = ResidentMebibytes() - resident_before;
  state.counters["median_us"] = Median(seconds) * 1e6;
  state.counters["outside"] = Median(outside);
  state.counters["tokens/s"] = static_cast<double>(num_tokens) / Median(seconds);
  for (const RegionStats& region : context.regions()) {
    state.counters["us " + std::string(region.name)] =
        region.seconds / static_cast<double>(state.iterations()) * 1e6;
  }
}

void BenchPlan(benchmark::State& state, AttentionKind kind, int64_t start, PageOrder order) {
  const Batch batch(kind, std::vector<int64_t>(64, start), 8, order);
  std::vector<double> seconds;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    const Plan plan = batch.MakePlan();
    seconds.push_back(SecondsSince(begin));
    state.SetIterationTime(seconds.back());
  }
  state.counters["median_us"] = Median(seconds) * 1e6;
}

constexpr AttentionKind kKinds[] = {AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa};

std::string NameOf(const char* what, AttentionKind kind, const char* step) {
  return std::string(what) + "/" + std::string(KindName(kind)) + "/" + step;
}

}  // namespace

void RegisterLayerBenches(ThreadTeam& team) {
  for (const AttentionKind kind : kKinds) {
    const auto add = [&team, kind](const char* step, const StepShape& shape) {
      benchmark::RegisterBenchmark(
          NameOf("layer", kind, step).c_str(),
          [&team, kind, shape](benchmark::State& state) { BenchLayer(state, team, kind, shape); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->MinTime(0.5);
    };
    add("mixed_x8", Mixed());
    add("million_x1", Million());
    add("64_of_1K_x8", Many(1024));
    add("64_of_16K_x8", Many(16'384));
    add("64_of_128K_x8", Many(131'072));
    for (int64_t context = 1024; context <= kMaxContextTokens; context *= 2) {
      add(("context_" + std::to_string(context)).c_str(), {{context - 1}, 1});
    }
  }
}

void RegisterPlanBenches() {
  for (const AttentionKind kind : kKinds) {
    const auto add = [kind](const char* step, int64_t start, PageOrder order) {
      benchmark::RegisterBenchmark(
          NameOf("plan", kind, step).c_str(),
          [kind, start, order](benchmark::State& state) { BenchPlan(state, kind, start, order); })
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond)
          ->MinTime(0.3);
    };
    add("64_of_16K_x8", 16'384, PageOrder::kShuffled);
    add("64_of_1M_x8", kMaxContextTokens - 8, PageOrder::kAscending);
    add("64_of_1M_x8_shuffled", kMaxContextTokens - 8, PageOrder::kShuffled);
  }
}

}  // namespace millipede::bench
