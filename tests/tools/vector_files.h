// Files of layer vectors in memory: taken apart, spoilt, put together, and made by the golden.
#ifndef MILLIPEDE_TESTS_TOOLS_VECTOR_FILES_H_
#define MILLIPEDE_TESTS_TOOLS_VECTOR_FILES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "fixtures/formula.h"
#include "fixtures/safetensors.h"
#include "millipede/config.h"

namespace millipede::testing {

struct StoredTensor {
  fixtures::DType dtype = fixtures::DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

struct VectorFile {
  std::map<std::string, std::string> metadata;
  std::map<std::string, StoredTensor> tensors;

  static VectorFile Of(const fixtures::SafetensorsFile& file);
  std::vector<std::byte> Serialize() const;
  fixtures::SafetensorsFile Parse() const;  // aborts if it is malformed
  void Write(const std::string& path) const;
};

// Changes one value by far more than any rule allows: the first of the tensor or, if `last`, the
// last.
void Spoil(StoredTensor& tensor, bool last = false);

// A file of a layer with the golden's values. Probes are the first, the middle and the last new
// token.
VectorFile MakeLayerFile(const ModelConfig& config, AttentionKind kind, uint64_t seed,
                         const std::vector<int64_t>& start_pos,
                         const std::vector<int64_t>& tokens_per_step, int64_t steps);

// A file of selections with the golden's values.
VectorFile MakeIndexerFile(const ModelConfig& config, fixtures::IndexerValues values, uint64_t seed,
                           const std::vector<int64_t>& candidates);

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_TOOLS_VECTOR_FILES_H_
