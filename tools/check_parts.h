// The pieces that the checks of a step are made of.
#ifndef MILLIPEDE_TOOLS_CHECK_PARTS_H_
#define MILLIPEDE_TOOLS_CHECK_PARTS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fixtures/formula.h"
#include "millipede/tensor.h"
#include "reference/golden.h"
#include "reference/judge.h"
#include "reference/parallel.h"
#include "tools/check.h"
#include "tools/rule_table.h"

namespace millipede::tools {

// Row t of a dense [T, width] tensor.
template <typename T>
std::span<const T> TokenRow(const std::vector<T>& values, int64_t t, int64_t width) {
  return std::span(values).subspan(static_cast<size_t>(t * width), static_cast<size_t>(width));
}

// "request 2 position 16384".
std::string TokenName(const StepInputs& inputs, int64_t t);
std::string EventName(const StepInputs& inputs, const StepEvent& event);

// What the rows of a pool are called in tables, and the values that a row counts as.
std::string_view RowsName(PoolKind pool);
int64_t ValuesPerRow(PoolKind pool);

// Rows of any tensor with pointers to them, as the golden takes them.
template <typename T>
std::vector<const T*> Pointers(const std::vector<std::vector<T>>& rows) {
  std::vector<const T*> pointers;
  pointers.reserve(rows.size());
  for (const auto& row : rows) pointers.push_back(row.empty() ? nullptr : row.data());
  return pointers;
}

// The rows that the stages of a step read: history by formula, the step's own as the library made
// them.
class StepRows {
 public:
  explicit StepRows(const StepRecord& record);

  // What a token attends to. CSA: the selected rows, those that it cannot see left out.
  std::vector<std::vector<Bf16>> Window(int64_t t) const;
  std::vector<std::vector<Bf16>> Compressed(int64_t t) const;
  int64_t NumVisible(int64_t t) const;  // compressed rows

  // The state rows that compressed row `row` of request `r` pools; empty before position 0.
  std::vector<std::vector<float>> BlockState(int64_t r, int64_t row) const;
  std::vector<std::vector<float>> BlockInnerState(int64_t r, int64_t row) const;

  // The key of candidate `row` to codes [128]; its scale.
  float Index(int64_t r, int64_t row, std::span<int8_t> codes) const;

  const fixtures::RequestFixture& history(int64_t r) const {
    return requests_[static_cast<size_t>(r)].history;
  }

 private:
  struct RequestRows {
    fixtures::RequestFixture history;
    int64_t start;
    int64_t first_query;
    int64_t first_event;
  };

  template <typename FromHistory>
  std::vector<std::vector<float>> Block(int64_t r, int64_t row, const std::vector<float>& own,
                                        int64_t width, const FromHistory& from_history) const;
  std::vector<Bf16> CompressedRow(const RequestRows& request, int64_t row) const;

  const StepRecord& record_;
  int64_t ratio_;
  std::vector<RequestRows> requests_;
};

// Every stage of a token but scores, selection and heads; those three.
void JudgeTokenStages(const StepRecord& record, const reference::Golden& golden, int64_t t,
                      RuleTable& table);
void JudgeAttentionStages(const StepRecord& record, const reference::Golden& golden,
                          const StepRows& rows, int64_t t, RuleTable& table);

// The compressed rows and keys of the step's events.
RuleTable JudgeEvents(const StepRecord& record, const reference::Golden& golden,
                      const StepRows& rows, int num_threads);

// The helper's rows, of tokens and of events, against the golden's, rounded as stored rows are.
void JudgeRope(const StepRecord& record, RuleTable& table);

void JudgeHcPreStage(const reference::Golden& golden, const StepInputs& inputs,
                     const Activations& values, bool judge_mixed, int64_t t,
                     const std::string& where, RuleTable& table);
void JudgeOutputStages(const reference::Golden& golden, const StepInputs& inputs,
                       const Activations& values, reference::RuleProfile profile, int64_t t,
                       const std::string& where, RuleTable& table);

// Every end-to-end rule of the given tokens, and of all rows that the step adds to the caches.
RuleTable JudgeEndToEnd(const StepRecord& record, const reference::Golden& golden,
                        const StepRows& rows, const std::vector<int64_t>& tokens, int num_threads,
                        Progress& progress);

// The tables of items judged on many threads, joined in order; one tick each.
template <typename Judge>
RuleTable JudgeItems(const std::vector<int64_t>& items, int num_threads, Progress& progress,
                     const Judge& judge) {
  std::vector<RuleTable> tables(items.size());
  reference::ParallelFor(
      static_cast<int64_t>(items.size()),
      [&](int64_t i) {
        judge(items[static_cast<size_t>(i)], tables[static_cast<size_t>(i)]);
        progress.Tick();
      },
      num_threads);
  RuleTable joined;
  for (const RuleTable& table : tables) joined.Merge(table);
  return joined;
}

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_CHECK_PARTS_H_
