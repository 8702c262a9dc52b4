// The CSA indexer: its queries, and the exact choice of the rows each query attends to.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "geometry/visibility.h"
#include "kernels/index_rows.h"
#include "kernels/index_score.h"
#include "kernels/index_select.h"
#include "kernels/matmul_int8.h"
#include "layers/checks.h"
#include "layers/plan_checks.h"
#include "layers/pool_rows.h"
#include "layers/product.h"
#include "layers/scratch_bytes.h"
#include "millipede/stages.h"
#include "pages/view_checks.h"
#include "plan/plan_state.h"
#include "plan/step_layout.h"
#include "runtime/context.h"

namespace millipede {
namespace {

Status CheckIndexQuery(const ModelConfig& config, const IndexerWeights& weights,
                       TensorView<const int8_t, 2> qr, TensorView<const float, 1> qr_scale,
                       TensorView<const Bf16, 2> xn, const RopeRows& rope,
                       const IndexQueryOutputs& outputs) {
  const int64_t num_tokens = qr.shape[0];
  const int64_t num_heads = config.num_index_heads;
  MILLIPEDE_RETURN_IF_ERROR(CheckMatrix("wq_b", weights.wq_b.num_outputs(),
                                        weights.wq_b.num_inputs(), num_heads * kIndexDim,
                                        config.q_rank));
  MILLIPEDE_RETURN_IF_ERROR(CheckMatrix("weights_proj", weights.weights_proj.num_outputs(),
                                        weights.weights_proj.num_inputs(), num_heads,
                                        config.hidden));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("qr", qr, {num_tokens, config.q_rank}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("qr_scale", qr_scale, {num_tokens}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("xn", xn, {num_tokens, config.hidden}));
  MILLIPEDE_RETURN_IF_ERROR(CheckRope("rope", rope, num_tokens));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("idx_q", outputs.idx_q, {num_tokens, num_heads, kIndexDim}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("idx_q_scale", outputs.idx_q_scale, {num_tokens, num_heads}));
  return CheckView("idx_weights", outputs.idx_weights, {num_tokens, num_heads});
}

}  // namespace

Status ProjectIndexQuery(Context& context, const ModelConfig& config, const IndexerWeights& weights,
                         TensorView<const int8_t, 2> qr, TensorView<const float, 1> qr_scale,
                         TensorView<const Bf16, 2> xn, const RopeRows& rope,
                         const IndexQueryOutputs& outputs, Scratch scratch) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(Validate(config));
  const int64_t num_tokens = qr.shape[0];
  const int64_t num_heads = config.num_index_heads;
  MILLIPEDE_RETURN_IF_ERROR(CheckIndexQuery(config, weights, qr, qr_scale, xn, rope, outputs));
  const QueryScratch query_layout = LayOutQuery(context.num_threads());
  const ProductScratch product_layout = LayOutProduct(num_heads, num_tokens, context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer(
      "scratch", scratch, std::max(query_layout.total_bytes, product_layout.total_bytes)));

  // An item is a few heads of a chunk of tokens: their exact products, then each head's codes.
  constexpr int64_t kItemHeads = kHeadDim / kIndexDim;  // what a thread's scratch has room for
  constexpr int64_t kHeadPanels = kIndexDim / kPanelOutputs;
  const int64_t num_head_groups = CeilDiv(num_heads, kItemHeads);
  const int64_t num_chunks = CeilDiv(num_tokens, kTileRows);
  ParallelFor(context, "index heads", num_head_groups * num_chunks, [&](int64_t item, int thread) {
    const int64_t head_begin = item / num_chunks * kItemHeads;
    const int64_t head_end = std::min(num_heads, head_begin + kItemHeads);
    const int64_t chunk = item % num_chunks;
    const int64_t begin = chunk * num_tokens / num_chunks;
    const int64_t end = (chunk + 1) * num_tokens / num_chunks;
    DescribeItem(context.impl().trace, thread,
                 ProductTrace({begin, end}, {head_begin * kHeadPanels, head_end * kHeadPanels},
                              config.q_rank, sizeof(int8_t)));
    std::byte* const own = PartOf<std::byte>(scratch, thread * query_layout.per_thread_bytes);
    auto* const sums = reinterpret_cast<int32_t*>(own + query_layout.product);
    MatmulInt8({.x = qr.row(begin),
                .x_stride = qr.stride0,
                .num_rows = end - begin,
                .num_inputs = config.q_rank,
                .weights = weights.wq_b.data(),
                .num_outputs = weights.wq_b.num_outputs(),
                .panel_begin = head_begin * kHeadPanels,
                .panel_end = head_end * kHeadPanels,
                .out = sums,
                .out_stride = kHeadDim,
                .scratch = own});
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = head_begin; head < head_end; ++head) {
        IndexQueryHead({.sums = sums + (token - begin) * kHeadDim + (head - head_begin) * kIndexDim,
                        .row_scale = *qr_scale.row(token),
                        .output_scale = weights.wq_b.scale() + head * kIndexDim,
                        .cos = rope.cos.row(token),
                        .sin = rope.sin.row(token),
                        .codes = outputs.idx_q.row(token) + head * kIndexDim,
                        .scale = outputs.idx_q_scale.row(token) + head});
      }
    }
  });

  MultiplyAll(context, "index weights product", weights.weights_proj, xn, product_layout, scratch);
  const auto* product = PartOf<float>(scratch, product_layout.product);
  const auto dim_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(kIndexDim)));
  const auto head_factor = static_cast<float>(1 / std::sqrt(static_cast<double>(num_heads)));
  ParallelFor(context, "index weights", num_tokens, [&](int64_t token, int thread) {
    DescribeItem(context.impl().trace, thread, TokensTrace(token, 1));
    float* const row = outputs.idx_weights.row(token);
    for (int64_t head = 0; head < num_heads; ++head) {
      row[head] = product[token * num_heads + head] * dim_factor * head_factor;
    }
  });
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

