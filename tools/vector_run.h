// The library's own values for a file of layer vectors.
#ifndef MILLIPEDE_TOOLS_VECTOR_RUN_H_
#define MILLIPEDE_TOOLS_VECTOR_RUN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fixtures/formula.h"
#include "fixtures/safetensors.h"
#include "millipede/executor.h"
#include "millipede/layer.h"
#include "millipede/stages.h"
#include "millipede/status.h"
#include "reference/judge.h"
#include "tools/progress.h"
#include "tools/rule_table.h"
#include "tools/vector_case.h"

namespace millipede::tools {

// Rows of one tensor; owns them.
struct OwnTensor {
  fixtures::DType dtype = fixtures::DType::kF32;
  int64_t row_elements = 0;
  std::vector<std::byte> bytes;  // [rows, row_elements]

  int64_t row_bytes() const { return row_elements * fixtures::DTypeBytes(dtype); }
  std::byte* row(int64_t i) { return bytes.data() + i * row_bytes(); }
  const std::byte* row(int64_t i) const { return bytes.data() + i * row_bytes(); }
  reference::Values Row(int64_t i) const;
};
using OwnTensors = std::map<std::string, OwnTensor, std::less<>>;  // by name, without "r<k>."

struct RequestValues {
  OwnTensors end_to_end;  // a row for every new token; the helper's RoPE rows, rounded to bf16, too
  OwnTensors stage;       // from stored inputs: a row for each of TensorRule::stage_rows
};

struct OwnValues {
  std::vector<RequestValues> requests;  // as VectorCase::requests
  RuleTable rings;                      // the rings of all steps
};

// One layer's weights in every form that a file's rules need.
struct VectorWeights {
  static Result<VectorWeights> Make(const ModelConfig& config, AttentionKind kind, uint64_t seed);

  fixtures::LayerFixture fixture;
  Layer layer;
  HcWeights hc;
  MatrixBf16 wq_a;
  MatrixBf16 wkv;
  MatrixInt8 wq_b;
  OutputWeights output;
};

// Decodes all steps of the case with plan, run and commit, and runs each stage alone on the inputs
// that are stored. The case's tensors are those of `file`. Errors are the library's.
Result<OwnValues> RunVectorCase(const VectorWeights& weights, const VectorCase& vectors,
                                const fixtures::SafetensorsFile& file, Context& context,
                                Progress& progress);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_VECTOR_RUN_H_
