// A plan in words and as JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>

#include "geometry/step_counts.h"
#include "geometry/visibility.h"
#include "millipede/plan.h"
#include "plan/plan_state.h"
#include "plan/raw_pages.h"

namespace millipede {
namespace {

// Of one request, or summed over a plan.
struct Summary {
  int64_t window_rows = 0;
  int64_t compressed_rows = 0;
  int64_t events = 0;
  int64_t pieces_per_query = 0;  // shards or leaves: the most that any query has
  int64_t merges = 0;
  int64_t main_pages = 0;
  int64_t index_pages = 0;
};

// A list's pages of request `r`; none of a kind without the list.
int64_t CountPages(std::span<const int32_t> offsets, size_t r) {
  return offsets.empty() ? 0 : offsets[r + 1] - offsets[r];
}

Summary Summarize(const Plan::State& plan, size_t r) {
  const PackedWork& work = plan.work;
  const PlannedRequest& request = work.requests[r];
  Summary summary;
  for (int32_t t = 0; t < request.num_tokens; ++t) {
    const QueryToken& query = work.queries[static_cast<size_t>(request.first_query + t)];
    summary.window_rows += query.window_rows;
    summary.compressed_rows += VisibleRows(plan.kind, query.position);
  }
  const StepCounts counts = CountStep(plan.kind, request.start_pos, request.num_tokens);
  summary.events = counts.events;
  summary.merges = counts.merges;
  if (request.num_tokens > 0 && plan.kind != AttentionKind::kSwa) {
    const int64_t last = request.start_pos + request.num_tokens - 1;
    summary.pieces_per_query = NumPieces(VisibleRows(plan.kind, last), PieceRows(plan.kind));
  }
  summary.main_pages = CountPages(work.main_page_offsets, r);
  summary.index_pages = CountPages(work.index_page_offsets, r);
  return summary;
}

Summary SummarizeAll(const Plan::State& plan) {
  Summary sum;
  for (size_t r = 0; r < plan.work.requests.size(); ++r) {
    const Summary one = Summarize(plan, r);
    sum.window_rows += one.window_rows;
    sum.compressed_rows += one.compressed_rows;
    sum.events += one.events;
    sum.pieces_per_query = std::max(sum.pieces_per_query, one.pieces_per_query);
    sum.merges += one.merges;
    sum.main_pages += one.main_pages;
    sum.index_pages += one.index_pages;
  }
  return sum;
}

int64_t CountWorkItems(const PackedWork& work) {
  return static_cast<int64_t>(work.queries.size() + work.events.size() + work.shards.size() +
                              work.leaves.size() + work.merges.size());
}

// What only compressed kinds have: nothing for others.
std::string CompressedText(AttentionKind kind, const Summary& summary) {
  if (kind == AttentionKind::kSwa) return "";
  std::string text = fmt::format(
      ", compressed rows {}, events {}, {} per query {}", summary.compressed_rows, summary.events,
      kind == AttentionKind::kHca ? "shards" : "leaves", summary.pieces_per_query);
  if (kind == AttentionKind::kCsa) text += fmt::format(", merges {}", summary.merges);
  text += fmt::format(", main pages {}", summary.main_pages);
  if (kind == AttentionKind::kCsa) text += fmt::format(", index pages {}", summary.index_pages);
  return text;
}

// The keys that requests and the whole plan have in common.
std::string SummaryJson(AttentionKind kind, const Summary& summary) {
  const int64_t pieces = summary.pieces_per_query;
  return fmt::format(R"("window_rows":{},"compressed_rows":{},"events":{},"shards_per_query":{},)"
                     R"("leaves_per_query":{},"merges":{},"main_pages":{},"index_pages":{})",
                     summary.window_rows, summary.compressed_rows, summary.events,
                     kind == AttentionKind::kHca ? pieces : 0,
                     kind == AttentionKind::kCsa ? pieces : 0, summary.merges, summary.main_pages,
                     summary.index_pages);
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
    const RawPages pages = RawPagesOf(request);
    fmt::format_to(out,
                   "request {}: start {}, tokens {}, window rows {} to {}{}, raw pages {} "
                   "({} read, {} written)\n",
                   r, request.start_pos, request.num_tokens, plan.work.queries[first].window_rows,
                   plan.work.queries[last].window_rows,
                   CompressedText(plan.kind, Summarize(plan, r)), pages.count(), pages.read.count,
                   pages.written.count);
  }
  fmt::format_to(out, "total: window rows {}{}, raw pages {}, work items {}\n",
                 plan.work.window_rows, CompressedText(plan.kind, SummarizeAll(plan)),
                 plan.num_raw_pages, CountWorkItems(plan.work));
  fmt::format_to(out, "workspace {} bytes ({} threads), overlay {} bytes a layer\n",
                 workspace_bytes(num_threads), num_threads, overlay_bytes());
  fmt::format_to(out, "fingerprint {:016x}\n", plan.fingerprint);
  return text;
}

// shards_per_query and leaves_per_query are the most that any query has; everything else is a sum,
// over queries or over requests, but raw_pages of the whole plan, which are distinct. The
// fingerprint is a string, as a JSON number need not hold 64 bits.
std::string Plan::explain_json(int num_threads) const {
  const State& plan = *state_;
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, R"({{"kind":"{}","num_layers":{},"num_tokens":{},"requests":[)",
                 KindName(plan.kind), plan.num_layers, num_tokens());
  for (size_t r = 0; r < plan.work.requests.size(); ++r) {
    const PlannedRequest& request = plan.work.requests[r];
    const RawPages pages = RawPagesOf(request);
    fmt::format_to(out,
                   R"({}{{"request":{},"start_pos":{},"num_tokens":{},{},"raw_pages":{},)"
                   R"("raw_pages_read":{},"raw_pages_written":{}}})",
                   r == 0 ? "" : ",", r, request.start_pos, request.num_tokens,
                   SummaryJson(plan.kind, Summarize(plan, r)), pages.count(), pages.read.count,
                   pages.written.count);
  }
  fmt::format_to(out,
                 R"(],{},"raw_pages":{},"raw_pages_read":{},"raw_pages_written":{},)"
                 R"("work_items":{},"workspace_bytes":{},"workspace_threads":{},)"
                 R"("overlay_bytes":{},"fingerprint":"{:016x}"}})",
                 SummaryJson(plan.kind, SummarizeAll(plan)), plan.num_raw_pages,
                 plan.work.raw_pages_read, plan.work.raw_pages_written, CountWorkItems(plan.work),
                 workspace_bytes(num_threads), num_threads, overlay_bytes(), plan.fingerprint);
  return text;
}

}  // namespace millipede
