#include "bench/index/index_bench.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "bench/machine/limits.h"
#include "bench/machine/random.h"
#include "geometry/visibility.h"
#include "kernels/index_score.h"
#include "kernels/index_select.h"
#include "millipede/config.h"
#include "millipede/pages.h"

namespace millipede::bench {
namespace {

constexpr int64_t kNumHeads = 64;
constexpr int64_t kPageBytes = int64_t{kPageRows} * kIndexDim;

// From 0 to 1.
float Uniform(uint64_t index) { return static_cast<float>(Mix(index)) * 0x1p-32F; }

// Random index keys, more than the caches hold.
const BigBuffer& Keys() {
  static const BigBuffer buffer(0, Mix);
  return buffer;
}

struct AlignedFree {
  void operator()(void* memory) const { ::operator delete (memory, std::align_val_t{64}); }
};
using Packed = std::unique_ptr<void, AlignedFree>;

Packed PackQuery(uint64_t seed) {
  std::vector<int8_t> codes(static_cast<size_t>(kNumHeads * kIndexDim));
  std::vector<float> scales(static_cast<size_t>(kNumHeads));
  std::vector<float> weights(static_cast<size_t>(kNumHeads));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int8_t>(Mix(seed << 32 | i));
  for (size_t h = 0; h < scales.size(); ++h) {
    scales[h] = 0.01F * Uniform(seed + h);
    weights[h] = Uniform(~seed - h) - 0.3F;
  }
  Packed packed(
      ::operator new (static_cast<size_t>(PackedIndexQueryBytes(kNumHeads)), std::align_val_t{64}));
  IndexPackQuery({.codes = codes.data(),
                  .scales = scales.data(),
                  .weights = weights.data(),
                  .num_heads = kNumHeads,
                  .packed = packed.get()});
  return packed;
}

// The selections of some queries of one request; items are leaves. Whoever finishes the second of
// two neighbours merges them, so that all merges are made inside the region.
class SelectTask final : public Task {
 public:
  SelectTask(int num_threads, int64_t num_queries, int64_t num_candidates, int64_t k)
      : num_queries_(num_queries),
        num_candidates_(num_candidates),
        k_(k),
        pages_(static_cast<size_t>(PagesForRows(num_candidates))),
        scales_(static_cast<size_t>(num_candidates)),
        scores_(static_cast<size_t>(num_threads * num_queries * kLeafCandidates)),
        keys_(static_cast<size_t>(num_queries * num_leaves() * k)),
        counts_(static_cast<size_t>(num_queries * num_leaves())),
        arrivals_(static_cast<size_t>(num_leaves())) {
    for (int64_t q = 0; q < num_queries; ++q) {
      packed_.push_back(PackQuery(static_cast<uint64_t>(q) + 1));
      queries_.push_back(packed_.back().get());
    }
    for (size_t c = 0; c < scales_.size(); ++c) scales_[c] = 0.01F * Uniform(c);
  }

  int64_t num_leaves() const { return NumLeaves(num_candidates_); }

  // The keys of the next run lie in these pages, in no order.
  void SetKeys(const int8_t* rows) {
    const size_t num_pages = pages_.size();
    constexpr size_t kStep = 40503;  // prime to any power of two
    for (size_t p = 0; p < num_pages; ++p) {
      const size_t place = p * kStep % num_pages;
      pages_[p] = {rows + place * kPageBytes, &scales_[place * kPageRows]};
    }
    for (std::atomic<int>& arrivals : arrivals_) arrivals.store(0);
  }

  void Run(int64_t leaf, int thread) const override {
    const int64_t first = leaf * kLeafCandidates;
    const int64_t count = std::min(kLeafCandidates, num_candidates_ - first);
    float* scores[kMaxIndexQueries];
    for (int64_t q = 0; q < num_queries_; ++q) {
      scores[q] = &scores_[static_cast<size_t>((thread * num_queries_ + q) * kLeafCandidates)];
    }
    IndexScore({.queries = queries_.data(),
                .num_queries = num_queries_,
                .num_heads = kNumHeads,
                .pages = &pages_[static_cast<size_t>(first / kPageRows)],
                .num_candidates = count,
                .scores = scores});
    for (int64_t q = 0; q < num_queries_; ++q) {
      CountOf(q, leaf) = IndexSelectLeaf({.scores = scores[q],
                                          .num_candidates = count,
                                          .first_candidate = first,
                                          .k = k_,
                                          .keys = KeysOf(q, leaf)});
    }
    MergeUpward(leaf);
  }

