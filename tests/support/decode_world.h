// A small decoding engine for tests: one layer, its pool, and requests whose inputs and histories
// are made by formula, so that any step can be run in any company and compared.
#ifndef MILLIPEDE_TESTS_SUPPORT_DECODE_WORLD_H_
#define MILLIPEDE_TESTS_SUPPORT_DECODE_WORLD_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fixtures/formula.h"
#include "millipede/layer.h"

namespace millipede::testing {

// A pattern that reads as NaN in bf16 and float32.
inline constexpr uint32_t kNanPattern = 0xFFFFFFFF;

// Repeats the pattern over the bytes; a last part of it where they end.
void FillPattern(std::span<std::byte> bytes, uint32_t pattern);

// 64-byte aligned bytes, filled with a pattern.
class AlignedBytes {
 public:
  explicit AlignedBytes(int64_t num_bytes, uint32_t pattern = kNanPattern);
  std::span<std::byte> span() { return {begin_, num_bytes_}; }

 private:
  std::vector<std::byte> storage_;
  std::byte* begin_;
  size_t num_bytes_;
};

// One request's part of a step.
struct StepEntry {
  int64_t id = 0;  // a request of the world
  int64_t num_tokens = 1;
  int64_t accepted = -1;  // -1: all
  bool active = true;
};

// What one request's part of a step was given and gave, dense. n tokens.
struct EntryResult {
  int64_t id = 0;
  int64_t start_pos = 0;
  int64_t num_tokens = 0;
  int64_t history_begin = 0;    // the raw rows of positions [history_begin, start_pos) before
  std::vector<Bf16> history;    // the step: what its windows may hold of the past
  std::vector<float> x;         // [n, 4, D]
  std::vector<float> cos;       // [n, 32]
  std::vector<float> sin;       // [n, 32]
  std::vector<Bf16> x_mixed;    // [n, D]
  std::vector<float> post;      // [n, 4]
  std::vector<float> comb;      // [n, 4, 4]
  std::vector<Bf16> xn;         // [n, D]
  std::vector<int8_t> qr;       // [n, q_rank]
  std::vector<float> qr_scale;  // [n]
  std::vector<Bf16> kv;         // [n, 512]

  // HCA and CSA: the state rows of positions [state_begin, start_pos) before the step, those of its
  // tokens, and the compressed rows it emitted.
  int64_t state_begin = 0;
  std::vector<float> state_history;  // [start_pos - state_begin, 2*L]
  std::vector<float> state;          // [n, 2*L]
  std::vector<int64_t> event_rows;   // [events]
  std::vector<float> event_cos;      // [events, 32]
  std::vector<float> event_sin;      // [events, 32]
  std::vector<Bf16> cmp_rows;        // [events, 512]

  // CSA.
  std::vector<float> inner_history;  // [start_pos - state_begin, 512]
  std::vector<float> inner_state;    // [n, 512]
  std::vector<int8_t> idx_rows;      // [events, 128]
  std::vector<float> idx_scales;     // [events]
  std::vector<int8_t> idx_q;         // [n, Hi, 128]
  std::vector<float> idx_q_scale;    // [n, Hi]
  std::vector<float> idx_weights;    // [n, Hi]
  std::vector<int32_t> topk_idx;     // [n, index_topk]
  std::vector<float> topk_score;     // [n, index_topk]

  std::vector<Bf16> q;         // [n, H, 512]
  std::vector<Bf16> heads;     // [n, H, 512]
  std::vector<Bf16> attn_out;  // [n, D]
  std::vector<float> x_out;    // [n, 4, D]
};

class DecodeWorld {
 public:
  // Ring spaces of `num_pages` pages; ragged ones have room for any test. Pages are filled with NaN
  // when a request first gets them, so that a row that should not be read shows. `page_shift` is
  // how many pages are taken out of the allocators first, so that requests lie elsewhere.
  DecodeWorld(const ModelConfig& config, AttentionKind kind, int32_t num_pages = 256,
              int32_t page_shift = 0, uint64_t seed = 7);

  // A request whose history is positions [0, start_pos); its data depends on `id` alone.
  void Add(int64_t id, int64_t start_pos);
  // Takes in a request made elsewhere, a fork; its tokens are those of request `data_id`.
  void Adopt(int64_t id, Request request, int64_t data_id);
  void Remove(int64_t id);
  int64_t position(int64_t id) const;

