// The stage rules: each stage from the library's own inputs to it.
#include <algorithm>
#include <numeric>

#include "tools/buffers.h"
#include "tools/check_parts.h"

namespace millipede::tools {
namespace {

using reference::Golden;
using reference::Values;

constexpr std::string_view kFromKeys = "stage, from idx_q and the keys";
constexpr int64_t kChunkCandidates = 4096;  // keys that are held at once

void JudgeIndexQuery(const StepRecord& record, const Golden& golden, int64_t t,
                     const std::string& where, RuleTable& table) {
  const Activations& values = record.values;
  const int64_t heads = record.config.num_index_heads;
  const reference::IndexQueryResult query = golden.IndexQuery(
      TokenRow(values.qr, t, record.config.q_rank), values.qr_scale[static_cast<size_t>(t)],
      reference::RopeRowOf(record.inputs.rope(), t));
  table.Add("idx_q", "stage, from qr and qr_scale", heads * kIndexDim,
            reference::JudgeCodes(TokenRow(values.idx_q, t, heads * kIndexDim), query.codes,
                                  record.profile),
            where);
  table.Add("idx_q_scale", "stage, from qr and qr_scale", heads,
            reference::JudgeIndexQueryScale(TokenRow(values.idx_q_scale, t, heads), query.scales),
            where);
  table.Add("idx_weights", "stage, from xn", heads,
            reference::JudgeGate(TokenRow(values.idx_weights, t, heads),
                                 golden.IndexWeights(TokenRow(values.xn, t, record.config.hidden))),
            where);
}

void JudgeSelectionStage(const StepRecord& record, const StepRows& rows, int64_t t,
                         const std::string& where, RuleTable& table) {
  const Activations& values = record.values;
  const int64_t heads = record.config.num_index_heads;
  const auto codes = TokenRow(values.idx_q, t, heads * kIndexDim);
  const auto scales = TokenRow(values.idx_q_scale, t, heads);
  const reference::IndexQueryResult query{{codes.begin(), codes.end()},
                                          {scales.begin(), scales.end()}};
  const int64_t request = record.inputs.request[static_cast<size_t>(t)];
  const int64_t num_candidates = rows.NumVisible(t);
  std::vector<float> scores;
  std::vector<int8_t> keys;
  std::vector<float> key_scales;
  for (int64_t first = 0; first < num_candidates; first += kChunkCandidates) {
    const int64_t count = std::min(kChunkCandidates, num_candidates - first);
    keys.resize(static_cast<size_t>(count * kIndexDim));
    key_scales.resize(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      key_scales[static_cast<size_t>(i)] = rows.Index(
          request, first + i,
          std::span(keys).subspan(static_cast<size_t>(i * kIndexDim), size_t{kIndexDim}));
    }
    const std::vector<float> chunk =
        reference::Scores(query, TokenRow(values.idx_weights, t, heads), keys, key_scales);
    scores.insert(scores.end(), chunk.begin(), chunk.end());
  }
  const int64_t topk = record.config.index_topk;
  const reference::Selection expected = reference::TopK(scores, topk);
  table.Add("topk_score", kFromKeys, topk,
            reference::JudgeScores(TokenRow(values.topk_score, t, topk), expected.score), where);
  table.Add("topk_idx", kFromKeys, topk,
            reference::JudgeSelection(TokenRow(values.topk_idx, t, topk), expected.idx,
                                      expected.score, expected.next_score),
            where);
  table.Add("topk_next", kFromKeys, 1,
            reference::JudgeNextScore(values.topk_next[static_cast<size_t>(t)], expected.next_score,
                                      reference::ScoreBound(expected.score)),
            where);
}

}  // namespace

void JudgeRope(const StepRecord& record, RuleTable& table) {
  std::vector<Bf16> actual;
  std::vector<Bf16> expected;
  const auto add = [&](int64_t position, const RopeRows& rows, int64_t i) {
    const auto row = reference::RopeRowAt(record.kind, position);
    for (size_t pair = 0; pair < kRopePairs; ++pair) {
      actual.push_back(RoundToBf16(rows.cos.row(i)[pair]));
      actual.push_back(RoundToBf16(rows.sin.row(i)[pair]));
      expected.push_back(RoundToBf16(row.cos[pair]));
      expected.push_back(RoundToBf16(row.sin[pair]));
    }
  };
  const StepInputs& inputs = record.inputs;
  for (int64_t t = 0; t < inputs.num_tokens(); ++t) {
    add(inputs.position[static_cast<size_t>(t)], inputs.rope(), t);
  }
  for (int64_t e = 0; e < inputs.num_events(); ++e) {
    add(inputs.events[static_cast<size_t>(e)].row * RatioOf(record.kind), inputs.event_rope(), e);
  }
  table.Add("rope", "stage, from positions", static_cast<int64_t>(actual.size()),
            reference::JudgeRopeRows(actual, expected, record.profile),
            "cos and sin by turns, a row per token, then a row per event");
}

void JudgeHcPreStage(const Golden& golden, const StepInputs& inputs, const Activations& values,
                     bool judge_mixed, int64_t t, const std::string& where, RuleTable& table) {
  const int64_t hidden = values.config.hidden;
  const auto hc = golden.HcPre(TokenRow(inputs.x, t, kHcStreams * hidden));
  if (judge_mixed) {
    table.Add("x_mixed", "stage, from x", hidden,
              reference::JudgeRounded(TokenRow(values.x_mixed, t, hidden), hc.x_mixed), where);
  }
  table.Add("post", "stage, from x", 4, reference::JudgeGate(TokenRow(values.post, t, 4), hc.post),
            where);
  table.Add("comb", "stage, from x", 16,
            reference::JudgeGate(TokenRow(values.comb, t, 16), hc.comb), where);
}

void JudgeOutputStages(const Golden& golden, const StepInputs& inputs, const Activations& values,
                       reference::RuleProfile profile, int64_t t, const std::string& where,
                       RuleTable& table) {
  const int64_t hidden = values.config.hidden;
  const int64_t head_lanes = int64_t{values.config.num_heads} * kHeadDim;
  const auto attn_out = TokenRow(values.attn_out, t, hidden);
  table.Add("attn_out", "stage, from heads", hidden,
            reference::JudgeAttnOut(
                attn_out, golden.ProjectOutput(TokenRow(values.heads, t, head_lanes)), profile),
            where);
  table.Add("x_out", "stage, from attn_out, post and comb", kHcStreams * hidden,
            reference::JudgeXOut(
                TokenRow(values.x_out, t, kHcStreams * hidden),
                golden.HcPost(TokenRow(inputs.x, t, kHcStreams * hidden), attn_out,
                              TokenRow(values.post, t, 4), TokenRow(values.comb, t, 16))),
            where);
}

void JudgeTokenStages(const StepRecord& record, const Golden& golden, int64_t t, RuleTable& table) {
  const Activations& values = record.values;
  const int64_t hidden = record.config.hidden;
  const int64_t q_rank = record.config.q_rank;
  const int64_t head_lanes = int64_t{record.config.num_heads} * kHeadDim;
  const std::string where = TokenName(record.inputs, t);
  const reference::RopeRow rope = reference::RopeRowOf(record.inputs.rope(), t);

  JudgeHcPreStage(golden, record.inputs, values, /*judge_mixed=*/true, t, where, table);
  const auto xn = TokenRow(values.xn, t, hidden);
  table.Add("xn", "stage, from x_mixed", hidden,
            reference::JudgeRounded(xn, golden.AttnNorm(TokenRow(values.x_mixed, t, hidden))),
            where);

  const reference::Quantized latent = golden.ProjectLatent(xn);
  const auto qr = TokenRow(values.qr, t, q_rank);
  const auto qr_scale = TokenRow(values.qr_scale, t, 1);
  table.Add("qr", "stage, from xn", q_rank, reference::JudgeCodes(qr, latent.codes, record.profile),
            where);
  table.Add("qr_scale", "stage, from xn", 1,
            reference::JudgeLatentScale(qr_scale, Values(&latent.scale, 1)), where);
  table.Add("q", "stage, from qr and qr_scale", head_lanes,
            reference::JudgeRounded(TokenRow(values.q, t, head_lanes),
                                    golden.ProjectQuery(qr, qr_scale[0], rope)),
            where);
  table.Add("kv", "stage, from xn", kHeadDim,
            reference::JudgeRounded(TokenRow(values.kv, t, kHeadDim), golden.ProjectKv(xn, rope)),
            where);
  if (record.kind != AttentionKind::kSwa) {
    const std::vector<float> state =
        golden.StateRow(xn, record.inputs.position[static_cast<size_t>(t)]);
    const auto width = static_cast<int64_t>(state.size());
    table.Add("state_rows", "stage, from xn", width,
              reference::JudgeState(TokenRow(values.state, t, width), state), where);
  }
  if (record.kind == AttentionKind::kCsa) {
    const std::vector<float> state =
        golden.InnerStateRow(xn, record.inputs.position[static_cast<size_t>(t)]);
    const auto width = static_cast<int64_t>(state.size());
    table.Add("inner_state_rows", "stage, from xn", width,
              reference::JudgeState(TokenRow(values.inner_state, t, width), state), where);
    JudgeIndexQuery(record, golden, t, where, table);
  }
  JudgeOutputStages(golden, record.inputs, values, record.profile, t, where, table);
}

void JudgeAttentionStages(const StepRecord& record, const Golden& golden, const StepRows& rows,
                          int64_t t, RuleTable& table) {
  const int64_t head_lanes = int64_t{record.config.num_heads} * kHeadDim;
  const std::string where = TokenName(record.inputs, t);
  if (record.kind == AttentionKind::kCsa) JudgeSelectionStage(record, rows, t, where, table);
  const std::vector<std::vector<Bf16>> window = rows.Window(t);
  const std::vector<std::vector<Bf16>> compressed = rows.Compressed(t);
  const reference::AttendResult expected =
      golden.Attend(TokenRow(record.values.q, t, head_lanes), Pointers(window),
                    Pointers(compressed), reference::RopeRowOf(record.inputs.rope(), t));
  table.Add("heads", "stage, from q and the rows", head_lanes,
            reference::JudgeHeads(TokenRow(record.values.heads, t, head_lanes), expected.heads),
            where);
}

RuleTable CheckWide(const Activations& values, const StepInputs& inputs) {
  RuleTable table;
  const int64_t topk = values.config.index_topk;
  for (int64_t t = 0; t < values.num_tokens; ++t) {
    const auto begin = TokenRow(values.wide_idx, t, topk + 1).first(static_cast<size_t>(topk));
    table.Add("topk_idx", "begins one place more, exact", topk,
              reference::JudgeExact(begin, TokenRow(values.topk_idx, t, topk)),
              TokenName(inputs, t));
  }
  return table;
}

RuleTable JudgeEvents(const StepRecord& record, const Golden& golden, const StepRows& rows,
                      int num_threads) {
  const std::vector<StepEvent>& events = record.inputs.events;
  const Activations& values = record.values;
  std::vector<reference::Quantized> keys(events.size());
  std::vector<RuleTable> tables(events.size());
  reference::ParallelFor(
      record.inputs.num_events(),
      [&](int64_t e) {
        const auto i = static_cast<size_t>(e);
        const reference::RopeRow rope = reference::RopeRowOf(record.inputs.event_rope(), e);
        const auto state = rows.BlockState(events[i].request, events[i].row);
        tables[i].Add("cmp_rows", "stage, from state rows", kHeadDim,
                      reference::JudgeRounded(TokenRow(values.cmp_rows, e, kHeadDim),
                                              golden.CompressRow(Pointers(state), rope)),
                      EventName(record.inputs, events[i]));
        if (record.kind != AttentionKind::kCsa) return;
        const auto inner = rows.BlockInnerState(events[i].request, events[i].row);
        keys[i] = golden.IndexRow(Pointers(inner), rope);
      },
      num_threads);
  RuleTable table;
  for (const RuleTable& one : tables) table.Merge(one);
  if (record.kind != AttentionKind::kCsa || events.empty()) return table;

  // The rule is about all keys of a run together; the verdict names the worst one.
  std::vector<int8_t> codes;
  std::vector<float> scales;
  for (const reference::Quantized& key : keys) {
    codes.insert(codes.end(), key.codes.begin(), key.codes.end());
    scales.push_back(key.scale);
  }
  const int64_t num_loose = std::max<int64_t>(1, record.inputs.num_events() / 100);
  const reference::Verdict verdict = reference::JudgeIndexRows(
      values.idx_rows, codes, values.idx_scales, scales, num_loose, record.profile);
  const auto worst = static_cast<size_t>(std::max<int64_t>(0, verdict.worst_index));
  table.Add("idx_rows", "stage, from inner state rows", static_cast<int64_t>(codes.size()), verdict,
            EventName(record.inputs, events[worst]));
  return table;
}

}  // namespace millipede::tools
