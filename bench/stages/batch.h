// A step of some requests for benchmarks of whole stages and layers: page spaces, requests with
// their histories' pages, a plan, and pools of random rows.
#ifndef MILLIPEDE_BENCH_STAGES_BATCH_H_
#define MILLIPEDE_BENCH_STAGES_BATCH_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/mapped_memory.h"
#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/status.h"

namespace millipede::bench {

// The value, or the end of the program.
template <typename T>
T Get(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message.c_str());
    std::exit(1);
  }
  return std::move(*result);
}
void Check(const Status& status);

enum class PageOrder { kAscending, kShuffled };

class Batch {
 public:
  // Each request has `starts[r]` tokens of history and gets `num_tokens` more. Pages of a request
  // lie one after another, or anywhere in the space.
  Batch(AttentionKind kind, const std::vector<int64_t>& starts, int64_t num_tokens,
        PageOrder order = PageOrder::kShuffled);
  ~Batch();
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  Plan MakePlan() const;
  const ModelConfig& config() const { return config_; }
  AttentionKind kind() const { return kind_; }

  // Pools of random rows; made at the first call.
  const LayerPools& pools();

 private:
  struct Spaces;
  PoolView MakePool(PoolKind pool, int32_t num_pages);

  ModelConfig config_ = ModelConfig::Flash();
  AttentionKind kind_;
  int64_t num_tokens_;
  std::unique_ptr<Spaces> spaces_;
  std::vector<Request> requests_;
  std::vector<MappedMemory> memory_;
  LayerPools pools_;
};

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_STAGES_BATCH_H_
