// The library's own values for a file of layer vectors.
#ifndef MILLIPEDE_TOOLS_VECTOR_RUN_H_
#define MILLIPEDE_TOOLS_VECTOR_RUN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fixtures/safetensors.h"
#include "millipede/executor.h"
#include "millipede/status.h"
#include "reference/judge.h"
#include "tools/batch.h"
#include "tools/progress.h"
#include "tools/rule_table.h"
#include "tools/vector_case.h"
#include "tools/vector_weights.h"

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

  template <typename T>
  std::span<const T> RowOf(int64_t i) const {
    return {reinterpret_cast<const T*>(row(i)), static_cast<size_t>(row_elements)};
  }
};

// By name, without "r<k>.".
class OwnTensors {
 public:
  // Rows of zeros, in place of those of that name.
  OwnTensor& Make(std::string_view name, fixtures::DType dtype, int64_t row_elements,
                  int64_t num_rows);

  bool Has(std::string_view name) const { return tensors_.contains(name); }
  OwnTensor& at(std::string_view name) { return tensors_.find(name)->second; }
  const OwnTensor& at(std::string_view name) const { return tensors_.find(name)->second; }

 private:
  std::map<std::string, OwnTensor, std::less<>> tensors_;
};

struct RequestValues {
  // A row for every new token, or for every event; the helper's RoPE rows, rounded to bf16, too.
  OwnTensors end_to_end;
  OwnTensors stage;  // from stored inputs: a row for each of TensorRule::stage_rows
};

struct OwnValues {
  std::vector<RequestValues> requests;  // as VectorCase::requests
  RuleTable caches;                     // the caches of all steps
};

// Row `row` of a stored tensor to `out`, which has its size; the shape was compared before.
void CopyStoredRow(const fixtures::SafetensorsFile& file, const std::string& name, int64_t row,
                   std::span<std::byte> out);

// The RoPE rows of tokens and events as the file gives them, in place of the helper's.
void TakeStoredRope(const fixtures::SafetensorsFile& file, const VectorCase& vectors,
                    StepInputs& inputs);

// Decodes all steps of the case with plan, run and commit, and runs each stage alone on the inputs
// that are stored. The case's tensors are those of `file`. Errors are the library's.
Result<OwnValues> RunVectorCase(const VectorWeights& weights, const VectorCase& vectors,
                                const fixtures::SafetensorsFile& file, Context& context,
                                Progress& progress);

// The second half: fills RequestValues::stage.
Status RunStages(const VectorWeights& weights, const VectorCase& vectors,
                 const fixtures::SafetensorsFile& file, Context& context, OwnValues& own);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_VECTOR_RUN_H_
