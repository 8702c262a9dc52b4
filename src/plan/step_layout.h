// Where everything of a step lies in the workspace and in a layer's overlay.
#ifndef MILLIPEDE_PLAN_STEP_LAYOUT_H_
#define MILLIPEDE_PLAN_STEP_LAYOUT_H_

#include <cstdint>

#include "geometry/tiles.h"
#include "millipede/config.h"

namespace millipede {

// Byte offsets into a workspace of `total_bytes`. Activations are linear in the step's tokens;
// scratch is what any one stage needs, and its per-thread part does not depend on the tokens.
struct WorkspaceLayout {
  int64_t x_mixed = 0;      // bf16 [T,D]
  int64_t post = 0;         // f32 [T,4]
  int64_t comb = 0;         // f32 [T,4,4]
  int64_t xn = 0;           // bf16 [T,D]
  int64_t qr = 0;           // int8 [T,q_rank]
  int64_t qr_scale = 0;     // f32 [T]
  int64_t q = 0;            // bf16 [T,H,512]
  int64_t idx_q = 0;        // int8 [T,Hi,128]; CSA, as are those up to topk_score
  int64_t idx_q_scale = 0;  // f32 [T,Hi]
  int64_t idx_weights = 0;  // f32 [T,Hi]
  int64_t topk_idx = 0;     // int32 [T,index_topk]
  int64_t topk_score = 0;   // f32 [T,index_topk]
  int64_t heads = 0;        // bf16 [T,H,512]
  int64_t attn_out = 0;     // bf16 [T,D]
  int64_t scratch = 0;
  int64_t scratch_bytes = 0;
  int64_t total_bytes = 0;
};

WorkspaceLayout LayOutWorkspace(const ModelConfig& config, AttentionKind kind, int64_t num_tokens,
                                int num_threads);

// The scratch layouts of the stages: shared parts [0, ...), then one part per thread.
struct HcPreScratch {
  int64_t partials = 0;  // f32 [T, kHcInputRanges, kHcPartialFloats]
  int64_t total_bytes = 0;
};
HcPreScratch LayOutHcPre(int64_t num_tokens);

// ProjectLatent, ProjectKv and (without a product of its own) ProjectState: product [T,num_outputs]
// in float32, then the matrix kernel's scratch per thread.
struct ProductScratch {
  int64_t product = 0;
  int64_t per_thread = 0;
  int64_t per_thread_bytes = 0;
  int64_t total_bytes = 0;
};
ProductScratch LayOutProduct(int64_t num_outputs, int64_t num_tokens, int num_threads);

// ProjectQuery, and the queries of ProjectIndexQuery: per thread the matrix kernel's scratch and
// int32 [kTileRows, 512].
struct QueryScratch {
  int64_t product = 0;  // within a thread's part
  int64_t per_thread_bytes = 0;
  int64_t total_bytes = 0;
};
QueryScratch LayOutQuery(int num_threads);

// Attend. Runs of 8 softmax tiles merge into one partial; the window is a partial of its own.
inline constexpr int64_t kRunTiles = 8;

// Most partials of one query: the window, and the runs of what else it attends to.
int64_t MaxPartials(const ModelConfig& config, AttentionKind kind);

struct AttendScratch {
  // Consecutive query tokens that are worked on together, 1 to kQueryBlock.
  int64_t block_tokens = kQueryBlock;

  // Within a thread's part. B head blocks of 16 heads.
  int64_t kv_rows = 0;  // f32 panels of [kAttendRows + kQueryBlock - 1, 512]
  int64_t q = 0;        // f32 [kQueryBlock, B, 512, kHeadBlock]
  int64_t scores = 0;   // f32 [kAttendRows, kHeadBlock]
  int64_t run = 0;      // [kQueryBlock, B] partials
  int64_t total = 0;    // [kQueryBlock, B] partials
  int64_t per_thread = 0;
  int64_t per_thread_bytes = 0;

  // Within a thread's part, CSA: a bit per compressed row of the longest context.
  int64_t seen_rows = 0;

  // Shared: int32 [query blocks] in the order they are worked on; and for CSA int32 [T, index_topk]
  // the selection as main pool rows.
  int64_t block_order = 0;
  int64_t selected_rows = 0;

  // Shared, HCA: [num_split_slots, kQueryBlock, B] partials of query blocks that several threads
  // work on, held until they merge. As many as the longest context needs, or a few for each thread.
  int64_t split_partials = 0;
  int64_t num_split_slots = 0;
  int64_t total_bytes = 0;
};
AttendScratch LayOutAttend(const ModelConfig& config, AttentionKind kind, int64_t num_tokens,
                           int num_threads);

// Select: queries pass in chunks, so that what is held of the indexer's work follows the number of
// threads. A query of a chunk has a slot of k entries for each leaf it may have.
inline constexpr int64_t kMaxSelectQueriesPerThread = 8;
inline constexpr int64_t kMaxSelectBytesPerThread = int64_t{8} << 20;
struct SelectScratch {
  int64_t chunk_queries = 0;   // for all threads
  int64_t packed_queries = 0;  // [chunk_queries] queries as IndexPackQuery packs them
  int64_t packed_query_bytes = 0;
  int64_t slots = 0;        // u64 [chunk_queries, max_leaves, k] selections
  int64_t slot_counts = 0;  // int32 [chunk_queries, max_leaves]
  int64_t floors = 0;       // u64 [chunk_queries]
  int64_t max_leaves = 0;   // of one query
  int64_t per_thread = 0;
  int64_t scores = 0;  // within a thread's part: f32 [kQueryBlock, kLeafCandidates]
  int64_t per_thread_bytes = 0;
  int64_t total_bytes = 0;
};
SelectScratch LayOutSelect(const ModelConfig& config, int64_t k, int num_threads);

// ProjectOutput and ProjectOutputGroups, of n groups: their latents, codes and scales; per thread
// the matrix kernel's scratch, an int32 and n float32 tiles [kTileRows, kOutputTile].
inline constexpr int64_t kOutputTile = 64;
struct OutputScratch {
  int64_t latent = 0;  // f32 [T, n, o_rank]
  int64_t codes = 0;   // int8 [T, n, o_rank]
  int64_t scales = 0;  // f32 [T, n]
  int64_t per_thread = 0;
  int64_t product = 0;  // within a thread's part: int32 [kTileRows, kOutputTile]
  int64_t groups = 0;   // within a thread's part: f32 [n, kTileRows, kOutputTile]
  int64_t per_thread_bytes = 0;
  int64_t total_bytes = 0;
};
OutputScratch LayOutOutput(const ModelConfig& config, int64_t num_groups, int64_t num_tokens,
                           int num_threads);

// Byte offsets into a layer's overlay.
struct OverlayLayout {
  int64_t kv = 0;           // bf16 [T,512]
  int64_t state = 0;        // f32 [T,1024] HCA, [T,2048] CSA
  int64_t inner_state = 0;  // f32 [T,512] CSA
  int64_t total_bytes = 0;
};
OverlayLayout LayOutOverlay(AttentionKind kind, int64_t num_tokens);

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_STEP_LAYOUT_H_
