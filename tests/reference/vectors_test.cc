// The golden against every stored value of the SWA vector files: each stage from given inputs, and
// the whole layer end to end. Proves the formula, the golden and the judging rules at once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "fixtures/formula.h"
#include "fixtures/safetensors.h"
#include "reference/golden.h"
#include "reference/judge.h"
#include "reference/parallel.h"

namespace millipede::reference {
namespace {

using fixtures::SafetensorsFile;

// The stored values of one request.
struct Stored {
  int64_t index = 0;
  int64_t start_pos = 0;
  int64_t num_tokens = 0;
  std::vector<int32_t> tokens, probe_tokens;
  std::vector<float> rope_cos, rope_sin, post, comb, qr_scale, x_out;
  std::vector<Bf16> kv, xn, attn_out, x_mixed, q, heads;
  std::vector<int8_t> qr;

  RopeRow Rope(int64_t token) const {
    return RopeRowOf({MakeView(rope_cos.data(), num_tokens, kRopePairs),
                      MakeView(rope_sin.data(), num_tokens, kRopePairs)},
                     token);
  }
};

template <typename T>
std::span<const T> RowOf(const std::vector<T>& values, int64_t row, int64_t width) {
  return std::span(values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
}

std::string Prefix(int64_t request) { return fmt::format("r{}.", request); }

std::string Where(const Stored& request, int64_t token) {
  return fmt::format("request {} token {}", request.index, token);
}

class SwaVectors : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = std::string(MILLIPEDE_VECTORS_DIR) + "/" + GetParam() + ".safetensors";
    auto file = SafetensorsFile::Load(path);
    ASSERT_TRUE(file) << file.error().message;
    file_ = std::move(*file);
    ASSERT_EQ(file_.Metadata("kind"), "swa");
    seed_ = static_cast<uint64_t>(file_.MetadataInt("seed").value());
    const auto starts = file_.MetadataInts("start_pos").value();
    const auto counts = file_.MetadataInts("tokens_per_step").value();
    const int64_t steps = file_.MetadataInt("steps").value();
    ASSERT_EQ(starts.size(), counts.size());
    for (size_t r = 0; r < starts.size(); ++r) {
      if (counts[r] > 0) Read(static_cast<int64_t>(r), starts[r], counts[r] * steps);
    }
    ASSERT_FALSE(requests_.empty());
  }

  std::vector<float> X(const Stored& request, int64_t token) const {
    std::vector<float> x(static_cast<size_t>(kHcStreams * config_.hidden));
    fixtures::RequestFixture(config_, seed_, request.index).X(token, x);
    return x;
  }

  // The KV row of a position before the request's start.
  std::vector<Bf16> History(const Stored& request, int64_t position) const {
    std::vector<Bf16> row(kHeadDim);
    fixtures::RequestFixture(config_, seed_, request.index).KvRow(position, row);
    return row;
  }

  ModelConfig config_ = ModelConfig::Flash();
  SafetensorsFile file_;
  uint64_t seed_ = 0;
  std::vector<Stored> requests_;

 private:
  template <typename T>
  void ReadTensor(const Stored& request, const char* name, std::initializer_list<int64_t> shape,
                  std::vector<T>& out) {
    auto values = file_.Values<T>(Prefix(request.index) + name, shape);
    ASSERT_TRUE(values) << values.error().message;
    out = std::move(*values);
  }

