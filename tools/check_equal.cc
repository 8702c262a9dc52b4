// One step run in two ways, compared bit for bit.
#include <fmt/format.h>

#include <cstring>

#include "tools/check_parts.h"

namespace millipede::tools {
namespace {

using reference::Values;

// Rows of two tensors or pools, compared as bytes.
class BitsJudge {
 public:
  BitsJudge(std::string_view tensor, std::string_view rule, int64_t row_values, RuleTable& table)
      : tensor_(tensor), rule_(rule), row_values_(row_values), table_(table) {}

  // `where` is called for a row that differs.
  template <typename Where>
  void Judge(std::span<const std::byte> actual, std::span<const std::byte> expected,
             const Where& where) {
    if (actual.size() == expected.size() &&
        std::memcmp(actual.data(), expected.data(), actual.size()) == 0) {
      ++num_equal_;
      return;
    }
    table_.Add(tensor_, rule_, row_values_,
               reference::JudgeExact(BytesOf(actual), BytesOf(expected)), where());
  }

  // Adds what was equal; the last call.
  void Finish() {
    if (num_equal_ > 0) table_.AddHolding(tensor_, rule_, num_equal_, num_equal_ * row_values_);
  }

 private:
  static Values BytesOf(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const int8_t*>(bytes.data()), static_cast<int64_t>(bytes.size())};
  }

  std::string_view tensor_;
  std::string_view rule_;
  int64_t row_values_;
  RuleTable& table_;
  int64_t num_equal_ = 0;
};

constexpr std::string_view kTensorRule = "bit-equal to TP 1";

template <typename Where>
void CompareTensors(const std::vector<NamedActivation>& actual,
                    const std::vector<NamedActivation>& expected, int64_t num_rows,
                    const Where& where, RuleTable& table) {
  for (size_t i = 0; i < actual.size(); ++i) {
    BitsJudge judge(actual[i].name, kTensorRule, actual[i].row_elements, table);
    for (int64_t row = 0; row < num_rows; ++row) {
      judge.Judge(actual[i].row(row), expected[i].row(row), [&] { return where(row); });
    }
    judge.Finish();
  }
}

void ComparePools(PoolKind pool, std::string_view rule, const std::vector<std::byte>& actual,
                  const std::vector<std::byte>& expected, RuleTable& table) {
  const PoolFormat format = FormatOf(pool);
  const auto row_bytes = static_cast<size_t>(format.row_bytes);
  BitsJudge judge(RowsName(pool), rule, ValuesPerRow(pool), table);
  for (size_t row = 0; row < actual.size() / row_bytes; ++row) {
    judge.Judge(std::span(actual).subspan(row * row_bytes, row_bytes),
                std::span(expected).subspan(row * row_bytes, row_bytes), [&] {
                  const auto per_page = static_cast<size_t>(format.rows_per_page);
                  return fmt::format("page {} slot {}", row / per_page, row % per_page);
                });
  }
  judge.Finish();
}

}  // namespace

RuleTable CheckSameBits(StepRecord& record, StepRecord& other) {
  RuleTable table;
  CompareTensors(
      record.values.named(), other.values.named(), record.values.num_tokens,
      [&](int64_t t) { return TokenName(record.inputs, t); }, table);
  CompareTensors(
      record.values.named_events(), other.values.named_events(), record.values.num_events,
      [&](int64_t e) {
        return EventName(record.inputs, record.inputs.events[static_cast<size_t>(e)]);
      },
      table);
  for (size_t i = 0; i < record.caches.pools.size(); ++i) {
    const PoolRecord& pool = record.caches.pools[i];
    const PoolRecord& expected = other.caches.pools[i];
    ComparePools(pool.kind, "bit-equal to TP 1 after run", pool.after_run, expected.after_run,
                 table);
    ComparePools(pool.kind, "bit-equal to TP 1 after commit", pool.after_commit,
                 expected.after_commit, table);
  }
  return table;
}

RuleTable CheckSameBits(OutputRecord& record, OutputRecord& other) {
  // The others are not part of the output half.
  const auto output_half = [](std::vector<NamedActivation> tensors) {
    std::erase_if(tensors, [](const NamedActivation& tensor) {
      return tensor.name != "heads" && tensor.name != "attn_out" && tensor.name != "x_out";
    });
    return tensors;
  };
  RuleTable table;
  CompareTensors(
      output_half(record.values.named()), output_half(other.values.named()),
      record.values.num_tokens, [&](int64_t t) { return TokenName(record.inputs, t); }, table);
  return table;
}

}  // namespace millipede::tools
