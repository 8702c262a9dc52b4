// Decodes with one layer on all processes of an MPI job: each has requests of its own, and its
// share of the output groups' weights.
//
//   mpirun -n 2 tensor_parallel
#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "millipede/config.h"
#include "millipede/distributed.h"
#include "millipede/executor.h"
#include "millipede/layer.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/rope.h"
#include "millipede/status.h"
#include "millipede/tensor.h"

namespace {

using namespace millipede;

constexpr AttentionKind kKind = AttentionKind::kSwa;

// Memory aligned as workspaces and overlays have to be.
class Buffer {
 public:
  explicit Buffer(int64_t num_bytes) : lines_(static_cast<size_t>(num_bytes) / sizeof(Line) + 1) {}
  std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(lines_)); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

// Weights of a shard in a model's shapes, all of each kind alike; a real engine views the part of
// its checkpoint that the shard needs.
class ConstantWeights {
 public:
  ConstantWeights(const ModelConfig& config, int64_t num_groups) {
    const int64_t hidden = config.hidden;
    const int64_t lanes = config.head_dim;
    const int64_t group_lanes = config.heads_per_group() * lanes;
    const int64_t q_width = config.num_heads * lanes;
    views_.hc_fn = MakeView(Fill(floats_, kHcMixes * kHcStreams * hidden, 0.01F), kHcMixes,
                            kHcStreams * hidden);
    views_.hc_scale = MakeView(Fill(floats_, 3, 0.1F), 3);
    views_.hc_base = MakeView(Fill(floats_, kHcMixes, 0.5F), kHcMixes);
    views_.attn_norm = MakeView(Fill(floats_, hidden, 1.F), hidden);
    views_.q_norm = MakeView(Fill(floats_, config.q_rank, 1.F), config.q_rank);
    views_.kv_norm = MakeView(Fill(floats_, lanes, 1.F), lanes);
    const Bf16 bf16{0x3D00};  // 1/32
    views_.wq_a = MakeView(Fill(bf16s_, config.q_rank * hidden, bf16), config.q_rank, hidden);
    views_.wkv = MakeView(Fill(bf16s_, lanes * hidden, bf16), lanes, hidden);
    views_.wq_b =
        MakeView(Fill(int8s_, q_width * config.q_rank, int8_t{3}), q_width, config.q_rank);
    views_.wq_b_scale = MakeView(Fill(floats_, q_width, 1e-3F), q_width);
    views_.attn_sink = MakeView(Fill(floats_, config.num_heads, 0.F), config.num_heads);
    views_.wo_a = MakeView(Fill(bf16s_, num_groups * config.o_rank * group_lanes, bf16), num_groups,
                           config.o_rank, group_lanes);
    views_.wo_b = MakeView(Fill(int8s_, hidden * num_groups * config.o_rank, int8_t{5}), hidden,
                           num_groups * config.o_rank);
    views_.wo_b_scale = MakeView(Fill(floats_, hidden, 1e-3F), hidden);
  }

  const LayerWeights& views() const { return views_; }

 private:
  template <typename T>
  static const T* Fill(std::vector<std::vector<T>>& kept, int64_t count, T value) {
    return kept.emplace_back(static_cast<size_t>(count), value).data();
  }

  std::vector<std::vector<float>> floats_;
  std::vector<std::vector<Bf16>> bf16s_;
  std::vector<std::vector<int8_t>> int8s_;
  LayerWeights views_;
};

// The value of a call that succeeded. Errors are values; this program has no better use for one
// than to stop with its message.
template <typename T>
T Must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

void Decode(int num_ranks) {
  const ModelConfig config = ModelConfig::Tiny();
  TensorParallel group =
      Must(TensorParallel::Create(config, num_ranks, MPI_Comm_c2f(MPI_COMM_WORLD)));
  const OutputShard shard = group.shard();
  const RowRange groups = Must(GroupsOf(config, shard));
  const ConstantWeights weights(config, groups.end - groups.begin);
  const Layer layer = Must(Layer::Create(config, kKind, weights.views(), shard));
  const std::unique_ptr<Executor> executor = MakeSerialExecutor();
  Context context(*executor);

  // This rank's own request; ranks differ in tokens, and may have none.
  const int64_t num_tokens = 1 + shard.rank;
  PageSpace space = Must(PageSpace::Create(1024));
  const LayerPool raw = Must(LayerPool::Create(PoolKind::kRaw, space.num_pages()));
  LayerPools pools;
  pools.raw = raw.view();
  RequestSpaces spaces;
  spaces.raw = &space;
  const Request request = Must(Request::Create(spaces));
  StepRequest step;
  step.request = &request;
  step.start_pos = request.position(kKind);
  step.num_tokens = num_tokens;
  const Plan plan = Must(Plan::Create(config, kKind, 1, spaces.views(kKind), {&step, 1}));

  std::vector<float> x(static_cast<size_t>(num_tokens * kHcStreams * config.hidden));
  std::mt19937 random(static_cast<unsigned>(shard.rank));
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (float& value : x) value = uniform(random);
  std::vector<int64_t> positions;
  for (int64_t t = 0; t < num_tokens; ++t) positions.push_back(step.start_pos + t);
  std::vector<float> cos(static_cast<size_t>(num_tokens * kRopePairs));
  std::vector<float> sin(cos.size());
  Must(ComputeRopeRows(kKind, positions, MakeView(cos.data(), num_tokens, kRopePairs),
                       MakeView(sin.data(), num_tokens, kRopePairs)));
  StepTensors tensors;
  tensors.x = MakeView(x.data(), num_tokens, kHcStreams, config.hidden);
  tensors.rope.cos = MakeView(cos.data(), num_tokens, kRopePairs);
  tensors.rope.sin = MakeView(sin.data(), num_tokens, kRopePairs);
  tensors.x_out = MakeView(x.data(), num_tokens, kHcStreams, config.hidden);

  Buffer workspace(plan.workspace_bytes(context.num_threads()));
  Buffer overlay(plan.overlay_bytes());
  Must(group.Run(context, layer, plan, 0, pools, tensors, workspace.bytes(), overlay.bytes()));
  const std::vector<int64_t> accepted = {num_tokens};
  Must(Commit(context, plan, 0, pools, overlay.bytes(), accepted));
  std::printf("rank %d: %lld tokens, %lld weight bytes, x_out[0][0][0] = %.6f\n", shard.rank,
              static_cast<long long>(request.position(kKind)),
              static_cast<long long>(layer.weight_bytes()), static_cast<double>(x.front()));
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  int num_ranks = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &num_ranks);
  try {
    Decode(num_ranks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
