// Judging the library's values by a file of layer vectors, and writing them as such a file.
#ifndef MILLIPEDE_TOOLS_VECTOR_JUDGE_H_
#define MILLIPEDE_TOOLS_VECTOR_JUDGE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fixtures/safetensors.h"
#include "millipede/status.h"
#include "tools/rule_table.h"
#include "tools/vector_case.h"
#include "tools/vector_run.h"

namespace millipede::tools {

struct FileReport {
  std::string path;
  std::string kind;                   // of the file's metadata, empty if it has none
  std::vector<std::string> problems;  // what keeps the file from being judged, or is wrong with it
  RuleTable rules;

  bool ok() const { return problems.empty() && rules.ok() && rules.num_values() > 0; }

  // A line, then the rules and the problems.
  std::string Text() const;

  // {path, kind, ok, values, problems, rules: see RuleTable::Json}.
  nlohmann::json Json() const;
};

// Compares every tensor of the file. One that no rule looked at is a problem.
FileReport JudgeVectorCase(const VectorCase& vectors, const fixtures::SafetensorsFile& file,
                           const OwnValues& own);

// The library's end-to-end values as a file with the same tensors and metadata.
fixtures::SafetensorsWriter DumpVectorCase(const VectorCase& vectors,
                                           const fixtures::SafetensorsFile& file,
                                           const OwnValues& own);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_VECTOR_JUDGE_H_
