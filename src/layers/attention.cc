// Attention over the rows a plan names.
#include <algorithm>
#include <array>

#include "kernels/attend_load.h"
#include "kernels/attend_merge.h"
#include "kernels/attend_tile.h"
#include "layers/checks.h"
#include "layers/plan_checks.h"
#include "millipede/stages.h"
#include "pages/view_checks.h"
#include "plan/plan_state.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {
namespace {

constexpr int64_t kMaxRunRows = kAttendRows + kQueryBlock - 1;

// Consecutive query tokens of one request, at most kQueryBlock: their windows are ranges of one run
// of rows, which is widened once for all of them.
struct QueryRun {
  int64_t begin = 0;
  int64_t end = 0;
};

QueryRun RunFrom(const PackedWork& work, int64_t begin, int64_t limit) {
  QueryRun run{begin, begin + 1};
  const int32_t request = work.queries[static_cast<size_t>(begin)].request;
  while (run.end < limit && work.queries[static_cast<size_t>(run.end)].request == request) {
    ++run.end;
  }
  return run;
}

const Bf16* SourceRow(int32_t source, const AttendInputs& inputs) {
  if (source < 0) return inputs.new_kv.row(-2 - source);
  const std::byte* page =
      inputs.raw.base + int64_t{source / kPageRows} * inputs.raw.page_stride_bytes;
  return reinterpret_cast<const Bf16*>(page) + int64_t{source % kPageRows} * kHeadDim;
}

// The bit of the ring page that holds a position.
uint32_t RingPageBit(int64_t position) { return 1U << (position % kWindowRows / kPageRows); }

void CountRun(const PackedWork& work, QueryRun run, RequestCounts& counts) {
  for (int64_t t = run.begin; t < run.end; ++t) {
    const QueryToken& query = work.queries[static_cast<size_t>(t)];
    counts.query_tokens += 1;
    counts.window_rows += query.window_rows;
    const int32_t* sources = work.window_sources.data() + t * kWindowRows;
    for (int64_t i = 0; i < query.window_rows; ++i) {
      if (sources[i] >= 0) {
        counts.raw_ring_pages |= RingPageBit(query.position - query.window_rows + 1 + i);
      }
    }
  }
}

}  // namespace

Status Attend(Context& context, const ModelConfig& config, const Plan& plan,
              const AttendInputs& inputs, const AttendOutputs& outputs, Scratch scratch) {
  const int64_t num_tokens = plan.num_tokens();
  const int64_t num_heads = config.num_heads;
  MILLIPEDE_RETURN_IF_ERROR(CheckPlanConfig(*plan.state(), config));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("q", inputs.q, {num_tokens, num_heads, kHeadDim}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("sink", inputs.sink, {num_heads}));
  if (outputs.inverse_rope) MILLIPEDE_RETURN_IF_ERROR(CheckRope(inputs.rope, num_tokens));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("new_kv", inputs.new_kv, {num_tokens, kHeadDim}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("heads", outputs.heads, {num_tokens, num_heads, kHeadDim}));
  if (!outputs.log_sum_exp.empty()) {
    MILLIPEDE_RETURN_IF_ERROR(
        CheckView("log_sum_exp", outputs.log_sum_exp, {num_tokens, num_heads}));
  }
  MILLIPEDE_RETURN_IF_ERROR(
      CheckPoolView(inputs.raw, PoolKind::kRaw, plan.state()->spaces.raw.num_pages, "inputs.raw"));
  const AttendScratch layout = LayOutAttend(context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));
  MILLIPEDE_RETURN_IF_ERROR(RecheckPages(*plan.state()));

  const PackedWork& work = plan.work();
  ReserveRequestCounts(context, static_cast<int64_t>(work.requests.size()));
  const int64_t num_head_blocks = CeilDiv(num_heads, kHeadBlock);
  const int64_t num_query_blocks = CeilDiv(num_tokens, kQueryBlock);
  ParallelFor(
      context, "attention", num_query_blocks * num_head_blocks, [&](int64_t item, int thread) {
        const int64_t head = item % num_head_blocks * kHeadBlock;
        const int64_t item_heads = std::min(kHeadBlock, num_heads - head);
        const int64_t query_begin = item / num_head_blocks * kQueryBlock;
        const int64_t query_end = std::min(num_tokens, query_begin + kQueryBlock);
        const int64_t own = thread * layout.per_thread_bytes;
        auto* const kv = PartOf<float>(scratch, own + layout.kv_rows);
        auto* const q_t = PartOf<float>(scratch, own + layout.q);
        const AttendPartial partial = AttendPartialAt(PartOf<float>(scratch, own + layout.partial));

        QueryRun run;
        for (int64_t begin = query_begin; begin < query_end; begin = run.end) {
          run = RunFrom(work, begin, query_end);
          if (head == 0) {
            CountRun(work, run, CountsOf(context, thread, work.queries[begin].request));
          }

          // The first token's window, then the one newest row of each token after it.
          std::array<const Bf16*, kMaxRunRows> rows{};
          int64_t num_rows = 0;
          for (int64_t t = run.begin; t < run.end; ++t) {
            const int32_t* sources = work.window_sources.data() + t * kWindowRows;
            const int64_t window_rows = work.queries[static_cast<size_t>(t)].window_rows;
            for (int64_t i = t == run.begin ? 0 : window_rows - 1; i < window_rows; ++i) {
              rows[static_cast<size_t>(num_rows++)] = SourceRow(sources[i], inputs);
            }
          }
          AttendWiden({.rows = rows.data(),
                       .num_rows = num_rows,
                       .kv = kv,
                       .panel_rows = kMaxRunRows,
                       .first_row = 0});

          const int64_t first_rows = work.queries[static_cast<size_t>(run.begin)].window_rows;
          for (int64_t t = run.begin; t < run.end; ++t) {
            const int64_t window_rows = work.queries[static_cast<size_t>(t)].window_rows;
            const int64_t window_end = first_rows + (t - run.begin);
            AttendTransposeQ({.q = inputs.q.row(t) + head * kHeadDim,
                              .head_stride = kHeadDim,
                              .num_heads = item_heads,
                              .q_t = q_t});
            AttendTile({.q_t = q_t,
                        .kv = kv,
                        .panel_rows = kMaxRunRows,
                        .first_row = window_end - window_rows,
                        .num_rows = window_rows,
                        .scores = PartOf<float>(scratch, own + layout.scores),
                        .out = partial});
            AttendFinish({.partial = partial,
                          .sink = inputs.sink.data + head,
                          .cos = outputs.inverse_rope ? inputs.rope.cos.row(t) : nullptr,
                          .sin = outputs.inverse_rope ? inputs.rope.sin.row(t) : nullptr,
                          .num_heads = item_heads,
                          .heads = outputs.heads.row(t) + head * kHeadDim,
                          .head_stride = kHeadDim,
                          .log_sum_exp = outputs.log_sum_exp.empty()
                                             ? nullptr
                                             : outputs.log_sum_exp.row(t) + head});
          }
        }
      });
  return {};
}

}  // namespace millipede