  void Read(int64_t index, int64_t start_pos, int64_t n) {
    Stored s;
    s.index = index;
    s.start_pos = start_pos;
    s.num_tokens = n;
    const std::string prefix = Prefix(index);
    s.tokens = file_.Values<int32_t>(prefix + "tokens").value();
    s.probe_tokens = file_.Values<int32_t>(prefix + "probe_tokens").value();
    const auto stored = static_cast<int64_t>(s.tokens.size());
    const auto probes = static_cast<int64_t>(s.probe_tokens.size());
    const int64_t hidden = config_.hidden;
    ReadTensor(s, "rope_cos", {n, kRopePairs}, s.rope_cos);
    ReadTensor(s, "rope_sin", {n, kRopePairs}, s.rope_sin);
    ReadTensor(s, "kv", {n, kHeadDim}, s.kv);
    ReadTensor(s, "xn", {stored, hidden}, s.xn);
    ReadTensor(s, "attn_out", {stored, hidden}, s.attn_out);
    ReadTensor(s, "x_mixed", {probes, hidden}, s.x_mixed);
    ReadTensor(s, "post", {probes, 4}, s.post);
    ReadTensor(s, "comb", {probes, 4, 4}, s.comb);
    ReadTensor(s, "qr", {probes, config_.q_rank}, s.qr);
    ReadTensor(s, "qr_scale", {probes}, s.qr_scale);
    ReadTensor(s, "q", {probes, config_.num_heads, kHeadDim}, s.q);
    ReadTensor(s, "heads", {probes, config_.num_heads, kHeadDim}, s.heads);
    ReadTensor(s, "x_out", {probes, 4, hidden}, s.x_out);
    requests_.push_back(std::move(s));
  }
};

#define EXPECT_RULE(verdict_expression)                                       \
  do {                                                                        \
    const Verdict verdict_ = (verdict_expression);                            \
    EXPECT_TRUE(verdict_.ok) << #verdict_expression << "\n" << verdict_.text; \
  } while (false)

TEST_P(SwaVectors, RopeHelper) {
  std::vector<float> actual, expected;
  for (const Stored& s : requests_) {
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      const RopeRow row = RopeRowAt(AttentionKind::kSwa, s.start_pos + t);
      actual.insert(actual.end(), row.cos.begin(), row.cos.end());
      actual.insert(actual.end(), row.sin.begin(), row.sin.end());
      const RopeRow stored = s.Rope(t);
      expected.insert(expected.end(), stored.cos.begin(), stored.cos.end());
      expected.insert(expected.end(), stored.sin.begin(), stored.sin.end());
    }
  }
  EXPECT_RULE(JudgeRopeRows(actual, expected));
}

TEST_P(SwaVectors, EveryStageFromGivenInputs) {
  const auto layer = fixtures::MakeLayerFixture(config_, AttentionKind::kSwa, seed_);
  const Golden golden(config_, AttentionKind::kSwa, layer.views());
  const int64_t hidden = config_.hidden;
  const int64_t lanes = int64_t{config_.num_heads} * kHeadDim;
  for (const Stored& s : requests_) {
    for (size_t i = 0; i < s.tokens.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      SCOPED_TRACE(Where(s, s.tokens[i]));
      EXPECT_RULE(JudgeRounded(golden.ProjectKv(RowOf(s.xn, row, hidden), s.Rope(s.tokens[i])),
                               RowOf(s.kv, s.tokens[i], kHeadDim)));
    }
    ParallelFor(static_cast<int64_t>(s.probe_tokens.size()), [&](int64_t p) {
      const int64_t token = s.probe_tokens[static_cast<size_t>(p)];
      SCOPED_TRACE(Where(s, token));
      const auto place = std::find(s.tokens.begin(), s.tokens.end(), token);
      ASSERT_NE(place, s.tokens.end());
      const int64_t row = place - s.tokens.begin();
      const RopeRow rope = s.Rope(token);
      const std::vector<float> x = X(s, token);

      const HcPreResult hc = golden.HcPre(x);
      EXPECT_RULE(JudgeRounded(hc.x_mixed, RowOf(s.x_mixed, p, hidden)));
      EXPECT_RULE(JudgeGate(hc.post, RowOf(s.post, p, 4)));
      EXPECT_RULE(JudgeGate(hc.comb, RowOf(s.comb, p, 16)));
      EXPECT_RULE(
          JudgeRounded(golden.AttnNorm(RowOf(s.x_mixed, p, hidden)), RowOf(s.xn, row, hidden)));

      const Quantized qr = golden.ProjectLatent(RowOf(s.xn, row, hidden));
      EXPECT_RULE(JudgeCodes(qr.codes, RowOf(s.qr, p, config_.q_rank)));
      EXPECT_RULE(JudgeLatentScale(std::span(&qr.scale, 1), RowOf(s.qr_scale, p, 1)));
      const auto scale = s.qr_scale[static_cast<size_t>(p)];
      EXPECT_RULE(JudgeRounded(golden.ProjectQuery(RowOf(s.qr, p, config_.q_rank), scale, rope),
                               RowOf(s.q, p, lanes)));

      std::vector<std::vector<Bf16>> history;
      std::vector<const Bf16*> window;
      const int64_t position = s.start_pos + token;
      for (int64_t q = std::max<int64_t>(0, position - kWindowRows + 1); q <= position; ++q) {
        if (q < s.start_pos) {
          window.push_back(history.emplace_back(History(s, q)).data());
        } else {
          window.push_back(RowOf(s.kv, q - s.start_pos, kHeadDim).data());
        }
      }
      EXPECT_RULE(JudgeHeads(golden.Attend(RowOf(s.q, p, lanes), window, rope).heads,
                             RowOf(s.heads, p, lanes)));
      EXPECT_RULE(JudgeAttnOut(golden.ProjectOutput(RowOf(s.heads, p, lanes)),
                               RowOf(s.attn_out, row, hidden)));
      EXPECT_RULE(JudgeXOut(golden.HcPost(x, RowOf(s.attn_out, row, hidden), RowOf(s.post, p, 4),
                                          RowOf(s.comb, p, 16)),
                            RowOf(s.x_out, p, 4 * hidden)));
    });
  }
}

