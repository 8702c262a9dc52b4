// The stages of a layer as calls on caller-owned buffers. A layer is only their composition, so an
// engine with its own weight formats can replace any of them.
//
// T is the number of tokens, any count >= 0; D hidden, H heads, G output groups. The config
// (kInvalidConfig) and shapes (kShapeMismatch) are checked before anything is written. `scratch` is
// any memory of at least StageScratchBytes(config, T, threads) bytes, 64-byte aligned
// (kBufferTooSmall); its content means nothing before or after. kOutOfMemory if the context's books
// cannot grow. Stages that take a plan check its pages, not the order of calls: behind the plan's
// commit, a row it names may be a newer one. Every product sums in one order whatever T is, so a
// token's values do not depend on the batch it came in.
#ifndef MILLIPEDE_STAGES_H_
#define MILLIPEDE_STAGES_H_

#include <array>
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
#include "millipede/status.h"
#include "millipede/tensor.h"

namespace millipede {

using Scratch = std::span<std::byte>;

// Scratch bytes enough for any one stage call with these arguments. INT64_MAX, which no memory has,
// for what no call takes: a config that Validate refuses, tokens outside 0 to 2^31-1, threads
// outside 1 to 1024.
int64_t StageScratchBytes(const ModelConfig& config, int64_t num_tokens, int num_threads);

// bf16 weights `[outputs, inputs]`, packed for the kernels at load; owns its copy.
class MatrixBf16 {
 public:
  // kShapeMismatch for null or empty weights; kOutOfMemory.
  static Result<MatrixBf16> Pack(TensorView<const Bf16, 2> weights);

  int64_t num_outputs() const { return num_outputs_; }
  int64_t num_inputs() const { return num_inputs_; }
  const Bf16* data() const { return data_.get(); }  // packed

 private:
  int64_t num_outputs_ = 0;
  int64_t num_inputs_ = 0;
  std::shared_ptr<Bf16[]> data_;
};

// int8 weights `[outputs, inputs]` with one float scale per output, packed; owns its copy. Any int8
// value is exact, -128 included.
class MatrixInt8 {
 public:
  // kShapeMismatch as above, or scale not [outputs]; kInvalidArgument for more than 131071 inputs,
  // whose sums could pass int32; kOutOfMemory.
  static Result<MatrixInt8> Pack(TensorView<const int8_t, 2> weights,
                                 TensorView<const float, 1> scale);

  int64_t num_outputs() const { return num_outputs_; }
  int64_t num_inputs() const { return num_inputs_; }
  const int8_t* data() const { return data_.get(); }  // packed
  const float* scale() const { return scale_.get(); }

 private:
  int64_t num_outputs_ = 0;
  int64_t num_inputs_ = 0;
  std::shared_ptr<int8_t[]> data_;
  std::shared_ptr<float[]> scale_;
};

// Hyper-connection weights, packed; owns its copy.
class HcWeights {
 public:
  // fn [24, 4*D] with rows 4 pre, 4 post, 16 comb (i-major); scale [3] pre, post, comb; base [24].
  static Result<HcWeights> Pack(TensorView<const float, 2> fn, TensorView<const float, 1> scale,
                                TensorView<const float, 1> base);

  int64_t num_inputs() const { return num_inputs_; }  // 4*D
  const float* fn() const { return fn_.get(); }
  const std::array<float, 3>& scale() const { return scale_; }
  const std::array<float, kHcMixes>& base() const { return base_; }

