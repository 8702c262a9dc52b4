#include "layers/pack_selection.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "geometry/visibility.h"
#include "runtime/context.h"

namespace millipede {
namespace {

// The first place of a query's selection that is not as it has to be; -1 if there is none. Marks
// rows in `seen`, which is clear before and after.
int64_t FirstFault(const int32_t* selection, int64_t num_selected, int64_t num_places,
                   int64_t num_visible, std::byte* seen) {
  const auto bit = [](int32_t row) { return std::byte{1} << (row % 8); };
  int64_t place = 0;
  for (; place < num_selected; ++place) {
    const int32_t row = selection[place];
    if (row < 0 || row >= num_visible) break;
    if ((seen[row / 8] & bit(row)) != std::byte{0}) break;
    seen[row / 8] |= bit(row);
  }
  for (int64_t i = 0; i < place; ++i) seen[selection[i] / 8] = std::byte{0};
  if (place < num_selected) return place;
  for (; place < num_places; ++place) {
    if (selection[place] != -1) return place;
  }
  return -1;
}

}  // namespace

int64_t NumSelected(const QueryToken& query, int64_t index_topk) {
  return AttendedRows(AttentionKind::kCsa, query.position, index_topk);
}

Status PackSelection(Context& context, const Plan& plan, int64_t index_topk,
                     const PackSelectionArgs& args) {
  const PackedWork& work = plan.work();
  std::atomic<int64_t> first_faulty_query{plan.num_tokens()};
  ParallelFor(context, "pack selection", plan.num_tokens(), [&](int64_t t, int thread) {
    const QueryToken& query = work.queries[static_cast<size_t>(t)];
    const int64_t num_selected = NumSelected(query, index_topk);
    DescribeItem(context.impl().trace, thread,
                 {.request = query.request, .first_query = t, .rows = num_selected});
    const int64_t num_visible = VisibleRows(AttentionKind::kCsa, query.position);
    std::byte* const seen = args.seen_rows + thread * args.seen_stride_bytes;
    std::memset(seen, 0, static_cast<size_t>(std::min(args.seen_bytes, num_visible / 8 + 1)));
    const int32_t* const selection = args.selection.row(t);
    if (FirstFault(selection, num_selected, index_topk, num_visible, seen) >= 0) {
      int64_t first = first_faulty_query.load();
      while (t < first && !first_faulty_query.compare_exchange_weak(first, t)) {
      }
      return;
    }
    const int32_t* const pages =
        work.main_pages.data() + work.main_page_offsets[static_cast<size_t>(query.request)];
    int32_t* const rows = args.selected_rows + t * index_topk;
    for (int64_t i = 0; i < num_selected; ++i) {
      rows[i] = pages[selection[i] / kPageRows] * kPageRows + selection[i] % kPageRows;
    }
  });

  const int64_t t = first_faulty_query.load();
  if (t == plan.num_tokens()) return {};
  const QueryToken& query = work.queries[static_cast<size_t>(t)];
  const int64_t num_selected = NumSelected(query, index_topk);
  const int64_t num_visible = VisibleRows(AttentionKind::kCsa, query.position);
  std::vector<std::byte> seen(static_cast<size_t>(num_visible / 8 + 1));
  const int64_t place =
      FirstFault(args.selection.row(t), num_selected, index_topk, num_visible, seen.data());
  return MakeRequestError(ErrorCode::kInvalidArgument, query.request,
                          fmt::format("selection[{}][{}]", t, place),
                          "{}; allowed: {} distinct rows in 0 to {}, then -1",
                          args.selection.row(t)[place], num_selected, num_visible - 1);
}

}  // namespace millipede
