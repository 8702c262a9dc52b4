// The requests of a batch with pages of their own, and one layer's pool with their histories.
#ifndef MILLIPEDE_TOOLS_BATCH_H_
#define MILLIPEDE_TOOLS_BATCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/rope.h"
#include "millipede/status.h"
#include "millipede/tensor.h"

namespace millipede::tools {

inline constexpr int32_t kRawRowBytes = FormatOf(PoolKind::kRaw).row_bytes;
inline constexpr int64_t kRawPageBytes = FormatOf(PoolKind::kRaw).page_bytes();
inline constexpr int32_t kRingPages = FormatOf(PoolKind::kRaw).ring_pages;
inline constexpr int32_t kRingRows = FormatOf(PoolKind::kRaw).ring_rows();

// Requests of the largest batch: each has a ring of its own, and two pages are nobody's.
inline constexpr int64_t kMaxBatchRequests = (kMaxPagesPerSpace - 2) / kRingPages;

// One raw page space, and requests that each hold a ring of it. The first and the last page belong
// to nobody of the batch.
class Batch {
 public:
  // One request per start position, at most kMaxBatchRequests. kInvalidArgument, kOutOfPages.
  static Result<Batch> Create(std::span<const int64_t> start_pos);

  Batch(Batch&&) = default;
  Batch& operator=(Batch&&) = delete;  // requests must go before the space they draw from

  int64_t size() const { return static_cast<int64_t>(requests_.size()); }
  const Request& request(int64_t r) const { return requests_[static_cast<size_t>(r)]; }
  KindSpaces spaces(AttentionKind kind) const { return request_spaces_->views(kind); }
  int32_t num_pages() const { return raw_->num_pages(); }

  // The step of `num_tokens[r]` new tokens from where each request stands; those with 0 are
  // inactive.
  std::vector<StepRequest> Step(AttentionKind kind, std::span<const int64_t> num_tokens) const;

  // A pool for the space, filled with NaN, with the last 128 rows of every request's history made
  // by formula. kOutOfMemory.
  Result<LayerPool> MakeRawPool(const ModelConfig& config, AttentionKind kind, uint64_t seed) const;

  // The pages of a request's ring in order.
  std::array<int32_t, kRingPages> RingPages(AttentionKind kind, int64_t r) const;

 private:
  Batch() = default;

  std::unique_ptr<PageSpace> raw_;
  std::unique_ptr<RequestSpaces> request_spaces_;
  std::vector<Request> requests_;
};

// What a step is given: its tokens in batch order, made by formula. T of them.
struct StepInputs {
  std::vector<int64_t> request;   // [T]
  std::vector<int64_t> position;  // [T]
  std::vector<float> x;           // [T,4,D]
  std::vector<float> rope_cos;    // [T,32]
  std::vector<float> rope_sin;    // [T,32]

  int64_t num_tokens() const { return static_cast<int64_t>(request.size()); }
  TensorView<const float, 3> XView(const ModelConfig& config) const;
  RopeRows rope() const;
};

// The inputs of step `step` of several, each of `num_tokens[r]` tokens of each request, that begin
// at start_pos. RoPE rows are the helper's. kInvalidArgument for a position past the ceiling.
Result<StepInputs> MakeStepInputs(const ModelConfig& config, AttentionKind kind, uint64_t seed,
                                  std::span<const int64_t> start_pos,
                                  std::span<const int64_t> num_tokens, int64_t step = 0);

// A copy of all bytes of a raw pool, pages one after another.
std::vector<std::byte> CopyPool(const PoolView& pool);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_BATCH_H_