 private:
  int64_t num_inputs_ = 0;
  std::shared_ptr<float[]> fn_;
  std::array<float, 3> scale_{};
  std::array<float, kHcMixes> base_{};
};

// Mixes the streams: x [T,4,D] -> x_mixed [T,D], post [T,4], comb [T,4,4].
Status HcPre(Context& context, const ModelConfig& config, const HcWeights& weights,
             TensorView<const float, 3> x, TensorView<Bf16, 2> x_mixed, TensorView<float, 2> post,
             TensorView<float, 3> comb, Scratch scratch);

// xn = bf16(rms(x_mixed) * attn_norm): [T,D] -> [T,D]; attn_norm [D].
Status AttnNorm(Context& context, const ModelConfig& config, TensorView<const float, 1> attn_norm,
                TensorView<const Bf16, 2> x_mixed, TensorView<Bf16, 2> xn);

// The quantized query latent: xn [T,D], wq_a [q_rank,D], q_norm [q_rank] -> qr [T,q_rank],
// qr_scale [T].
Status ProjectLatent(Context& context, const ModelConfig& config, const MatrixBf16& wq_a,
                     TensorView<const float, 1> q_norm, TensorView<const Bf16, 2> xn,
                     TensorView<int8_t, 2> qr, TensorView<float, 1> qr_scale, Scratch scratch);

// Queries from the latent: wq_b [H*512,q_rank]; per head rms without weight, RoPE -> q [T,H,512].
Status ProjectQuery(Context& context, const ModelConfig& config, const MatrixInt8& wq_b,
                    TensorView<const int8_t, 2> qr, TensorView<const float, 1> qr_scale,
                    const RopeRows& rope, TensorView<Bf16, 3> q, Scratch scratch);

// KV rows: xn [T,D], wkv [512,D], kv_norm [512]; rms, RoPE -> kv [T,512].
Status ProjectKv(Context& context, const ModelConfig& config, const MatrixBf16& wkv,
                 TensorView<const float, 1> kv_norm, TensorView<const Bf16, 2> xn,
                 const RopeRows& rope, TensorView<Bf16, 2> kv, Scratch scratch);

// A compressor's weights, packed. L lanes of kv and as many of score: 512 for HCA; 2 * 512 for
// CSA's main compressor and 2 * 128 for its indexer's, front half and back half.
struct CompressorWeights {
  MatrixBf16 wkv;           // [L, D]
  MatrixBf16 wgate;         // [L, D]
  std::vector<float> ape;   // [ratio, L], added to the score of a token by its place in its block
  std::vector<float> norm;  // [512], or [128] for the indexer's
};

// State rows of the plan's tokens: xn [T,D] -> state [T,2*L], a row [kv | score + ape].
Status ProjectState(Context& context, const ModelConfig& config, const Plan& plan,
                    const CompressorWeights& weights, TensorView<const Bf16, 2> xn,
                    TensorView<float, 2> state, Scratch scratch);

struct CompressInputs {
  PoolView state;                        // this layer's state ring pool
  TensorView<const float, 2> new_state;  // [T,2*L] of the step's tokens (the overlay)
  TensorView<const float, 1> norm;       // [512]
  RopeRows rope;                         // [E,32] at the rope_position of each event
};

// Pools each event's state rows, per lane weighted by the softmax of their scores; norm, RoPE,
// bf16; writes the row to its place in `main`, the layer's main pool. HCA, and CSA's main
// compressor.
Status Compress(Context& context, const ModelConfig& config, const Plan& plan,
                const CompressInputs& inputs, PoolView main);

// CSA: the indexer's weights, packed.
struct IndexerWeights {
  MatrixInt8 wq_b;               // [Hi*128, q_rank]
  MatrixBf16 weights_proj;       // [Hi, D]
  CompressorWeights compressor;  // of index keys
};

struct IndexQueryOutputs {
  TensorView<int8_t, 3> idx_q;       // [T,Hi,128]
  TensorView<float, 2> idx_q_scale;  // [T,Hi]
  TensorView<float, 2> idx_weights;  // [T,Hi], xn * weights_proj * 128^-1/2 * Hi^-1/2
};

// CSA: the indexer's queries from the latent qr [T,q_rank], qr_scale [T] (RoPE, Hadamard, int8 per
// head), and the weights of its heads from xn [T,D].
Status ProjectIndexQuery(Context& context, const ModelConfig& config, const IndexerWeights& weights,
                         TensorView<const int8_t, 2> qr, TensorView<const float, 1> qr_scale,
                         TensorView<const Bf16, 2> xn, const RopeRows& rope,
                         const IndexQueryOutputs& outputs, Scratch scratch);

// CSA: as Compress for the inner state rows [T,512] and norm [128], then Hadamard and int8; writes
// each event's key and scale to its place in the layer's index pools.
Status CompressIndex(Context& context, const ModelConfig& config, const Plan& plan,
                     const CompressInputs& inputs, PoolView index_rows, PoolView index_scales);

struct SelectInputs {
  TensorView<const int8_t, 3> idx_q;       // [T,Hi,128]
  TensorView<const float, 2> idx_q_scale;  // [T,Hi]
  TensorView<const float, 2> idx_weights;  // [T,Hi]
  PoolView index_rows;                     // this layer's index pools
  PoolView index_scales;
};

inline constexpr int64_t kMaxTopK = 2048;

// Scratch bytes of Select for the top `k`; INT64_MAX as above, and for k outside [1, kMaxTopK].
int64_t SelectScratchBytes(const ModelConfig& config, int64_t k, int num_threads);

// CSA: the exact top k of each query's visible candidates, k = topk_idx.shape[1] in [1, kMaxTopK],
// by score[c] = key_scale[c] * sum over h of max(int(idx_q[h] . key[c]) * idx_q_scale[h], 0) *
// idx_weights[h]. Higher score first, equal scores by lower index, NaN last. topk_idx [T,k], -1 in
// unused places; topk_score [T,k], -FLT_MAX there, may be empty.
Status Select(Context& context, const ModelConfig& config, const Plan& plan,
              const SelectInputs& inputs, TensorView<int32_t, 2> topk_idx,
              TensorView<float, 2> topk_score, Scratch scratch);

struct AttendInputs {
  TensorView<const Bf16, 3> q;       // [T,H,512]
  TensorView<const float, 1> sink;   // [H], -inf for none
  RopeRows rope;                     // [T,32]; not read if heads stay before inverse RoPE
  PoolView raw;                      // this layer's pool of the plan's raw space
  TensorView<const Bf16, 2> new_kv;  // [T,512] KV rows of the step's tokens (the overlay)
  PoolView main;                     // HCA, CSA: this layer's main pool