 private:
  // Nodes of level l are the leaves at multiples of 2^l; the number of leaves is a power of two.
  void MergeUpward(int64_t node) const {
    for (int64_t step = 1; step < num_leaves(); step *= 2) {
      const int64_t left = node / (2 * step) * (2 * step);
      const int64_t right = left + step;
      // The middle of the pair is no other pair's.
      if (arrivals_[static_cast<size_t>(right)].fetch_add(1) == 0) return;
      for (int64_t q = 0; q < num_queries_; ++q) {
        CountOf(q, left) = IndexMerge({.left = KeysOf(q, left),
                                       .left_count = CountOf(q, left),
                                       .right = KeysOf(q, right),
                                       .right_count = CountOf(q, right),
                                       .k = k_});
      }
      node = left;
    }
  }

  uint64_t* KeysOf(int64_t query, int64_t leaf) const {
    return &keys_[static_cast<size_t>((query * num_leaves() + leaf) * k_)];
  }
  int64_t& CountOf(int64_t query, int64_t leaf) const {
    return counts_[static_cast<size_t>(query * num_leaves() + leaf)];
  }

  int64_t num_queries_;
  int64_t num_candidates_;
  int64_t k_;
  std::vector<Packed> packed_;
  std::vector<const void*> queries_;
  std::vector<IndexPage> pages_;
  std::vector<float> scales_;
  // Items write disjoint parts.
  mutable std::vector<float> scores_;    // [threads, queries, 2048]
  mutable std::vector<uint64_t> keys_;   // [queries, leaves, k]
  mutable std::vector<int64_t> counts_;  // [queries, leaves]
  mutable std::vector<std::atomic<int>> arrivals_;
};

void BenchSelect(benchmark::State& state, ThreadTeam& team) {
  const int64_t num_candidates = state.range(0);
  const int64_t num_queries = state.range(1);
  SelectTask task(team.num_threads(), num_queries, num_candidates, 512);
  const auto key_bytes = static_cast<size_t>(num_candidates * kIndexDim);
  const KernelWork work{
      2.0 * static_cast<double>(num_queries * kNumHeads * kIndexDim * num_candidates),
      static_cast<double>(key_bytes), Arithmetic::kInt16Madd};
  LimitSampler sampler(team, work, Keys().bytes());
  const size_t num_runs = Keys().bytes().size() / key_bytes;
  size_t run = num_runs / 2;  // far from where the bandwidth is being measured
  for (auto _ : state) {
    task.SetKeys(reinterpret_cast<const int8_t*>(Keys().bytes().data()) + run * key_bytes);
    run = (run + 1) % num_runs;
    const RegionTime time = TimeRegion(team, task.num_leaves(), task);
    state.SetIterationTime(time.seconds);
    sampler.Add(time);
  }
  Report(state, sampler, work);
}

// One leaf of 2048 scores and its merge with the selection of the leaves before it, on one thread.
void BenchLeaf(benchmark::State& state) {
  const int64_t k = state.range(0);
  constexpr int64_t kNumLeaves = 64;
  std::vector<float> scores(static_cast<size_t>(kNumLeaves * kLeafCandidates));
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] = Uniform(i) + Uniform(~i) + Uniform(i << 32) - 1.0F;
  }
  std::vector<uint64_t> best(static_cast<size_t>(k));
  std::vector<uint64_t> keys(static_cast<size_t>(k));
  int64_t best_count = 0;
  int64_t leaf = 0;
  for (auto _ : state) {
    const int64_t count =
        IndexSelectLeaf({.scores = &scores[static_cast<size_t>(leaf * kLeafCandidates)],
                         .num_candidates = kLeafCandidates,
                         .first_candidate = leaf * kLeafCandidates,
                         .k = k,
                         .keys = keys.data()});
    best_count = IndexMerge({.left = best.data(),
                             .left_count = best_count,
                             .right = keys.data(),
                             .right_count = count,
                             .k = k});
    benchmark::DoNotOptimize(best.data());
    if (++leaf == kNumLeaves) leaf = best_count = 0;
  }
}

}  // namespace

void RegisterIndexBenches(ThreadTeam& team) {
  benchmark::RegisterBenchmark("index/select",
                               [&team](benchmark::State& state) { BenchSelect(state, team); })
      ->ArgNames({"candidates", "queries"})
      ->ArgsProduct({{4096, 32768, 262'144}, {1, 8}})
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond)
      ->MinTime(0.3);
  benchmark::RegisterBenchmark("index/leaf", BenchLeaf)
      ->ArgName("k")
      ->Arg(512)
      ->Arg(1024)
      ->Unit(benchmark::kMicrosecond);
}

}  // namespace millipede::bench
