// Owned buffers for everything a run computes on the way.
#ifndef MILLIPEDE_TOOLS_ACTIVATIONS_H_
#define MILLIPEDE_TOOLS_ACTIVATIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fixtures/safetensors.h"
#include "millipede/config.h"
#include "millipede/layer.h"
#include "millipede/tensor.h"
#include "tools/batch.h"
#include "tools/caches.h"

namespace millipede::tools {

// One of the tensors below, by its name in vector files.
struct NamedActivation {
  std::string_view name;
  fixtures::DType dtype;
  int64_t row_elements;        // of one token or event
  std::span<std::byte> bytes;  // [T or E, row_elements]

  std::span<std::byte> row(int64_t i) const {
    const auto row_bytes = static_cast<size_t>(row_elements * fixtures::DTypeBytes(dtype));
    return bytes.subspan(static_cast<size_t>(i) * row_bytes, row_bytes);
  }
};

struct Activations {
  // Filled with what no stage makes: NaN, and code -128. Tensors that the kind lacks stay empty.
  Activations(const ModelConfig& model, AttentionKind attention, int64_t tokens,
              int64_t events = 0);

  // Of this object's vectors, which stay where they are when it is moved.
  StepActivations views();
  std::vector<NamedActivation> named();         // those of tokens
  std::vector<NamedActivation> named_events();  // those of events

  // The rows that a run left in its overlay, and those of its events in the pools.
  void TakeOverlay(const Plan& plan, std::span<const std::byte> overlay);
  void TakeEvents(const Batch& batch, const LayerCaches& caches,
                  std::span<const StepEvent> step_events);

  ModelConfig config;
  AttentionKind kind;
  int64_t num_tokens;
  int64_t num_events;
  std::vector<Bf16> x_mixed;       // [T,D]
  std::vector<float> post;         // [T,4]
  std::vector<float> comb;         // [T,4,4]
  std::vector<Bf16> xn;            // [T,D]
  std::vector<int8_t> qr;          // [T,q_rank]
  std::vector<float> qr_scale;     // [T]
  std::vector<Bf16> q;             // [T,H,512]
  std::vector<Bf16> kv;            // [T,512], of the step's overlay
  std::vector<float> state;        // [T,2*L], HCA and CSA: of the overlay
  std::vector<float> inner_state;  // [T,512], CSA, as are those up to topk_next: of the overlay
  std::vector<int8_t> idx_q;       // [T,Hi,128]
  std::vector<float> idx_q_scale;  // [T,Hi]
  std::vector<float> idx_weights;  // [T,Hi]
  std::vector<int32_t> topk_idx;   // [T,index_topk]
  std::vector<float> topk_score;   // [T,index_topk]
  std::vector<float> topk_next;    // [T], the best score left out
  std::vector<Bf16> heads;         // [T,H,512]
  std::vector<Bf16> attn_out;      // [T,D]
  std::vector<float> x_out;        // [T,4,D]

  // HCA and CSA: the compressed rows of the step's events; CSA: their index keys.
  std::vector<Bf16> cmp_rows;     // [E,512]
  std::vector<int8_t> idx_rows;   // [E,128]
  std::vector<float> idx_scales;  // [E]

  // CSA: what Select finds for one place more. Its first index_topk places are topk_idx, and the
  // score of the last one is topk_next.
  std::vector<int32_t> wide_idx;  // [T,index_topk+1]
  std::vector<float> wide_score;  // [T,index_topk+1]
};

// Fills wide_idx, wide_score and topk_next from the indexer's queries and a layer's index pools,
// which hold the rows of the step's events. The context is another than the run's, whose counters
// this work does not belong to.
Status SelectWide(Executor& executor, const Plan& plan, const LayerPools& pools,
                  Activations& values);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_ACTIVATIONS_H_
