// The output projection over the ranks of a group, and the layer run with it.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/mapped_memory.h"
#include "distributed/card.h"
#include "distributed/ranks.h"
#include "layers/checks.h"
#include "layers/layer_run.h"
#include "millipede/distributed.h"
#include "millipede/trace.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {
namespace {

// Most tokens of one rank that are exchanged at a time, which bounds the buffers.
constexpr int64_t kRoundTokens = 256;

// The region of waiting for other ranks' cards and errors.
constexpr const char* kAgreement = "rank agreement";

// Runs `body`, which is MPI's work, on the calling thread as the region `name`.
template <typename Body>
auto RunTimed(Context& context, const char* name, const Body& body) {
  const CallerRegion region(context, name);
  return body();
}

// A rank's tokens of one round.
RowRange RoundOf(int64_t num_tokens, int64_t round) {
  return {std::min(num_tokens, round * kRoundTokens),
          std::min(num_tokens, (round + 1) * kRoundTokens)};
}

// The buffers of a round. n groups and h heads are this rank's; R tokens in all, T its own.
struct RoundLayout {
  int64_t heads = 0;     // bf16 [R,h,512]
  int64_t products = 0;  // f32 [R,n,D] of this rank's groups
  int64_t partials = 0;  // f32 [T,G,D] of this rank's tokens
  int64_t scratch = 0;
  int64_t scratch_bytes = 0;
  int64_t total_bytes = 0;
};

RoundLayout LayOutRound(const ModelConfig& config, int64_t num_groups, int64_t all_tokens,
                        int64_t own_tokens, int num_threads) {
  const int64_t token_heads = num_groups * config.heads_per_group() * kHeadDim;
  const int64_t product_bytes = int64_t{config.hidden} * int64_t{sizeof(float)};
  RoundLayout layout;
  const auto take = [&](int64_t num_bytes) {
    return std::exchange(layout.total_bytes,
                         layout.total_bytes + RoundUp(num_bytes, kBufferAlignment));
  };
  layout.heads = take(all_tokens * token_heads * int64_t{sizeof(Bf16)});
  layout.products = take(all_tokens * num_groups * product_bytes);
  layout.partials = take(own_tokens * config.o_groups * product_bytes);
  layout.scratch_bytes = LayOutOutput(config, num_groups, all_tokens, num_threads).total_bytes;
  layout.scratch = take(layout.scratch_bytes);
  return layout;
}

}  // namespace

struct TensorParallel::State {
  State(const ModelConfig& group_config, Ranks group_ranks)
      : config(group_config), ranks(std::move(group_ranks)) {}

  OutputShard shard() const { return {ranks.rank(), ranks.size()}; }
  int64_t groups_per_rank() const { return config.o_groups / ranks.size(); }

  // Collective, with every rank's tokens: heads -> attn_out in rounds. `status` is whether this
  // rank's heads were made.
  Status Project(Context& context, const Status& status, const OutputWeights& weights,
                 const std::vector<int64_t>& num_tokens, const TensorView<const Bf16, 3>& heads,
                 const TensorView<Bf16, 2>& attn_out);
  Status ProjectRound(Context& context, Status status, const OutputWeights& weights,
                      const std::vector<int64_t>& num_tokens,
                      const TensorView<const Bf16, 3>& heads, const TensorView<Bf16, 2>& attn_out);

  // Makes the buffer hold that much.
  Status Reserve(int64_t num_bytes);

  ModelConfig config;
  Ranks ranks;
  MappedMemory buffer;  // of rounds
};

Status TensorParallel::State::Reserve(int64_t num_bytes) {
  if (buffer.num_bytes() >= num_bytes) return {};
  buffer = {};
  auto mapped = MappedMemory::Map(num_bytes, "tensor-parallel buffers");
  if (!mapped) return tl::make_unexpected(std::move(mapped).error());
  buffer = *std::move(mapped);
  return {};
}

Status TensorParallel::State::Project(Context& context, const Status& status,
                                      const OutputWeights& weights,
                                      const std::vector<int64_t>& num_tokens,
                                      const TensorView<const Bf16, 3>& heads,
                                      const TensorView<Bf16, 2>& attn_out) {
  // Without tokens there is still a status to agree on.
  const int64_t most_tokens = *std::max_element(num_tokens.begin(), num_tokens.end());
  const int64_t num_rounds = std::max<int64_t>(1, CeilDiv(most_tokens, kRoundTokens));
  for (int64_t round = 0; round < num_rounds; ++round) {
    std::vector<int64_t> round_tokens;
    for (const int64_t n : num_tokens) {
      const RowRange tokens = RoundOf(n, round);
      round_tokens.push_back(tokens.end - tokens.begin);
    }
    const RowRange own = RoundOf(heads.shape[0], round);
    TensorView<const Bf16, 3> round_heads = heads;
    TensorView<Bf16, 2> round_out = attn_out;
    round_heads.shape[0] = round_out.shape[0] = own.end - own.begin;
    if (own.end > own.begin) {
      round_heads.data = heads.row(own.begin);
      round_out.data = attn_out.row(own.begin);
    }
    MILLIPEDE_RETURN_IF_ERROR(
        ProjectRound(context, status, weights, round_tokens, round_heads, round_out));
  }
  return {};
}

