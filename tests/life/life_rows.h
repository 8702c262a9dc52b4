// The spaces and rows of each kind as the random histories see them, and how a difference is said.
#ifndef MILLIPEDE_TESTS_LIFE_LIFE_ROWS_H_
#define MILLIPEDE_TESTS_LIFE_LIFE_ROWS_H_

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "life/plain_model.h"
#include "millipede/request.h"

namespace millipede::testing {

// Where the library's behaviour is not the model's.
struct Difference : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename T>
T Must(Result<T> result, const char* what) {
  if (!result) throw Difference(fmt::format("{}: {}", what, result.error().message));
  return std::move(result).value();
}
inline void Must(const Status& status, const char* what) {
  if (!status) throw Difference(fmt::format("{}: {}", what, status.error().message));
}
inline void Expect(bool holds, const std::string& what) {
  if (!holds) throw Difference(what);
}

// The members of one space.
struct SpaceSpec {
  PageSpace* RequestSpaces::*space;
  AttentionKind kind;  // that needs it; raw is everyone's
  PoolKind pool;
};
inline constexpr std::array<SpaceSpec, 7> kSpaces = {{
    {&RequestSpaces::raw, AttentionKind::kSwa, PoolKind::kRaw},
    {&RequestSpaces::hca_main, AttentionKind::kHca, PoolKind::kHcaMain},
    {&RequestSpaces::hca_state, AttentionKind::kHca, PoolKind::kHcaState},
    {&RequestSpaces::csa_main, AttentionKind::kCsa, PoolKind::kCsaMain},
    {&RequestSpaces::csa_index, AttentionKind::kCsa, PoolKind::kCsaIndexRows},
    {&RequestSpaces::csa_state, AttentionKind::kCsa, PoolKind::kCsaState},
    {&RequestSpaces::csa_inner_state, AttentionKind::kCsa, PoolKind::kCsaInnerState},
}};

// The rows of one of a kind's pools.
struct RowsSpec {
  const char* name;
  PoolKind pool;
  PageListView RequestPages::*list;
  PoolView LayerPools::*view;
  const void* (*plain)(const PlainRows& rows);

  PoolFormat format() const { return FormatOf(pool); }
  bool is_ring() const { return format().ring_pages > 0; }
};
template <auto kMember>
const void* DataOf(const PlainRows& rows) {
  return (rows.*kMember).data();
}
inline constexpr RowsSpec kRawRows = {"raw", PoolKind::kRaw, &RequestPages::raw, &LayerPools::raw,
                                      &DataOf<&PlainRows::raw>};
inline constexpr std::array kSwaRows = {kRawRows};
inline constexpr std::array kHcaRows = {
    kRawRows,
    RowsSpec{"main", PoolKind::kHcaMain, &RequestPages::main, &LayerPools::main,
             &DataOf<&PlainRows::main>},
    RowsSpec{"state", PoolKind::kHcaState, &RequestPages::state, &LayerPools::state,
             &DataOf<&PlainRows::state>},
};
inline constexpr std::array kCsaRows = {
    kRawRows,
    RowsSpec{"main", PoolKind::kCsaMain, &RequestPages::main, &LayerPools::main,
             &DataOf<&PlainRows::main>},
    RowsSpec{"index_rows", PoolKind::kCsaIndexRows, &RequestPages::index, &LayerPools::index_rows,
             &DataOf<&PlainRows::index_rows>},
    RowsSpec{"index_scales", PoolKind::kCsaIndexScales, &RequestPages::index,
             &LayerPools::index_scales, &DataOf<&PlainRows::index_scales>},
    RowsSpec{"state", PoolKind::kCsaState, &RequestPages::state, &LayerPools::state,
             &DataOf<&PlainRows::state>},
    RowsSpec{"inner_state", PoolKind::kCsaInnerState, &RequestPages::inner_state,
             &LayerPools::inner_state, &DataOf<&PlainRows::inner_state>},
};

inline std::span<const RowsSpec> RowsOf(AttentionKind kind) {
  if (kind == AttentionKind::kSwa) return kSwaRows;
  if (kind == AttentionKind::kHca) return kHcaRows;
  return kCsaRows;
}

inline std::byte* RowAt(const PoolView& pool, PoolKind kind, const PageListView& list,
                        int64_t index) {
  const PoolFormat format = FormatOf(kind);
  const int64_t slot = format.ring_pages > 0 ? index % format.ring_rows() : index;
  const int32_t page = list.pages[static_cast<size_t>(slot / format.rows_per_page)].page;
  return pool.base + page * pool.page_stride_bytes + slot % format.rows_per_page * format.row_bytes;
}

inline int64_t RingRows(AttentionKind kind) { return kind == AttentionKind::kCsa ? 8 : 128; }

// The first state row a step at `position` needs.
inline int64_t FirstState(AttentionKind kind, int64_t position) {
  const int64_t ratio = RatioOfKind(kind);
  if (ratio == 0) return 0;
  const int64_t block = position / ratio * ratio;
  return kind == AttentionKind::kCsa ? std::max<int64_t>(0, block - ratio) : block;
}

inline int64_t RowsAt(AttentionKind kind, int64_t position) {
  return kind == AttentionKind::kSwa ? 0 : position / RatioOfKind(kind);
}

template <typename T>
const Error* ErrorOf(const Result<T>& result) {
  return result ? nullptr : &result.error();
}

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_LIFE_LIFE_ROWS_H_
