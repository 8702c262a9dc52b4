// A step dealt to the ranks of a job: who has which requests, and what they say together.
#ifndef MILLIPEDE_TOOLS_RANK_REPORT_H_
#define MILLIPEDE_TOOLS_RANK_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/arguments.h"
#include "tools/report.h"

namespace millipede::tools {

// The arguments of a rank's own requests: of request r, rank r mod --tp.
StepArguments DealTo(const StepArguments& whole, int32_t rank);

// What one rank reports of its own requests.
struct RankReport {
  DecodeReport report;
  int64_t bytes_sent = 0;                        // to other ranks
  std::vector<std::string> counter_differences;  // as of DecodeStep
};

// A report on its way to another rank. What is made from JSON borrows the names of its regions.
nlohmann::json ToJson(const RankReport& report);
RankReport RankReportFromJson(const nlohmann::json& json, const StepArguments& whole, int32_t rank);

// All ranks' reports, by rank.
class SharedReport {
 public:
  SharedReport(const StepArguments& whole, std::vector<RankReport> ranks);

  // Whether every check and counter holds.
  bool holds() const;
  std::vector<std::string> counter_differences() const;

  std::string Text() const;

  // As of DecodeReport: the requests of all ranks, of phases and regions those of the rank that
  // took longest, the largest of all ranks' bytes, and the checks together. Besides: tp, and ranks
  // [{rank, request_ids, tokens, weight_bytes, bytes_sent, workspace_bytes, overlay_bytes,
  // peak_memory_bytes, phases, regions}].
  nlohmann::json Json() const;

 private:
  std::vector<RankReport> ranks_;
  DecodeReport merged_;
};

// What all ranks say of one step of the work: each {"error": {code, message}} or anything else. The
// message to print, if any has an error: of the first that is not the consequence of another's,
// with its rank if not all say the same.
std::optional<std::string> FirstError(const std::vector<nlohmann::json>& ranks);

// The message to print if ranks were given different arguments, and what each compares.
nlohmann::json ComparedArguments(const StepArguments& arguments);
std::optional<std::string> ArgumentDifference(const std::vector<nlohmann::json>& ranks);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_RANK_REPORT_H_
