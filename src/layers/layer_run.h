// What a layer holds, and the parts that a run of it is made of. Another room may put its own
// output projection between them.
#ifndef MILLIPEDE_LAYERS_LAYER_RUN_H_
#define MILLIPEDE_LAYERS_LAYER_RUN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millipede/layer.h"

namespace millipede {

struct Layer::State {
  ModelConfig config;
  AttentionKind kind = AttentionKind::kSwa;
  OutputShard shard;
  HcWeights hc;
  std::vector<float> attn_norm;  // [D]
  std::vector<float> q_norm;     // [q_rank]
  std::vector<float> kv_norm;    // [512]
  std::vector<float> sink;       // [H]
  MatrixBf16 wq_a;
  MatrixBf16 wkv;
  MatrixInt8 wq_b;
  OutputWeights output;          // of the shard's groups
  CompressorWeights compressor;  // HCA, CSA
  IndexerWeights indexer;        // CSA
};

// One run of a layer: the arguments of Layer::Run, and where its values lie.
struct LayerRun {
  const Plan* plan = nullptr;
  int32_t layer_index = 0;
  LayerPools pools;
  StepTensors tensors;
  std::span<std::byte> overlay;
  StepActivations step;  // all set
  Scratch scratch;
};

// Checks the arguments, and that the plan may run now; writes nothing. The errors of Layer::Run.
Result<LayerRun> PrepareRun(const Layer::State& layer, int num_threads, const Plan& plan,
                            int32_t layer_index, const LayerPools& pools,
                            const StepTensors& tensors, std::span<std::byte> workspace,
                            std::span<std::byte> overlay, const StepActivations& activations);

// Everything up to run.step.heads.
Status RunHeads(Context& context, const Layer::State& layer, const LayerRun& run);

// From run.step.attn_out on; the layer of the plan then counts as run.
Status FinishRun(Context& context, const Layer::State& layer, const LayerRun& run);

}  // namespace millipede

#endif  // MILLIPEDE_LAYERS_LAYER_RUN_H_
