// Attention over the rows a plan names: the window, and for compressed kinds tiles of compressed
// rows behind it.
#include <algorithm>
#include <array>

#include "geometry/rings.h"
#include "kernels/attend_load.h"
#include "kernels/attend_merge.h"
#include "kernels/attend_tile.h"
#include "layers/checks.h"
#include "layers/pack_selection.h"
#include "layers/plan_checks.h"
#include "layers/pool_rows.h"
#include "millipede/stages.h"
#include "pages/view_checks.h"
#include "plan/plan_state.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {
namespace {

constexpr int64_t kMaxRunRows = kAttendRows + kQueryBlock - 1;

// Consecutive query tokens of one request, at most kQueryBlock: rows that several of them attend to
// are widened once for all.
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

// What every item of one call shares, and the pieces an item is made of. Partials are given as
// arrays by token of the query block.
class Attender {
 public:
  Attender(Context& context, const Plan& plan, const AttendInputs& inputs,
           const AttendOutputs& outputs, const AttendScratch& layout, Scratch scratch)
      : context_(context),
        work_(plan.work()),
        kind_(plan.kind()),
        inputs_(inputs),
        outputs_(outputs),
        layout_(layout),
        scratch_(scratch),
        num_tokens_(plan.num_tokens()),
        index_topk_(plan.state()->config.index_topk),
        num_heads_(inputs.q.shape[1]),
        num_head_blocks_(CeilDiv(num_heads_, kHeadBlock)) {}

  int64_t num_items() const { return CeilDiv(num_tokens_, kQueryBlock) * num_head_blocks_; }

  // Most runs of tiles of any query.
  int64_t MaxRuns() const {
    int64_t max_tiles = 0;
    for (int64_t t = 0; t < num_tokens_; ++t) max_tiles = std::max(max_tiles, NumTiles(t));
    return CeilDiv(max_tiles, kRunTiles);
  }

  // All of an item's attention on one thread.
  void WholeItem(int64_t item, int thread) const {
    const Item it = MakeItem(item, thread);
    const std::array total = OwnPartials(it, layout_.total);
    const std::array run_partials = OwnPartials(it, layout_.run);
    ForEachRun(it, [&](QueryRun run) {
      TransposeQueries(it, run);
      Window(it, run, total);
      const int64_t num_runs = CeilDiv(NumTiles(run.end - 1), kRunTiles);
      for (int64_t r = 0; r < num_runs; ++r) {
        Tiles(it, run, r, run_partials);
        for (int64_t t = run.begin; t < run.end; ++t) {
          if (r * kRunTiles >= NumTiles(t)) continue;
          const auto i = static_cast<size_t>(t - it.query_begin);
          AttendMerge({.from = run_partials[i], .into = total[i]});
        }
      }
      Finish(it, run, total);
    });
  }

  // One partial of a split item: the window (part 0) or a run of tiles.
  void SplitPart(int64_t item, int64_t part, int thread) const {
    const Item it = MakeItem(item, thread);
    const std::array partials = SplitPartials(item, part);
    ForEachRun(it, [&](QueryRun run) {
      if (part > 0 && (part - 1) * kRunTiles >= NumTiles(run.end - 1)) return;
      TransposeQueries(it, run);
      if (part == 0) {
        Window(it, run, partials);
      } else {
        Tiles(it, run, part - 1, partials);
      }
    });
  }

  // Merges a split item's partials, in order.
  void SplitMerge(int64_t item, int thread) const {
    const Item it = MakeItem(item, thread);
    const std::array total = SplitPartials(item, 0);
    ForEachRun(it, [&](QueryRun run) {
      for (int64_t t = run.begin; t < run.end; ++t) {
        const auto i = static_cast<size_t>(t - it.query_begin);
        for (int64_t part = 1; (part - 1) * kRunTiles < NumTiles(t); ++part) {
          AttendMerge({.from = SplitPartials(item, part)[i], .into = total[i]});
        }
      }
      Finish(it, run, total);
    });
  }

 private:
  using Partials = std::array<AttendPartial, kQueryBlock>;

  // A query block, a head block, and the scratch of the thread that works on them.
  struct Item {
    int64_t query_begin = 0;
    int64_t query_end = 0;
    int64_t head = 0;
    int64_t num_heads = 0;
    int thread = 0;
    std::byte* own = nullptr;
  };

  Item MakeItem(int64_t item, int thread) const {
    Item it;
    it.query_begin = item / num_head_blocks_ * kQueryBlock;
    it.query_end = std::min(num_tokens_, it.query_begin + kQueryBlock);
    it.head = item % num_head_blocks_ * kHeadBlock;
    it.num_heads = std::min(kHeadBlock, num_heads_ - it.head);
    it.thread = thread;
    it.own = PartOf<std::byte>(scratch_, layout_.per_thread + thread * layout_.per_thread_bytes);
    return it;
  }

