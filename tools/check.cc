#include "tools/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "reference/golden.h"
#include "reference/judge.h"
#include "reference/parallel.h"
#include "tools/buffers.h"

namespace millipede::tools {
namespace {

using reference::EndToEndTensor;
using reference::Golden;
using reference::RuleProfile;
using reference::Values;
using reference::Verdict;

constexpr std::string_view kEndToEnd = "end to end, rms";
constexpr std::string_view kEndToEndPoints = "end to end, points";

// Row t of a dense [T, width] tensor.
template <typename T>
std::span<const T> Row(const std::vector<T>& values, int64_t t, int64_t width) {
  return std::span(values).subspan(static_cast<size_t>(t * width), static_cast<size_t>(width));
}

// The tables of tokens judged on many threads, joined in token order.
template <typename Judge>
RuleTable JudgeTokens(int64_t num_tokens, int num_threads, Progress& progress, const Judge& judge) {
  std::vector<RuleTable> tables(static_cast<size_t>(num_tokens));
  reference::ParallelFor(
      num_tokens,
      [&](int64_t t) {
        judge(t, tables[static_cast<size_t>(t)]);
        progress.Tick();
      },
      num_threads);
  RuleTable joined;
  for (const RuleTable& table : tables) joined.Merge(table);
  return joined;
}

std::string TokenName(const StepInputs& inputs, int64_t t) {
  const auto token = static_cast<size_t>(t);
  return fmt::format("request {} position {}", inputs.request[token], inputs.position[token]);
}

// The helper's rows against the golden's, both rounded as stored rows are.
void JudgeRope(const StepRecord& record, RuleTable& table) {
  std::vector<Bf16> actual;
  std::vector<Bf16> expected;
  for (int64_t t = 0; t < record.inputs.num_tokens(); ++t) {
    const auto row =
        reference::RopeRowAt(record.kind, record.inputs.position[static_cast<size_t>(t)]);
    for (size_t i = 0; i < kRopePairs; ++i) {
      const size_t at = static_cast<size_t>(t) * kRopePairs + i;
      actual.push_back(RoundToBf16(record.inputs.rope_cos[at]));
      actual.push_back(RoundToBf16(record.inputs.rope_sin[at]));
      expected.push_back(RoundToBf16(row.cos[i]));
      expected.push_back(RoundToBf16(row.sin[i]));
    }
  }
  table.Add("rope", "stage, from positions", static_cast<int64_t>(actual.size()),
            reference::JudgeRopeRows(actual, expected, record.profile),
            "cos and sin by turns, a row per token");
}

// The rows a token attends to: history by formula, the step's own as the library made them.
class StageWindows {
 public:
  explicit StageWindows(const StepRecord& record) : record_(record) {
    const std::vector<int64_t>& start_pos = record.rings.start_pos;
    history_.resize(start_pos.size());
    first_query_.resize(start_pos.size());
    int64_t first_query = 0;
    for (size_t r = 0; r < start_pos.size(); ++r) {
      first_query_[r] = first_query;
      first_query += record.rings.num_tokens[r];
      const fixtures::RequestFixture fixture(record.config, record.seed, static_cast<int64_t>(r));
      for (int64_t p = HistoryBegin(start_pos[r]); p < start_pos[r]; ++p) {
        fixture.KvRow(p, history_[r].emplace_back(kHeadDim));
      }
    }
  }

  std::vector<const Bf16*> Of(int64_t t) const {
    const auto r = static_cast<size_t>(record_.inputs.request[static_cast<size_t>(t)]);
    const int64_t position = record_.inputs.position[static_cast<size_t>(t)];
    const int64_t start = record_.rings.start_pos[r];
    std::vector<const Bf16*> window;
    for (int64_t p = std::max<int64_t>(0, position - kWindowRows + 1); p <= position; ++p) {
      if (p < start) {
        window.push_back(history_[r][static_cast<size_t>(p - HistoryBegin(start))].data());
      } else {
        window.push_back(Row(record_.values.kv, first_query_[r] + p - start, kHeadDim).data());
      }
    }
    return window;
  }

  const std::vector<std::vector<Bf16>>& history(size_t r) const { return history_[r]; }
  static int64_t HistoryBegin(int64_t start) {
    return std::max<int64_t>(0, start - kWindowRows + 1);
  }