Status TensorParallel::State::ProjectRound(Context& context, Status status,
                                           const OutputWeights& weights,
                                           const std::vector<int64_t>& num_tokens,
                                           const TensorView<const Bf16, 3>& heads,
                                           const TensorView<Bf16, 2>& attn_out) {
  const auto num_ranks = static_cast<size_t>(ranks.size());
  const int64_t num_groups = groups_per_rank();
  const int64_t num_heads = num_groups * config.heads_per_group();
  const int64_t own_tokens = heads.shape[0];
  int64_t all_tokens = 0;
  for (const int64_t n : num_tokens) all_tokens += n;
  const RoundLayout layout =
      LayOutRound(config, num_groups, all_tokens, own_tokens, context.num_threads());
  if (status) status = Reserve(layout.total_bytes);
  MILLIPEDE_RETURN_IF_ERROR(RunTimed(context, kAgreement, [&] { return ranks.Agree(status); }));

  const std::span<std::byte> bytes(buffer.data(), static_cast<size_t>(layout.total_bytes));
  const auto all_heads =
      MakeView(PartOf<Bf16>(bytes, layout.heads), all_tokens, num_heads, int64_t{kHeadDim});
  const auto products = MakeView(PartOf<float>(bytes, layout.products), all_tokens, num_groups,
                                 int64_t{config.hidden});
  const auto partials = MakeView(PartOf<float>(bytes, layout.partials), own_tokens,
                                 int64_t{config.o_groups}, int64_t{config.hidden});
  std::vector<ByteRows> to(num_ranks);
  std::vector<ByteRows> from(num_ranks);

  // Rank r gets the heads of its groups of these tokens; its tokens come in rank order.
  const int64_t heads_bytes = num_heads * kHeadDim * int64_t{sizeof(Bf16)};
  int64_t first_token = 0;
  for (size_t r = 0; r < num_ranks; ++r) {
    if (own_tokens > 0) {
      // What is sent is only read.
      auto* const own = reinterpret_cast<std::byte*>(const_cast<Bf16*>(heads.data));
      to[r] = {.data = own + static_cast<int64_t>(r) * heads_bytes,
               .num_rows = own_tokens,
               .row_bytes = heads_bytes,
               .stride_bytes = heads.stride0 * int64_t{sizeof(Bf16)}};
    }
    from[r] = {.data = reinterpret_cast<std::byte*>(all_heads.row(first_token)),
               .num_rows = num_tokens[r],
               .row_bytes = heads_bytes,
               .stride_bytes = heads_bytes};
    first_token += num_tokens[r];
  }
  MILLIPEDE_RETURN_IF_ERROR(
      RunTimed(context, "exchange heads", [&] { return ranks.Exchange(to, from); }));

  status = ProjectOutputGroups(context, config, weights, all_heads, products,
                               bytes.subspan(static_cast<size_t>(layout.scratch),
                                             static_cast<size_t>(layout.scratch_bytes)));
  MILLIPEDE_RETURN_IF_ERROR(RunTimed(context, kAgreement, [&] { return ranks.Agree(status); }));

  // Each rank's tokens go back to it; what comes is other groups of this rank's tokens.
  const int64_t group_bytes = num_groups * config.hidden * int64_t{sizeof(float)};
  first_token = 0;
  for (size_t r = 0; r < num_ranks; ++r) {
    to[r] = {.data = reinterpret_cast<std::byte*>(products.row(first_token)),
             .num_rows = num_tokens[r],
             .row_bytes = group_bytes,
             .stride_bytes = group_bytes};
    from[r] = {
        .data = reinterpret_cast<std::byte*>(partials.data) + static_cast<int64_t>(r) * group_bytes,
        .num_rows = own_tokens,
        .row_bytes = group_bytes,
        .stride_bytes = partials.stride0 * int64_t{sizeof(float)}};
    first_token += num_tokens[r];
  }
  MILLIPEDE_RETURN_IF_ERROR(
      RunTimed(context, "exchange partials", [&] { return ranks.Exchange(to, from); }));
  // All of its shapes were checked before, on every rank.
  return SumOutputGroups(context, config, partials,
                         MakeView(weights.wo_b.front().scale(), int64_t{config.hidden}), attn_out);
}

TensorParallel::TensorParallel(std::unique_ptr<State> state) : state_(std::move(state)) {}
TensorParallel::TensorParallel(TensorParallel&&) noexcept = default;
TensorParallel& TensorParallel::operator=(TensorParallel&&) noexcept = default;
TensorParallel::~TensorParallel() = default;