  template <typename Body>
  void ForEachRun(const Item& it, const Body& body) const {
    QueryRun run;
    for (int64_t begin = it.query_begin; begin < it.query_end; begin = run.end) {
      run = RunFrom(work_, begin, it.query_end);
      body(run);
    }
  }

  static Partials PartialsAt(float* buffer) {
    Partials partials;
    for (size_t i = 0; i < partials.size(); ++i) {
      partials[i] = AttendPartialAt(buffer + static_cast<int64_t>(i) * kAttendPartialFloats);
    }
    return partials;
  }
  static Partials OwnPartials(const Item& it, int64_t offset) {
    return PartialsAt(reinterpret_cast<float*>(it.own + offset));
  }
  Partials SplitPartials(int64_t item, int64_t part) const {
    return PartialsAt(PartOf<float>(scratch_, layout_.split_partials) +
                      (item * layout_.max_partials + part) * kQueryBlock * kAttendPartialFloats);
  }

  float* TransposedQuery(const Item& it, int64_t t) const {
    return reinterpret_cast<float*>(it.own + layout_.q) +
           (t - it.query_begin) * kHeadDim * kHeadBlock;
  }
  float* KvRows(const Item& it) const { return reinterpret_cast<float*>(it.own + layout_.kv_rows); }

  const QueryToken& Query(int64_t t) const { return work_.queries[static_cast<size_t>(t)]; }

  // Tiles behind the window that query `t` attends to.
  int64_t NumTiles(int64_t t) const {
    const auto i = static_cast<size_t>(t);
    switch (kind_) {
      case AttentionKind::kSwa:
        return 0;
      case AttentionKind::kHca:
        return work_.shard_offsets[i + 1] - work_.shard_offsets[i];
      case AttentionKind::kCsa:
        return CeilDiv(NumSelected(Query(t), index_topk_), kAttendRows);
    }
    return 0;
  }

  const HcaShard& Shard(int64_t t, int64_t tile) const {
    return work_.shards[static_cast<size_t>(work_.shard_offsets[static_cast<size_t>(t)] + tile)];
  }

  const Bf16* WindowRow(int32_t source) const {
    return source < 0 ? inputs_.new_kv.row(-2 - source)
                      : PoolRow<const Bf16>(inputs_.raw, PoolKind::kRaw, source);
  }

  // The counts of a request, for the one head block that keeps the books.
  RequestCounts* CountsFor(const Item& it, int64_t t) const {
    return it.head == 0 ? &CountsOf(context_, it.thread, Query(t).request) : nullptr;
  }

  void TransposeQueries(const Item& it, QueryRun run) const {
    for (int64_t t = run.begin; t < run.end; ++t) {
      AttendTransposeQ({.q = inputs_.q.row(t) + it.head * kHeadDim,
                        .head_stride = kHeadDim,
                        .num_heads = it.num_heads,
                        .q_t = TransposedQuery(it, t)});
    }
  }

  void Tile(const Item& it, int64_t t, int64_t first_row, int64_t num_rows,
            const AttendPartial& out) const {
    AttendTile({.q_t = TransposedQuery(it, t),
                .kv = KvRows(it),
                .panel_rows = kMaxRunRows,
                .first_row = first_row,
                .num_rows = num_rows,
                .scores = reinterpret_cast<float*>(it.own + layout_.scores),
                .out = out});
  }

  // The window tile of each token. The windows are ranges of one run of rows: the first token's
  // window, then the one newest row of each token after it.
  void Window(const Item& it, QueryRun run, const Partials& out) const {
    std::array<const Bf16*, kMaxRunRows> rows{};
    int64_t num_rows = 0;
    for (int64_t t = run.begin; t < run.end; ++t) {
      const int32_t* sources = work_.window_sources.data() + t * kWindowRows;
      const int64_t window_rows = Query(t).window_rows;
      for (int64_t i = t == run.begin ? 0 : window_rows - 1; i < window_rows; ++i) {
        rows[static_cast<size_t>(num_rows++)] = WindowRow(sources[i]);
      }
    }
    AttendWiden({.rows = rows.data(),
                 .num_rows = num_rows,
                 .kv = KvRows(it),
                 .panel_rows = kMaxRunRows,
                 .first_row = 0});
    for (int64_t t = run.begin; t < run.end; ++t) {
      const int64_t window_rows = Query(t).window_rows;
      const int64_t window_end = Query(run.begin).window_rows + (t - run.begin);
      Tile(it, t, window_end - window_rows, window_rows,
           out[static_cast<size_t>(t - it.query_begin)]);
      if (RequestCounts* counts = CountsFor(it, t)) CountWindow(t, *counts);
    }
  }

