// What verify says about one file, and the file of the library's own values.
#ifndef MILLIPEDE_TOOLS_FILE_REPORT_H_
#define MILLIPEDE_TOOLS_FILE_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "fixtures/safetensors.h"
#include "tools/rule_table.h"

namespace millipede::tools {

struct FileReport {
  std::string path;
  std::string kind;                   // of the file's metadata, empty if it has none
  std::vector<std::string> problems;  // what keeps the file from being judged, or is wrong with it
  RuleTable rules;

  bool ok() const { return problems.empty() && rules.ok() && rules.num_values() > 0; }

  // A problem for each tensor of the file that is not in `judged`.
  void AddUnchecked(const fixtures::SafetensorsFile& file, const std::set<std::string>& judged);

  // A line, then the rules and the problems.
  std::string Text() const;

  // {path, kind, ok, values, problems, rules: see RuleTable::Json}.
  nlohmann::json Json() const;
};

// Adds a tensor of any type.
void AddTensor(fixtures::SafetensorsWriter& writer, const std::string& name, fixtures::DType dtype,
               const std::vector<int64_t>& shape, std::span<const std::byte> bytes);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_FILE_REPORT_H_