 private:
  const StepRecord& record_;
  std::vector<std::vector<std::vector<Bf16>>> history_;  // [requests][rows][512]
  std::vector<int64_t> first_query_;                     // [requests]
};

void JudgeHcPreStage(const Golden& golden, const StepInputs& inputs, const Activations& values,
                     bool judge_mixed, int64_t t, const std::string& where, RuleTable& table) {
  const int64_t hidden = values.config.hidden;
  const auto hc = golden.HcPre(Row(inputs.x, t, kHcStreams * hidden));
  if (judge_mixed) {
    table.Add("x_mixed", "stage, from x", hidden,
              reference::JudgeRounded(Row(values.x_mixed, t, hidden), hc.x_mixed), where);
  }
  table.Add("post", "stage, from x", 4, reference::JudgeGate(Row(values.post, t, 4), hc.post),
            where);
  table.Add("comb", "stage, from x", 16, reference::JudgeGate(Row(values.comb, t, 16), hc.comb),
            where);
}

void JudgeOutputStages(const Golden& golden, const StepInputs& inputs, const Activations& values,
                       RuleProfile profile, int64_t t, const std::string& where, RuleTable& table) {
  const int64_t hidden = values.config.hidden;
  const int64_t head_lanes = int64_t{values.config.num_heads} * kHeadDim;
  const auto attn_out = Row(values.attn_out, t, hidden);
  table.Add("attn_out", "stage, from heads", hidden,
            reference::JudgeAttnOut(
                attn_out, golden.ProjectOutput(Row(values.heads, t, head_lanes)), profile),
            where);
  table.Add("x_out", "stage, from attn_out, post and comb", kHcStreams * hidden,
            reference::JudgeXOut(Row(values.x_out, t, kHcStreams * hidden),
                                 golden.HcPost(Row(inputs.x, t, kHcStreams * hidden), attn_out,
                                               Row(values.post, t, 4), Row(values.comb, t, 16))),
            where);
}

void JudgeStages(const StepRecord& record, const Golden& golden, const StageWindows& windows,
                 int64_t t, RuleTable& table) {
  const Activations& values = record.values;
  const int64_t hidden = record.config.hidden;
  const int64_t q_rank = record.config.q_rank;
  const int64_t head_lanes = int64_t{record.config.num_heads} * kHeadDim;
  const std::string where = TokenName(record.inputs, t);
  const reference::RopeRow rope = reference::RopeRowOf(record.inputs.rope(), t);

  JudgeHcPreStage(golden, record.inputs, values, /*judge_mixed=*/true, t, where, table);
  const auto xn = Row(values.xn, t, hidden);
  table.Add("xn", "stage, from x_mixed", hidden,
            reference::JudgeRounded(xn, golden.AttnNorm(Row(values.x_mixed, t, hidden))), where);

  const reference::Quantized latent = golden.ProjectLatent(xn);
  const auto qr = Row(values.qr, t, q_rank);
  const auto qr_scale = Row(values.qr_scale, t, 1);
  table.Add("qr", "stage, from xn", q_rank, reference::JudgeCodes(qr, latent.codes, record.profile),
            where);
  table.Add("qr_scale", "stage, from xn", 1,
            reference::JudgeLatentScale(qr_scale, Values(&latent.scale, 1)), where);

  const auto q = Row(values.q, t, head_lanes);
  table.Add("q", "stage, from qr and qr_scale", head_lanes,
            reference::JudgeRounded(q, golden.ProjectQuery(qr, qr_scale[0], rope)), where);
  table.Add("kv", "stage, from xn", kHeadDim,
            reference::JudgeRounded(Row(values.kv, t, kHeadDim), golden.ProjectKv(xn, rope)),
            where);
  table.Add("heads", "stage, from q and the rows", head_lanes,
            reference::JudgeHeads(Row(values.heads, t, head_lanes),
                                  golden.Attend(q, windows.Of(t), rope).heads),
            where);
  JudgeOutputStages(golden, record.inputs, values, record.profile, t, where, table);
}

// Each request's golden decoder, with all of the step's tokens appended.
std::vector<reference::SwaDecoder> DecodeAhead(const StepRecord& record, const Golden& golden,
                                               const StageWindows& windows, int num_threads) {
  const int64_t width = kHcStreams * int64_t{record.config.hidden};
  std::vector<reference::SwaDecoder> decoders;
  for (const int64_t start : record.rings.start_pos) decoders.emplace_back(golden, start);
  const auto append = [&](int64_t request) {
    const auto r = static_cast<size_t>(request);
    int64_t position = StageWindows::HistoryBegin(record.rings.start_pos[r]);
    for (const auto& row : windows.history(r)) decoders[r].SetHistory(position++, row);
    for (int64_t t = 0; t < record.inputs.num_tokens(); ++t) {
      if (record.inputs.request[static_cast<size_t>(t)] != request) continue;
      decoders[r].Append(Row(record.inputs.x, t, width),
                         reference::RopeRowOf(record.inputs.rope(), t));
    }
  };
  reference::ParallelFor(static_cast<int64_t>(decoders.size()), append, num_threads);
  return decoders;
}

void JudgeEndToEnd(const StepRecord& record, const reference::SwaDecoder& decoder, int64_t t,
                   RuleTable& table) {
  const Activations& values = record.values;
  const int64_t hidden = record.config.hidden;
  const int64_t width = kHcStreams * hidden;
  const int64_t head_lanes = int64_t{record.config.num_heads} * kHeadDim;
  const std::string where = TokenName(record.inputs, t);
  const reference::TokenResult expected = decoder.DecodeAt(
      record.inputs.position[static_cast<size_t>(t)], Row(record.inputs.x, t, width),
      reference::RopeRowOf(record.inputs.rope(), t));
  const auto judge = [&](std::string_view name, EndToEndTensor tensor, Values a, Values e) {
    table.Add(name, kEndToEnd, a.size(), reference::JudgeEndToEnd(tensor, a, e), where);
  };
  judge("kv", EndToEndTensor::kKv, Row(values.kv, t, kHeadDim), expected.kv);
  judge("q", EndToEndTensor::kQ, Row(values.q, t, head_lanes), expected.q);
  judge("heads", EndToEndTensor::kHeads, Row(values.heads, t, head_lanes), expected.heads);
  judge("attn_out", EndToEndTensor::kAttnOut, Row(values.attn_out, t, hidden), expected.attn_out);
  const auto x_out = Row(values.x_out, t, width);
  judge("x_out", EndToEndTensor::kXOut, x_out, expected.x_out);
  table.Add("x_out", kEndToEndPoints, width,
            reference::JudgeXOutPoints(record.kind, x_out, expected.x_out), where);
}

std::span<const std::byte> PoolRow(const std::vector<std::byte>& pool, int64_t row) {
  return std::span(pool).subspan(static_cast<size_t>(row * kRawRowBytes),
                                 static_cast<size_t>(kRawRowBytes));
}

// Bit-equality of two rows of the pool, whatever they hold: a NaN equals itself.
Verdict JudgeBytes(std::span<const std::byte> a, std::span<const std::byte> e) {
  if (std::equal(a.begin(), a.end(), e.begin(), e.end())) return {};
  return reference::JudgeExact(
      Values(reinterpret_cast<const int8_t*>(a.data()), static_cast<int64_t>(a.size())),
      Values(reinterpret_cast<const int8_t*>(e.data()), static_cast<int64_t>(e.size())));
}

}  // namespace

RuleTable CheckRings(const RingRecord& rings, std::span<const Bf16> kv) {
  const auto num_rows = static_cast<int64_t>(rings.pool_before.size()) / kRawRowBytes;
  // The step token whose KV row each row of the pool now holds; -1 where nothing was to be written.
  std::vector<int64_t> token_of(static_cast<size_t>(num_rows), -1);
  std::vector<int64_t> end_pos;
  int64_t first_query = 0;
  for (size_t r = 0; r < rings.pages.size(); ++r) {
    const int64_t n = rings.num_tokens[r];
    for (int64_t i = std::max<int64_t>(0, n - kRingRows); i < n; ++i) {
      const int64_t place = (rings.start_pos[r] + i) % kRingRows;
      const int64_t page = rings.pages[r][static_cast<size_t>(place / kPageRows)];
      token_of[static_cast<size_t>(page * kPageRows + place % kPageRows)] = first_query + i;
    }
    first_query += n;
    end_pos.push_back(rings.start_pos[r] + n);
  }

  RuleTable table;
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto before = PoolRow(rings.pool_before, row);
    const auto after = PoolRow(rings.pool_after_commit, row);
    const std::string where = fmt::format("page {} slot {}", row / kPageRows, row % kPageRows);
    table.Add("raw rows", "bit-unchanged by run", kHeadDim,
              JudgeBytes(PoolRow(rings.pool_after_run, row), before), where);
    const int64_t token = token_of[static_cast<size_t>(row)];
    if (token < 0) {
      table.Add("raw rows", "bit-unchanged by commit", kHeadDim, JudgeBytes(after, before), where);
    } else {
      const auto expected = std::as_bytes(
          kv.subspan(static_cast<size_t>(token * kHeadDim), static_cast<size_t>(kHeadDim)));
      table.Add("raw rows", "written by commit, exact", kHeadDim, JudgeBytes(after, expected),
                fmt::format("{}, step token {}", where, token));
    }
  }
  table.Add("positions", "after commit, exact", static_cast<int64_t>(end_pos.size()),
            reference::JudgeExact(rings.end_pos, end_pos), "requests");
  return table;
}