int64_t SelectScratchBytes(const ModelConfig& config, int64_t k, int num_threads) {
  if (!TakesScratch(config, num_threads) || k < 1 || k > kMaxTopK) return kNoScratch;
  return LayOutSelect(config, k, num_threads).total_bytes;
}

namespace {

// The indexer's work on one chunk of queries, [begin, end).
class Selector {
 public:
  Selector(const PackedWork& work, const SelectInputs& inputs, const SelectScratch& layout,
           Scratch scratch, int64_t k, int64_t begin, int64_t end)
      : work_(work),
        inputs_(inputs),
        layout_(layout),
        scratch_(scratch),
        num_heads_(inputs.idx_q.shape[1]),
        k_(k),
        begin_(begin),
        end_(end) {}

  int64_t num_queries() const { return end_ - begin_; }
  int64_t num_groups() const { return CeilDiv(num_queries(), kQueryBlock); }
  int64_t MaxLeaves() const {
    int64_t max_leaves = 0;
    for (int64_t t = begin_; t < end_; ++t) max_leaves = std::max(max_leaves, NumLeavesOf(t));
    return max_leaves;
  }

  void Pack(int64_t t) const {
    IndexPackQuery({.codes = inputs_.idx_q.row(t),
                    .scales = inputs_.idx_q_scale.row(t),
                    .weights = inputs_.idx_weights.row(t),
                    .num_heads = num_heads_,
                    .packed = PackedQuery(t)});
    Floor(t) = 0;
  }

  // Leaf `leaf` of every query of a group that has it. Queries of one request share its keys.
  void Leaf(int64_t group, int64_t leaf, int thread, Context& context) const {
    const int64_t group_begin = begin_ + group * kQueryBlock;
    const int64_t group_end = std::min(end_, group_begin + kQueryBlock);
    std::array<int64_t, kQueryBlock> together{};
    uint32_t done = 0;
    for (int64_t first = group_begin; first < group_end; ++first) {
      if (leaf >= NumLeavesOf(first) || (done >> (first - group_begin) & 1) != 0) continue;
      int64_t count = 0;
      for (int64_t t = first; t < group_end; ++t) {
        if (leaf >= NumLeavesOf(t) || (done >> (t - group_begin) & 1) != 0) continue;
        if (Query(t).request != Query(first).request ||
            LeafOf(t, leaf).first_candidate != LeafOf(first, leaf).first_candidate) {
          continue;
        }
        together[static_cast<size_t>(count++)] = t;
        done |= uint32_t{1} << (t - group_begin);
      }
      ScoreAndSelect(std::span(together).first(static_cast<size_t>(count)), leaf, thread, context);
    }
  }

  // Merges a query's leaves as the plan says, and writes its selection.
  void Finish(int64_t t, int32_t* topk_idx, float* topk_score, int thread, Context& context) const {
    RequestCounts& counts = CountsOf(context, thread, Query(t).request);
    DescribeItem(context.impl().trace, thread, TokensTrace(t, 1));
    const auto query = static_cast<size_t>(t);
    for (int32_t m = work_.merge_offsets[query]; m < work_.merge_offsets[query + 1]; ++m) {
      const CsaMerge& merge = work_.merges[static_cast<size_t>(m)];
      const TraceSpan traced(context.impl().trace, thread,
                             {.task = TraceTask::kMerge,
                              .index = m - work_.merge_offsets[query],
                              .request = Query(t).request,
                              .first_query = t,
                              .rows = SlotCount(t, merge.left) + SlotCount(t, merge.right)});
      SlotCount(t, merge.left) =
          static_cast<int32_t>(IndexMerge({.left = Slot(t, merge.left),
                                           .left_count = SlotCount(t, merge.left),
                                           .right = Slot(t, merge.right),
                                           .right_count = SlotCount(t, merge.right),
                                           .k = k_}));
      counts.merges += 1;
    }
    IndexUnpack({.keys = Slot(t, 0),
                 .count = NumLeavesOf(t) == 0 ? 0 : SlotCount(t, 0),
                 .k = k_,
                 .indices = topk_idx,
                 .scores = topk_score});
  }

