// One layer's weights in every form that a file's rules need.
#ifndef MILLIPEDE_TOOLS_VECTOR_WEIGHTS_H_
#define MILLIPEDE_TOOLS_VECTOR_WEIGHTS_H_

#include <cstdint>

#include "fixtures/formula.h"
#include "millipede/layer.h"
#include "millipede/stages.h"
#include "millipede/status.h"

namespace millipede::tools {

struct VectorWeights {
  // kShapeMismatch, kOutOfMemory.
  static Result<VectorWeights> Make(const ModelConfig& config, AttentionKind kind, uint64_t seed);

  fixtures::LayerFixture fixture;
  Layer layer;
  HcWeights hc;
  MatrixBf16 wq_a;
  MatrixBf16 wkv;
  MatrixInt8 wq_b;
  OutputWeights output;
  CompressorWeights compressor;  // HCA, CSA
  IndexerWeights indexer;        // CSA
};

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_VECTOR_WEIGHTS_H_
