// Where a row lies in a layer's pool.
#ifndef MILLIPEDE_LAYERS_POOL_ROWS_H_
#define MILLIPEDE_LAYERS_POOL_ROWS_H_

#include <cstdint>

#include "millipede/pages.h"

namespace millipede {

// Row `row` (page * rows per page + slot) of a checked pool, as its elements.
template <typename T>
T* PoolRow(const PoolView& pool, PoolKind kind, int64_t row) {
  const PoolFormat format = FormatOf(kind);
  std::byte* const page = pool.base + row / format.rows_per_page * pool.page_stride_bytes;
  return reinterpret_cast<T*>(page + row % format.rows_per_page * format.row_bytes);
}

}  // namespace millipede

#endif  // MILLIPEDE_LAYERS_POOL_ROWS_H_
