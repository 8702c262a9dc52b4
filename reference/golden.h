// The golden of a layer: one token at a time, in double precision, rounded only where the
// arithmetic of the model rounds. Slow and plain on purpose: it owns the meaning of every stage.
//
// D is hidden, H heads, G output groups, Hi indexer heads. L is the lanes of kv (and of score) in a
// main state row: 512 for HCA, 1024 for CSA. Every function is pure and safe to call from many
// threads. A NaN in gives NaN out wherever the value depends on it.
#ifndef MILLIPEDE_REFERENCE_GOLDEN_H_
#define MILLIPEDE_REFERENCE_GOLDEN_H_

#include <array>
#include <cfloat>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "millipede/config.h"
#include "millipede/layer.h"
#include "millipede/rope.h"
#include "millipede/tensor.h"

namespace millipede::reference {

// The rotation of one position: pair i turns by (cos[i], sin[i]).
struct RopeRow {
  std::array<float, kRopePairs> cos{};
  std::array<float, kRopePairs> sin{};
};

// The row of a position as the model defines it, not rounded to bf16.
RopeRow RopeRowAt(AttentionKind kind, int64_t position);

// Row `row` of given RoPE rows.
RopeRow RopeRowOf(const RopeRows& rows, int64_t row);

struct HcPreResult {
  std::vector<Bf16> x_mixed;  // [D]
  std::array<float, 4> post{};
  std::array<float, 16> comb{};  // [4,4], comb[i][o]
};

struct Quantized {
  std::vector<int8_t> codes;
  float scale = 0;  // NaN if any input was not finite; the codes are then 0
};

struct IndexQueryResult {
  std::vector<int8_t> codes;  // [Hi*128]
  std::vector<float> scales;  // [Hi]
};

// The rows one token attends to: the k candidates of highest score, best first.
struct Selection {
  std::vector<int32_t> idx;     // [k], unused places at the end -1
  std::vector<float> score;     // [k], unused places -FLT_MAX
  float next_score = -FLT_MAX;  // the best one left out, -FLT_MAX if none is

  int64_t count() const;  // places used
};

struct AttendResult {
  std::vector<Bf16> heads;         // [H*512]
  std::vector<float> log_sum_exp;  // [H], of the scores, without the sink
};

// q = round_half_even(x * (127 / amax)), d = amax / 127, amax = max(max|x|, 1e-4), in float32.
Quantized Quantize(std::span<const double> x);

// Indexer scores of n candidates: codes [Hi*128] and scales [Hi] of the query, head weights [Hi],
// keys [n*128] and key_scales [n]. score[c] = key_scale[c] * sum over h of
// max(int(codes[h] . key[c]) * scales[h], 0) * weights[h].
std::vector<float> Scores(const IndexQueryResult& query, std::span<const float> weights,
                          std::span<const int8_t> keys, std::span<const float> key_scales);

// The exact top k of all candidates: higher score first, equal scores by lower index, NaN last.
Selection TopK(std::span<const float> scores, int64_t k);

// The stages of one layer, each from given inputs. Borrows the weights.
class Golden {
 public:
  Golden(const ModelConfig& config, AttentionKind kind, const LayerWeights& weights);

  const ModelConfig& config() const { return config_; }
  AttentionKind kind() const { return kind_; }

  HcPreResult HcPre(std::span<const float> x) const;                // x [4*D]
  std::vector<Bf16> AttnNorm(std::span<const Bf16> x_mixed) const;  // [D] -> [D]
  Quantized ProjectLatent(std::span<const Bf16> xn) const;          // [D] -> [q_rank]
  std::vector<Bf16> ProjectQuery(std::span<const int8_t> qr, float qr_scale,
                                 const RopeRow& rope) const;  // [q_rank] -> [H*512]
  std::vector<Bf16> ProjectKv(std::span<const Bf16> xn, const RopeRow& rope) const;  // -> [512]

  // HCA and CSA: the state row of the token at `position`, kv | score, [D] -> [2*L].
  std::vector<float> StateRow(std::span<const Bf16> xn, int64_t position) const;

  // Pools the state rows [2*L] of a block, oldest first, into its compressed row [512]; `rope` is
  // that of the block's first position. HCA: 128 rows. CSA: 8, the block before (its front half is
  // used; null pointers for the block before the first) and the block itself (its back half).
  std::vector<Bf16> CompressRow(std::span<const float* const> rows, const RopeRow& rope) const;

  // CSA: the same for the indexer, with rows [512] and a row of 128 codes.
  std::vector<float> InnerStateRow(std::span<const Bf16> xn, int64_t position) const;
  Quantized IndexRow(std::span<const float* const> rows, const RopeRow& rope) const;

  // CSA: the indexer's query of a token, and the weights [Hi] of its heads.
  IndexQueryResult IndexQuery(std::span<const int8_t> qr, float qr_scale,
                              const RopeRow& rope) const;
  std::vector<float> IndexWeights(std::span<const Bf16> xn) const;

