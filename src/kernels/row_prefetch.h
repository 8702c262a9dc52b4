// Bringing KV rows near while something else is computed.
#ifndef MILLIPEDE_KERNELS_ROW_PREFETCH_H_
#define MILLIPEDE_KERNELS_ROW_PREFETCH_H_

#include <hwy/cache_control.h>

#include <cstdint>

#include "kernels/attend_layout.h"

namespace millipede {

inline void PrefetchRow(const Bf16* row) {
  constexpr int64_t kLineElements = 32;
  for (int64_t i = 0; i < kHeadDim; i += kLineElements) hwy::Prefetch(row + i);
}

// Asks memory for rows in even shares over a number of steps: asked for all at once, they would
// wait for one another, and the products for them.
class RowPrefetch {
 public:
  RowPrefetch(AttendRowList rows, int64_t num_steps) : rows_(rows), num_steps_(num_steps) {}

  void Step() {
    ++step_;
    for (; row_ * num_steps_ < rows_.num_rows * step_; ++row_) PrefetchRow(rows_.rows[row_]);
  }

 private:
  AttendRowList rows_;
  int64_t num_steps_;
  int64_t step_ = 0;
  int64_t row_ = 0;
};

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_ROW_PREFETCH_H_
