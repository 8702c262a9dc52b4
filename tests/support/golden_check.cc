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

}  // namespace

void ExpectGoldenStages(const ModelConfig& config, AttentionKind kind,
                        const fixtures::LayerFixture& fixture, const EntryResult& result,
                        reference::RuleProfile profile, std::vector<int64_t> tokens) {
  const Golden golden(config, kind, fixture.views());
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
    Expect("heads", reference::JudgeHeads(heads, golden.Attend(q, window, rope).heads));
    const auto attn_out = part(result.attn_out, hidden);
    Expect("attn_out", reference::JudgeAttnOut(attn_out, golden.ProjectOutput(heads), profile));
    Expect("x_out", reference::JudgeXOut(
                        part(result.x_out, 4 * hidden),
                        golden.HcPost(x, attn_out, part(result.post, 4), part(result.comb, 16))));
  }
}

}  // namespace millipede::testing
