// Moving a layer's accepted rows from its overlay into its rings.
#include <algorithm>
#include <cstring>

#include "layers/checks.h"
#include "millipede/layer.h"
#include "pages/view_checks.h"
#include "plan/plan_state.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {

TensorView<const Bf16, 2> OverlayKv(const Plan& plan, std::span<const std::byte> overlay) {
  const OverlayLayout layout = LayOutOverlay(plan.kind(), plan.num_tokens());
  if (static_cast<int64_t>(overlay.size()) < layout.total_bytes) return {};
  return MakeView(reinterpret_cast<const Bf16*>(overlay.data() + layout.kv), plan.num_tokens(),
                  kHeadDim);
}

Result<std::vector<RequestRanges>> Commit(Context& context, const Plan& plan, int32_t layer_index,
                                          const LayerPools& pools,
                                          std::span<const std::byte> overlay,
                                          std::span<const int64_t> accepted) {
  Plan::State& plan_state = *plan.state();
  MILLIPEDE_RETURN_IF_ERROR(
      CheckPoolView(pools.raw, PoolKind::kRaw, plan_state.spaces.raw.num_pages, "pools.raw"));
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("overlay", overlay, plan.overlay_bytes()));
  MILLIPEDE_RETURN_IF_ERROR(BeginCommit(plan_state, layer_index, accepted));

  const PackedWork& work = plan.work();
  const TensorView<const Bf16, 2> new_kv = OverlayKv(plan, overlay);
  constexpr int64_t kRawRowBytes = FormatOf(PoolKind::kRaw).row_bytes;
  const auto num_requests = static_cast<int64_t>(work.requests.size());
  ReserveRequestCounts(context, num_requests);
  ParallelFor(context, "commit", num_requests, [&](int64_t r, int thread) {
    const PlannedRequest& request = work.requests[static_cast<size_t>(r)];
    const int64_t count = accepted[static_cast<size_t>(r)];
    // Of more tokens than the ring holds, only the last ones stay.
    for (int64_t i = std::max<int64_t>(0, count - kWindowRows); i < count; ++i) {
      const int64_t token = request.first_query + i;
      const QueryToken& query = work.queries[static_cast<size_t>(token)];
      std::byte* page =
          pools.raw.base + int64_t{query.raw_write_row / kPageRows} * pools.raw.page_stride_bytes;
      std::memcpy(page + int64_t{query.raw_write_row % kPageRows} * kRawRowBytes, new_kv.row(token),
                  static_cast<size_t>(kRawRowBytes));
      RequestCounts& counts = CountsOf(context, thread, r);
      counts.raw_rows_written += 1;
      counts.raw_ring_pages |= 1U << (query.position % kWindowRows / kPageRows);
    }
  });
  return FinishCommit(plan_state, layer_index, accepted);
}

}  // namespace millipede
