#include "tools/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <thread>

#include "millipede/pages.h"
#include "tools/errors.h"

namespace millipede::tools {
namespace {

constexpr uint64_t kDefaultSeed = 1;
constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

// Every request has rings of its own, and two pages of a space are nobody's.
constexpr int64_t kMaxBatch = (kMaxPagesPerSpace - 2) / FormatOf(PoolKind::kHcaState).ring_pages;

template <typename T>
Result<T> ParseNumber(const std::string& field, std::string_view word, T low, T high) {
  T value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || value < low || value > high) {
    return BadValue(field, word.empty() ? "nothing" : std::string(word),
                    fmt::format("a whole number, {} to {}", low, high));
  }
  return value;
}

Result<AttentionKind> ParseAttention(const std::string& word) {
  for (const AttentionKind kind : {AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa}) {
    if (word == KindName(kind)) return kind;
  }
  return BadValue("--attention", word, "swa, hca or csa");
}

Result<std::vector<int64_t>> ParseStartPositions(std::string_view words, int64_t ceiling) {
  std::vector<int64_t> positions;
  const bool is_list = words.find(',') != std::string_view::npos;
  size_t begin = 0;
  while (begin <= words.size()) {
    const size_t end = std::min(words.find(',', begin), words.size());
    const std::string field =
        is_list ? fmt::format("--start-pos[{}]", positions.size()) : "--start-pos";
    auto position = ParseInteger(field, words.substr(begin, end - begin), 0, ceiling - 1);
    if (!position) return ErrorOf(position);
    positions.push_back(*position);
    begin = end + 1;
  }
  return positions;
}

// The batch's positions: a list is the batch, one number stands for every request.
Status SetBatch(const StepWords& words, StepArguments& arguments) {
  if (words.batch) {
    auto batch = ParseInteger("--batch", *words.batch, 1, kMaxBatch);
    if (!batch) return ErrorOf(batch);
    arguments.batch = *batch;
  }
  if (arguments.output_only) {
    if (words.start_pos) {
      return BadValue("--start-pos", *words.start_pos,
                      "nothing with --output-only, whose work has no position");
    }
    return {};
  }
  if (!words.start_pos) {
    return BadValue("--start-pos", "missing", "one position or a comma list of them");
  }
  auto positions = ParseStartPositions(*words.start_pos, arguments.config.max_context_tokens);
  if (!positions) return ErrorOf(positions);
  const auto listed = static_cast<int64_t>(positions->size());
  if (!words.batch) {
    arguments.batch = listed;
  } else if (listed == 1) {
    positions->resize(static_cast<size_t>(arguments.batch), positions->front());
  } else if (listed != arguments.batch) {
    return BadValue("--batch", *words.batch,
                    fmt::format("{}, the positions in --start-pos", listed));
  }
  arguments.start_pos = *std::move(positions);
  return {};
}

Status CheckCeiling(const StepArguments& arguments) {
  const int64_t ceiling = arguments.config.max_context_tokens;
  for (size_t r = 0; r < arguments.start_pos.size(); ++r) {
    const int64_t end = arguments.start_pos[r] + arguments.seq;
    if (end > ceiling) {
      return BadValue(fmt::format("--seq of request {}", r),
                      fmt::format("{} tokens from position {} end at {}", arguments.seq,
                                  arguments.start_pos[r], end),
                      fmt::format("an end of at most {}", ceiling));
    }
  }
  if (arguments.seq > kMaxTokens / arguments.batch) {
    return BadValue("--seq",
                    fmt::format("{} in each of {} requests", arguments.seq, arguments.batch),
                    fmt::format("{} tokens in all", kMaxTokens));
  }
  return {};
}

}  // namespace

reference::RuleProfile ProfileOf(const StepArguments& arguments) {
  return arguments.preset == "tiny" ? reference::RuleProfile::kTiny
                                    : reference::RuleProfile::kStandard;
}

Result<int64_t> ParseInteger(const std::string& field, std::string_view word, int64_t low,
                             int64_t high) {
  return ParseNumber<int64_t>(field, word, low, high);
}

Result<int> ParseThreads(const std::optional<std::string>& word) {
  if (!word) {
    const auto hardware = static_cast<int>(std::thread::hardware_concurrency());
    return std::clamp(hardware, 1, kMaxThreads);
  }
  return ParseNumber<int>("--threads", *word, 1, kMaxThreads);
}

// Whether two paths name one file, which need not exist.
bool SamePath(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::weakly_canonical(a, error) == std::filesystem::weakly_canonical(b, error);
}

Result<std::string> ParseJsonPath(const std::optional<std::string>& word) {
  if (word && word->empty())
    return BadValue("--json", "nothing", "a file, or - for standard output");
  return word.value_or("");
}

Result<StepArguments> ParseStepArguments(const StepWords& words) {
  StepArguments arguments;
  arguments.check = words.check;
  arguments.output_only = words.output_only;

  auto kind = ParseAttention(words.attention.value_or("swa"));
  if (!kind) return ErrorOf(kind);
  arguments.kind = *kind;

  arguments.preset = words.preset.value_or("flash");
  const auto config = PresetByName(arguments.preset);
  if (!config) return BadValue("--preset", arguments.preset, "flash, pro or tiny");
  arguments.config = *config;

  auto seed = ParseNumber<uint64_t>("--seed", words.seed.value_or(std::to_string(kDefaultSeed)), 0,
                                    std::numeric_limits<uint64_t>::max());
  if (!seed) return ErrorOf(seed);
  arguments.seed = *seed;

  auto threads = ParseThreads(words.threads);
  if (!threads) return ErrorOf(threads);
  arguments.threads = *threads;

  if (words.max_context) {
    auto ceiling = ParseInteger("--max-context", *words.max_context, 1, kMaxContextTokens);
    if (!ceiling) return ErrorOf(ceiling);
    arguments.config.max_context_tokens = *ceiling;
  }

  if (words.seq) {
    auto seq = ParseInteger("--seq", *words.seq, 1, arguments.config.max_context_tokens);
    if (!seq) return ErrorOf(seq);
    arguments.seq = *seq;
  }

  if (words.weight_sets) {
    const auto num_layers = static_cast<int64_t>(arguments.config.layer_ratios.size());
    auto sets = ParseInteger("--weight-sets", *words.weight_sets, 1, num_layers);
    if (!sets) return ErrorOf(sets);
    arguments.weight_sets = *sets;
  }

  if (words.tp) {
    auto degree = ParseInteger("--tp", *words.tp, 1, arguments.config.o_groups);
    if (!degree) return ErrorOf(degree);
    arguments.tp = static_cast<int32_t>(*degree);
    if (arguments.config.o_groups % arguments.tp != 0) {
      return BadValue("--tp", *words.tp,
                      fmt::format("a divisor of the {} output groups", arguments.config.o_groups));
    }
  }

  auto json = ParseJsonPath(words.json);
  if (!json) return ErrorOf(json);
  arguments.json = *std::move(json);

  if (words.trace && (words.trace->empty() || *words.trace == "-")) {
    return BadValue("--trace", words.trace->empty() ? "nothing" : *words.trace, "a file");
  }
  arguments.trace = words.trace.value_or("");
  if (!arguments.trace.empty() && SamePath(arguments.trace, arguments.json)) {
    return BadValue("--trace", arguments.trace, "another file than --json's");
  }

  if (auto status = SetBatch(words, arguments); !status) return ErrorOf(status);
  if (auto status = CheckCeiling(arguments); !status) return ErrorOf(status);
  return arguments;
}

}  // namespace millipede::tools
