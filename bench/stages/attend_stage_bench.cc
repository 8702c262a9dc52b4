#include "bench/stages/attend_stage_bench.h"

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mapped_memory.h"
#include "bench/machine/limits.h"
#include "bench/stages/batch.h"
#include "millipede/stages.h"

namespace millipede::bench {
namespace {

// Batches of one request that take turns, so that no one's rows stay in the caches.
constexpr size_t kNumTurns = 4;

std::vector<Bf16> RandomRows(int64_t num_rows) {
  std::vector<Bf16> rows(static_cast<size_t>(num_rows * kHeadDim));
  uint32_t bits = 1;
  for (Bf16& value : rows) {
    bits = bits * 1'664'525U + 1'013'904'223U;
    value = Bf16{static_cast<uint16_t>((bits >> 16 & 0x80FFU) + 0x3F00U)};
  }
  return rows;
}

class AttendStage {
 public:
  // One request's `num_tokens` newest tokens of `context` in all.
  AttendStage(AttentionKind kind, int64_t context, int64_t num_tokens) : num_tokens_(num_tokens) {
    for (size_t turn = 0; turn < kNumTurns; ++turn) {
      batches_.push_back(
          std::make_unique<Batch>(kind, std::vector<int64_t>{context - num_tokens}, num_tokens));
      plans_.push_back(batches_.back()->MakePlan());
      batches_.back()->pools();
    }
    const ModelConfig& config = this->config();
    query_ = RandomRows(num_tokens * config.num_heads);
    new_kv_ = RandomRows(num_tokens);
    heads_.resize(query_.size());
    sink_.assign(static_cast<size_t>(config.num_heads), 0.5F);
    rope_.assign(static_cast<size_t>(num_tokens * kRopePairs), 0.7F);
    if (kind == AttentionKind::kCsa) MakeSelections(context / kCsaRatio);
  }

  const ModelConfig& config() const { return batches_.front()->config(); }

  // Rows attended, summed over the tokens.
  int64_t num_rows() const {
    const PackedWork& work = plans_.front().work();
    const int64_t selected = num_tokens_ * config().index_topk;
    return work.window_rows + (selections_.empty() ? work.compressed_rows : selected);
  }

  void Run(Context& context) {
    const size_t turn = next_turn_++ % kNumTurns;
    const int64_t bytes = StageScratchBytes(config(), num_tokens_, context.num_threads());
    if (scratch_.num_bytes() < bytes) scratch_ = Get(MappedMemory::Map(bytes, "scratch"));
    const int64_t heads = config().num_heads;
    const RopeRows rope{MakeView<const float>(rope_.data(), num_tokens_, kRopePairs),
                        MakeView<const float>(rope_.data(), num_tokens_, kRopePairs)};
    const LayerPools& pools = batches_[turn]->pools();
    AttendInputs inputs{.q = MakeView<const Bf16>(query_.data(), num_tokens_, heads, kHeadDim),
                        .sink = MakeView<const float>(sink_.data(), heads),
                        .rope = rope,
                        .raw = pools.raw,
                        .new_kv = MakeView<const Bf16>(new_kv_.data(), num_tokens_, kHeadDim),
                        .main = pools.main,
                        .selection = {}};
    if (!selections_.empty()) {
      inputs.selection =
          MakeView<const int32_t>(selections_[turn].data(), num_tokens_, config().index_topk);
    }
    Check(
        Attend(context, config(), plans_[turn], inputs,
               {.heads = MakeView(heads_.data(), num_tokens_, heads, kHeadDim), .log_sum_exp = {}},
               {scratch_.data(), static_cast<size_t>(scratch_.num_bytes())}));
  }

 private:
  // Distinct rows in no order for each token.
  void MakeSelections(int64_t num_candidates) {
    selections_.resize(kNumTurns);
    for (size_t turn = 0; turn < kNumTurns; ++turn) {
      for (int64_t t = 0; t < num_tokens_; ++t) {
        const int64_t first = static_cast<int64_t>(turn) * 977 + t * 131;
        for (int64_t i = 0; i < config().index_topk; ++i) {
          // A step prime to any power of two visits each row once.
          selections_[turn].push_back(static_cast<int32_t>((first + i * 101'027) % num_candidates));
        }
      }
    }
  }

  int64_t num_tokens_;
  std::vector<std::unique_ptr<Batch>> batches_;
  std::vector<Plan> plans_;
  std::vector<Bf16> query_;
  std::vector<Bf16> new_kv_;
  std::vector<Bf16> heads_;
  std::vector<float> sink_;
  std::vector<float> rope_;
  std::vector<std::vector<int32_t>> selections_;
  MappedMemory scratch_;
  size_t next_turn_ = 0;
};

void BenchAttend(benchmark::State& state, ThreadTeam& team, AttentionKind kind, int64_t context) {
  AttendStage stage(kind, context, state.range(0));
  const auto products = static_cast<double>(stage.num_rows() * stage.config().num_heads);
  const KernelWork work{2.0 * 2.0 * products * kHeadDim, 0, Arithmetic::kFma};
  LimitSampler sampler(team, work, SampleMemory());
  Context books(team);
  std::vector<double> first_seconds;
  const auto run = [&] {
    team.ResetTotal();
    stage.Run(books);
    return team.total();
  };
  for (auto _ : state) {
    // Measuring the limits emptied the caches: the first call brings scratch, queries and code
    // back, as the stages before attention do. The rows of the second are still in memory alone.
    first_seconds.push_back(run().seconds);
    const RegionTime time = run();
    state.SetIterationTime(time.seconds);
    sampler.Add(time);
  }
  Report(state, sampler, work);
  state.counters["emptied_us"] = Median(first_seconds) * 1e6;
}

}  // namespace

void RegisterAttendStageBenches(ThreadTeam& team) {
  const auto add = [&team](const char* name, AttentionKind kind, int64_t context) {
    benchmark::RegisterBenchmark(name,
                                 [&team, kind, context](benchmark::State& state) {
                                   BenchAttend(state, team, kind, context);
                                 })
        ->ArgName("tokens")
        ->Arg(1)
        ->Arg(8)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->MinTime(0.3);
  };
  add("attention/swa_128", AttentionKind::kSwa, 4096);
  add("attention/hca_8192", AttentionKind::kHca, kMaxContextTokens);
  add("attention/csa_640_of_262144", AttentionKind::kCsa, kMaxContextTokens);
}

}  // namespace millipede::bench