  // CSA: [T,index_topk] the compressed rows of each query, in the order they are summed: as many
  // distinct visible rows as there are, index_topk at most, then -1.
  TensorView<const int32_t, 2> selection;
};

struct AttendOutputs {
  TensorView<Bf16, 3> heads;         // [T,H,512]
  TensorView<float, 2> log_sum_exp;  // [T,H] of the scores, without the sink; may be empty
  bool inverse_rope = true;          // false: heads before the inverse rotation
};

// Attention over the rows the plan names, and for CSA the selection; kInvalidArgument naming
// request and token for a selection that is not as described above. kPlanMismatch if the pool is
// not one of the plan's space; kStaleEpoch and its like if pages were released since the plan was
// made.
Status Attend(Context& context, const ModelConfig& config, const Plan& plan,
              const AttendInputs& inputs, const AttendOutputs& outputs, Scratch scratch);

// One packed matrix per output group: wo_a [o_rank, heads per group * 512], and wo_b [D, o_rank],
// each with the same scale [D].
struct OutputWeights {
  std::vector<MatrixBf16> wo_a;  // [G]
  std::vector<MatrixInt8> wo_b;  // [G]
};

// heads [T,H,512] -> attn_out [T,D].
Status ProjectOutput(Context& context, const ModelConfig& config, const OutputWeights& weights,
                     TensorView<const Bf16, 3> heads, TensorView<Bf16, 2> attn_out,
                     Scratch scratch);

// Which output groups one of `degree` processes has the weights of: by rank, G / degree consecutive
// ones each. distributed.h exchanges what they need of each other.
struct OutputShard {
  int32_t rank = 0;
  int32_t degree = 1;
};

// The groups of a shard. kInvalidArgument unless `degree` divides G and 0 <= rank < degree.
Result<RowRange> GroupsOf(const ModelConfig& config, OutputShard shard);

// The two halves of ProjectOutput, with the same bits. Each group's product: heads [T,n*H/G,512] of
// the n consecutive groups that `weights` has -> partials [T,n,D].
Status ProjectOutputGroups(Context& context, const ModelConfig& config,
                           const OutputWeights& weights, TensorView<const Bf16, 3> heads,
                           TensorView<float, 3> partials, Scratch scratch);

// Their sum: partials [T,G,D] of all groups, the scale [D] of wo_b, dense -> attn_out [T,D].
Status SumOutputGroups(Context& context, const ModelConfig& config,
                       TensorView<const float, 3> partials, TensorView<const float, 1> wo_b_scale,
                       TensorView<Bf16, 2> attn_out);

// x_out[o] = attn_out * post[o] + sum_i x[i] * comb[i,o]; x_out may be x itself.
Status HcPost(Context& context, const ModelConfig& config, TensorView<const float, 3> x,
              TensorView<const Bf16, 2> attn_out, TensorView<const float, 2> post,
              TensorView<const float, 3> comb, TensorView<float, 3> x_out);

}  // namespace millipede

#endif  // MILLIPEDE_STAGES_H_
