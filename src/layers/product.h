// A whole product of activations with one packed bf16 matrix, in parallel.
#ifndef MILLIPEDE_LAYERS_PRODUCT_H_
#define MILLIPEDE_LAYERS_PRODUCT_H_

#include <cstdint>

#include "kernels/matmul_bf16.h"
#include "layers/checks.h"
#include "layers/split.h"
#include "millipede/stages.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {

// kShapeMismatch unless a packed matrix is [required_outputs, required_inputs].
inline Status CheckMatrix(const char* name, int64_t num_outputs, int64_t num_inputs,
                          int64_t required_outputs, int64_t required_inputs) {
  if (num_outputs != required_outputs || num_inputs != required_inputs) {
    return MakeError(ErrorCode::kShapeMismatch, name, "shape [{}, {}]; allowed: [{}, {}]",
                     num_outputs, num_inputs, required_outputs, required_inputs);
  }
  return {};
}

// product [T, num_outputs] = x * matrix, float32, dense.
inline void MultiplyAll(Context& context, const char* region, const MatrixBf16& matrix,
                        const TensorView<const Bf16, 2>& x, const ProductScratch& layout,
                        Scratch scratch) {
  const int64_t num_outputs = matrix.num_outputs();
  auto* product = PartOf<float>(scratch, layout.product);
  const ProductSplit split(x.shape[0], num_outputs, context.num_threads());
  ParallelFor(context, region, split.num_items(), [&](int64_t item, int thread) {
    const RowRange rows = split.rows(item);
    const RowRange panels = split.panels(item);
    DescribeItem(context.impl().trace, thread,
                 ProductTrace(rows, panels, matrix.num_inputs(), sizeof(Bf16)));
    MatmulBf16({.x = x.row(rows.begin),
                .x_stride = x.stride0,
                .num_rows = rows.end - rows.begin,
                .num_inputs = matrix.num_inputs(),
                .weights = matrix.data(),
                .num_outputs = num_outputs,
                .panel_begin = panels.begin,
                .panel_end = panels.end,
                .out = product + rows.begin * num_outputs + panels.begin * kPanelOutputs,
                .out_stride = num_outputs,
                .scratch = PartOf<std::byte>(
                    scratch, layout.per_thread + thread * layout.per_thread_bytes)});
  });
}

}  // namespace millipede

#endif  // MILLIPEDE_LAYERS_PRODUCT_H_
