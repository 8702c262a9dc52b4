// The rules of the caches around a step.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "tools/check_parts.h"

namespace millipede::tools {
namespace {

using reference::Values;

constexpr int64_t kNothing = -1;

// The rows that commit moves from the overlay to a ring.
std::span<const std::byte> OverlayRows(PoolKind pool, const Activations& values) {
  switch (pool) {
    case PoolKind::kRaw:
      return std::as_bytes(std::span(values.kv));
    case PoolKind::kHcaState:
    case PoolKind::kCsaState:
      return std::as_bytes(std::span(values.state));
    case PoolKind::kCsaInnerState:
      return std::as_bytes(std::span(values.inner_state));
    default:
      return {};
  }
}

// What each row of a pool gets: the step token whose row commit writes there, or the event whose
// row run writes there; kNothing for all others.
std::vector<int64_t> Writers(const CacheRecord& caches, const PoolRecord& pool,
                             const StepInputs& inputs) {
  const PoolFormat format = FormatOf(pool.kind);
  std::vector<int64_t> writers(pool.before.size() / static_cast<size_t>(format.row_bytes),
                               kNothing);
  if (format.ring_pages == 0) {
    for (size_t e = 0; e < inputs.events.size(); ++e) {
      const StepEvent& event = inputs.events[e];
      const int64_t row =
          PoolRowOf(pool.kind, pool.pages[static_cast<size_t>(event.request)], event.row);
      writers[static_cast<size_t>(row)] = static_cast<int64_t>(e);
    }
    return writers;
  }
  int64_t first_query = 0;
  for (size_t r = 0; r < pool.pages.size(); ++r) {
    const int64_t n = caches.num_tokens[r];
    for (int64_t i = std::max<int64_t>(0, n - format.ring_rows()); i < n; ++i) {
      const int64_t row = PoolRowOf(pool.kind, pool.pages[r], caches.start_pos[r] + i);
      writers[static_cast<size_t>(row)] = first_query + i;
    }
    first_query += n;
  }
  return writers;
}

// Compares rows of two copies of a pool bit for bit, whatever they hold: a NaN equals itself.
class RowJudge {
 public:
  RowJudge(const PoolRecord& pool, std::string_view rule, RuleTable& table)
      : pool_(pool), rule_(rule), table_(table) {}

  void Judge(int64_t row, const std::byte* actual, const std::byte* expected) {
    if (std::memcmp(actual, expected, static_cast<size_t>(row_bytes())) == 0) {
      ++num_equal_;
      return;
    }
    const int64_t per_page = FormatOf(pool_.kind).rows_per_page;
    table_.Add(
        RowsName(pool_.kind), rule_, ValuesPerRow(pool_.kind),
        reference::JudgeExact(Values(reinterpret_cast<const int8_t*>(actual), row_bytes()),
                              Values(reinterpret_cast<const int8_t*>(expected), row_bytes())),
        fmt::format("page {} slot {}", row / per_page, row % per_page));
  }

  // Adds what was equal; the last call.
  void Finish() {
    if (num_equal_ == 0) return;
    table_.AddHolding(RowsName(pool_.kind), rule_, num_equal_,
                      num_equal_ * ValuesPerRow(pool_.kind));
  }

 private:
  int64_t row_bytes() const { return FormatOf(pool_.kind).row_bytes; }

  const PoolRecord& pool_;
  std::string_view rule_;
  RuleTable& table_;
  int64_t num_equal_ = 0;
};

void JudgePool(const CacheRecord& caches, const PoolRecord& pool, const Activations& values,
               const StepInputs& inputs, RuleTable& table) {
  const PoolFormat format = FormatOf(pool.kind);
  const bool ring = format.ring_pages > 0;
  const std::vector<int64_t> writers = Writers(caches, pool, inputs);
  const std::span<const std::byte> overlay = OverlayRows(pool.kind, values);
  RowJudge run(pool, "bit-unchanged by run", table);
  RowJudge commit(pool, "bit-unchanged by commit", table);
  RowJudge written(pool, "written by commit, exact", table);
  for (size_t i = 0; i < writers.size(); ++i) {
    const size_t offset = i * static_cast<size_t>(format.row_bytes);
    const auto row = static_cast<int64_t>(i);
    const std::byte* after_run = pool.after_run.data() + offset;
    const std::byte* after_commit = pool.after_commit.data() + offset;
    // Rows that run writes are judged by value.
    if (ring || writers[i] == kNothing) run.Judge(row, after_run, pool.before.data() + offset);
    if (ring && writers[i] != kNothing) {
      written.Judge(row, after_commit, overlay.data() + writers[i] * format.row_bytes);
    } else {
      commit.Judge(row, after_commit, after_run);
    }
  }
  for (RowJudge* judge : {&run, &commit, &written}) judge->Finish();
}

}  // namespace

std::string_view RowsName(PoolKind pool) {
  switch (pool) {
    case PoolKind::kHcaMain:
    case PoolKind::kCsaMain:
      return "main rows";
    case PoolKind::kHcaState:
    case PoolKind::kCsaState:
      return "state rows";
    case PoolKind::kCsaIndexRows:
      return "index rows";
    case PoolKind::kCsaIndexScales:
      return "index scales";
    case PoolKind::kCsaInnerState:
      return "inner rows";
    case PoolKind::kRaw:
      break;
  }
  return "raw rows";
}

int64_t ValuesPerRow(PoolKind pool) {
  switch (pool) {
    case PoolKind::kRaw:
    case PoolKind::kHcaMain:
    case PoolKind::kCsaMain:
      return kHeadDim;
    case PoolKind::kCsaIndexRows:
      return kIndexDim;
    default:
      return FormatOf(pool).row_bytes / int64_t{sizeof(float)};
  }
}

RuleTable CheckCaches(const CacheRecord& caches, const Activations& values,
                      const StepInputs& inputs) {
  RuleTable table;
  for (const PoolRecord& pool : caches.pools) JudgePool(caches, pool, values, inputs, table);

  std::vector<int64_t> actual;
  std::vector<int64_t> expected;
  std::vector<int64_t> actual_lists;
  std::vector<int64_t> expected_lists;
  for (size_t r = 0; r < caches.ends.size(); ++r) {
    const int64_t end = caches.start_pos[r] + (caches.is_last_commit ? caches.num_tokens[r] : 0);
    actual.push_back(caches.ends[r].position);
    expected.push_back(end);
    for (size_t i = 0; i < caches.pools.size(); ++i) {
      const bool ring = FormatOf(caches.pools[i].kind).ring_pages > 0;
      actual_lists.push_back(caches.ends[r].list_ends[i]);
      expected_lists.push_back(ring ? end : end / RatioOf(caches.kind));
    }
  }
  table.Add("positions", "after commit, exact", static_cast<int64_t>(expected.size()),
            reference::JudgeExact(actual, expected), "requests");
  table.Add("list ends", "after commit, exact", static_cast<int64_t>(expected_lists.size()),
            reference::JudgeExact(actual_lists, expected_lists), "lists of each request by turns");
  return table;
}

}  // namespace millipede::tools
