#include "tools/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "reference/golden.h"
#include "tools/check_parts.h"

namespace millipede::tools {
namespace {

using reference::EndToEndTensor;
using reference::Golden;
using reference::RuleProfile;

// Products of the golden above which only some tokens are judged deeply: about half a minute on two
// threads for each of the two passes over them.
constexpr int64_t kDeepProducts = 60'000'000'000;

std::vector<int64_t> AllTokens(const StepInputs& inputs) {
  std::vector<int64_t> tokens(static_cast<size_t>(inputs.num_tokens()));
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// Products of the golden for one token, roughly.
int64_t DeepProductsOf(const StepRecord& record, int64_t position) {
  constexpr int64_t kCodesPerProduct = 8;  // products of codes are that much faster
  const ModelConfig& config = record.config;
  const int64_t head_lanes = int64_t{config.num_heads} * kHeadDim;
  const int64_t projections =
      (int64_t{config.q_rank} + kHeadDim + int64_t{config.o_groups} * config.o_rank) *
          config.hidden +
      head_lanes * (int64_t{config.q_rank} + config.o_rank);
  int64_t rows = std::min<int64_t>(position + 1, kWindowRows);
  int64_t scored = 0;
  if (record.kind != AttentionKind::kSwa) {
    const int64_t visible = (position + 1) / RatioOf(record.kind);
    const bool csa = record.kind == AttentionKind::kCsa;
    rows += csa ? std::min<int64_t>(visible, config.index_topk) : visible;
    if (csa) scored = visible * config.num_index_heads * kIndexDim / kCodesPerProduct;
  }
  return projections + 2 * rows * head_lanes + scored;
}

}  // namespace

std::vector<int64_t> DeeplyJudgedTokens(const StepRecord& record) {
  std::vector<int64_t> tokens = AllTokens(record.inputs);
  int64_t products = 0;
  for (const int64_t position : record.inputs.position) {
    products += DeepProductsOf(record, position);
  }
  if (products <= kDeepProducts) return tokens;
  tokens.clear();
  int64_t first = 0;
  for (const int64_t n : record.caches.num_tokens) {
    for (const int64_t t : {first, first + n / 2, first + n - 1}) {
      if (n > 0 && (tokens.empty() || tokens.back() < t)) tokens.push_back(t);
    }
    first += n;
  }
  return tokens;
}

std::string CoverageOf(const StepRecord& record) {
  const auto deep = static_cast<int64_t>(DeeplyJudgedTokens(record).size());
  const int64_t all = record.inputs.num_tokens();
  if (deep == all) return fmt::format("all {} tokens in full", all);
  return fmt::format(
      "all {} tokens; scores, selections, heads and the whole layer of {}, the first, the middle "
      "and the last of each request",
      all, deep);
}

RuleTable CheckValues(const StepRecord& record, const fixtures::LayerFixture& weights,
                      int num_threads, Progress& progress) {
  const Golden golden(record.config, record.kind, weights.views());
  const StepRows rows(record);
  const bool end_to_end = record.profile == RuleProfile::kStandard;
  const std::vector<int64_t> all = AllTokens(record.inputs);
  const std::vector<int64_t> deep = DeeplyJudgedTokens(record);
  progress.Start("checking tokens",
                 static_cast<int64_t>(all.size() + (end_to_end ? 2 : 1) * deep.size()));

  RuleTable table;
  JudgeRope(record, table);
  table.Merge(JudgeItems(all, num_threads, progress, [&](int64_t t, RuleTable& one) {
    JudgeTokenStages(record, golden, t, one);
  }));
  table.Merge(JudgeEvents(record, golden, rows, num_threads));
  if (record.kind == AttentionKind::kCsa) table.Merge(CheckWide(record.values, record.inputs));
  table.Merge(JudgeItems(deep, num_threads, progress, [&](int64_t t, RuleTable& one) {
    JudgeAttentionStages(record, golden, rows, t, one);
  }));
  if (end_to_end) table.Merge(JudgeEndToEnd(record, golden, rows, deep, num_threads, progress));
  progress.Finish();
  return table;
}

RuleTable CheckStep(const StepRecord& record, const fixtures::LayerFixture& weights,
                    int num_threads, Progress& progress) {
  RuleTable table = CheckValues(record, weights, num_threads, progress);
  table.Merge(CheckCaches(record.caches, record.values, record.inputs));
  return table;
}

RuleTable CheckOutput(const OutputRecord& record, const fixtures::LayerFixture& weights,
                      int num_threads, Progress& progress) {
  const Golden golden(record.config, weights.kind, weights.views());
  const Activations& values = record.values;
  const int64_t width = kHcStreams * int64_t{record.config.hidden};
  const int64_t head_lanes = int64_t{record.config.num_heads} * kHeadDim;
  progress.Start("checking tokens", record.inputs.num_tokens());
  RuleTable table =
      JudgeItems(AllTokens(record.inputs), num_threads, progress, [&](int64_t t, RuleTable& one) {
        const std::string where = TokenName(record.inputs, t);
        JudgeHcPreStage(golden, record.inputs, values, /*judge_mixed=*/false, t, where, one);
        JudgeOutputStages(golden, record.inputs, values, record.profile, t, where, one);
        if (record.profile == RuleProfile::kTiny) return;
        const auto x = TokenRow(record.inputs.x, t, width);
        const auto hc = golden.HcPre(x);
        const auto x_out = TokenRow(values.x_out, t, width);
        const auto expected = golden.HcPost(
            x, golden.ProjectOutput(TokenRow(values.heads, t, head_lanes)), hc.post, hc.comb);
        one.Add("x_out", "end to end, rms", width,
                reference::JudgeEndToEnd(EndToEndTensor::kXOut, x_out, expected), where);
        one.Add("x_out", "end to end, points", width,
                reference::JudgeXOutPoints(weights.kind, x_out, expected), where);
      });
  progress.Finish();
  return table;
}

}  // namespace millipede::tools
