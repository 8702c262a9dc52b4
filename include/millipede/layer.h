// A whole attention layer of one kind: the stages composed, and the commit of its overlay.
#ifndef MILLIPEDE_LAYER_H_
#define MILLIPEDE_LAYER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millipede/config.h"
#include "millipede/executor.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/rope.h"
#include "millipede/stages.h"
#include "millipede/status.h"
#include "millipede/tensor.h"

namespace millipede {

// Views of a layer's weights, [out, in]; borrowed while Layer::Create packs them.
struct LayerWeights {
  TensorView<const float, 2> hc_fn;       // [24, 4*D]
  TensorView<const float, 1> hc_scale;    // [3]
  TensorView<const float, 1> hc_base;     // [24]
  TensorView<const float, 1> attn_norm;   // [D]
  TensorView<const float, 1> q_norm;      // [q_rank]
  TensorView<const float, 1> kv_norm;     // [512]
  TensorView<const Bf16, 2> wq_a;         // [q_rank, D]
  TensorView<const Bf16, 2> wkv;          // [512, D]
  TensorView<const int8_t, 2> wq_b;       // [H*512, q_rank]
  TensorView<const float, 1> wq_b_scale;  // [H*512]
  TensorView<const float, 1> attn_sink;   // [H]
  TensorView<const Bf16, 3> wo_a;         // [G, o_rank, H/G*512]
  TensorView<const int8_t, 2> wo_b;       // [D, G*o_rank]
  TensorView<const float, 1> wo_b_scale;  // [D]

  // HCA and CSA: the main compressor; L is 512 lanes for HCA, 1024 (front and back) for CSA.
  TensorView<const Bf16, 2> cmp_wkv;    // [L, D]
  TensorView<const Bf16, 2> cmp_wgate;  // [L, D]
  TensorView<const float, 2> cmp_ape;   // [ratio, L]
  TensorView<const float, 1> cmp_norm;  // [512]

  // CSA: the indexer's query path and its own compressor. Hi is the number of indexer heads.
  TensorView<const int8_t, 2> idx_wq_b;        // [Hi*128, q_rank]
  TensorView<const float, 1> idx_wq_b_scale;   // [Hi*128]
  TensorView<const Bf16, 2> idx_weights_proj;  // [Hi, D]
  TensorView<const Bf16, 2> idx_cmp_wkv;       // [256, D]
  TensorView<const Bf16, 2> idx_cmp_wgate;     // [256, D]
  TensorView<const float, 2> idx_cmp_ape;      // [4, 256]
  TensorView<const float, 1> idx_cmp_norm;     // [128]
};

// A step's inputs and output. x_out may be x itself.
struct StepTensors {
  TensorView<const float, 3> x;  // [T,4,D]
  RopeRows rope;                 // [T,32]
  RopeRows event_rope;           // [E,32] HCA, CSA: at the rope_position of the plan's events
  TensorView<float, 3> x_out;    // [T,4,D]

