// The second, checked packing step of CSA: which rows are attended to depends on data, so a
// selection becomes physical rows only once it is known, inside sizes the plan fixed.
#ifndef MILLIPEDE_LAYERS_PACK_SELECTION_H_
#define MILLIPEDE_LAYERS_PACK_SELECTION_H_

#include <cstdint>

#include "millipede/executor.h"
#include "millipede/plan.h"
#include "millipede/status.h"
#include "millipede/tensor.h"

namespace millipede {

// Rows a query selects: all it sees, `index_topk` at most.
int64_t NumSelected(const QueryToken& query, int64_t index_topk);

struct PackSelectionArgs {
  TensorView<const int32_t, 2> selection;  // [T, index_topk] compressed rows, then -1
  int32_t* selected_rows;                  // [T, index_topk], written: main pool rows
  std::byte* seen_rows;  // per thread, seen_stride_bytes apart: a bit per compressed row
  int64_t seen_stride_bytes;
  int64_t seen_bytes;
};

// kInvalidArgument unless each query selects NumSelected distinct rows that it sees, then -1.
Status PackSelection(Context& context, const Plan& plan, int64_t index_topk,
                     const PackSelectionArgs& args);

}  // namespace millipede

#endif  // MILLIPEDE_LAYERS_PACK_SELECTION_H_
