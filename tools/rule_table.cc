#include "tools/rule_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>

namespace millipede::tools {

void RuleTable::Add(std::string_view tensor, std::string_view rule, int64_t num_values,
                    const reference::Verdict& verdict, const std::string& where) {
  RuleRow& row = RowOf(tensor, rule);
  row.num_judged += 1;
  row.num_values += num_values;
  row.num_out += verdict.num_out;
  row.worst = std::max(row.worst, verdict.worst);
  if (verdict.ok) return;
  row.num_violations += 1;
  if (row.violations.size() < kMaxViolations) row.violations.push_back({where, verdict.text});
}

void RuleTable::AddHolding(std::string_view tensor, std::string_view rule, int64_t num_judged,
                           int64_t num_values) {
  RuleRow& row = RowOf(tensor, rule);
  row.num_judged += num_judged;
  row.num_values += num_values;
}

void RuleTable::Merge(const RuleTable& other, std::string_view prefix) {
  for (const RuleRow& theirs : other.rows_) {
    RuleRow& row = RowOf(theirs.tensor, theirs.rule);
    row.num_judged += theirs.num_judged;
    row.num_values += theirs.num_values;
    row.num_out += theirs.num_out;
    row.worst = std::max(row.worst, theirs.worst);
    row.num_violations += theirs.num_violations;
    for (const Violation& violation : theirs.violations) {
      if (row.violations.size() >= kMaxViolations) break;
      row.violations.push_back({std::string(prefix) + violation.where, violation.text});
    }
  }
}

bool RuleTable::ok() const {
  return std::all_of(rows_.begin(), rows_.end(),
                     [](const RuleRow& row) { return row.num_violations == 0; });
}

int64_t RuleTable::num_values() const {
  int64_t sum = 0;
  for (const RuleRow& row : rows_) sum += row.num_values;
  return sum;
}

const RuleRow* RuleTable::Find(std::string_view tensor, std::string_view rule) const {
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const RuleRow& row) {
    return row.tensor == tensor && row.rule == rule;
  });
  return found == rows_.end() ? nullptr : &*found;
}

RuleRow& RuleTable::RowOf(std::string_view tensor, std::string_view rule) {
  if (const RuleRow* found = Find(tensor, rule))
    return rows_[static_cast<size_t>(found - rows_.data())];
  RuleRow& row = rows_.emplace_back();
  row.tensor = tensor;
  row.rule = rule;
  return row;
}

std::string RuleTable::Text(std::string_view indent) const {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{}{:<16} {:<36} {:>8} {:>11} {:>6} {:>9}  verdict\n", indent, "tensor",
                 "rule", "judged", "values", "out", "worst");
  for (const RuleRow& row : rows_) {
    const std::string verdict =
        row.num_violations == 0 ? "ok" : fmt::format("VIOLATED ({})", row.num_violations);
    fmt::format_to(out, "{}{:<16} {:<36} {:>8} {:>11} {:>6} {:>9.3g}  {}\n", indent, row.tensor,
                   row.rule, row.num_judged, row.num_values, row.num_out, row.worst, verdict);
    for (const Violation& violation : row.violations) {
      fmt::format_to(out, "{}  {}: {}\n", indent, violation.where, violation.text);
    }
    const auto unlisted = row.num_violations - static_cast<int64_t>(row.violations.size());
    if (unlisted > 0) fmt::format_to(out, "{}  and {} more\n", indent, unlisted);
  }
  return text;
}

nlohmann::json RuleTable::Json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const RuleRow& row : rows_) {
    nlohmann::json details = nlohmann::json::array();
    for (const Violation& violation : row.violations) {
      details.push_back({{"where", violation.where}, {"text", violation.text}});
    }
    list.push_back({{"tensor", row.tensor},
                    {"rule", row.rule},
                    {"judged", row.num_judged},
                    {"values", row.num_values},
                    {"out", row.num_out},
                    {"worst", row.worst},
                    {"ok", row.num_violations == 0},
                    {"violations", row.num_violations},
                    {"details", std::move(details)}});
  }
  return list;
}

RuleTable RuleTable::FromJson(const nlohmann::json& list) {
  RuleTable table;
  for (const nlohmann::json& item : list) {
    RuleRow& row = table.rows_.emplace_back();
    row.tensor = item.at("tensor");
    row.rule = item.at("rule");
    row.num_judged = item.at("judged");
    row.num_values = item.at("values");
    row.num_out = item.at("out");
    const nlohmann::json& worst = item.at("worst");
    row.worst = worst.is_null() ? std::numeric_limits<double>::infinity() : worst.get<double>();
    row.num_violations = item.at("violations");
    for (const nlohmann::json& detail : item.at("details")) {
      row.violations.push_back({detail.at("where"), detail.at("text")});
    }
  }
  return table;
}

}  // namespace millipede::tools