  void CountWindow(int64_t t, RequestCounts& counts) const {
    const QueryToken& query = Query(t);
    counts.query_tokens += 1;
    counts.window_rows += query.window_rows;
    const int32_t* sources = work_.window_sources.data() + t * kWindowRows;
    for (int64_t i = 0; i < query.window_rows; ++i) {
      if (sources[i] < 0) continue;
      const int64_t position = query.position - query.window_rows + 1 + i;
      counts.raw_ring_pages |= uint32_t{1} << RingPage(FormatOf(PoolKind::kRaw), position);
    }
  }

  // Run `r` of the tiles of each token that has any of it.
  void Tiles(const Item& it, QueryRun run, int64_t r, const Partials& out) const {
    if (kind_ == AttentionKind::kHca) {
      ShardTiles(it, run, r, out);
    } else {
      SelectedTiles(it, run, r, out);
    }
  }

  // Tile `tile` of run `r` over widened rows [0, num_rows), merged into what the run has so far.
  void AddTile(const Item& it, int64_t t, int64_t tile, int64_t r, int64_t num_rows,
               const Partials& out) const {
    const AttendPartial& into = out[static_cast<size_t>(t - it.query_begin)];
    if (tile == r * kRunTiles) {
      Tile(it, t, 0, num_rows, into);
    } else {
      const AttendPartial partial =
          AttendPartialAt(reinterpret_cast<float*>(it.own + layout_.tile));
      Tile(it, t, 0, num_rows, partial);
      AttendMerge({.from = partial, .into = into});
    }
    if (RequestCounts* counts = CountsFor(it, t)) counts->compressed_rows += num_rows;
  }

  // Tokens of a request see the same shards, but for rows that an event of the step added: a shard
  // is widened once, for the token that sees most of it.
  void ShardTiles(const Item& it, QueryRun run, int64_t r, const Partials& out) const {
    for (int64_t tile = r * kRunTiles; tile < (r + 1) * kRunTiles; ++tile) {
      int32_t widened_first = -1;
      int32_t widened_rows = 0;
      for (int64_t t = run.end - 1; t >= run.begin; --t) {  // the last token sees most
        if (tile >= NumTiles(t)) continue;
        const HcaShard& shard = Shard(t, tile);
        if (shard.first_row != widened_first || shard.num_rows > widened_rows) {
          const int32_t* pages = work_.main_pages.data() + shard.first_page;
          WidenTile(it, shard.num_rows, [&](int64_t i) {
            return MainRow(PoolKind::kHcaMain,
                           int64_t{pages[i / kPageRows]} * kPageRows + i % kPageRows);
          });
          widened_first = shard.first_row;
          widened_rows = shard.num_rows;
        }
        AddTile(it, t, tile, r, shard.num_rows, out);
        if (RequestCounts* counts = CountsFor(it, t)) counts->shards += 1;
      }
    }
  }

  // The selected rows of each token, best first: no two tokens need have any in common.
  void SelectedTiles(const Item& it, QueryRun run, int64_t r, const Partials& out) const {
    const auto* selected_rows = PartOf<int32_t>(scratch_, layout_.selected_rows);
    for (int64_t t = run.begin; t < run.end; ++t) {
      const int64_t num_selected = NumSelected(Query(t), index_topk_);
      const int64_t end_tile = std::min((r + 1) * kRunTiles, NumTiles(t));
      for (int64_t tile = r * kRunTiles; tile < end_tile; ++tile) {
        const int64_t begin = tile * kAttendRows;
        const int64_t num_rows = std::min(kAttendRows, num_selected - begin);
        const int32_t* rows = selected_rows + t * index_topk_ + begin;
        WidenTile(it, num_rows, [&](int64_t i) { return MainRow(PoolKind::kCsaMain, rows[i]); });
        AddTile(it, t, tile, r, num_rows, out);
      }
    }
  }

  const Bf16* MainRow(PoolKind kind, int64_t row) const {
    return PoolRow<const Bf16>(inputs_.main, kind, row);
  }

  template <typename RowOf>
  void WidenTile(const Item& it, int64_t num_rows, const RowOf& row_of) const {
    std::array<const Bf16*, kAttendRows> rows{};
    for (int64_t i = 0; i < num_rows; ++i) rows[static_cast<size_t>(i)] = row_of(i);
    AttendWiden({.rows = rows.data(),
                 .num_rows = num_rows,
                 .kv = KvRows(it),
                 .panel_rows = kMaxRunRows,
                 .first_row = 0});
  }

