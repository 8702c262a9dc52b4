// Paged caches: page spaces (who owns a page), layer pools (one layer's bytes) and page lists (the
// pages of one request). The default owner of such lists is Request, request.h.
//
// A page space owns page ids, epochs and reference counts for all layers that share it. A layer
// pool holds one layer's bytes for a space. A request names its pages in lists of {page, epoch};
// the epoch tells a page from the same id acquired again later.
#ifndef MILLIPEDE_PAGES_H_
#define MILLIPEDE_PAGES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "millipede/config.h"
#include "millipede/status.h"

namespace millipede {

inline constexpr int32_t kPageRows = 32;  // rows of a raw, main or index page

// Row indices (page * rows per page + slot) are int32, so a space has at most this many pages.
inline constexpr int32_t kMaxPagesPerSpace = (int32_t{1} << 26) - 1;

// The byte formats of the layer pools. CSA index keys and their scales are two flat arrays that
// share one list.
enum class PoolKind : uint8_t {
  kRaw,
  kHcaMain,
  kHcaState,
  kCsaMain,
  kCsaIndexRows,
  kCsaIndexScales,
  kCsaState,
  kCsaInnerState,
};
inline constexpr int kNumPoolKinds = 8;

struct PoolFormat {
  int32_t row_bytes;
  int32_t rows_per_page;
  int32_t ring_pages;  // exact pages of a ring list; 0 for a ragged list

  constexpr int64_t page_bytes() const { return int64_t{row_bytes} * rows_per_page; }
  constexpr int32_t ring_rows() const { return ring_pages * rows_per_page; }
};

constexpr PoolFormat FormatOf(PoolKind kind) {
  switch (kind) {
    case PoolKind::kRaw:
      return {1024, kPageRows, 4};  // bf16[512], 128 positions
    case PoolKind::kHcaMain:
      return {1024, kPageRows, 0};  // bf16[512]
    case PoolKind::kHcaState:
      return {4096, 8, 16};  // f32[1024] kv|score, 128 positions
    case PoolKind::kCsaMain:
      return {1024, kPageRows, 0};  // bf16[512]
    case PoolKind::kCsaIndexRows:
      return {128, kPageRows, 0};  // int8[128]
    case PoolKind::kCsaIndexScales:
      return {4, kPageRows, 0};  // f32
    case PoolKind::kCsaState:
      return {8192, 2, 4};  // f32[2048] kv|score, 8 positions
    case PoolKind::kCsaInnerState:
      return {2048, 2, 4};  // f32[512] kv|score, 8 positions
  }
  return {0, 0, 0};
}

struct PageEntry {
  int32_t page = -1;  // -1: a hole
  uint64_t epoch = 0;
};

// A half-open range of positions (rings) or rows (ragged lists).
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Read-only bookkeeping of a page space, ours or an engine's own. The arrays outlive every plan
// made from them and do not change while plan, run or commit executes.
struct PageSpaceView {
  const uint64_t* epochs = nullptr;      // [num_pages] epoch of the page's present owner
  const int32_t* ref_counts = nullptr;   // [num_pages] 0: free
  const uint64_t* generation = nullptr;  // raised at every release, and when a page gets
                                         // another reference
  int32_t num_pages = 0;
};

// One request's pages of one space. A ring list has exactly the ring's pages, position p at ring
// row p mod ring_rows, and `valid` is the range of positions it holds. A ragged list covers logical
// pages from page 0, and rows [0, valid.end) are readable.
struct PageListView {
  std::span<const PageEntry> pages;
  RowRange valid;
};

// One layer's bytes for a space; borrowed. Page p starts at base + p * page_stride_bytes.
struct PoolView {
  std::byte* base = nullptr;
  int64_t page_stride_bytes = 0;
  int32_t num_pages = 0;
};

// The spaces one attention kind reads and writes. SWA uses raw; HCA raw, main and state; CSA all.
struct KindSpaces {
  PageSpaceView raw;
  PageSpaceView main;
  PageSpaceView index;
  PageSpaceView state;
  PageSpaceView inner_state;
};

// One request's lists for one attention kind, the same members as KindSpaces.
struct RequestPages {
  PageListView raw;
  PageListView main;
  PageListView index;
  PageListView state;
  PageListView inner_state;
};

// The ranges of RequestPages alone, as commit returns them.
struct RequestRanges {
  RowRange raw;
  RowRange main;
  RowRange index;
  RowRange state;
  RowRange inner_state;
};

// One layer's pools for one attention kind.
struct LayerPools {
  PoolView raw;
  PoolView main;
  PoolView index_rows;
  PoolView index_scales;
  PoolView state;
  PoolView inner_state;
};

// The default page allocator: owner of one space's bookkeeping. Memory is mapped lazily, so
// capacity costs address space only. Not thread-safe; calls do not overlap with plan, run or
// commit of plans made from its view. It outlives the requests, marks and plans that use it, and
// stays where it is while there are any. One that was moved from can only be assigned or destroyed.
class PageSpace {
 public:
  // kInvalidArgument unless 1 <= num_pages <= kMaxPagesPerSpace; kOutOfMemory if it cannot be
  // mapped.
  static Result<PageSpace> Create(int32_t num_pages);

  PageSpace(PageSpace&&) noexcept;
  PageSpace& operator=(PageSpace&&) noexcept;
  ~PageSpace();

  // Fills `out` with pages nobody owns, each with a new epoch and one reference. All or nothing:
  // kOutOfPages if fewer are free.
  Status Acquire(std::span<PageEntry> out);

  // Adds one reference to each page. All or nothing: kPageOutOfRange, kPageNotAcquired,
  // kStaleEpoch, kDuplicatePage.
  Status Share(std::span<const PageEntry> pages);

  // Drops one reference of each page; a page without references is free again. All or nothing:
  // kPageOutOfRange, kStaleEpoch, kDoubleFree (no owner, or twice in the list).
  Status Release(std::span<const PageEntry> pages);

  int32_t num_pages() const;
  int32_t num_free() const;
  uint64_t generation() const;
  int32_t ref_count(int32_t page) const;  // 0 for a free page or an id out of range
  PageSpaceView view() const;

 private:
  struct State;
  explicit PageSpace(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Owner of one layer's bytes for a space, lazily mapped and zero until written. One that was moved
// from can only be assigned or destroyed.
class LayerPool {
 public:
  // kInvalidArgument unless 1 <= num_pages <= kMaxPagesPerSpace; kOutOfMemory if it cannot be
  // mapped.
  static Result<LayerPool> Create(PoolKind kind, int32_t num_pages);

  LayerPool(LayerPool&&) noexcept;
  LayerPool& operator=(LayerPool&&) noexcept;
  ~LayerPool();

  PoolKind kind() const;
  PoolView view() const;

 private:
  struct State;
  explicit LayerPool(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace millipede

#endif  // MILLIPEDE_PAGES_H_
