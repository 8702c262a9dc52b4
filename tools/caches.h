// One layer's pools with the histories of a batch, and records of what a step does to them.
#ifndef MILLIPEDE_TOOLS_CACHES_H_
#define MILLIPEDE_TOOLS_CACHES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "millipede/config.h"
#include "millipede/pages.h"
#include "millipede/status.h"
#include "tools/batch.h"

namespace millipede::tools {

// The pools of one layer of a kind, or some of them.
class LayerCaches {
 public:
  // All of the kind's, filled with NaN, with the history of every request made by formula: the last
  // 128 raw rows, compressed rows and index keys of finished blocks, state rows that the list
  // holds. kOutOfMemory.
  static Result<LayerCaches> Create(const ModelConfig& config, const Batch& batch,
                                    AttentionKind kind, uint64_t seed, int num_threads = 0);

  // Pools of NaN alone.
  static Result<LayerCaches> CreateEmpty(const Batch& batch, std::span<const PoolKind> pools,
                                         int num_threads = 0);

  LayerPools views() const;
  PoolView view(PoolKind pool) const { return pools_.at(pool).view(); }

  // The bytes of a pool row, as PoolRowOf numbers them.
  std::span<std::byte> Row(PoolKind pool, int64_t row) const;

 private:
  void FillHistory(const ModelConfig& config, const Batch& batch, AttentionKind kind, uint64_t seed,
                   int num_threads);

  std::map<PoolKind, LayerPool> pools_;
};

// The bytes of a row as values.
template <typename T>
std::span<T> RowAs(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

// A copy of all bytes of a pool, pages one after another.
std::vector<std::byte> CopyPool(PoolKind kind, const PoolView& pool);

// One pool around one step.
struct PoolRecord {
  PoolKind kind = PoolKind::kRaw;
  std::vector<std::vector<int32_t>> pages;  // [requests] of each list, in order
  std::vector<std::byte> before;            // CopyPool before run
  std::vector<std::byte> after_run;
  std::vector<std::byte> after_commit;
};

// A request's place after commit: its position, and where each of its lists ends, in the order of
// PoolKindsOf.
struct CacheEnds {
  int64_t position = 0;
  std::vector<int64_t> list_ends;
};

// The caches of one layer around one step.
struct CacheRecord {
  AttentionKind kind = AttentionKind::kSwa;
  std::vector<PoolRecord> pools;    // in the order of PoolKindsOf
  std::vector<int64_t> start_pos;   // [requests] positions before the step
  std::vector<int64_t> num_tokens;  // [requests] new tokens, all accepted
  std::vector<CacheEnds> ends;      // [requests] after commit
  bool is_last_commit = true;       // of the plan's layers: it moves positions and ends

  PoolRecord& pool(PoolKind pool_kind);
  const PoolRecord& pool(PoolKind pool_kind) const;
};

// Where `batch` stands and what the pools hold before a step. The other two are to be called after
// run and after commit.
CacheRecord RecordBefore(const Batch& batch, AttentionKind kind, const LayerCaches& caches,
                         std::span<const int64_t> num_tokens);
void RecordAfterRun(const LayerCaches& caches, CacheRecord& record);
void RecordAfterCommit(const Batch& batch, const LayerCaches& caches, CacheRecord& record);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_CACHES_H_