 private:
  const QueryToken& Query(int64_t t) const { return work_.queries[static_cast<size_t>(t)]; }
  int64_t NumLeavesOf(int64_t t) const {
    const auto i = static_cast<size_t>(t);
    return work_.leaf_offsets[i + 1] - work_.leaf_offsets[i];
  }
  const CsaLeaf& LeafOf(int64_t t, int64_t leaf) const {
    return work_.leaves[static_cast<size_t>(work_.leaf_offsets[static_cast<size_t>(t)] + leaf)];
  }
  std::byte* PackedQuery(int64_t t) const {
    return PartOf<std::byte>(scratch_,
                             layout_.packed_queries + (t - begin_) * layout_.packed_query_bytes);
  }
  uint64_t* Slot(int64_t t, int64_t slot) const {
    return PartOf<uint64_t>(scratch_, layout_.slots) +
           ((t - begin_) * layout_.max_leaves + slot) * k_;
  }
  int32_t& SlotCount(int64_t t, int64_t slot) const {
    return PartOf<int32_t>(scratch_, layout_.slot_counts)[(t - begin_) * layout_.max_leaves + slot];
  }
  uint64_t& Floor(int64_t t) const {
    return PartOf<uint64_t>(scratch_, layout_.floors)[t - begin_];
  }

  void ScoreAndSelect(std::span<const int64_t> queries, int64_t leaf, int thread,
                      Context& context) const {
    const CsaLeaf& first = LeafOf(queries.front(), leaf);
    int64_t num_candidates = 0;
    for (const int64_t t : queries) {
      num_candidates = std::max<int64_t>(num_candidates, LeafOf(t, leaf).num_candidates);
    }
    std::array<IndexPage, kLeafCandidates / kPageRows> pages;
    for (int64_t i = 0; i * kPageRows < num_candidates; ++i) {
      const int64_t row =
          int64_t{work_.index_pages[static_cast<size_t>(first.first_page + i)]} * kPageRows;
      pages[static_cast<size_t>(i)] = {
          PoolRow<const int8_t>(inputs_.index_rows, PoolKind::kCsaIndexRows, row),
          PoolRow<const float>(inputs_.index_scales, PoolKind::kCsaIndexScales, row)};
    }
    float* const scores = PartOf<float>(
        scratch_, layout_.per_thread + thread * layout_.per_thread_bytes + layout_.scores);
    std::array<const void*, kQueryBlock> packed{};
    std::array<float*, kQueryBlock> rows{};
    for (size_t i = 0; i < queries.size(); ++i) {
      packed[i] = PackedQuery(queries[i]);
      rows[i] = scores + static_cast<int64_t>(i) * kLeafCandidates;
    }
    Trace::Impl* const trace = context.impl().trace;
    {
      const TraceSpan traced(trace, thread,
                             {.task = TraceTask::kLeafScores,
                              .index = leaf,
                              .request = Query(queries.front()).request,
                              .first_query = queries.front(),
                              .num_queries = static_cast<int64_t>(queries.size()),
                              .rows = num_candidates,
                              .bytes = num_candidates * kKeyBytes});
      IndexScore({.queries = packed.data(),
                  .num_queries = static_cast<int64_t>(queries.size()),
                  .num_heads = num_heads_,
                  .pages = pages.data(),
                  .num_candidates = num_candidates,
                  .scores = rows.data()});
    }
    for (size_t i = 0; i < queries.size(); ++i) {
      const int64_t t = queries[i];
      const CsaLeaf& own = LeafOf(t, leaf);
      const TraceSpan traced(trace, thread,
                             {.task = TraceTask::kLeaf,
                              .index = leaf,
                              .request = Query(t).request,
                              .first_query = t,
                              .rows = own.num_candidates});
      // What another leaf's k-th key beats cannot win. Leaves race to raise the floor; whoever
      // comes first, only losers are dropped.
      std::atomic_ref<uint64_t> floor(Floor(t));
      uint64_t seen = floor.load(std::memory_order_relaxed);
      const int64_t count = IndexSelectLeaf({.scores = rows[i],
                                             .num_candidates = own.num_candidates,
                                             .first_candidate = own.first_candidate,
                                             .k = k_,
                                             .floor = seen,
                                             .keys = Slot(t, leaf)});
      SlotCount(t, leaf) = static_cast<int32_t>(count);
      if (count == k_) {
        const uint64_t last = Slot(t, leaf)[k_ - 1];
        while (last > seen && !floor.compare_exchange_weak(seen, last, std::memory_order_relaxed)) {
        }
      }
      RequestCounts& counts = CountsOf(context, thread, Query(t).request);
      counts.leaves += 1;
      counts.candidates += own.num_candidates;
    }
  }

