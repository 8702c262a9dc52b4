// A plan in words and as JSON.
#include <fmt/format.h>

#include <bit>
#include <iterator>

#include "millipede/plan.h"
#include "plan/plan_state.h"

namespace millipede {
namespace {

int64_t SumWindowRows(const PackedWork& work, const PlannedRequest& request) {
  int64_t sum = 0;
  for (int32_t t = 0; t < request.num_tokens; ++t) {
    sum += work.queries[static_cast<size_t>(request.first_query + t)].window_rows;
  }
  return sum;
}

struct PageCounts {
  int all = 0;  // read, written or both
  int read = 0;
  int written = 0;
};

PageCounts CountRawPages(const PlannedLists& lists) {
  return {std::popcount(lists.raw_pages_read | lists.raw_pages_written),
          std::popcount(lists.raw_pages_read), std::popcount(lists.raw_pages_written)};
}

}  // namespace

std::string Plan::explain(int num_threads) const {
  const State& plan = *state_;
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{} step for {} layers: {} requests, {} tokens\n", KindName(plan.kind),
                 plan.num_layers, plan.work.requests.size(), num_tokens());
  for (size_t r = 0; r < plan.work.requests.size(); ++r) {
    const PlannedRequest& request = plan.work.requests[r];
    if (request.num_tokens == 0) {
      fmt::format_to(out, "request {}: no tokens\n", r);
      continue;
    }
    const auto first = static_cast<size_t>(request.first_query);
    const auto last = first + static_cast<size_t>(request.num_tokens) - 1;
    const PageCounts pages = CountRawPages(plan.lists[r]);
    fmt::format_to(out,
                   "request {}: start {}, tokens {}, window rows {} to {}, raw pages {} "
                   "({} read, {} written)\n",
                   r, request.start_pos, request.num_tokens, plan.work.queries[first].window_rows,
                   plan.work.queries[last].window_rows, pages.all, pages.read, pages.written);
  }
  fmt::format_to(out, "total: window rows {}, raw pages {}, work items {}\n", plan.work.window_rows,
                 plan.num_raw_pages, num_tokens());
  fmt::format_to(out, "workspace {} bytes ({} threads), overlay {} bytes a layer\n",
                 workspace_bytes(num_threads), num_threads, overlay_bytes());
  fmt::format_to(out, "fingerprint {:016x}\n", plan.fingerprint);
  return text;
}

// shards_per_query and leaves_per_query are the most that any query has; merges is the sum over
// queries. The fingerprint is a string, as a JSON number need not hold 64 bits.
std::string Plan::explain_json(int num_threads) const {
  const State& plan = *state_;
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, R"({{"kind":"{}","num_layers":{},"num_tokens":{},"requests":[)",
                 KindName(plan.kind), plan.num_layers, num_tokens());
  for (size_t r = 0; r < plan.work.requests.size(); ++r) {
    const PlannedRequest& request = plan.work.requests[r];
    const PageCounts pages = CountRawPages(plan.lists[r]);
    fmt::format_to(out,
                   R"({}{{"request":{},"start_pos":{},"num_tokens":{},"window_rows":{},)"
                   R"("raw_pages":{},"raw_pages_read":{},"raw_pages_written":{}}})",
                   r == 0 ? "" : ",", r, request.start_pos, request.num_tokens,
                   SumWindowRows(plan.work, request), pages.all, pages.read, pages.written);
  }
  // A window-only kind has no compressed rows to cut.
  constexpr int kNone = 0;
  fmt::format_to(out,
                 R"(],"window_rows":{},"shards_per_query":{},"leaves_per_query":{},"merges":{},)"
                 R"("raw_pages":{},"raw_pages_read":{},"raw_pages_written":{},"work_items":{},)"
                 R"("workspace_bytes":{},"workspace_threads":{},"overlay_bytes":{},)"
                 R"("fingerprint":"{:016x}"}})",
                 plan.work.window_rows, kNone, kNone, kNone, plan.num_raw_pages,
                 plan.work.raw_pages_read, plan.work.raw_pages_written, num_tokens(),
                 workspace_bytes(num_threads), num_threads, overlay_bytes(), plan.fingerprint);
  return text;
}

}  // namespace millipede
