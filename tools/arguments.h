// The arguments that decode, plan and stack share: as given, and as checked.
#ifndef MILLIPEDE_TOOLS_ARGUMENTS_H_
#define MILLIPEDE_TOOLS_ARGUMENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millipede/config.h"
#include "millipede/status.h"
#include "reference/judge.h"

namespace millipede::tools {

// The words of the command line, unchecked.
struct StepWords {
  std::optional<std::string> attention;
  std::optional<std::string> preset;
  std::optional<std::string> seed;
  std::optional<std::string> start_pos;
  std::optional<std::string> batch;
  std::optional<std::string> seq;
  std::optional<std::string> threads;
  std::optional<std::string> max_context;
  std::optional<std::string> json;
  std::optional<std::string> trace;
  std::optional<std::string> weight_sets;
  std::optional<std::string> tp;
  bool check = false;
  bool output_only = false;
};

struct StepArguments {
  AttentionKind kind = AttentionKind::kSwa;
  std::string preset;
  ModelConfig config;  // its max_context_tokens is --max-context
  uint64_t seed = 0;
  int threads = 1;
  int64_t batch = 1;
  int64_t seq = 1;                 // new tokens of every request
  std::vector<int64_t> start_pos;  // [batch]; empty with output_only
  bool check = false;
  bool output_only = false;
  std::string json;         // a path, "-" for standard output, empty for none
  std::string trace;        // a path, empty for none
  int64_t weight_sets = 1;  // stack: different weights that the layers of a kind take by turns

  int32_t tp = 1;                 // decode: ranks that share the step
  std::vector<int64_t> requests;  // [batch] one rank's: their numbers in the whole batch; empty for
                                  // a whole batch, 0, 1, and so on

  int64_t num_tokens() const { return batch * seq; }
  int64_t request_id(size_t r) const {
    return requests.empty() ? static_cast<int64_t>(r) : requests[r];
  }
};

// The judging rules for the arguments' preset.
reference::RuleProfile ProfileOf(const StepArguments& arguments);

// kInvalidArgument with "field: value; allowed: what" for the first argument at fault.
Result<StepArguments> ParseStepArguments(const StepWords& words);

// A whole decimal number in [low, high]; the error names `field` and the value as it was written.
Result<int64_t> ParseInteger(const std::string& field, std::string_view word, int64_t low,
                             int64_t high);

// --threads, or all of the machine's if it is not given.
Result<int> ParseThreads(const std::optional<std::string>& word);

// --json, or an empty path if it is not given.
Result<std::string> ParseJsonPath(const std::optional<std::string>& word);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_ARGUMENTS_H_