RuleTable CheckStep(const StepRecord& record, const fixtures::LayerFixture& weights,
                    int num_threads, Progress& progress) {
  const Golden golden(record.config, record.kind, weights.views());
  const StageWindows windows(record);
  const bool end_to_end = record.profile == RuleProfile::kStandard;
  const int64_t num_tokens = record.inputs.num_tokens();
  progress.Start("checking tokens", end_to_end ? 2 * num_tokens : num_tokens);

  RuleTable table;
  JudgeRope(record, table);
  table.Merge(JudgeTokens(num_tokens, num_threads, progress, [&](int64_t t, RuleTable& rows) {
    JudgeStages(record, golden, windows, t, rows);
  }));
  if (end_to_end) {
    const auto decoders = DecodeAhead(record, golden, windows, num_threads);
    table.Merge(JudgeTokens(num_tokens, num_threads, progress, [&](int64_t t, RuleTable& rows) {
      const int64_t r = record.inputs.request[static_cast<size_t>(t)];
      JudgeEndToEnd(record, decoders[static_cast<size_t>(r)], t, rows);
    }));
  }
  table.Merge(CheckRings(record.rings, record.values.kv));
  progress.Finish();
  return table;
}

RuleTable CheckOutput(const OutputRecord& record, const fixtures::LayerFixture& weights,
                      int num_threads, Progress& progress) {
  const Golden golden(record.config, weights.kind, weights.views());
  const Activations& values = record.values;
  const int64_t width = kHcStreams * int64_t{record.config.hidden};
  const int64_t head_lanes = int64_t{record.config.num_heads} * kHeadDim;
  progress.Start("checking tokens", record.inputs.num_tokens());
  RuleTable table = JudgeTokens(
      record.inputs.num_tokens(), num_threads, progress, [&](int64_t t, RuleTable& rows) {
        const std::string where = TokenName(record.inputs, t);
        JudgeHcPreStage(golden, record.inputs, values, /*judge_mixed=*/false, t, where, rows);
        JudgeOutputStages(golden, record.inputs, values, record.profile, t, where, rows);
        if (record.profile == RuleProfile::kTiny) return;
        const auto x = Row(record.inputs.x, t, width);
        const auto hc = golden.HcPre(x);
        const auto x_out = Row(values.x_out, t, width);
        const auto expected = golden.HcPost(
            x, golden.ProjectOutput(Row(values.heads, t, head_lanes)), hc.post, hc.comb);
        rows.Add("x_out", kEndToEnd, width,
                 reference::JudgeEndToEnd(EndToEndTensor::kXOut, x_out, expected), where);
        rows.Add("x_out", kEndToEndPoints, width,
                 reference::JudgeXOutPoints(weights.kind, x_out, expected), where);
      });
  progress.Finish();
  return table;
}

}  // namespace millipede::tools
