#include "bench/stages/attend_stage_bench.h"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mapped_memory.h"
#include "bench/machine/limits.h"
#include "bench/stages/random_rows.h"
#include "millipede/config.h"
#include "millipede/plan.h"
#include "millipede/stages.h"

namespace millipede::bench {
namespace {

// Requests that take turns, so that no one's rows stay in the caches.
constexpr int64_t kNumRequests = 8;

template <typename T>
T Get(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(1);
  }
  return std::move(*result);
}

// Requests of one kind with `history` tokens each, a step of `num_tokens` planned for each.
class AttendStage {
 public:
  AttendStage(AttentionKind kind, int64_t history, int64_t num_tokens)
      : kind_(kind), num_tokens_(num_tokens) {
    const int64_t rows = kind == AttentionKind::kSwa   ? 0
                         : kind == AttentionKind::kHca ? (history + num_tokens) / 128
                                                       : (history + num_tokens) / 4;
    const auto main_pages = static_cast<int32_t>(kNumRequests * (rows / kPageRows + 1));
    // State pages are named but hold nothing here: one space serves both rings.
    raw_.emplace(Get(PageSpace::Create(kNumRequests * 4)));
    main_.emplace(Get(PageSpace::Create(main_pages)));
    index_.emplace(Get(PageSpace::Create(main_pages)));
    state_.emplace(Get(PageSpace::Create(kNumRequests * 64)));
    RequestSpaces spaces{.raw = &*raw_};
    if (kind == AttentionKind::kHca) {
      spaces.hca_main = &*main_;
      spaces.hca_state = &*state_;
    } else if (kind == AttentionKind::kCsa) {
      spaces.csa_main = &*main_;
      spaces.csa_index = &*index_;
      spaces.csa_state = &*state_;
      spaces.csa_inner_state = &*state_;
    }
    for (int64_t r = 0; r < kNumRequests; ++r) {
      requests_.push_back(Get(Request::Create(spaces, history)));
      if (auto grown = requests_.back().Prepare(num_tokens); !grown) std::abort();
      StepRequest step;
      step.start_pos = history;
      step.num_tokens = num_tokens;
      step.request = &requests_.back();
      plans_.push_back(Get(Plan::Create(config_, kind, 1, spaces.views(kind), {&step, size_t{1}})));
    }
    raw_pool_ = PoolOfRandomRows(raw_->num_pages());
    main_pool_ = PoolOfRandomRows(main_pages);
    query_ = RandomRows(num_tokens * config_.num_heads);
    new_kv_ = RandomRows(num_tokens);
    heads_.resize(query_.size());
    sink_.assign(static_cast<size_t>(config_.num_heads), 0.5F);
    rope_.assign(static_cast<size_t>(num_tokens * kRopePairs), 0.7F);
    if (kind == AttentionKind::kCsa) selections_ = RandomSelections(rows);
  }

  int64_t rows_per_token() const {
    const PackedWork& work = plans_.front().work();
    int64_t rows = work.window_rows;
    if (kind_ == AttentionKind::kHca) rows += work.compressed_rows;
    if (kind_ == AttentionKind::kCsa) rows += num_tokens_ * config_.index_topk;
    return rows / num_tokens_;
  }
  const ModelConfig& config() const { return config_; }

  void Run(Context& context, int64_t turn) {
    const auto r = static_cast<size_t>(turn % kNumRequests);
    const int64_t bytes = StageScratchBytes(config_, num_tokens_, context.num_threads());
    if (scratch_.num_bytes() < bytes) scratch_ = Get(MappedMemory::Map(bytes, "scratch"));
    const int64_t heads = config_.num_heads;
    const RopeRows rope{MakeView(rope_.data(), num_tokens_, kRopePairs),
                        MakeView(rope_.data(), num_tokens_, kRopePairs)};
    AttendInputs inputs{.q = MakeView(query_.data(), num_tokens_, heads, kHeadDim),
                        .sink = MakeView(sink_.data(), heads),
                        .rope = rope,
                        .raw = raw_pool_,
                        .new_kv = MakeView(new_kv_.data(), num_tokens_, kHeadDim),
                        .main = main_pool_,
                        .selection = {}};
    if (kind_ == AttentionKind::kCsa) {
      inputs.selection = MakeView(selections_[r].data(), num_tokens_, config_.index_topk);
    }
    auto status =
        Attend(context, config_, plans_[r], inputs,
               {.heads = MakeView(heads_.data(), num_tokens_, heads, kHeadDim), .log_sum_exp = {}},
               {scratch_.data(), static_cast<size_t>(scratch_.num_bytes())});
    if (!status) {
      std::fprintf(stderr, "%s\n", status.error().message.c_str());
      std::exit(1);
    }
  }

 private:
  // Distinct rows in no order, for every request and token.
  std::vector<std::vector<int32_t>> RandomSelections(int64_t rows) const {
    std::vector<std::vector<int32_t>> selections(kNumRequests);
    for (size_t r = 0; r < selections.size(); ++r) {
      for (int64_t t = 0; t < num_tokens_; ++t) {
        const int64_t first = static_cast<int64_t>(r) * 977 + t * 131;
        for (int64_t i = 0; i < config_.index_topk; ++i) {
          // A step prime to any power of two visits each row once.
          selections[r].push_back(static_cast<int32_t>((first + i * 101'027) % rows));
        }
      }
    }
    return selections;
  }

  ModelConfig config_ = ModelConfig::Flash();
  AttentionKind kind_;
  int64_t num_tokens_;
  std::optional<PageSpace> raw_;
  std::optional<PageSpace> main_;
  std::optional<PageSpace> index_;
  std::optional<PageSpace> state_;
  std::vector<Request> requests_;
  std::vector<Plan> plans_;
  PoolView raw_pool_;
  PoolView main_pool_;
  std::vector<Bf16> query_;
  std::vector<Bf16> new_kv_;
  std::vector<Bf16> heads_;
  std::vector<float> sink_;
  std::vector<float> rope_;
  std::vector<std::vector<int32_t>> selections_;
  MappedMemory scratch_;
};

void BenchAttendStage(benchmark::State& state, ThreadTeam& team, AttentionKind kind,
                      int64_t history) {
  const int64_t num_tokens = state.range(0);
  AttendStage stage(kind, history - num_tokens, num_tokens);
  const int64_t products = num_tokens * stage.rows_per_token() * stage.config().num_heads;
  const KernelWork work{2.0 * 2.0 * static_cast<double>(products * kHeadDim), 0, Arithmetic::kFma};
  LimitSampler sampler(team, work, RandomMemory());
  Context context(team);
  int64_t turn = 0;
  for (auto _ : state) {
    team.ResetTotal();
    stage.Run(context, turn++);
    const RegionTime time = team.total();
    state.SetIterationTime(time.seconds);
    sampler.Add(time);
  }
  Report(state, sampler, work);
}

}  // namespace

void RegisterAttendStageBenches(ThreadTeam& team) {
  const auto register_one = [&team](const char* name, AttentionKind kind, int64_t history) {
    benchmark::RegisterBenchmark(name,
                                 [&team, kind, history](benchmark::State& state) {
                                   BenchAttendStage(state, team, kind, history);
                                 })
        ->ArgName("tokens")
        ->Arg(1)
        ->Arg(8)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->MinTime(0.3);
  };
  register_one("attention/swa/128rows", AttentionKind::kSwa, 4096);
  register_one("attention/hca/8192rows", AttentionKind::kHca, kMaxContextTokens);
  register_one("attention/csa/640of262144", AttentionKind::kCsa, kMaxContextTokens);
}

}  // namespace millipede::bench