Result<TensorParallel> TensorParallel::Create(const ModelConfig& config, int32_t degree,
                                              int communicator) try {
  auto ranks = Ranks::Duplicate(communicator);
  if (!ranks) return tl::make_unexpected(std::move(ranks).error());
  const auto check = [&]() -> Status {
    MILLIPEDE_RETURN_IF_ERROR(Validate(config));
    if (const auto groups = GroupsOf(config, {0, degree}); !groups) {
      return MakeError(ErrorCode::kInvalidArgument, "degree",
                       "{}; allowed: a divisor of the {} output groups", degree, config.o_groups);
    }
    if (degree != ranks->size()) {
      return MakeError(ErrorCode::kInvalidArgument, "degree", "{}; allowed: {}, the processes",
                       degree, ranks->size());
    }
    return {};
  };
  const auto tokens = CompareCards(*ranks, check(), config, {.degree = degree});
  if (!tokens) return tl::make_unexpected(tokens.error());
  return TensorParallel(std::make_unique<State>(config, *std::move(ranks)));
} catch (const std::bad_alloc&) {
  return OutOfMemory("group", "the exchange with other ranks");
}

OutputShard TensorParallel::shard() const { return state_->shard(); }

int64_t TensorParallel::bytes_sent() const { return state_->ranks.bytes_sent(); }

Status TensorParallel::Run(Context& context, const Layer& layer, const Plan& plan,
                           int32_t layer_index, const LayerPools& pools, const StepTensors& tensors,
                           std::span<std::byte> workspace, std::span<std::byte> overlay,
                           const StepActivations& activations) try {
  const Layer::State& own = layer.state();
  LayerRun run;
  const auto prepare = [&]() -> Status {
    MILLIPEDE_RETURN_IF_ERROR(CheckGroupConfig(own.config, state_->config));
    const OutputShard shard = state_->shard();
    if (own.shard.rank != shard.rank || own.shard.degree != shard.degree) {
      return MakeError(ErrorCode::kPlanMismatch, "layer.shard", "{} of {}; allowed: {} of {}",
                       own.shard.rank, own.shard.degree, shard.rank, shard.degree);
    }
    auto prepared = PrepareRun(own, context.num_threads(), plan, layer_index, pools, tensors,
                               workspace, overlay, activations);
    if (!prepared) return tl::make_unexpected(std::move(prepared).error());
    run = *std::move(prepared);
    return {};
  };
  const Status prepared = prepare();
  const auto num_tokens = RunTimed(context, kAgreement, [&] {
    return CompareCards(state_->ranks, prepared, state_->config,
                        {.call = GroupCall::kRun,
                         .degree = state_->ranks.size(),
                         .kind = plan.kind(),
                         .num_layers = plan.num_layers(),
                         .layer_index = layer_index,
                         .num_tokens = plan.num_tokens()});
  });
  if (!num_tokens) return tl::make_unexpected(num_tokens.error());
  const TraceCall traced(context, "run", own.kind, layer_index, &plan.work());
  MILLIPEDE_RETURN_IF_ERROR(state_->Project(context, RunHeads(context, own, run), own.output,
                                            *num_tokens, run.step.heads, run.step.attn_out));
  return FinishRun(context, own, run);
} catch (const std::bad_alloc&) {
  return OutOfMemory("group", "the exchange with other ranks");
}

Status TensorParallel::ProjectOutput(Context& context, const OutputWeights& weights,
                                     TensorView<const Bf16, 3> heads,
                                     TensorView<Bf16, 2> attn_out) try {
  const ModelConfig& config = state_->config;
  const int64_t own_tokens = heads.shape[0];
  const auto check = [&]() -> Status {
    MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
    if (static_cast<int64_t>(weights.wo_a.size()) != state_->groups_per_rank()) {
      return MakeError(ErrorCode::kShapeMismatch, "weights", "{} groups; allowed: {}",
                       weights.wo_a.size(), state_->groups_per_rank());
    }
    MILLIPEDE_RETURN_IF_ERROR(CheckView("heads", heads, {own_tokens, config.num_heads, kHeadDim}));
    return CheckView("attn_out", attn_out, {own_tokens, config.hidden});
  };
  const Status checked = check();
  const auto num_tokens = RunTimed(context, kAgreement, [&] {
    return CompareCards(state_->ranks, checked, config,
                        {.call = GroupCall::kProjectOutput,
                         .degree = state_->ranks.size(),
                         .num_tokens = own_tokens});
  });
  if (!num_tokens) return tl::make_unexpected(num_tokens.error());
  return state_->Project(context, {}, weights, *num_tokens, heads, attn_out);
} catch (const std::bad_alloc&) {
  return OutOfMemory("group", "the exchange with other ranks");
}

Status TensorParallel::Fail(const Error& error) try {
  return state_->ranks.Agree(tl::make_unexpected(error));
} catch (const std::bad_alloc&) {
  return OutOfMemory("group", "the exchange with other ranks");
}

}  // namespace millipede
