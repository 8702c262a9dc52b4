// The pieces that attention is made of: each works on one query block and some of its head blocks.
#ifndef MILLIPEDE_LAYERS_ATTENDER_H_
#define MILLIPEDE_LAYERS_ATTENDER_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/attend_layout.h"
#include "millipede/stages.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {

// Half-open head blocks that one item works on: their heads share every row that is widened.
struct HeadBlocks {
  int64_t begin = 0;
  int64_t end = 0;
};

// What every item of one Attend call shares. Query block b is query tokens [b * n, (b + 1) * n), n
// = layout.block_tokens.
class Attender {
 public:
  Attender(Context& context, const Plan& plan, const AttendInputs& inputs,
           const AttendOutputs& outputs, const AttendScratch& layout, Scratch scratch);

  int64_t num_query_blocks() const { return num_query_blocks_; }
  int64_t num_head_blocks() const { return num_head_blocks_; }

  // Softmax tiles of a query block, summed over its tokens.
  int64_t NumTilesOf(int64_t query_block) const;

  // Partials of a query block: the window, and the runs of tiles of its token with most.
  int64_t NumPartsOf(int64_t query_block) const;

  // All of a query block's attention, on one thread.
  void Whole(int64_t query_block, HeadBlocks heads, int thread) const;

  // One partial of a split query block: the window (part 0) or a run of tiles; nothing if the block
  // has no such part. `slot` + part is the place among the split partials it is held in.
  void SplitPart(int64_t query_block, int64_t slot, int64_t part, HeadBlocks heads,
                 int thread) const;

  // Merges the partials of a split query block, in order.
  void SplitMerge(int64_t query_block, int64_t slot, HeadBlocks heads, int thread) const;

 private:
  // Partials of the tokens of a query block, by token and head block.
  class Partials {
   public:
    Partials(float* buffer, int64_t num_head_blocks)
        : buffer_(buffer), num_head_blocks_(num_head_blocks) {}
    AttendPartial at(int64_t token, int64_t head_block) const {
      return AttendPartialAt(buffer_ +
                             (token * num_head_blocks_ + head_block) * kAttendPartialFloats);
    }

   private:
    float* buffer_;
    int64_t num_head_blocks_;
  };

  // A query block, some head blocks, and the scratch of the thread that works on them.
  struct Item {
    int64_t query_begin = 0;
    int64_t query_end = 0;
    HeadBlocks heads;
    int thread = 0;
    std::byte* own = nullptr;
  };

  // Consecutive query tokens of one request: rows that several of them attend to are widened once
  // for all.
  struct QueryRun {
    int64_t begin = 0;
    int64_t end = 0;
  };

  // Where the rows of a tile, or of the windows of a run, are.
  class RowList {
   public:
    void Add(const Bf16* row) { rows_[static_cast<size_t>(num_rows_++)] = row; }
    AttendRowList list() const { return {.rows = rows_.data(), .num_rows = num_rows_}; }

   private:
    std::array<const Bf16*, kAttendRows + kQueryBlock - 1> rows_{};
    int64_t num_rows_ = 0;
  };

  Item MakeItem(int64_t query_block, HeadBlocks heads, int thread) const;
  QueryRun RunFrom(int64_t begin, int64_t limit) const;
  template <typename Body>
  void ForEachRun(const Item& it, const Body& body) const;

  const QueryToken& Query(int64_t t) const { return work_.queries[static_cast<size_t>(t)]; }
  const HcaShard& Shard(int64_t t, int64_t tile) const;
  int64_t NumTiles(int64_t t) const;  // behind the window
  const Bf16* WindowRow(int32_t source) const;
  const Bf16* MainRow(PoolKind kind, int64_t row) const;

  Partials OwnPartials(const Item& it, int64_t offset) const;
  Partials SplitPartials(int64_t slot) const;
  float* KvRows(const Item& it) const;
  float* TransposedQuery(const Item& it, int64_t t, int64_t head_block) const;
  int64_t NumHeads(int64_t head_block) const;  // of the last block, maybe fewer than kHeadBlock

  // The counts of a request, for the one item that keeps the books of its tokens.
  RequestCounts* CountsFor(const Item& it, int64_t t) const;
  void CountWindow(int64_t t, RequestCounts& counts) const;
  Trace::Impl* TraceFor(const Item& it) const;  // null for other items
  static TraceArgs ItemTrace(const Item& it);
  TraceArgs TileTrace(TraceTask task, int64_t t, int64_t index, int64_t num_rows) const;

  RowList WindowRows(QueryRun run) const;
  RowList TileRows(int64_t t, int64_t tile) const;  // none if the token has no such tile
  RowList FirstRows(QueryRun run, int64_t r) const;
  RowList NextTileRows(QueryRun run, int64_t t, int64_t tile) const;

  // `next` are the rows to be widened next, asked for while the work at hand takes its time: by
  // each head block of the item its share.
  static AttendRowList ShareOf(const Item& it, int64_t head_block, AttendRowList next);
  void TransposeQueries(const Item& it, QueryRun run, AttendRowList next) const;
  void Widen(const Item& it, QueryRun readers, AttendRowList rows) const;
  void Tile(const Item& it, int64_t t, int64_t head_block, RowRange widened, bool merge,
            AttendRowList next, const AttendPartial& out) const;
  void AddTile(const Item& it, int64_t t, int64_t tile, int64_t r, int64_t num_rows,
               AttendRowList next, const Partials& out) const;
  void Window(const Item& it, QueryRun run, AttendRowList rows, AttendRowList next,
              const Partials& out) const;
  void Tiles(const Item& it, QueryRun run, int64_t r, const Partials& out) const;
  void ShardTiles(const Item& it, QueryRun run, int64_t r, const Partials& out) const;
  void SelectedTiles(const Item& it, QueryRun run, int64_t r, const Partials& out) const;
  void Merge(const Item& it, int64_t t, const Partials& from, const Partials& into) const;
  void Finish(const Item& it, QueryRun run, const Partials& total) const;

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
  int64_t num_query_blocks_;
};

}  // namespace millipede

#endif  // MILLIPEDE_LAYERS_ATTENDER_H_
