// The requests of a batch, with pages of their own in the spaces of the kinds they are for, and
// what a step is given.
#ifndef MILLIPEDE_TOOLS_BATCH_H_
#define MILLIPEDE_TOOLS_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/rope.h"
#include "millipede/status.h"
#include "millipede/tensor.h"

namespace millipede::tools {

// Tokens per compressed row; 0 for SWA, which has none.
int64_t RatioOf(AttentionKind kind);

// The pools of one layer of a kind. Those of index rows and index scales share one page space.
std::span<const PoolKind> PoolKindsOf(AttentionKind kind);

// The list of `pages` that a pool's rows lie in.
const PageListView& ListOf(const RequestPages& pages, PoolKind pool);

// Bytes of the pages that a request of `num_tokens` tokens needs in one layer of the kind.
int64_t CacheBytes(AttentionKind kind, int64_t num_tokens);

// The pool row (page * rows per page + slot) of a request's row `i`: a position of a ring list, a
// row of a ragged one.
int64_t PoolRowOf(PoolKind pool, std::span<const int32_t> pages, int64_t i);

// Page spaces, and requests that draw from them. The first page and the last page of each space
// belong to nobody of the batch, and index pages have other ids than main pages of the same rows.
class Batch {
 public:
  // One request per start position, with pages for `num_tokens[r]` more tokens of each kind.
  // `ids` are the requests' numbers, which their data is made by; empty for 0, 1, and so on.
  // kInvalidArgument, kOutOfPages, kOutOfMemory.
  static Result<Batch> Create(std::span<const AttentionKind> kinds,
                              std::span<const int64_t> start_pos,
                              std::span<const int64_t> num_tokens,
                              std::span<const int64_t> ids = {});

  Batch(Batch&&) = default;
  Batch& operator=(Batch&&) = delete;  // requests must go before the spaces they draw from

  int64_t size() const { return static_cast<int64_t>(requests_.size()); }
  int64_t id(int64_t r) const { return ids_[static_cast<size_t>(r)]; }
  const Request& request(int64_t r) const { return requests_[static_cast<size_t>(r)]; }
  KindSpaces spaces(AttentionKind kind) const { return request_spaces_.views(kind); }
  int32_t num_pages(PoolKind pool) const;

  // The step of `num_tokens[r]` new tokens from where each request stands; those with 0 are
  // inactive.
  std::vector<StepRequest> Step(AttentionKind kind, std::span<const int64_t> num_tokens) const;

  // The pages of a request's list in order.
  std::vector<int32_t> Pages(AttentionKind kind, PoolKind pool, int64_t r) const;

  // Bytes of the pages that a request holds in one layer of the kind.
  int64_t BytesHeld(AttentionKind kind, int64_t r) const;

 private:
  Batch() = default;
  Status CreateSpace(PoolKind pool, PageSpace* RequestSpaces::*member, int64_t num_pages,
                     int64_t num_skipped);

  std::map<PoolKind, PageSpace> spaces_;
  RequestSpaces request_spaces_;
  std::vector<int64_t> ids_;  // [requests]
  std::vector<Request> requests_;
};

// A token of a step that finishes a block, and the compressed row it emits.
struct StepEvent {
  int64_t request = 0;
  int64_t query = 0;  // the token, counted over the batch
  int64_t row = 0;    // position of the token's block over the ratio
};

// What a step is given: its tokens in batch order, made by formula. T of them, and E events.
struct StepInputs {
  std::vector<int64_t> ids;       // [requests] their numbers, which their data is made by
  std::vector<int64_t> request;   // [T] index in ids
  std::vector<int64_t> position;  // [T]
  std::vector<float> x;           // [T,4,D]
  std::vector<float> rope_cos;    // [T,32]
  std::vector<float> rope_sin;    // [T,32]

  std::vector<StepEvent> events;      // [E] in token order
  std::vector<float> event_rope_cos;  // [E,32] at the first position of each event's block
  std::vector<float> event_rope_sin;  // [E,32]

  int64_t num_tokens() const { return static_cast<int64_t>(request.size()); }
  int64_t num_events() const { return static_cast<int64_t>(events.size()); }
  TensorView<const float, 3> XView(const ModelConfig& config) const;
  RopeRows rope() const;
  RopeRows event_rope() const;
};

// The inputs of step `step` of several, each of `num_tokens[r]` tokens of each request, that begin
// at start_pos; `ids` as of Batch. RoPE rows are the helper's. kInvalidArgument for a position past
// the ceiling.
Result<StepInputs> MakeStepInputs(const ModelConfig& config, AttentionKind kind, uint64_t seed,
                                  std::span<const int64_t> start_pos,
                                  std::span<const int64_t> num_tokens, int64_t step = 0,
                                  std::span<const int64_t> ids = {});

// The events and RoPE rows of `inputs` for a kind, in place of those it has; x stays.
Status SetRope(AttentionKind kind, StepInputs& inputs);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_BATCH_H_
