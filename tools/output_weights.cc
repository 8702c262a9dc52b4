#include "tools/output_weights.h"

#include <utility>

#include "tools/errors.h"

namespace millipede::tools {

Result<OutputWeights> PackOutputWeights(const ModelConfig& config, const LayerWeights& weights) {
  const int64_t rank = config.o_rank;
  const int64_t group_lanes = int64_t{config.heads_per_group()} * kHeadDim;
  OutputWeights packed;
  for (int64_t g = 0; g < weights.wo_a.shape[0]; ++g) {
    auto wo_a = MatrixBf16::Pack(MakeView(weights.wo_a.row(g), rank, group_lanes));
    if (!wo_a) return ErrorOf(wo_a);
    packed.wo_a.push_back(*std::move(wo_a));
    TensorView<const int8_t, 2> columns =
        MakeView(weights.wo_b.data + g * rank, config.hidden, rank);
    columns.stride0 = weights.wo_b.stride0;
    auto wo_b = MatrixInt8::Pack(columns, weights.wo_b_scale);
    if (!wo_b) return ErrorOf(wo_b);
    packed.wo_b.push_back(*std::move(wo_b));
  }
  return packed;
}

int64_t OutputWeightBytes(const OutputWeights& weights) {
  int64_t bytes = 0;
  for (const MatrixBf16& matrix : weights.wo_a) {
    bytes += matrix.num_outputs() * matrix.num_inputs() * int64_t{sizeof(Bf16)};
  }
  for (const MatrixInt8& matrix : weights.wo_b) bytes += matrix.num_outputs() * matrix.num_inputs();
  return bytes;
}

}  // namespace millipede::tools
