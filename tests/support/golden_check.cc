#include "support/golden_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace millipede::testing {
namespace {

using reference::Golden;
using reference::HcPreResult;
using reference::Quantized;
using reference::RopeRow;
using reference::Verdict;

void Expect(const char* stage, const Verdict& verdict) {
  EXPECT_TRUE(verdict.ok) << stage << ": " << verdict.text;
}

// The state rows of block `row`, and of the one before for CSA; null before position 0.
std::vector<const float*> BlockRows(const EntryResult& result, bool overlap, int64_t row,
                                    const std::vector<float>& history,
                                    const std::vector<float>& state) {
  const auto width = static_cast<int64_t>(state.size()) / result.num_tokens;
  const int64_t ratio = overlap ? kCsaRatio : kHcaRatio;
  std::vector<const float*> rows;
  for (int64_t p = (row - (overlap ? 1 : 0)) * ratio; p < (row + 1) * ratio; ++p) {
    if (p >= result.start_pos) {
      rows.push_back(state.data() + (p - result.start_pos) * width);
    } else {
      rows.push_back(p < 0 ? nullptr : history.data() + (p - result.state_begin) * width);
    }
  }
  return rows;
}

// State rows of all tokens, and the rows of all events.
void ExpectGoldenRows(const Golden& golden, const EntryResult& result,
                      reference::RuleProfile profile) {
  const auto part = [](const auto& values, int64_t index, size_t width) {
    return std::span(values).subspan(static_cast<size_t>(index) * width, width);
  };
  const bool csa = golden.kind() == AttentionKind::kCsa;
  const auto hidden = static_cast<size_t>(golden.config().hidden);
  const size_t width = result.state.size() / static_cast<size_t>(result.num_tokens);
  for (int64_t token = 0; token < result.num_tokens; ++token) {
    SCOPED_TRACE("token " + std::to_string(token));
    const auto xn = part(result.xn, token, hidden);
    Expect("state", reference::JudgeState(part(result.state, token, width),
                                          golden.StateRow(xn, result.start_pos + token)));
    if (!csa) continue;
    Expect("inner_state",
           reference::JudgeState(part(result.inner_state, token, size_t{4} * kIndexDim),
                                 golden.InnerStateRow(xn, result.start_pos + token)));
  }
  std::vector<int8_t> idx_rows;
  std::vector<float> idx_scales;
  for (size_t e = 0; e < result.event_rows.size(); ++e) {
    const int64_t row = result.event_rows[e];
    const auto event = static_cast<int64_t>(e);
    SCOPED_TRACE("compressed row " + std::to_string(row));
    RopeRow rope;
    std::ranges::copy(part(result.event_cos, event, kRopePairs), rope.cos.begin());
    std::ranges::copy(part(result.event_sin, event, kRopePairs), rope.sin.begin());
    Expect("cmp_rows",
           reference::JudgeRounded(
               part(result.cmp_rows, event, kHeadDim),
               golden.CompressRow(BlockRows(result, csa, row, result.state_history, result.state),
                                  rope)));
    if (!csa) continue;
    const Quantized key = golden.IndexRow(
        BlockRows(result, true, row, result.inner_history, result.inner_state), rope);
    idx_rows.insert(idx_rows.end(), key.codes.begin(), key.codes.end());
    idx_scales.push_back(key.scale);
  }
  if (csa && !idx_scales.empty()) {
    const auto loose_rows = std::max<int64_t>(1, static_cast<int64_t>(idx_scales.size()) / 100);
    Expect("idx_rows", reference::JudgeIndexRows(result.idx_rows, idx_rows, result.idx_scales,
                                                 idx_scales, loose_rows, profile));
  }
}

// The indexer of one token: its query from the latent, and the selection from the library's own
// query and keys.
void ExpectGoldenSelection(const Golden& golden, const CompressedRows& rows,
                           const EntryResult& result, int64_t token, const RopeRow& rope,
                           reference::RuleProfile profile) {
  const ModelConfig& config = golden.config();
  const auto heads = static_cast<size_t>(config.num_index_heads);
  const auto topk = static_cast<size_t>(config.index_topk);
  const auto part = [token](const auto& values, size_t width) {
    return std::span(values).subspan(static_cast<size_t>(token) * width, width);
  };
  const auto idx_q = part(result.idx_q, heads * kIndexDim);
  const auto scales = part(result.idx_q_scale, heads);
  const auto weights = part(result.idx_weights, heads);
  const reference::IndexQueryResult query =
      golden.IndexQuery(part(result.qr, static_cast<size_t>(config.q_rank)),
                        result.qr_scale[static_cast<size_t>(token)], rope);
  Expect("idx_q", reference::JudgeCodes(idx_q, query.codes, profile));
  Expect("idx_q_scale", reference::JudgeIndexQueryScale(scales, query.scales));
  Expect("idx_weights",
         reference::JudgeGate(
             weights, golden.IndexWeights(part(result.xn, static_cast<size_t>(config.hidden)))));

  const int64_t num_candidates = (result.start_pos + token + 1) / kCsaRatio;
  std::vector<int8_t> keys;
  std::vector<float> key_scales;
  for (int64_t row = 0; row < num_candidates; ++row) {
    const std::span<const int8_t> key = rows.index(row);
    keys.insert(keys.end(), key.begin(), key.end());
    key_scales.push_back(rows.index_scale(row));
  }
  const reference::IndexQueryResult own = {{idx_q.begin(), idx_q.end()},
                                           {scales.begin(), scales.end()}};
  const reference::Selection selection =
      reference::TopK(reference::Scores(own, weights, keys, key_scales), config.index_topk);
  Expect("topk_score", reference::JudgeScores(part(result.topk_score, topk), selection.score));
  Expect("topk_idx", reference::JudgeSelection(part(result.topk_idx, topk), selection.idx,
                                               selection.score, selection.next_score));
}

}  // namespace

