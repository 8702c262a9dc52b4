#include "plan/step_layout.h"

#include <algorithm>

#include "base/checked.h"
#include "geometry/tiles.h"
#include "geometry/visibility.h"
#include "millipede/pages.h"

namespace millipede {
namespace {

// Hands out aligned byte ranges one after another.
class Arena {
 public:
  int64_t Take(int64_t num_bytes) {
    const int64_t offset = end_;
    end_ += RoundUp(num_bytes, kBufferAlignment);
    return offset;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kBf16 = 2;

}  // namespace

HcPreScratch LayOutHcPre(int64_t num_tokens) {
  Arena arena;
  HcPreScratch layout;
  layout.partials = arena.Take(num_tokens * kHcInputRanges * kHcPartialFloats * kFloat);
  layout.total_bytes = arena.end();
  return layout;
}

ProductScratch LayOutProduct(int64_t num_outputs, int64_t num_tokens, int num_threads) {
  Arena arena;
  ProductScratch layout;
  layout.product = arena.Take(num_tokens * num_outputs * kFloat);
  layout.per_thread_bytes = kMatmulScratchBytes;
  layout.per_thread = arena.Take(num_threads * layout.per_thread_bytes);
  layout.total_bytes = arena.end();
  return layout;
}

QueryScratch LayOutQuery(int num_threads) {
  Arena arena;
  QueryScratch layout;
  arena.Take(kMatmulScratchBytes);
  layout.product = arena.Take(kTileRows * kHeadDim * kFloat);
  layout.per_thread_bytes = arena.end();
  layout.total_bytes = num_threads * layout.per_thread_bytes;
  return layout;
}

int64_t MaxPartials(const ModelConfig& config, AttentionKind kind) {
  const int64_t rows = AttendedRows(kind, kMaxContextTokens - 1, config.index_topk);
  return 1 + CeilDiv(rows, kRunTiles * kAttendRows);
}

AttendScratch LayOutAttend(const ModelConfig& config, AttentionKind kind, int64_t num_tokens,
                           int num_threads) {
  constexpr int64_t kPartialBytes = (kHeadDim + 2) * kHeadBlock * kFloat;
  constexpr int64_t kSplitSlotsPerThread = 4;
  const int64_t num_head_blocks = CeilDiv(config.num_heads, kHeadBlock);
  const int64_t block_partial_bytes = kQueryBlock * num_head_blocks * kPartialBytes;
  Arena thread;
  AttendScratch layout;
  // Tokens share the rows that are widened for their block, but for those that an indexer selected:
  // these blocks are only as large as the threads need them.
  if (kind == AttentionKind::kCsa) {
    layout.block_tokens = std::clamp<int64_t>(CeilDiv(num_tokens, num_threads), 1, kQueryBlock);
  }
  layout.kv_rows = thread.Take((kAttendRows + kQueryBlock - 1) * kHeadDim * kFloat);
  layout.q = thread.Take(kQueryBlock * num_head_blocks * kHeadDim * kHeadBlock * kFloat);
  layout.scores = thread.Take(kAttendRows * kHeadBlock * kFloat);
  layout.run = thread.Take(block_partial_bytes);
  layout.total = thread.Take(block_partial_bytes);
  const bool selects = kind == AttentionKind::kCsa;
  if (selects) layout.seen_rows = thread.Take(CeilDiv(kMaxContextTokens / kCsaRatio, 8));
  layout.per_thread_bytes = thread.end();
  Arena shared;
  layout.per_thread = shared.Take(num_threads * layout.per_thread_bytes);
  layout.block_order =
      shared.Take(CeilDiv(num_tokens, layout.block_tokens) * int64_t{sizeof(int32_t)});
  if (selects) layout.selected_rows = shared.Take(num_tokens * config.index_topk * kFloat);
  if (kind == AttentionKind::kHca && num_threads > 1) {
    layout.num_split_slots =
        std::max(MaxPartials(config, kind), kSplitSlotsPerThread * num_threads);
    layout.split_partials = shared.Take(layout.num_split_slots * block_partial_bytes);
  }
  layout.total_bytes = shared.end();
  return layout;
}

SelectScratch LayOutSelect(const ModelConfig& config, int64_t k, int num_threads) {
  constexpr int64_t kWord = sizeof(uint64_t);
  SelectScratch layout;
  layout.max_leaves = NumLeaves(kMaxContextTokens / kCsaRatio);
  layout.packed_query_bytes = PackedIndexQueryBytes(config.num_index_heads);
  Arena thread;
  layout.scores = thread.Take(kQueryBlock * kLeafCandidates * kFloat);
  layout.per_thread_bytes = thread.end();

  const int64_t query_bytes =
      layout.packed_query_bytes + layout.max_leaves * (k * kWord + kFloat) + kWord;
  // A little is left for the rounding of each part.
  const int64_t room = kMaxSelectBytesPerThread - layout.per_thread_bytes - 8 * kBufferAlignment;
  layout.chunk_queries =
      num_threads * std::clamp<int64_t>(room / query_bytes, 1, kMaxSelectQueriesPerThread);
  Arena shared;
  layout.packed_queries = shared.Take(layout.chunk_queries * layout.packed_query_bytes);
  layout.slots = shared.Take(layout.chunk_queries * layout.max_leaves * k * kWord);
  layout.slot_counts = shared.Take(layout.chunk_queries * layout.max_leaves * kFloat);
  layout.floors = shared.Take(layout.chunk_queries * kWord);
  layout.per_thread = shared.Take(num_threads * layout.per_thread_bytes);
  layout.total_bytes = shared.end();
  return layout;
}

OutputScratch LayOutOutput(const ModelConfig& config, int64_t num_groups, int64_t num_tokens,
                           int num_threads) {
  const int64_t latent_elements = num_tokens * num_groups * config.o_rank;
  Arena shared;
  OutputScratch layout;
  layout.latent = shared.Take(latent_elements * kFloat);
  layout.codes = shared.Take(latent_elements);
  layout.scales = shared.Take(num_tokens * num_groups * kFloat);
  Arena thread;
  thread.Take(kMatmulScratchBytes);
  layout.product = thread.Take(kTileRows * kOutputTile * kFloat);
  layout.groups = thread.Take(num_groups * kTileRows * kOutputTile * kFloat);
  layout.per_thread_bytes = thread.end();
  layout.per_thread = shared.Take(num_threads * layout.per_thread_bytes);
  layout.total_bytes = shared.end();
  return layout;
}

OverlayLayout LayOutOverlay(AttentionKind kind, int64_t num_tokens) {
  Arena arena;
  OverlayLayout layout;
  layout.kv = arena.Take(num_tokens * FormatOf(PoolKind::kRaw).row_bytes);
  if (kind == AttentionKind::kHca) {
    layout.state = arena.Take(num_tokens * FormatOf(PoolKind::kHcaState).row_bytes);
  }
  if (kind == AttentionKind::kCsa) {
    layout.state = arena.Take(num_tokens * FormatOf(PoolKind::kCsaState).row_bytes);
    layout.inner_state = arena.Take(num_tokens * FormatOf(PoolKind::kCsaInnerState).row_bytes);
  }
  layout.total_bytes = arena.end();
  return layout;
}

WorkspaceLayout LayOutWorkspace(const ModelConfig& config, AttentionKind kind, int64_t num_tokens,
                                int num_threads) {
  const int64_t model_bytes = num_tokens * config.hidden * kBf16;
  const int64_t heads_bytes = num_tokens * config.num_heads * kHeadDim * kBf16;
  Arena arena;
  WorkspaceLayout layout;
  layout.x_mixed = arena.Take(model_bytes);
  layout.post = arena.Take(num_tokens * kHcStreams * kFloat);
  layout.comb = arena.Take(num_tokens * kHcStreams * kHcStreams * kFloat);
  layout.xn = arena.Take(model_bytes);
  layout.qr = arena.Take(num_tokens * config.q_rank);
  layout.qr_scale = arena.Take(num_tokens * kFloat);
  layout.q = arena.Take(heads_bytes);
  if (kind == AttentionKind::kCsa) {
    const int64_t index_heads = num_tokens * config.num_index_heads;
    layout.idx_q = arena.Take(index_heads * kIndexDim);
    layout.idx_q_scale = arena.Take(index_heads * kFloat);
    layout.idx_weights = arena.Take(index_heads * kFloat);
    layout.topk_idx = arena.Take(num_tokens * config.index_topk * kFloat);
    layout.topk_score = arena.Take(num_tokens * config.index_topk * kFloat);
  }
  layout.heads = arena.Take(heads_bytes);
  layout.attn_out = arena.Take(model_bytes);
  layout.scratch_bytes = std::max({
      LayOutHcPre(num_tokens).total_bytes,
      LayOutProduct(config.q_rank, num_tokens, num_threads).total_bytes,
      LayOutProduct(kHeadDim, num_tokens, num_threads).total_bytes,
      LayOutQuery(num_threads).total_bytes,
      LayOutAttend(config, kind, num_tokens, num_threads).total_bytes,
      LayOutOutput(config, config.o_groups, num_tokens, num_threads).total_bytes,
  });
  if (kind == AttentionKind::kCsa) {
    layout.scratch_bytes = std::max(
        {layout.scratch_bytes, LayOutSelect(config, config.index_topk, num_threads).total_bytes,
         LayOutProduct(config.num_index_heads, num_tokens, num_threads).total_bytes});
  }
  layout.scratch = arena.Take(layout.scratch_bytes);
  layout.total_bytes = arena.end();
  return layout;
}

}  // namespace millipede
