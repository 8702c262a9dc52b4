// What requests must give, by the shortest way there: each keeps its whole history in plain arrays,
// and one token at a time goes through the public stages. There are no rings, no commits, no shared
// pages and no batches here.
#ifndef MILLIPEDE_TESTS_LIFE_PLAIN_MODEL_H_
#define MILLIPEDE_TESTS_LIFE_PLAIN_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fixtures/formula.h"
#include "millipede/layer.h"
#include "millipede/stages.h"
#include "support/decode_world.h"

namespace millipede::testing {

// Random numbers that are functions of a key alone.
class Hash {
 public:
  explicit Hash(uint64_t key) : state_(key * 0x9E3779B97F4A7C15ULL + 0x632BE59BD9B4E019ULL) {}
  uint64_t Next() {  // splitmix64
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  int64_t Below(int64_t n) { return static_cast<int64_t>(Next() % static_cast<uint64_t>(n)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  float Symmetric() {  // in (-1.7, 1.7), about unit variance
    return (static_cast<float>(Next() >> 40) * 0x1p-23F - 1.0F) * 1.7F;
  }

 private:
  uint64_t state_;
};

inline uint64_t Mix(uint64_t a, uint64_t b) { return Hash(a ^ Hash(b).Next()).Next(); }

// The history of one request in one layer, from position `begin` on; compressed rows from row 0 on.
struct PlainRows {
  std::vector<Bf16> raw;            // [positions, 512]
  std::vector<float> state;         // [positions, 1024] HCA, [positions, 2048] CSA
  std::vector<float> inner_state;   // [positions, 512] CSA
  std::vector<Bf16> main;           // [whole pages of rows, 512]
  std::vector<int8_t> index_rows;   // [whole pages of rows, 128]
  std::vector<float> index_scales;  // [whole pages of rows]
};

// One layer's weights, as the library's layer and as the stages take them.
struct PlainLayer {
  fixtures::LayerFixture fixture;
  std::unique_ptr<Layer> layer;
  HcWeights hc;
  MatrixBf16 wq_a;
  MatrixBf16 wkv;
  MatrixInt8 wq_b;
  OutputWeights output;
  CompressorWeights compressor;
  IndexerWeights indexer;
};

// Layer `index` of the kind; made once per process.
const PlainLayer& SharedLayer(const ModelConfig& config, AttentionKind kind, int index);

// What a token gives beside its rows.
struct TokenOutputs {
  std::vector<Bf16> heads;   // [H*512]
  std::vector<float> x_out;  // [4*D]
};

// One request in all layers of all kinds.
struct PlainRequest {
  int64_t begin = 0;                         // the first position whose raw and state rows are kept
  int64_t position = 0;                      // tokens
  std::vector<std::vector<PlainRows>> rows;  // [kinds, layers]
};

class PlainModel {
 public:
  PlainModel(const ModelConfig& config, std::vector<AttentionKind> kinds, int num_layers);

  // A request with a history of `position` tokens, made of `key`.
  PlainRequest Import(int64_t position, uint64_t key) const;

  // Decodes the token after the request's last, of which `x(kind, layer)` is the input [4*D], in
  // every layer. The outputs are [kinds, layers].
  using Input = std::vector<std::vector<std::vector<float>>>;
  std::vector<std::vector<TokenOutputs>> Decode(PlainRequest& request, const Input& x);

  // Forgets the tokens from `position` on.
  void Truncate(PlainRequest& request, int64_t position) const;

  const ModelConfig& config() const { return config_; }
  const std::vector<AttentionKind>& kinds() const { return kinds_; }
  int num_layers() const { return num_layers_; }

 private:
  TokenOutputs DecodeLayer(AttentionKind kind, const PlainLayer& weights, const Plan& plan,
                           const PlainRequest& request, PlainRows& rows,
                           const std::vector<float>& x, const RopeRows& rope,
                           const RopeRows& event_rope);

  ModelConfig config_;
  std::vector<AttentionKind> kinds_;
  int num_layers_;
  std::unique_ptr<Executor> executor_ = MakeSerialExecutor();
  Context context_{*executor_};
  AlignedBytes scratch_;
  AlignedBytes rings_;  // raw, state and inner state
};

// Tokens per compressed row; 0 for SWA.
int64_t RatioOfKind(AttentionKind kind);
// Floats of a state row; 0 for SWA.
int64_t StateWidth(AttentionKind kind);

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_LIFE_PLAIN_MODEL_H_
