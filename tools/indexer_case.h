// Files of indexer vectors: what they describe, the library's selections for them, and the rules.
#ifndef MILLIPEDE_TOOLS_INDEXER_CASE_H_
#define MILLIPEDE_TOOLS_INDEXER_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fixtures/formula.h"
#include "fixtures/safetensors.h"
#include "millipede/config.h"
#include "millipede/executor.h"
#include "millipede/status.h"
#include "tools/file_report.h"

namespace millipede::tools {

// One query per entry of `candidates`, which is how many it scores.
struct IndexerCase {
  ModelConfig config;
  fixtures::IndexerValues values = fixtures::IndexerValues::kPlain;
  uint64_t seed = 0;
  std::vector<int64_t> candidates;

  static std::string TensorName(size_t query, const char* tensor);  // "c<query>.<tensor>"
};

// Whether the file's metadata name one of these kinds.
bool IsIndexerFile(const fixtures::SafetensorsFile& file);

// kInvalidArgument if the metadata make no sense. `problems` gets a line for each tensor that is
// missing, unknown, or of another dtype or shape.
Result<IndexerCase> ReadIndexerCase(const fixtures::SafetensorsFile& file,
                                    const ModelConfig& config, std::vector<std::string>& problems);

// A selection of one query, and the best score left out.
struct IndexerSelection {
  std::vector<int32_t> idx;  // [index_topk]
  std::vector<float> score;  // [index_topk]
  float next = 0;
};

// Each query's selection, by Select on index pools filled by formula. Errors are the library's.
Result<std::vector<IndexerSelection>> RunIndexerCase(const IndexerCase& indexer, Context& context);

// Compares every tensor of the file. One that no rule looked at is a problem.
FileReport JudgeIndexerCase(const IndexerCase& indexer, const fixtures::SafetensorsFile& file,
                            const std::vector<IndexerSelection>& own);

// The library's selections as a file with the same tensors and metadata.
fixtures::SafetensorsWriter DumpIndexerCase(const IndexerCase& indexer,
                                            const fixtures::SafetensorsFile& file,
                                            const std::vector<IndexerSelection>& own);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_INDEXER_CASE_H_
