#include "plan/step_layout.h"

#include <algorithm>

#include "base/checked.h"
#include "geometry/tiles.h"

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

AttendScratch LayOutAttend(int num_threads) {
  Arena arena;
  AttendScratch layout;
  layout.kv_rows = arena.Take((kAttendRows + kQueryBlock - 1) * kHeadDim * kFloat);
  layout.q = arena.Take(kHeadDim * kHeadBlock * kFloat);
  layout.scores = arena.Take(kAttendRows * kHeadBlock * kFloat);
  layout.partial = arena.Take((kHeadDim + 2) * kHeadBlock * kFloat);
  layout.per_thread_bytes = arena.end();
  layout.total_bytes = num_threads * layout.per_thread_bytes;
  return layout;
}

OutputScratch LayOutOutput(const ModelConfig& config, int64_t num_tokens, int num_threads) {
  const int64_t latent_elements = num_tokens * config.o_groups * config.o_rank;
  Arena shared;
  OutputScratch layout;
  layout.latent = shared.Take(latent_elements * kFloat);
  layout.codes = shared.Take(latent_elements);
  layout.scales = shared.Take(num_tokens * config.o_groups * kFloat);
  Arena thread;
  thread.Take(kMatmulScratchBytes);
  layout.product = thread.Take(kTileRows * kOutputTile * kFloat);
  layout.groups = thread.Take(config.o_groups * kTileRows * kOutputTile * kFloat);
  layout.per_thread_bytes = thread.end();
  layout.per_thread = shared.Take(num_threads * layout.per_thread_bytes);
  layout.total_bytes = shared.end();
  return layout;
}

OverlayLayout LayOutOverlay(AttentionKind /*kind*/, int64_t num_tokens) {
  Arena arena;
  OverlayLayout layout;
  layout.kv = arena.Take(num_tokens * kHeadDim * kBf16);
  layout.total_bytes = arena.end();
  return layout;
}

WorkspaceLayout LayOutWorkspace(const ModelConfig& config, int64_t num_tokens, int num_threads) {
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
  layout.heads = arena.Take(heads_bytes);
  layout.attn_out = arena.Take(model_bytes);
  layout.scratch_bytes = std::max({
      LayOutHcPre(num_tokens).total_bytes,
      LayOutProduct(config.q_rank, num_tokens, num_threads).total_bytes,
      LayOutProduct(kHeadDim, num_tokens, num_threads).total_bytes,
      LayOutQuery(num_threads).total_bytes,
      LayOutAttend(num_threads).total_bytes,
      LayOutOutput(config, num_tokens, num_threads).total_bytes,
  });
  layout.scratch = arena.Take(layout.scratch_bytes);
  layout.total_bytes = arena.end();
  return layout;
}

}  // namespace millipede
