// Attention over the rows a plan names: the window, and for compressed kinds tiles of compressed
// rows behind it. Here its work is dealt to threads; attender.h does it.
#include <algorithm>

#include "layers/attender.h"
#include "layers/checks.h"
#include "layers/pack_selection.h"
#include "layers/plan_checks.h"
#include "millipede/stages.h"
#include "pages/view_checks.h"
#include "plan/plan_state.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {
namespace {

// The query blocks in the order they are worked on: first those that are split by partials, then
// those that one thread does at a time, either way those with most tiles first.
struct BlockOrder {
  std::span<const int32_t> split;
  std::span<const int32_t> whole;
};

// A query block is split if it is more than a small part of one thread's share and has runs enough
// for splitting to help; so that one long request fills all threads.
BlockOrder OrderBlocks(const Attender& attender, int num_threads, int64_t num_split_slots,
                       std::span<int32_t> blocks) {
  int64_t num_tiles = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i] = static_cast<int32_t>(i);
    num_tiles += attender.NumTilesOf(blocks[i]);
  }
  const auto is_split = [&](int32_t block) {
    constexpr int64_t kBlocksPerThread = 4;
    constexpr int64_t kMinParts = 3;  // the window and two runs
    return num_split_slots > 0 && attender.NumPartsOf(block) >= kMinParts &&
           attender.NumTilesOf(block) * num_threads * kBlocksPerThread > num_tiles;
  };
  const auto whole = std::partition(blocks.begin(), blocks.end(), is_split);
  const auto more_tiles = [&](int32_t a, int32_t b) {
    const int64_t tiles_a = attender.NumTilesOf(a);
    const int64_t tiles_b = attender.NumTilesOf(b);
    return tiles_a != tiles_b ? tiles_a > tiles_b : a < b;
  };
  std::sort(blocks.begin(), whole, more_tiles);
  std::sort(whole, blocks.end(), more_tiles);
  const auto num_split = static_cast<size_t>(whole - blocks.begin());
  return {blocks.first(num_split), blocks.subspan(num_split)};
}

// How many groups the head blocks are cut into when there are `num_units` units of work without.
// Every group widens the units' rows once more, so there are only as many as fill the threads.
int64_t NumHeadGroups(int64_t num_units, int64_t num_head_blocks, int num_threads) {
  constexpr int64_t kManyItemsPerThread = 4;
  int64_t groups = 1;
  while (groups < num_head_blocks && num_units * groups < kManyItemsPerThread * num_threads &&
         num_units * groups % num_threads != 0) {
    groups *= 2;
  }
  return std::min(groups, num_head_blocks);
}

HeadBlocks HeadGroup(int64_t group, int64_t num_groups, int64_t num_head_blocks) {
  return {group * num_head_blocks / num_groups, (group + 1) * num_head_blocks / num_groups};
}

// Does the split query blocks, as many at once as there are places for their partials.
void AttendSplit(Context& context, const Attender& attender, std::span<const int32_t> blocks,
                 int64_t num_slots) {
  const int64_t num_head_blocks = attender.num_head_blocks();
  while (!blocks.empty()) {
    int64_t num_parts = 0;
    size_t count = 0;
    for (; count < blocks.size(); ++count) {  // one block at least: num_slots are those of any
      const int64_t parts = std::max(num_parts, attender.NumPartsOf(blocks[count]));
      if (count > 0 && static_cast<int64_t>(count + 1) * parts > num_slots) break;
      num_parts = parts;
    }
    const auto num_blocks = static_cast<int64_t>(count);
    const int64_t groups =
        NumHeadGroups(num_blocks * num_parts, num_head_blocks, context.num_threads());
    ParallelFor(context, "attention parts", num_blocks * num_parts * groups,
                [&](int64_t i, int thread) {
                  const int64_t part = i / groups % num_parts;
                  const int64_t block = i / groups / num_parts;
                  attender.SplitPart(blocks[static_cast<size_t>(block)], block * num_parts, part,
                                     HeadGroup(i % groups, groups, num_head_blocks), thread);
                });
    ParallelFor(context, "attention merge", num_blocks * num_head_blocks,
                [&](int64_t i, int thread) {
                  const int64_t block = i / num_head_blocks;
                  const int64_t head = i % num_head_blocks;
                  attender.SplitMerge(blocks[static_cast<size_t>(block)], block * num_parts,
                                      {head, head + 1}, thread);
                });
    blocks = blocks.subspan(count);
  }
}

void AttendWhole(Context& context, const Attender& attender, std::span<const int32_t> blocks) {
  const int64_t num_head_blocks = attender.num_head_blocks();
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  const int64_t groups = NumHeadGroups(num_blocks, num_head_blocks, context.num_threads());
  ParallelFor(context, "attention", num_blocks * groups, [&](int64_t i, int thread) {
    attender.Whole(blocks[static_cast<size_t>(i / groups)],
                   HeadGroup(i % groups, groups, num_head_blocks), thread);
  });
}

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
              const AttendInputs& inputs, const AttendOutputs& outputs, Scratch scratch) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
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
  const BlockOrder order = OrderBlocks(attender, context.num_threads(), layout.num_split_slots,
                                       {PartOf<int32_t>(scratch, layout.block_order),
                                        static_cast<size_t>(attender.num_query_blocks())});
  AttendSplit(context, attender, order.split, layout.num_split_slots);
  if (!order.whole.empty()) AttendWhole(context, attender, order.whole);
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

}  // namespace millipede