  const PackedWork& work_;
  const SelectInputs& inputs_;
  const SelectScratch& layout_;
  Scratch scratch_;
  // A candidate's key and its scale.
  static constexpr int64_t kKeyBytes =
      FormatOf(PoolKind::kCsaIndexRows).row_bytes + FormatOf(PoolKind::kCsaIndexScales).row_bytes;

  int64_t num_heads_;
  int64_t k_;
  int64_t begin_;
  int64_t end_;
};

Status CheckSelect(const ModelConfig& config, const Plan& plan, const SelectInputs& inputs,
                   TensorView<int32_t, 2> topk_idx, TensorView<float, 2> topk_score) {
  const int64_t num_tokens = plan.num_tokens();
  const int64_t num_heads = config.num_index_heads;
  const int64_t k = topk_idx.shape[1];
  if (plan.kind() != AttentionKind::kCsa) {
    return MakeError(ErrorCode::kPlanMismatch, "plan", "kind {}; allowed: csa",
                     KindName(plan.kind()));
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckPlanConfig(*plan.state(), config));
  if (k < 1 || k > kMaxTopK) {
    return MakeError(ErrorCode::kInvalidArgument, "topk_idx", "{} places a query; allowed: 1 to {}",
                     k, kMaxTopK);
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckView("topk_idx", topk_idx, {num_tokens, k}));
  if (!topk_score.empty()) {
    MILLIPEDE_RETURN_IF_ERROR(CheckView("topk_score", topk_score, {num_tokens, k}));
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckView("idx_q", inputs.idx_q, {num_tokens, num_heads, kIndexDim}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("idx_q_scale", inputs.idx_q_scale, {num_tokens, num_heads}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("idx_weights", inputs.idx_weights, {num_tokens, num_heads}));
  const int32_t space_pages = plan.state()->spaces.index.num_pages;
  MILLIPEDE_RETURN_IF_ERROR(
      CheckPoolView(inputs.index_rows, PoolKind::kCsaIndexRows, space_pages, "inputs.index_rows"));
  MILLIPEDE_RETURN_IF_ERROR(CheckPoolView(inputs.index_scales, PoolKind::kCsaIndexScales,
                                          space_pages, "inputs.index_scales"));
  return RecheckPages(*plan.state());
}

}  // namespace

Status Select(Context& context, const ModelConfig& config, const Plan& plan,
              const SelectInputs& inputs, TensorView<int32_t, 2> topk_idx,
              TensorView<float, 2> topk_score, Scratch scratch) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(context));
  MILLIPEDE_RETURN_IF_ERROR(CheckSelect(config, plan, inputs, topk_idx, topk_score));
  const int64_t k = topk_idx.shape[1];
  const SelectScratch layout = LayOutSelect(config, k, context.num_threads());
  MILLIPEDE_RETURN_IF_ERROR(CheckBuffer("scratch", scratch, layout.total_bytes));

  const PackedWork& work = plan.work();
  const int64_t num_tokens = plan.num_tokens();
  ReserveRequestCounts(context, static_cast<int64_t>(work.requests.size()));
  for (int64_t begin = 0; begin < num_tokens; begin += layout.chunk_queries) {
    const int64_t end = std::min(num_tokens, begin + layout.chunk_queries);
    const Selector selector(work, inputs, layout, scratch, k, begin, end);
    ParallelFor(context, "select pack", selector.num_queries(), [&](int64_t item, int thread) {
      DescribeItem(context.impl().trace, thread, TokensTrace(begin + item, 1));
      selector.Pack(begin + item);
    });
    // Leaf by leaf, so that what runs together raises one floor early.
    ParallelFor(context, "select leaves", selector.MaxLeaves() * selector.num_groups(),
                [&](int64_t item, int thread) {
                  selector.Leaf(item % selector.num_groups(), item / selector.num_groups(), thread,
                                context);
                });
    ParallelFor(context, "select merge", selector.num_queries(), [&](int64_t item, int thread) {
      const int64_t t = begin + item;
      selector.Finish(t, topk_idx.row(t), topk_score.empty() ? nullptr : topk_score.row(t), thread,
                      context);
    });
  }
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("context", "the call's bookkeeping");
}

}  // namespace millipede
