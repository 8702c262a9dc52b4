#include "layers/attender.h"

#include <algorithm>

#include "geometry/rings.h"
#include "kernels/attend_load.h"
#include "kernels/attend_merge.h"
#include "kernels/attend_tile.h"
#include "layers/checks.h"
#include "layers/pack_selection.h"
#include "layers/pool_rows.h"
#include "plan/plan_state.h"

namespace millipede {
namespace {

constexpr int64_t kMaxRunRows = kAttendRows + kQueryBlock - 1;

}  // namespace

Attender::Attender(Context& context, const Plan& plan, const AttendInputs& inputs,
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
      num_head_blocks_(CeilDiv(num_heads_, kHeadBlock)),
      num_query_blocks_(CeilDiv(num_tokens_, layout.block_tokens)) {}

int64_t Attender::NumTilesOf(int64_t query_block) const {
  const Item it = MakeItem(query_block, {}, 0);
  int64_t num_tiles = 0;
  for (int64_t t = it.query_begin; t < it.query_end; ++t) num_tiles += 1 + NumTiles(t);
  return num_tiles;
}

int64_t Attender::NumPartsOf(int64_t query_block) const {
  const Item it = MakeItem(query_block, {}, 0);
  int64_t num_tiles = 0;
  for (int64_t t = it.query_begin; t < it.query_end; ++t) {
    num_tiles = std::max(num_tiles, NumTiles(t));
  }
  return 1 + CeilDiv(num_tiles, kRunTiles);
}

void Attender::Whole(int64_t query_block, HeadBlocks heads, int thread) const {
  const Item it = MakeItem(query_block, heads, thread);
  DescribeItem(context_.impl().trace, thread, ItemTrace(it));
  const Partials total = OwnPartials(it, layout_.total);
  const Partials run_partials = OwnPartials(it, layout_.run);
  ForEachRun(it, [&](QueryRun run) {
    const RowList window = WindowRows(run);
    TransposeQueries(it, run, window.list());
    Window(it, run, window.list(), FirstRows(run, 0).list(), total);
    const int64_t num_runs = CeilDiv(NumTiles(run.end - 1), kRunTiles);
    for (int64_t r = 0; r < num_runs; ++r) {
      Tiles(it, run, r, run_partials);
      for (int64_t t = run.begin; t < run.end; ++t) {
        if (r * kRunTiles < NumTiles(t)) Merge(it, t, run_partials, total);
      }
    }
    Finish(it, run, total);
  });
}

void Attender::SplitPart(int64_t query_block, int64_t slot, int64_t part, HeadBlocks heads,
                         int thread) const {
  const Item it = MakeItem(query_block, heads, thread);
  DescribeItem(context_.impl().trace, thread, ItemTrace(it));
  const Partials partials = SplitPartials(slot + part);
  ForEachRun(it, [&](QueryRun run) {
    if (part > 0 && (part - 1) * kRunTiles >= NumTiles(run.end - 1)) return;
    const RowList first = part == 0 ? WindowRows(run) : FirstRows(run, part - 1);
    TransposeQueries(it, run, first.list());
    if (part == 0) {
      Window(it, run, first.list(), {}, partials);
    } else {
      Tiles(it, run, part - 1, partials);
    }
  });
}

void Attender::SplitMerge(int64_t query_block, int64_t slot, HeadBlocks heads, int thread) const {
  const Item it = MakeItem(query_block, heads, thread);
  DescribeItem(context_.impl().trace, thread, ItemTrace(it));
  const Partials total = SplitPartials(slot);
  ForEachRun(it, [&](QueryRun run) {
    for (int64_t t = run.begin; t < run.end; ++t) {
      for (int64_t part = 1; (part - 1) * kRunTiles < NumTiles(t); ++part) {
        Merge(it, t, SplitPartials(slot + part), total);
      }
    }
    Finish(it, run, total);
  });
}

Attender::Item Attender::MakeItem(int64_t query_block, HeadBlocks heads, int thread) const {
  Item it;
  it.query_begin = query_block * layout_.block_tokens;
  it.query_end = std::min(num_tokens_, it.query_begin + layout_.block_tokens);
  it.heads = heads;
  it.thread = thread;
  it.own = PartOf<std::byte>(scratch_, layout_.per_thread + thread * layout_.per_thread_bytes);
  return it;
}

Attender::QueryRun Attender::RunFrom(int64_t begin, int64_t limit) const {
  QueryRun run{begin, begin + 1};
  while (run.end < limit && Query(run.end).request == Query(begin).request) ++run.end;
  return run;
}

template <typename Body>
void Attender::ForEachRun(const Item& it, const Body& body) const {
  QueryRun run;
  for (int64_t begin = it.query_begin; begin < it.query_end; begin = run.end) {
    run = RunFrom(begin, it.query_end);
    body(run);
  }
}

const HcaShard& Attender::Shard(int64_t t, int64_t tile) const {
  return work_.shards[static_cast<size_t>(work_.shard_offsets[static_cast<size_t>(t)] + tile)];
}

int64_t Attender::NumTiles(int64_t t) const {
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

const Bf16* Attender::WindowRow(int32_t source) const {
  return source < 0 ? inputs_.new_kv.row(-2 - source)
                    : PoolRow<const Bf16>(inputs_.raw, PoolKind::kRaw, source);
}

const Bf16* Attender::MainRow(PoolKind kind, int64_t row) const {
  return PoolRow<const Bf16>(inputs_.main, kind, row);
}

Attender::Partials Attender::OwnPartials(const Item& it, int64_t offset) const {
  return {reinterpret_cast<float*>(it.own + offset), num_head_blocks_};
}

Attender::Partials Attender::SplitPartials(int64_t slot) const {
  return {PartOf<float>(scratch_, layout_.split_partials) +
              slot * kQueryBlock * num_head_blocks_ * kAttendPartialFloats,
          num_head_blocks_};
}

float* Attender::KvRows(const Item& it) const {
  return reinterpret_cast<float*>(it.own + layout_.kv_rows);
}

float* Attender::TransposedQuery(const Item& it, int64_t t, int64_t head_block) const {
  return reinterpret_cast<float*>(it.own + layout_.q) +
         ((t - it.query_begin) * num_head_blocks_ + head_block) * kHeadDim * kHeadBlock;
}

int64_t Attender::NumHeads(int64_t head_block) const {
  return std::min(kHeadBlock, num_heads_ - head_block * kHeadBlock);
}

RequestCounts* Attender::CountsFor(const Item& it, int64_t t) const {
  return it.heads.begin == 0 ? &CountsOf(context_, it.thread, Query(t).request) : nullptr;
}

void Attender::CountWindow(int64_t t, RequestCounts& counts) const {
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

Trace::Impl* Attender::TraceFor(const Item& it) const {
  return it.heads.begin == 0 ? context_.impl().trace : nullptr;
}

TraceArgs Attender::ItemTrace(const Item& it) {
  const int64_t num_queries = it.query_end - it.query_begin;
  return {.first_query = it.query_begin, .num_queries = num_queries, .rows = num_queries};
}

TraceArgs Attender::TileTrace(TraceTask task, int64_t t, int64_t index, int64_t num_rows) const {
  return {.task = task,
          .index = index,
          .request = Query(t).request,
          .first_query = t,
          .rows = num_rows};
}

void Attender::TransposeQueries(const Item& it, QueryRun run, AttendRowList next) const {
  for (int64_t t = run.begin; t < run.end; ++t) {
    for (int64_t b = it.heads.begin; b < it.heads.end; ++b) {
      AttendTransposeQ({.q = inputs_.q.row(t) + b * kHeadBlock * kHeadDim,
                        .head_stride = kHeadDim,
                        .num_heads = NumHeads(b),
                        .q_t = TransposedQuery(it, t, b),
                        .next = t == run.begin ? ShareOf(it, b, next) : AttendRowList()});
    }
  }
}

// The windows of a run are ranges of one list of rows: the first token's window, then the newest
// row of each token after it.
Attender::RowList Attender::WindowRows(QueryRun run) const {
  RowList list;
  for (int64_t t = run.begin; t < run.end; ++t) {
    const int32_t* sources = work_.window_sources.data() + t * kWindowRows;
    const int64_t window_rows = Query(t).window_rows;
    for (int64_t i = t == run.begin ? 0 : window_rows - 1; i < window_rows; ++i) {
      list.Add(WindowRow(sources[i]));
    }
  }
  return list;
}

Attender::RowList Attender::TileRows(int64_t t, int64_t tile) const {
  RowList list;
  if (tile >= NumTiles(t)) return list;
  if (kind_ == AttentionKind::kHca) {
    const HcaShard& shard = Shard(t, tile);
    const int32_t* pages = work_.main_pages.data() + shard.first_page;
    for (int64_t i = 0; i < shard.num_rows; ++i) {
      list.Add(
          MainRow(PoolKind::kHcaMain, int64_t{pages[i / kPageRows]} * kPageRows + i % kPageRows));
    }
  } else {
    const int32_t* selected = PartOf<int32_t>(scratch_, layout_.selected_rows) + t * index_topk_;
    const int64_t end = std::min((tile + 1) * kAttendRows, NumSelected(Query(t), index_topk_));
    for (int64_t i = tile * kAttendRows; i < end; ++i) {
      list.Add(MainRow(PoolKind::kCsaMain, selected[i]));
    }
  }
  return list;
}

// The rows that a run of tiles widens first: HCA's of the token that sees most of them.
Attender::RowList Attender::FirstRows(QueryRun run, int64_t r) const {
  return TileRows(kind_ == AttentionKind::kHca ? run.end - 1 : run.begin, r * kRunTiles);
}

// The rows to be widened after those of a token's tile; none at the end of a run of tiles.
Attender::RowList Attender::NextTileRows(QueryRun run, int64_t t, int64_t tile) const {
  const int64_t next = tile + 1;
  if (next % kRunTiles != 0 && next < NumTiles(t)) return TileRows(t, next);
  const bool more_tokens = kind_ == AttentionKind::kCsa && t + 1 < run.end;
  return more_tokens ? TileRows(t + 1, tile / kRunTiles * kRunTiles) : RowList();
}

void Attender::Widen(const Item& it, QueryRun readers, AttendRowList rows) const {
  const TraceSpan traced(context_.impl().trace, it.thread,
                         {.task = TraceTask::kWiden,
                          .request = Query(readers.begin).request,
                          .first_query = readers.begin,
                          .num_queries = readers.end - readers.begin,
                          .rows = rows.num_rows,
                          .bytes = rows.num_rows * FormatOf(PoolKind::kRaw).row_bytes});
  AttendWiden({.rows = rows, .kv = KvRows(it), .panel_rows = kMaxRunRows, .first_row = 0});
}

// Items of other head blocks ask for the shares in another order: what one has brought, the other
// need not fetch from memory.
AttendRowList Attender::ShareOf(const Item& it, int64_t head_block, AttendRowList next) {
  const int64_t num_shares = it.heads.end - it.heads.begin;
  const int64_t share = (head_block - it.heads.begin + it.heads.begin / num_shares) % num_shares;
  const int64_t begin = next.num_rows * share / num_shares;
  const int64_t end = next.num_rows * (share + 1) / num_shares;
  return {.rows = next.rows + begin, .num_rows = end - begin};
}

void Attender::Tile(const Item& it, int64_t t, int64_t head_block, RowRange widened, bool merge,
                    AttendRowList next, const AttendPartial& out) const {
  AttendTile({.q_t = TransposedQuery(it, t, head_block),
              .kv = KvRows(it),
              .panel_rows = kMaxRunRows,
              .first_row = widened.begin,
              .num_rows = widened.end - widened.begin,
              .scores = reinterpret_cast<float*>(it.own + layout_.scores),
              .out = out,
              .merge = merge,
              .next = ShareOf(it, head_block, next)});
}

// Tile `tile` of run `r` over widened rows [0, num_rows), merged into what the run has so far.
void Attender::AddTile(const Item& it, int64_t t, int64_t tile, int64_t r, int64_t num_rows,
                       AttendRowList next, const Partials& out) const {
  const TraceTask task = kind_ == AttentionKind::kHca ? TraceTask::kShard : TraceTask::kSelected;
  const TraceSpan traced(TraceFor(it), it.thread, TileTrace(task, t, tile, num_rows));
  for (int64_t b = it.heads.begin; b < it.heads.end; ++b) {
    Tile(it, t, b, {.begin = 0, .end = num_rows}, tile != r * kRunTiles, next,
         out.at(t - it.query_begin, b));
  }
  if (RequestCounts* counts = CountsFor(it, t)) counts->compressed_rows += num_rows;
}

// The window tile of each token.
void Attender::Window(const Item& it, QueryRun run, AttendRowList rows, AttendRowList next,
                      const Partials& out) const {
  Widen(it, run, rows);
  for (int64_t t = run.begin; t < run.end; ++t) {
    const int64_t window_rows = Query(t).window_rows;
    const int64_t window_end = Query(run.begin).window_rows + (t - run.begin);
    const TraceSpan traced(TraceFor(it), it.thread,
                           TileTrace(TraceTask::kWindow, t, -1, window_rows));
    for (int64_t b = it.heads.begin; b < it.heads.end; ++b) {
      Tile(it, t, b, {.begin = window_end - window_rows, .end = window_end}, false,
           t + 1 == run.end ? next : AttendRowList(), out.at(t - it.query_begin, b));
    }
    if (RequestCounts* counts = CountsFor(it, t)) CountWindow(t, *counts);
  }
}

// Run `r` of the tiles of each token that has any of it.
void Attender::Tiles(const Item& it, QueryRun run, int64_t r, const Partials& out) const {
  if (kind_ == AttentionKind::kHca) {
    ShardTiles(it, run, r, out);
  } else {
    SelectedTiles(it, run, r, out);
  }
}

// Tokens of a request see the same shards, but for rows that an event of the step added: a shard is
// widened once, for the last token, which sees most of it.
void Attender::ShardTiles(const Item& it, QueryRun run, int64_t r, const Partials& out) const {
  for (int64_t tile = r * kRunTiles; tile < (r + 1) * kRunTiles; ++tile) {
    const int64_t last = run.end - 1;
    if (tile >= NumTiles(last)) break;
    Widen(it, run, TileRows(last, tile).list());
    const RowList next = NextTileRows(run, last, tile);
    for (int64_t t = last; t >= run.begin && tile < NumTiles(t); --t) {
      AddTile(it, t, tile, r, Shard(t, tile).num_rows, t == last ? next.list() : AttendRowList(),
              out);
      if (RequestCounts* counts = CountsFor(it, t)) counts->shards += 1;
    }
  }
}

// The selected rows of each token, best first: no two tokens need have any in common.
void Attender::SelectedTiles(const Item& it, QueryRun run, int64_t r, const Partials& out) const {
  for (int64_t t = run.begin; t < run.end; ++t) {
    const int64_t end_tile = std::min((r + 1) * kRunTiles, NumTiles(t));
    for (int64_t tile = r * kRunTiles; tile < end_tile; ++tile) {
      const RowList list = TileRows(t, tile);
      Widen(it, {t, t + 1}, list.list());
      AddTile(it, t, tile, r, list.list().num_rows, NextTileRows(run, t, tile).list(), out);
    }
  }
}

void Attender::Merge(const Item& it, int64_t t, const Partials& from, const Partials& into) const {
  for (int64_t b = it.heads.begin; b < it.heads.end; ++b) {
    AttendMerge({.from = from.at(t - it.query_begin, b), .into = into.at(t - it.query_begin, b)});
  }
}

void Attender::Finish(const Item& it, QueryRun run, const Partials& total) const {
  for (int64_t t = run.begin; t < run.end; ++t) {
    for (int64_t b = it.heads.begin; b < it.heads.end; ++b) {
      const int64_t head = b * kHeadBlock;
      AttendFinish({.partial = total.at(t - it.query_begin, b),
                    .sink = inputs_.sink.data + head,
                    .cos = outputs_.inverse_rope ? inputs_.rope.cos.row(t) : nullptr,
                    .sin = outputs_.inverse_rope ? inputs_.rope.sin.row(t) : nullptr,
                    .num_heads = NumHeads(b),
                    .heads = outputs_.heads.row(t) + head * kHeadDim,
                    .head_stride = kHeadDim,
                    .log_sum_exp = outputs_.log_sum_exp.empty()
                                       ? nullptr
                                       : outputs_.log_sum_exp.row(t) + head});
    }
  }
}

}  // namespace millipede
