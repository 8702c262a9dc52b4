// Verdicts gathered per tensor and rule, and how they are shown.
#ifndef MILLIPEDE_TOOLS_RULE_TABLE_H_
#define MILLIPEDE_TOOLS_RULE_TABLE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "reference/judge.h"

namespace millipede::tools {

struct Violation {
  std::string where;  // for example "r0.kv token 3"
  std::string text;   // index, actual, expected, what is allowed
};

// All judgements of one tensor by one rule.
struct RuleRow {
  std::string tensor;
  std::string rule;
  int64_t num_judged = 0;  // verdicts: tokens, rows, or whole files
  int64_t num_values = 0;
  int64_t num_out = 0;  // values outside their bound, of which some rules admit a few
  double worst = 0;     // the largest error as a multiple of the bound
  int64_t num_violations = 0;
  std::vector<Violation> violations;  // the first kMaxViolations of them
};

class RuleTable {
 public:
  static constexpr size_t kMaxViolations = 16;  // kept per row; all are counted

  // `num_values` is how many values the verdict is about, `where` names the token or row.
  void Add(std::string_view tensor, std::string_view rule, int64_t num_values,
           const reference::Verdict& verdict, const std::string& where);

  // `num_judged` verdicts that all hold with nothing out, about `num_values` values in all.
  void AddHolding(std::string_view tensor, std::string_view rule, int64_t num_judged,
                  int64_t num_values);

  // Adds the other's judgements after these; `prefix` is put before where its violations are.
  void Merge(const RuleTable& other, std::string_view prefix = "");

  const std::vector<RuleRow>& rows() const { return rows_; }
  bool ok() const;
  int64_t num_values() const;
  const RuleRow* Find(std::string_view tensor, std::string_view rule) const;

  // An aligned table, a line per row, each violated row followed by its violations; every line
  // begins with `indent`.
  std::string Text(std::string_view indent = "") const;

  // A list of {tensor, rule, judged, values, out, worst, ok, violations, details: [{where, text}]};
  // worst is null where it is infinite.
  nlohmann::json Json() const;

  // What Json made.
  static RuleTable FromJson(const nlohmann::json& list);

 private:
  RuleRow& RowOf(std::string_view tensor, std::string_view rule);

  std::vector<RuleRow> rows_;  // in order of first use
};

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_RULE_TABLE_H_
