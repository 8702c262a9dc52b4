#include "tools/caches.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "fixtures/formula.h"
#include "reference/parallel.h"
#include "tools/errors.h"

namespace millipede::tools {
namespace {

constexpr int kNanByte = 0xFF;  // in every byte: a NaN as bf16 and as float32

// Rows and pages that one thread makes at a time.
constexpr int64_t kChunkRows = 4096;
constexpr int64_t kChunkPages = 256;

// Calls body(begin, end) for pieces of [0, n) of at most `chunk`, on many threads.
template <typename Body>
void ParallelPieces(int64_t n, int64_t chunk, int num_threads, const Body& body) {
  reference::ParallelFor((n + chunk - 1) / chunk,
                         [&](int64_t i) { body(i * chunk, std::min(n, (i + 1) * chunk)); },
                         num_threads);
}

// Row `i` of a request's history by formula, to the bytes of its pool row.
void MakeRow(const fixtures::RequestFixture& fixture, PoolKind pool, int64_t i,
             std::span<std::byte> row) {
  switch (pool) {
    case PoolKind::kRaw:
      return fixture.KvRow(i, RowAs<Bf16>(row));
    case PoolKind::kHcaMain:
    case PoolKind::kCsaMain:
      return fixture.CmpRow(i, RowAs<Bf16>(row));
    case PoolKind::kHcaState:
    case PoolKind::kCsaState:
      return fixture.StateRow(i, RowAs<float>(row));
    case PoolKind::kCsaIndexRows:
      return fixture.IdxRow(i, RowAs<int8_t>(row));
    case PoolKind::kCsaIndexScales:
      RowAs<float>(row)[0] = fixture.IdxScale(i);
      return;
    case PoolKind::kCsaInnerState:
      return fixture.InnerStateRow(i, RowAs<float>(row));
  }
}

}  // namespace

Result<LayerCaches> LayerCaches::CreateEmpty(const Batch& batch, std::span<const PoolKind> pools,
                                             int num_threads) {
  LayerCaches caches;
  for (const PoolKind kind : pools) {
    auto pool = LayerPool::Create(kind, batch.num_pages(kind));
    if (!pool) return ErrorOf(pool);
    const PoolView view = pool->view();
    const auto page_bytes = static_cast<size_t>(FormatOf(kind).page_bytes());
    ParallelPieces(view.num_pages, kChunkPages, num_threads, [&](int64_t begin, int64_t end) {
      for (int64_t page = begin; page < end; ++page) {
        std::memset(view.base + page * view.page_stride_bytes, kNanByte, page_bytes);
      }
    });
    caches.pools_.emplace(kind, *std::move(pool));
  }
  return caches;
}

Result<LayerCaches> LayerCaches::Create(const ModelConfig& config, const Batch& batch,
                                        AttentionKind kind, uint64_t seed, int num_threads) {
  auto caches = CreateEmpty(batch, PoolKindsOf(kind), num_threads);
  if (!caches) return caches;
  caches->FillHistory(config, batch, kind, seed, num_threads);
  return caches;
}

void LayerCaches::FillHistory(const ModelConfig& config, const Batch& batch, AttentionKind kind,
                              uint64_t seed, int num_threads) {
  for (int64_t r = 0; r < batch.size(); ++r) {
    const fixtures::RequestFixture fixture(config, seed, batch.id(r));
    const RequestPages lists = batch.request(r).pages(kind);
    for (const PoolKind pool : PoolKindsOf(kind)) {
      const std::vector<int32_t> pages = batch.Pages(kind, pool, r);
      const RowRange valid = ListOf(lists, pool).valid;
      ParallelPieces(valid.end - valid.begin, kChunkRows, num_threads,
                     [&](int64_t begin, int64_t end) {
                       for (int64_t i = valid.begin + begin; i < valid.begin + end; ++i) {
                         MakeRow(fixture, pool, i, Row(pool, PoolRowOf(pool, pages, i)));
                       }
                     });
    }
  }
}

LayerPools LayerCaches::views() const {
  const auto view_of = [this](PoolKind pool) {
    const auto found = pools_.find(pool);
    return found == pools_.end() ? PoolView{} : found->second.view();
  };
  const bool hca = pools_.contains(PoolKind::kHcaMain);
  LayerPools pools;
  pools.raw = view_of(PoolKind::kRaw);
  pools.main = view_of(hca ? PoolKind::kHcaMain : PoolKind::kCsaMain);
  pools.state = view_of(hca ? PoolKind::kHcaState : PoolKind::kCsaState);
  pools.index_rows = view_of(PoolKind::kCsaIndexRows);
  pools.index_scales = view_of(PoolKind::kCsaIndexScales);
  pools.inner_state = view_of(PoolKind::kCsaInnerState);
  return pools;
}

std::span<std::byte> LayerCaches::Row(PoolKind pool, int64_t row) const {
  const PoolFormat format = FormatOf(pool);
  const PoolView view = pools_.at(pool).view();
  std::byte* page = view.base + row / format.rows_per_page * view.page_stride_bytes;
  return {page + row % format.rows_per_page * format.row_bytes,
          static_cast<size_t>(format.row_bytes)};
}

std::vector<std::byte> CopyPool(PoolKind kind, const PoolView& pool) {
  const int64_t page_bytes = FormatOf(kind).page_bytes();
  std::vector<std::byte> bytes(static_cast<size_t>(pool.num_pages * page_bytes));
  for (int64_t page = 0; page < pool.num_pages; ++page) {
    std::memcpy(bytes.data() + page * page_bytes, pool.base + page * pool.page_stride_bytes,
                static_cast<size_t>(page_bytes));
  }
  return bytes;
}

PoolRecord& CacheRecord::pool(PoolKind pool_kind) {
  return const_cast<PoolRecord&>(std::as_const(*this).pool(pool_kind));
}

const PoolRecord& CacheRecord::pool(PoolKind pool_kind) const {
  return *std::find_if(pools.begin(), pools.end(),
                       [&](const PoolRecord& record) { return record.kind == pool_kind; });
}

CacheRecord RecordBefore(const Batch& batch, AttentionKind kind, const LayerCaches& caches,
                         std::span<const int64_t> num_tokens) {
  CacheRecord record;
  record.kind = kind;
  record.num_tokens.assign(num_tokens.begin(), num_tokens.end());
  for (int64_t r = 0; r < batch.size(); ++r) {
    record.start_pos.push_back(batch.request(r).position(kind));
  }
  for (const PoolKind pool : PoolKindsOf(kind)) {
    PoolRecord& pool_record = record.pools.emplace_back();
    pool_record.kind = pool;
    for (int64_t r = 0; r < batch.size(); ++r) {
      pool_record.pages.push_back(batch.Pages(kind, pool, r));
    }
    pool_record.before = CopyPool(pool, caches.view(pool));
  }
  return record;
}

void RecordAfterRun(const LayerCaches& caches, CacheRecord& record) {
  for (PoolRecord& pool : record.pools)
    pool.after_run = CopyPool(pool.kind, caches.view(pool.kind));
}

void RecordAfterCommit(const Batch& batch, const LayerCaches& caches, CacheRecord& record) {
  for (PoolRecord& pool : record.pools) {
    pool.after_commit = CopyPool(pool.kind, caches.view(pool.kind));
  }
  for (int64_t r = 0; r < batch.size(); ++r) {
    CacheEnds& ends = record.ends.emplace_back();
    ends.position = batch.request(r).position(record.kind);
    const RequestPages lists = batch.request(r).pages(record.kind);
    for (const PoolRecord& pool : record.pools) {
      ends.list_ends.push_back(ListOf(lists, pool.kind).valid.end);
    }
  }
}

}  // namespace millipede::tools