void ExpectGoldenStages(DecodeWorld& world, const EntryResult& result,
                        reference::RuleProfile profile, std::vector<int64_t> tokens) {
  const Golden golden(world.config(), world.kind(), world.fixture().views());
  const CompressedRows rows = {
      .main = [&](int64_t row) { return world.MainRow(result.id, row); },
      .index = [&](int64_t row) { return world.IndexRow(result.id, row); },
      .index_scale = [&](int64_t row) { return world.IndexScale(result.id, row); }};
  ExpectGoldenStages(golden, rows, result, profile, std::move(tokens));
}

void ExpectGoldenStages(const Golden& golden, const CompressedRows& rows, const EntryResult& result,
                        reference::RuleProfile profile, std::vector<int64_t> tokens) {
  const ModelConfig& config = golden.config();
  if (golden.kind() != AttentionKind::kSwa) ExpectGoldenRows(golden, result, profile);
  if (tokens.empty()) {
    tokens.resize(static_cast<size_t>(result.num_tokens));
    std::iota(tokens.begin(), tokens.end(), 0);
  }
  const auto hidden = static_cast<size_t>(config.hidden);
  const auto rank = static_cast<size_t>(config.q_rank);
  const size_t head_width = static_cast<size_t>(config.num_heads) * kHeadDim;
  for (const int64_t token : tokens) {
    SCOPED_TRACE("token " + std::to_string(token));
    const auto part = [token](const auto& values, size_t width) {
      return std::span(values).subspan(static_cast<size_t>(token) * width, width);
    };
    RopeRow rope;
    std::ranges::copy(part(result.cos, kRopePairs), rope.cos.begin());
    std::ranges::copy(part(result.sin, kRopePairs), rope.sin.begin());

    const auto x = part(result.x, 4 * hidden);
    const HcPreResult hc = golden.HcPre(x);
    Expect("x_mixed", reference::JudgeRounded(part(result.x_mixed, hidden), hc.x_mixed));
    Expect("post", reference::JudgeGate(part(result.post, 4), hc.post));
    Expect("comb", reference::JudgeGate(part(result.comb, 16), hc.comb));
    const auto xn = part(result.xn, hidden);
    Expect("xn", reference::JudgeRounded(xn, golden.AttnNorm(part(result.x_mixed, hidden))));
    const Quantized qr = golden.ProjectLatent(xn);
    Expect("qr", reference::JudgeCodes(part(result.qr, rank), qr.codes, profile));
    const float scale = result.qr_scale[static_cast<size_t>(token)];
    Expect("qr_scale", reference::JudgeLatentScale(reference::Values(&scale, 1),
                                                   reference::Values(&qr.scale, 1)));
    const auto q = part(result.q, head_width);
    Expect("q",
           reference::JudgeRounded(q, golden.ProjectQuery(part(result.qr, rank), scale, rope)));
    Expect("kv", reference::JudgeRounded(part(result.kv, kHeadDim), golden.ProjectKv(xn, rope)));

    std::vector<const Bf16*> window;
    const int64_t position = result.start_pos + token;
    for (int64_t p = std::max<int64_t>(0, position - (kWindowRows - 1)); p <= position; ++p) {
      window.push_back(p < result.start_pos
                           ? result.history.data() + (p - result.history_begin) * kHeadDim
                           : result.kv.data() + (p - result.start_pos) * kHeadDim);
    }
    const auto heads = part(result.heads, head_width);
    std::vector<const Bf16*> compressed;
    if (golden.kind() == AttentionKind::kHca) {
      for (int64_t row = 0; row < (position + 1) / kHcaRatio; ++row) {
        compressed.push_back(rows.main(row).data());
      }
    }
    if (golden.kind() == AttentionKind::kCsa) {
      ExpectGoldenSelection(golden, rows, result, token, rope, profile);
      for (const int32_t row : part(result.topk_idx, static_cast<size_t>(config.index_topk))) {
        if (row >= 0) compressed.push_back(rows.main(row).data());
      }
    }
    Expect("heads", reference::JudgeHeads(heads, golden.Attend(q, window, compressed, rope).heads));
    const auto attn_out = part(result.attn_out, hidden);
    Expect("attn_out", reference::JudgeAttnOut(attn_out, golden.ProjectOutput(heads), profile));
    Expect("x_out", reference::JudgeXOut(
                        part(result.x_out, 4 * hidden),
                        golden.HcPost(x, attn_out, part(result.post, 4), part(result.comb, 16))));
  }
}

}  // namespace millipede::testing
