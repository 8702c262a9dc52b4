// Packed output weights from a layer's plain ones.
#ifndef MILLIPEDE_TOOLS_OUTPUT_WEIGHTS_H_
#define MILLIPEDE_TOOLS_OUTPUT_WEIGHTS_H_

#include <cstdint>

#include "millipede/config.h"
#include "millipede/layer.h"
#include "millipede/stages.h"
#include "millipede/status.h"

namespace millipede::tools {

// Cuts wo_a [n, o_rank, H/G*512] and wo_b [D, n*o_rank] of n groups into groups and packs each.
// kShapeMismatch, kOutOfMemory.
Result<OutputWeights> PackOutputWeights(const ModelConfig& config, const LayerWeights& weights);

int64_t OutputWeightBytes(const OutputWeights& weights);  // values, padding left out

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_OUTPUT_WEIGHTS_H_