  // Plans, runs and commits one step. `edit_x` may change a token's input [4*D] and `edit_rope` its
  // rotation [32] before.
  using EditX = std::function<void(int64_t id, int64_t position, std::span<float> row)>;
  using EditRope =
      std::function<void(int64_t id, int64_t position, std::span<float> cos, std::span<float> sin)>;
  std::map<int64_t, EntryResult> Step(Context& context, const std::vector<StepEntry>& entries);

  // Runs `total` tokens of one request in steps of `width`, results joined.
  EntryResult Decode(Context& context, int64_t id, int64_t total, int64_t width);

  // The ring row of a position, whether valid or not, and the place of a compressed row.
  std::span<Bf16> RawRow(int64_t id, int64_t position);
  std::span<float> StateRow(int64_t id, int64_t position);
  std::span<Bf16> MainRow(int64_t id, int64_t row);
  std::span<float> InnerStateRow(int64_t id, int64_t position);
  std::span<int8_t> IndexRow(int64_t id, int64_t row);
  float& IndexScale(int64_t id, int64_t row);
  std::span<std::byte> raw_bytes() { return Bytes(PoolKind::kRaw); }
  std::span<std::byte> Bytes(PoolKind kind);  // a whole pool of the kind
  // Takes the pages that a step of `num_tokens` writes; Step does so itself.
  void Prepare(int64_t id, int64_t num_tokens);
  const Request& request(int64_t id) const { return requests_.at(id); }
  Request& request(int64_t id) { return requests_.at(id); }
  RequestPools request_pools();  // of the one layer; valid as long as the world
  KindSpaces spaces() const { return request_spaces_.views(kind_); }
  LayerPools pools() const;
  const Layer& layer() const { return layer_; }
  AttentionKind kind() const { return kind_; }
  const ModelConfig& config() const { return config_; }
  const fixtures::LayerFixture& fixture() const { return fixture_; }
  uint64_t seed() const { return fixture_.seed; }

  // CSA: given selections [n, index_topk] by request, in place of the indexer's.
  std::map<int64_t, std::vector<int32_t>> selections;

  EditX edit_x;
  EditRope edit_rope;

  // What workspace and overlay hold before a run.
  uint32_t buffer_pattern = kNanPattern;

  // Runs the plan's one layer in place of layer().Run, if set.
  using RunLayer =
      std::function<Status(Context& context, const Plan& plan, const LayerPools& pools,
                           const StepTensors& tensors, std::span<std::byte> workspace,
                           std::span<std::byte> overlay, const StepActivations& activations)>;
  RunLayer run_layer;

 private:
  PoolKind state_kind() const {
    return kind_ == AttentionKind::kCsa ? PoolKind::kCsaState : PoolKind::kHcaState;
  }
  PoolKind main_kind() const {
    return kind_ == AttentionKind::kCsa ? PoolKind::kCsaMain : PoolKind::kHcaMain;
  }
  void PoisonNewPages(int64_t id, size_t num_old_pages);  // of the ragged lists
  std::byte* RowAt(PoolKind kind, const PageListView& list, int64_t row) const;

  ModelConfig config_;
  AttentionKind kind_;
  fixtures::LayerFixture fixture_;
  Layer layer_;
  std::map<PoolKind, PageSpace> spaces_;
  std::map<PoolKind, LayerPool> pools_;
  RequestSpaces request_spaces_;
  std::map<int64_t, Request> requests_;
  std::map<int64_t, int64_t> data_ids_;  // of adopted requests
  LayerPools own_pools_;
};

// One parameter set per shape: weights are made once per process.
const fixtures::LayerFixture& SharedFixture(const ModelConfig& config, AttentionKind kind,
                                            uint64_t seed);

// For parameterised tests: the kind's name.
inline std::string KindTestName(const ::testing::TestParamInfo<AttentionKind>& info) {
  return std::string(KindName(info.param));
}

// True if both hold the same bits.
template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}
// Compares the outputs: rows of the caches, q, selections, heads, attn_out, x_out.
bool SameBits(const EntryResult& a, const EntryResult& b);

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_SUPPORT_DECODE_WORLD_H_
