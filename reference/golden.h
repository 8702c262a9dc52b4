// The golden of a layer: one token at a time, in double precision, rounded only where the
// arithmetic of the model rounds. Slow and plain on purpose: it owns the meaning of every stage.
//
// D is hidden, H heads, G output groups. Every function is pure and safe to call from many threads.
// A NaN in gives NaN out wherever the value depends on it.
#ifndef MILLIPEDE_REFERENCE_GOLDEN_H_
#define MILLIPEDE_REFERENCE_GOLDEN_H_

#include <array>
#include <cstdint>
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

struct AttendResult {
  std::vector<Bf16> heads;         // [H*512]
  std::vector<float> log_sum_exp;  // [H], of the scores, without the sink
};

// q = round_half_even(x * (127 / amax)), d = amax / 127, amax = max(max|x|, 1e-4), in float32.
Quantized Quantize(std::span<const double> x);

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

  // q [H*512]; `window` has 1 to 128 rows of 512, oldest first. The heads are after inverse RoPE
  // by `rope`, or before it if `inverse_rope` is false.
  AttendResult Attend(std::span<const Bf16> q, std::span<const Bf16* const> window,
                      const RopeRow& rope, bool inverse_rope = true) const;

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
  std::vector<Bf16> heads;
  std::vector<Bf16> attn_out;
  std::vector<float> x_out;
};

// Decodes one request of an SWA layer end to end over a plain logical history: KV rows by position.
class SwaDecoder {
 public:
  // `start_pos` is the position of the first token decoded. Borrows the golden.
  SwaDecoder(const Golden& golden, int64_t start_pos);

  // The KV row of a position before the start. All of max(0, start-127) ... start-1 must be given.
  void SetHistory(int64_t position, std::span<const Bf16> row);

  int64_t next_position() const { return next_position_; }
  std::span<const Bf16> KvAt(int64_t position) const;

  // Decodes the token at next_position(): adds its KV row to the history, attends.
  TokenResult Decode(std::span<const float> x, const RopeRow& rope);

  // The two halves of Decode, so that many tokens can be decoded on many threads: a token's KV row
  // depends on its own x alone. Append all tokens first, then call DecodeAt for any of them.
  void Append(std::span<const float> x, const RopeRow& rope);
  TokenResult DecodeAt(int64_t position, std::span<const float> x, const RopeRow& rope) const;

 private:
  const Golden& golden_;
  int64_t next_position_;
  std::map<int64_t, std::vector<Bf16>> history_;
};

}  // namespace millipede::reference

#endif  // MILLIPEDE_REFERENCE_GOLDEN_H_