  // q [H*512]; `window` has 1 to 128 rows of 512, oldest first; `compressed` any number: HCA all
  // visible ones by row, CSA the selected ones, best first. The heads are after inverse RoPE by
  // `rope`, or before it if `inverse_rope` is false.
  AttendResult Attend(std::span<const Bf16> q, std::span<const Bf16* const> window,
                      std::span<const Bf16* const> compressed, const RopeRow& rope,
                      bool inverse_rope = true) const;

  // Over the window alone.
  AttendResult Attend(std::span<const Bf16> q, std::span<const Bf16* const> window,
                      const RopeRow& rope, bool inverse_rope = true) const {
    return Attend(q, window, {}, rope, inverse_rope);
  }

  std::vector<Bf16> ProjectOutput(std::span<const Bf16> heads) const;  // [H*512] -> [D]
  std::vector<float> HcPost(std::span<const float> x, std::span<const Bf16> attn_out,
                            std::span<const float> post,
                            std::span<const float> comb) const;  // -> [4*D]

 private:
  ModelConfig config_;
  AttentionKind kind_;
  LayerWeights weights_;
};

// Every value of one token.
struct TokenResult {
  HcPreResult hc;
  std::vector<Bf16> xn;
  Quantized qr;
  std::vector<Bf16> q;
  std::vector<Bf16> kv;
  IndexQueryResult idx;            // CSA
  std::vector<float> idx_weights;  // CSA, [Hi]
  Selection selection;             // CSA, [index_topk]
  std::vector<Bf16> heads;
  std::vector<Bf16> attn_out;
  std::vector<float> x_out;
};

// What a request's cache holds before its first decoded token. Rows are asked for when they are
// needed, and only those that are; from many threads at once. Functions that the kind does not need
// may be empty.
struct History {
  std::function<void(int64_t position, std::span<Bf16> out)> kv;            // [512]
  std::function<void(int64_t row, std::span<Bf16> out)> compressed;         // [512]
  std::function<void(int64_t position, std::span<float> out)> state;        // [2*L]
  std::function<float(int64_t row, std::span<int8_t> out)> index;           // [128], its scale
  std::function<void(int64_t position, std::span<float> out)> inner_state;  // [512]
};

// The history of an object with the functions of fixtures::RequestFixture, copied.
template <typename Source>
History HistoryOf(const Source& source) {
  return {
      [source](int64_t position, std::span<Bf16> out) { source.KvRow(position, out); },
      [source](int64_t row, std::span<Bf16> out) { source.CmpRow(row, out); },
      [source](int64_t position, std::span<float> out) { source.StateRow(position, out); },
      [source](int64_t row, std::span<int8_t> out) {
        source.IdxRow(row, out);
        return source.IdxScale(row);
      },
      [source](int64_t position, std::span<float> out) { source.InnerStateRow(position, out); },
  };
}

// Decodes one request of a layer of any kind end to end, over a plain logical history: rows by
// position, compressed rows by block. Borrows the golden. A row that neither the history nor the
// decoded tokens give is reported as std::out_of_range.
class Decoder {
 public:
  // `start_pos` is the position of the first token decoded. Of the history are read: KV rows of
  // the 127 positions before the start; HCA and CSA: compressed (and index) rows of all blocks
  // finished before it, and state rows of the open block; CSA: those of the block before it too.
  Decoder(const Golden& golden, int64_t start_pos, History history = {});

  // Gives one KV row of a position before the start, in place of the history's.
  void SetHistory(int64_t position, std::span<const Bf16> row);

  int64_t next_position() const { return next_position_; }

  // Rows of the history and of the tokens decoded.
  std::vector<Bf16> KvAt(int64_t position) const;
  std::vector<float> StateAt(int64_t position) const;
  std::vector<float> InnerStateAt(int64_t position) const;
  std::vector<Bf16> CompressedAt(int64_t row) const;
  Quantized IndexAt(int64_t row) const;

  // Decodes the token at next_position(): adds its rows to the history, attends. A token that
  // finishes a block needs `event_rope`, the rotation of the compressed row (that of the block's
  // first position), or std::invalid_argument is thrown.
  TokenResult Decode(std::span<const float> x, const RopeRow& rope,
                     const RopeRow* event_rope = nullptr);

  // The two halves of Decode, so that many tokens can be decoded on many threads: what a token adds
  // to the history does not depend on attention. Append all tokens first, then call DecodeAt for
  // any of them.
  void Append(std::span<const float> x, const RopeRow& rope, const RopeRow* event_rope = nullptr);
  TokenResult DecodeAt(int64_t position, std::span<const float> x, const RopeRow& rope) const;

 private:
  void EmitRows(int64_t row, const RopeRow& rope);
  Selection Select(const TokenResult& token, int64_t num_candidates) const;

  const Golden& golden_;
  int64_t start_pos_;
  int64_t next_position_;
  int64_t ratio_;  // 0 for SWA
  History history_;
  std::map<int64_t, std::vector<Bf16>> kv_;            // by position
  std::map<int64_t, std::vector<float>> state_;        // by position
  std::map<int64_t, std::vector<float>> inner_state_;  // by position
  std::map<int64_t, std::vector<Bf16>> compressed_;    // by row
  std::map<int64_t, Quantized> index_;                 // by row
};

}  // namespace millipede::reference

#endif  // MILLIPEDE_REFERENCE_GOLDEN_H_