TEST_P(SwaVectors, EndToEnd) {
  const auto layer = fixtures::MakeLayerFixture(config_, AttentionKind::kSwa, seed_);
  const Golden golden(config_, AttentionKind::kSwa, layer.views());
  const int64_t hidden = config_.hidden;
  const int64_t lanes = int64_t{config_.num_heads} * kHeadDim;
  for (const Stored& s : requests_) {
    SwaDecoder decoder(golden, s.start_pos);
    for (int64_t p = std::max<int64_t>(0, s.start_pos - kWindowRows + 1); p < s.start_pos; ++p) {
      decoder.SetHistory(p, History(s, p));
    }
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      SCOPED_TRACE(Where(s, t));
      decoder.Append(X(s, t), s.Rope(t));
      EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kKv, decoder.KvAt(s.start_pos + t),
                                RowOf(s.kv, t, kHeadDim)));
    }
    ParallelFor(static_cast<int64_t>(s.tokens.size()), [&](int64_t row) {
      const int32_t token = s.tokens[static_cast<size_t>(row)];
      SCOPED_TRACE(Where(s, token));
      const TokenResult result = decoder.DecodeAt(s.start_pos + token, X(s, token), s.Rope(token));
      EXPECT_RULE(
          JudgeEndToEnd(EndToEndTensor::kAttnOut, result.attn_out, RowOf(s.attn_out, row, hidden)));
      const auto probe = std::find(s.probe_tokens.begin(), s.probe_tokens.end(), token);
      if (probe == s.probe_tokens.end()) return;
      const int64_t p = probe - s.probe_tokens.begin();
      EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kQ, result.q, RowOf(s.q, p, lanes)));
      EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kHeads, result.heads, RowOf(s.heads, p, lanes)));
      const auto x_out = RowOf(s.x_out, p, 4 * hidden);
      EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kXOut, result.x_out, x_out));
      EXPECT_RULE(JudgeXOutPoints(AttentionKind::kSwa, result.x_out, x_out));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Files, SwaVectors,
                         testing::Values("swa_short", "swa_mixed", "swa_ragged", "swa_tail",
                                         "swa_grow"),
                         [](const auto& file) { return std::string(file.param); });

}  // namespace
}  // namespace millipede::reference