  // CSA: [T,index_topk] rows to attend to instead of the indexer's own choice, as AttendInputs
  // says; a selection an earlier run returned gives that run's bits. Empty: the indexer chooses.
  TensorView<const int32_t, 2> selection;
};

// Where a run leaves its intermediate values. A view that is set is used in place of workspace, so
// what it holds afterwards is what the layer computed with.
struct StepActivations {
  TensorView<Bf16, 2> x_mixed;       // [T,D]
  TensorView<float, 2> post;         // [T,4]
  TensorView<float, 3> comb;         // [T,4,4]
  TensorView<Bf16, 2> xn;            // [T,D]
  TensorView<int8_t, 2> qr;          // [T,q_rank]
  TensorView<float, 1> qr_scale;     // [T]
  TensorView<Bf16, 3> q;             // [T,H,512]
  TensorView<int8_t, 3> idx_q;       // [T,Hi,128] CSA, as are those up to topk_score
  TensorView<float, 2> idx_q_scale;  // [T,Hi]
  TensorView<float, 2> idx_weights;  // [T,Hi]
  TensorView<int32_t, 2> topk_idx;   // [T,index_topk]; not set by a run with a given selection
  TensorView<float, 2> topk_score;   // [T,index_topk]
  TensorView<Bf16, 3> heads;         // [T,H,512], after inverse RoPE
  TensorView<Bf16, 2> attn_out;      // [T,D]
};

// Views of what a shard needs of a whole layer's weights: its groups of wo_a and wo_b, and all of
// the rest. kInvalidArgument as of GroupsOf.
Result<LayerWeights> WeightsOfShard(const ModelConfig& config, const LayerWeights& weights,
                                    OutputShard shard);

// One that was moved from can only be assigned or destroyed.
class Layer {
 public:
  // Packs the weights. Those of a shard have n groups of its own in place of all G, wo_a
  // [n,o_rank,H/G*512] and wo_b [D,n*o_rank]; such a layer is run by TensorParallel
  // (distributed.h). kInvalidConfig, kInvalidArgument for the shard, kShapeMismatch, kOutOfMemory.
  static Result<Layer> Create(const ModelConfig& config, AttentionKind kind,
                              const LayerWeights& weights, OutputShard shard = {});

  Layer(Layer&&) noexcept;
  Layer& operator=(Layer&&) noexcept;
  ~Layer();

  AttentionKind kind() const;
  OutputShard shard() const;
  int64_t weight_bytes() const;  // packed

  // Executes the plan for its layer `layer_index` in [0, plan.num_layers()). New rows go to
  // `overlay` (plan.overlay_bytes(), 64-byte aligned), which the caller keeps until commit; rings
  // are not written. `workspace` has plan.workspace_bytes(threads), 64-byte aligned. A rerun before
  // commit gives the same bits. Buffers, pools and tensors do not overlap, but that x_out may be x.
  // kInvalidArgument for a shard; kPlanMismatch, kBufferTooSmall, kShapeMismatch, kCallOrder
  // (already committed, or a request was released), kOutOfMemory, and the page errors if pages were
  // released since the plan was made.
  Status Run(Context& context, const Plan& plan, int32_t layer_index, const LayerPools& pools,
             const StepTensors& tensors, std::span<std::byte> workspace,
             std::span<std::byte> overlay, const StepActivations& activations = {}) const;

  struct State;  // internal
  const State& state() const { return *state_; }

 private:
  explicit Layer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The KV rows [T,512] that a run left in its overlay; empty if the overlay is too small.
TensorView<const Bf16, 2> OverlayKv(const Plan& plan, std::span<const std::byte> overlay);

// The state rows [T,1024] (HCA) or [T,2048] (CSA) in it, and the inner state rows [T,512] (CSA);
// empty for other kinds.
TensorView<const float, 2> OverlayState(const Plan& plan, std::span<const std::byte> overlay);
TensorView<const float, 2> OverlayInnerState(const Plan& plan, std::span<const std::byte> overlay);

// Writes the accepted tokens' rows of one layer from its overlay into its rings. `accepted` has one
// count in [0, num_tokens] per request of the batch; the first layer's commit fixes it. The last
// layer's commit advances the ranges of Request objects and returns every request's new ranges,
// zeros for one without tokens (an empty vector before). kCallOrder for a layer that was not run or
// is already committed, or if a request was released; kInvalidArgument for counts out of range or
// other than the first layer's; and the errors of Layer::Run that concern pools, overlay and pages.
//
// A plan dropped between its first commit and its last leaves positions where they were, but the
// rings hold only what every layer has: rows that were overwritten are missing from the ranges, and
// a step that needs them is refused with kRangeMissingRows. An engine with raw descriptors cuts the
// beginnings of its ring ranges likewise: to the first position after the commit, less the ring.
Result<std::vector<RequestRanges>> Commit(Context& context, const Plan& plan, int32_t layer_index,
                                          const LayerPools& pools,
                                          std::span<const std::byte> overlay,
                                          std::span<const int64_t> accepted);

}  // namespace millipede

#endif  // MILLIPEDE_LAYER_H_
