// Moving a layer's accepted rows from its overlay into its rings.
#include <algorithm>
#include <array>
#include <cstring>

#include "geometry/rings.h"
#include "layers/checks.h"
#include "layers/pool_rows.h"
#include "millipede/layer.h"
#include "millipede/trace.h"
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

TensorView<const float, 2> OverlayState(const Plan& plan, std::span<const std::byte> overlay) {
  const OverlayLayout layout = LayOutOverlay(plan.kind(), plan.num_tokens());
  if (plan.kind() == AttentionKind::kSwa ||
      static_cast<int64_t>(overlay.size()) < layout.total_bytes) {
    return {};
  }
  const PoolKind kind =
      plan.kind() == AttentionKind::kHca ? PoolKind::kHcaState : PoolKind::kCsaState;
  return MakeView(reinterpret_cast<const float*>(overlay.data() + layout.state), plan.num_tokens(),
                  FormatOf(kind).row_bytes / static_cast<int64_t>(sizeof(float)));
}

TensorView<const float, 2> OverlayInnerState(const Plan& plan, std::span<const std::byte> overlay) {
  const OverlayLayout layout = LayOutOverlay(plan.kind(), plan.num_tokens());
  if (plan.kind() != AttentionKind::kCsa ||
      static_cast<int64_t>(overlay.size()) < layout.total_bytes) {
    return {};
  }
  return MakeView(reinterpret_cast<const float*>(overlay.data() + layout.inner_state),
                  plan.num_tokens(),
                  FormatOf(PoolKind::kCsaInnerState).row_bytes / int64_t{sizeof(float)});
}

namespace {

// One ring of a kind: where its rows lie, and where each token's new row is and goes.
struct RingWrites {
  PoolKind kind;
  PoolView pool;
  int32_t QueryToken::*write_row;
  const std::byte* rows;  // [T, row_bytes] in the overlay
};

// Writes the rows of tokens [first_query + begin, first_query + end).
void WriteRows(const PackedWork& work, const RingWrites& ring, int64_t first_query, int64_t begin,
               int64_t end) {
  const int64_t row_bytes = FormatOf(ring.kind).row_bytes;
  for (int64_t token = first_query + begin; token < first_query + end; ++token) {
    const QueryToken& query = work.queries[static_cast<size_t>(token)];
    std::memcpy(PoolRow<std::byte>(ring.pool, ring.kind, query.*ring.write_row),
                ring.rows + token * row_bytes, static_cast<size_t>(row_bytes));
  }
}

// The first of `count` accepted tokens whose row stays in a ring: of more than it holds, the last
// ones do.
int64_t FirstKept(PoolKind kind, int64_t count) {
  return std::max<int64_t>(0, count - FormatOf(kind).ring_rows());
}

}  // namespace

Result<std::vector<RequestRanges>> Commit(Context& context, const Plan& plan, int32_t layer_index,
                                          const LayerPools& pools,
                                          std::span<const std::byte> overlay,
                                          std::span<const int64_t> accepted) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  Plan::State& plan_state = *plan.state();
  MILLIPEDE_RETURN_IF_ERROR(
      CheckPoolView(pools.raw, PoolKind::kRaw, plan_state.spaces.raw.num_pages, "pools.raw"));
  const bool csa = plan.kind() == AttentionKind::kCsa;
  const PoolKind state_kind = csa ? PoolKind::kCsaState : PoolKind::kHcaState;
  if (plan.kind() != AttentionKind::kSwa) {
    MILLIPEDE_RETURN_IF_ERROR(
        CheckPoolView(pools.state, state_kind, plan_state.spaces.state.num_pages, "pools.state"));
  }
  if (csa) {
    MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(pools.inner_state, PoolKind::kCsaInnerState,
                                            plan_state.spaces.inner_state.num_pages,
                                            "pools.inner_state"));
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("overlay", overlay, plan.overlay_bytes()));
  MILLIPEDE_RETURN_IF_ERROR(BeginCommit(plan_state, layer_index, accepted));

  const PackedWork& work = plan.work();
  const TraceCall traced(context, "commit", plan.kind(), layer_index, &work);
  std::array<RingWrites, 3> all_rings;
  size_t num_rings = 0;
  all_rings[num_rings++] = {PoolKind::kRaw, pools.raw, &QueryToken::raw_write_row,
                            reinterpret_cast<const std::byte*>(OverlayKv(plan, overlay).data)};
  if (plan.kind() != AttentionKind::kSwa) {
    all_rings[num_rings++] = {state_kind, pools.state, &QueryToken::state_write_row,
                              reinterpret_cast<const std::byte*>(OverlayState(plan, overlay).data)};
  }
  if (csa) {
    all_rings[num_rings++] = {
        PoolKind::kCsaInnerState, pools.inner_state, &QueryToken::inner_state_write_row,
        reinterpret_cast<const std::byte*>(OverlayInnerState(plan, overlay).data)};
  }
  const std::span<const RingWrites> rings(all_rings.data(), num_rings);
  const auto num_requests = static_cast<int64_t>(work.requests.size());
  ReserveRequestCounts(context, num_requests);
  ParallelFor(context, "commit", num_requests, [&](int64_t r, int thread) {
    const int64_t first_query = work.requests[static_cast<size_t>(r)].first_query;
    const int64_t count = accepted[static_cast<size_t>(r)];
    RequestCounts& counts = CountsOf(context, thread, r);
    TraceArgs written{.task = TraceTask::kCommit,
                      .index = r,
                      .request = r,
                      .first_query = first_query,
                      .num_queries = count};
    for (const RingWrites& ring : rings) {
      const int64_t first = FirstKept(ring.kind, count);
      written.rows += count - first;
      written.bytes += (count - first) * FormatOf(ring.kind).row_bytes;
      WriteRows(work, ring, first_query, first, count);
      if (ring.kind == PoolKind::kRaw) {
        counts.raw_rows_written += count - first;
        for (int64_t i = first; i < count; ++i) {
          const int64_t position = work.queries[static_cast<size_t>(first_query + i)].position;
          counts.raw_ring_pages |= uint32_t{1} << RingPage(FormatOf(ring.kind), position);
        }
      } else {
        counts.state_rows_written += count - first;
      }
    }
    DescribeItem(context.impl().trace, thread, written);
  });
  return FinishCommit(plan_state, layer_index, accepted);
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

}  // namespace millipede
