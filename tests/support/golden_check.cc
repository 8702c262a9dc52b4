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

// State rows of all tokens and the compressed rows of all events.
void ExpectGoldenRows(const Golden& golden, const EntryResult& result) {
  const auto width = static_cast<int64_t>(result.state.size()) / result.num_tokens;
  const auto hidden = static_cast<size_t>(golden.config().hidden);
  for (int64_t token = 0; token < result.num_tokens; ++token) {
    SCOPED_TRACE("token " + std::to_string(token));
    const auto xn = std::span(result.xn).subspan(static_cast<size_t>(token) * hidden, hidden);
    Expect("state", reference::JudgeState(std::span(result.state)
                                              .subspan(static_cast<size_t>(token * width),
                                                       static_cast<size_t>(width)),
                                          golden.StateRow(xn, result.start_pos + token)));
  }
  const bool overlap = golden.kind() == AttentionKind::kCsa;
  const int64_t ratio = overlap ? kCsaRatio : kHcaRatio;
  for (size_t e = 0; e < result.event_rows.size(); ++e) {
    const int64_t row = result.event_rows[e];
    SCOPED_TRACE("compressed row " + std::to_string(row));
    std::vector<const float*> rows;
    for (int64_t p = (row - (overlap ? 1 : 0)) * ratio; p < (row + 1) * ratio; ++p) {
      const float* state = nullptr;
      if (p >= result.start_pos) {
        state = result.state.data() + (p - result.start_pos) * width;
      } else if (p >= 0) {
        state = result.state_history.data() + (p - result.state_begin) * width;
      }
      rows.push_back(state);
    }
    RopeRow rope;
    std::copy_n(result.event_cos.begin() + static_cast<int64_t>(e) * kRopePairs, kRopePairs,
                rope.cos.begin());
    std::copy_n(result.event_sin.begin() + static_cast<int64_t>(e) * kRopePairs, kRopePairs,
                rope.sin.begin());
    Expect("cmp_rows",
           reference::JudgeRounded(std::span(result.cmp_rows).subspan(e * kHeadDim, kHeadDim),
                                   golden.CompressRow(rows, rope)));
  }
}

}  // namespace

void ExpectGoldenStages(DecodeWorld& world, const EntryResult& result,
                        reference::RuleProfile profile, std::vector<int64_t> tokens) {
  const ModelConfig& config = world.config();
  const Golden golden(config, world.kind(), world.fixture().views());
  if (world.kind() != AttentionKind::kSwa) ExpectGoldenRows(golden, result);
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
    if (world.kind() == AttentionKind::kHca) {
      for (int64_t row = 0; row < (position + 1) / kHcaRatio; ++row) {
        compressed.push_back(world.MainRow(result.id, row).data());
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