  void Finish(const Item& it, QueryRun run, const Partials& total) const {
    for (int64_t t = run.begin; t < run.end; ++t) {
      AttendFinish({.partial = total[static_cast<size_t>(t - it.query_begin)],
                    .sink = inputs_.sink.data + it.head,
                    .cos = outputs_.inverse_rope ? inputs_.rope.cos.row(t) : nullptr,
                    .sin = outputs_.inverse_rope ? inputs_.rope.sin.row(t) : nullptr,
                    .num_heads = it.num_heads,
                    .heads = outputs_.heads.row(t) + it.head * kHeadDim,
                    .head_stride = kHeadDim,
                    .log_sum_exp = outputs_.log_sum_exp.empty()
                                       ? nullptr
                                       : outputs_.log_sum_exp.row(t) + it.head});
    }
  }

  Context& context_;
  const PackedWork& work_;
  AttentionKind kind_;
  const AttendInputs& inputs_;
  const AttendOutputs& outputs_;
  const AttendScratch& layout_;
  Scratch scratch_;
  int64_t num_tokens_;
  int64_t index_topk_;
  int64_t num_heads_;
  int64_t num_head_blocks_;
};

Status CheckAttend(const ModelConfig& config, const Plan& plan, const AttendInputs& inputs,
                   const AttendOutputs& outputs) {
  const int64_t num_tokens = plan.num_tokens();
  const int64_t num_heads = config.num_heads;
  const KindSpaces& spaces = plan.state()->spaces;
  MILLIPEDE_RETURN_IF_ERROR(CheckPlanConfig(*plan.state(), config));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("q", inputs.q, {num_tokens, num_heads, kHeadDim}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("sink", inputs.sink, {num_heads}));
  if (outputs.inverse_rope) MILLIPEDE_RETURN_IF_ERROR(CheckRope("rope", inputs.rope, num_tokens));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("new_kv", inputs.new_kv, {num_tokens, kHeadDim}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("heads", outputs.heads, {num_tokens, num_heads, kHeadDim}));
  if (!outputs.log_sum_exp.empty()) {
    MILLIPEDE_RETURN_IF_ERROR(
        CheckView("log_sum_exp", outputs.log_sum_exp, {num_tokens, num_heads}));
  }
  MILLIPEDE_RETURN_IF_ERROR(
      CheckPoolView(inputs.raw, PoolKind::kRaw, spaces.raw.num_pages, "inputs.raw"));
  if (plan.kind() != AttentionKind::kSwa) {
    const bool csa = plan.kind() == AttentionKind::kCsa;
    MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(inputs.main,
                                            csa ? PoolKind::kCsaMain : PoolKind::kHcaMain,
                                            spaces.main.num_pages, "inputs.main"));
    if (csa) {
      MILLIPEDE_RETURN_IF_ERROR(
          CheckView("selection", inputs.selection, {num_tokens, config.index_topk}));
    }
  }
  return RecheckPages(*plan.state());
}

}  // namespace

Status Attend(Context& context, const ModelConfig& config, const Plan& plan,
              const AttendInputs& inputs, const AttendOutputs& outputs, Scratch scratch) {
  MILLIPEDE_RETURN_IF_ERROR(CheckAttend(config, plan, inputs, outputs));
  const AttendScratch layout =
      LayOutAttend(config, plan.kind(), plan.num_tokens(), context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));

  ReserveRequestCounts(context, static_cast<int64_t>(plan.work().requests.size()));
  if (plan.kind() == AttentionKind::kCsa) {
    MILLIPEDE_RETURN_IF_ERROR(PackSelection(
        context, plan, config.index_topk,
        {.selection = inputs.selection,
         .selected_rows = PartOf<int32_t>(scratch, layout.selected_rows),
         .seen_rows = PartOf<std::byte>(scratch, layout.per_thread + layout.seen_rows),
         .seen_stride_bytes = layout.per_thread_bytes,
         .seen_bytes = CeilDiv(kMaxContextTokens / kCsaRatio, 8)}));
  }
  const Attender attender(context, plan, inputs, outputs, layout, scratch);
  const int64_t num_items = attender.num_items();
  const int64_t num_parts = 1 + attender.MaxRuns();
  const bool split = context.num_threads() > 1 && num_parts > 1 &&
                     num_items < kMinItemsPerThread * context.num_threads();
  if (!split) {
    ParallelFor(context, "attention", num_items,
                [&](int64_t item, int thread) { attender.WholeItem(item, thread); });
    return {};
  }
  ParallelFor(context, "attention parts", num_items * num_parts, [&](int64_t i, int thread) {
    attender.SplitPart(i / num_parts, i % num_parts, thread);
  });
  ParallelFor(context, "attention merge", num_items,
              [&](int64_t item, int thread) { attender.SplitMerge(item, thread); });
  return {};
}

}  // namespace millipede
