// Decodes a short request with one sliding-window layer: plan, run, commit, step after step. Uses
// the public headers alone.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "millipede/config.h"
#include "millipede/executor.h"
#include "millipede/layer.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/rope.h"
#include "millipede/status.h"
#include "millipede/tensor.h"

namespace {

using namespace millipede;

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

// Random weights in a model's shapes; a real engine views its checkpoint instead.
class RandomWeights {
 public:
  explicit RandomWeights(const ModelConfig& config) {
    const int64_t hidden = config.hidden;
    const int64_t q_width = int64_t{config.num_heads} * config.head_dim;
    const int64_t groups = config.o_groups;
    views_.hc_fn =
        MakeView(Floats(kHcMixes * kHcStreams * hidden, 0, 0.01F), kHcMixes, kHcStreams * hidden);
    views_.hc_scale = MakeView(Floats(3, 0.1F, 0), 3);
    views_.hc_base = MakeView(Floats(kHcMixes, 0, 1), kHcMixes);
    views_.attn_norm = MakeView(Floats(hidden, 1, 0.05F), hidden);
    views_.q_norm = MakeView(Floats(config.q_rank, 1, 0.05F), config.q_rank);
    views_.kv_norm = MakeView(Floats(config.head_dim, 1, 0.05F), config.head_dim);
    views_.wq_a = MakeView(Bf16s(config.q_rank * hidden), config.q_rank, hidden);
    views_.wkv = MakeView(Bf16s(config.head_dim * hidden), config.head_dim, hidden);
    views_.wq_b = MakeView(Int8s(q_width * config.q_rank), q_width, config.q_rank);
    views_.wq_b_scale = MakeView(Floats(q_width, 1e-3F, 0), q_width);
    views_.attn_sink = MakeView(Floats(config.num_heads, 0, 1), config.num_heads);
    views_.wo_a = MakeView(Bf16s(config.o_rank * q_width), groups, config.o_rank, q_width / groups);
    views_.wo_b = MakeView(Int8s(hidden * groups * config.o_rank), hidden, groups * config.o_rank);
    views_.wo_b_scale = MakeView(Floats(hidden, 1e-3F, 0), hidden);
  }

  const LayerWeights& views() const { return views_; }

 private:
  const float* Floats(int64_t count, float mean, float deviation) {
    auto& values = floats_.emplace_back(count);
    for (float& value : values) value = mean + deviation * normal_(random_);
    return values.data();
  }
  const Bf16* Bf16s(int64_t count) {
    auto& values = bf16s_.emplace_back(count);
    for (Bf16& value : values) value.bits = (random_() & 1U) != 0 ? 0x3D00 : 0xBD00;  // +-1/32
    return values.data();
  }
  const int8_t* Int8s(int64_t count) {
    auto& values = int8s_.emplace_back(count);
    for (int8_t& value : values) value = static_cast<int8_t>(random_() % 255) - 127;
    return values.data();
  }

  std::mt19937 random_{1};
  std::normal_distribution<float> normal_;
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

// Decodes 8 tokens a step, with random hidden streams, until the request holds `end` or more.
// Returns how many it then holds.
int64_t Decode(int64_t end) {
  constexpr AttentionKind kKind = AttentionKind::kSwa;
  constexpr int64_t kTokens = 8;
  const ModelConfig config = ModelConfig::Tiny();
  const RandomWeights weights(config);
  const Layer layer = Must(Layer::Create(config, kKind, weights.views()));
  const std::unique_ptr<Executor> executor = Must(MakeTbbExecutor(2));
  Context context(*executor);

  // One space of pages, one layer's bytes for it, and a request that draws pages from it.
  PageSpace space = Must(PageSpace::Create(1024));
  const LayerPool raw = Must(LayerPool::Create(PoolKind::kRaw, space.num_pages()));
  LayerPools pools;
  pools.raw = raw.view();
  RequestSpaces spaces;
  spaces.raw = &space;
  const Request request = Must(Request::Create(spaces));

  std::vector<float> x(kTokens * kHcStreams * config.hidden);
  std::vector<float> cos(kTokens * kRopePairs);
  std::vector<float> sin(kTokens * kRopePairs);
  StepTensors tensors;
  tensors.x = MakeView(x.data(), kTokens, kHcStreams, config.hidden);
  tensors.rope.cos = MakeView(cos.data(), kTokens, kRopePairs);
  tensors.rope.sin = MakeView(sin.data(), kTokens, kRopePairs);
  tensors.x_out = MakeView(x.data(), kTokens, kHcStreams, config.hidden);
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(-1, 1);

  while (request.position(kKind) < end) {
    for (float& value : x) value = uniform(random);
    std::vector<int64_t> positions(kTokens);
    std::iota(positions.begin(), positions.end(), request.position(kKind));
    Must(ComputeRopeRows(kKind, positions, MakeView(cos.data(), kTokens, kRopePairs),
                         MakeView(sin.data(), kTokens, kRopePairs)));

    StepRequest step;
    step.request = &request;
    step.start_pos = request.position(kKind);
    step.num_tokens = kTokens;
    const Plan plan = Must(Plan::Create(config, kKind, 1, spaces.views(kKind), {&step, 1}));
    Buffer workspace(plan.workspace_bytes(context.num_threads()));
    Buffer overlay(plan.overlay_bytes());
    Must(layer.Run(context, plan, 0, pools, tensors, workspace.bytes(), overlay.bytes()));
    const std::vector<int64_t> accepted = {kTokens};  // fewer: the other tokens leave no trace
    Must(Commit(context, plan, 0, pools, overlay.bytes(), accepted));
  }
  std::printf("%lld tokens, x_out[7][3][0] = %.6f\n",
              static_cast<long long>(request.position(kKind)),
              static_cast<double>(tensors.x_out.row(kTokens - 1)[3 * int64_t{config.hidden}]));
  return request.position(kKind);
}

}  // namespace

int main() {
  constexpr int64_t kEnd = 300;
  try {
    return Decode(kEnd) >= kEnd ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
