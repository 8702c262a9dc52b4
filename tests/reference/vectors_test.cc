// The golden against every stored value of the vector files of layers: each stage from given
// inputs, and the whole layer end to end. Proves the formula, the golden and the judging rules at
// once.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "fixtures/formula.h"
#include "fixtures/safetensors.h"
#include "reference/golden.h"
#include "reference/judge.h"
#include "reference/parallel.h"

namespace millipede::reference {
namespace {

using fixtures::SafetensorsFile;

template <typename T>
std::span<const T> RowOf(const std::vector<T>& values, int64_t row, int64_t width) {
  return std::span(values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
}

RopeRow RopeOf(const std::vector<float>& cos, const std::vector<float>& sin, int64_t row) {
  const auto n = static_cast<int64_t>(cos.size()) / kRopePairs;
  return RopeRowOf({MakeView(cos.data(), n, kRopePairs), MakeView(sin.data(), n, kRopePairs)}, row);
}

// The stored values of one request, and its inputs and history by formula.
struct Stored {
  int64_t index = 0;
  int64_t start_pos = 0;
  int64_t num_tokens = 0;
  int64_t ratio = 0;
  std::vector<int32_t> tokens, probe_tokens;
  std::vector<float> rope_cos, rope_sin, post, comb, qr_scale, x_out;
  std::vector<Bf16> kv, xn, attn_out, x_mixed, q, heads;
  std::vector<int8_t> qr;
  // HCA and CSA
  std::vector<int64_t> event_pos;
  std::vector<float> event_rope_cos, event_rope_sin, state_rows;
  std::vector<Bf16> cmp_rows;
  // CSA
  std::vector<int8_t> idx_q, idx_rows;
  std::vector<float> idx_q_scale, idx_weights, idx_scales, inner_state_rows;
  std::vector<int32_t> topk_idx;
  std::vector<float> topk_score, topk_next;

  RopeRow Rope(int64_t token) const { return RopeOf(rope_cos, rope_sin, token); }
  RopeRow EventRope(int64_t event) const { return RopeOf(event_rope_cos, event_rope_sin, event); }

  // The first new token whose state rows are stored.
  int64_t first_state_token() const { return num_tokens - std::min<int64_t>(8, num_tokens); }

  // The place of a token in `tokens` (or `probe_tokens`); -1 if it is not there.
  static int64_t PlaceOf(const std::vector<int32_t>& list, int64_t token) {
    const auto place = std::find(list.begin(), list.end(), token);
    return place == list.end() ? -1 : place - list.begin();
  }

  // Compressed rows, and index rows, before the step.
  int64_t num_old_rows() const { return ratio > 0 ? start_pos / ratio : 0; }
  // Those that a new token sees.
  int64_t num_visible_rows(int64_t token) const {
    return ratio > 0 ? (start_pos + token + 1) / ratio : 0;
  }
};

std::string Where(const Stored& request, int64_t token) {
  return fmt::format("request {} token {}", request.index, token);
}

class LayerVectors : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string path = std::string(MILLIPEDE_VECTORS_DIR) + "/" + GetParam() + ".safetensors";
    auto file = SafetensorsFile::Load(path);
    ASSERT_TRUE(file) << file.error().message;
    file_ = std::move(*file);
    ratio_ = file_.MetadataInt("ratio").value();
    kind_ = KindOfRatio(static_cast<int32_t>(ratio_)).value();
    ASSERT_EQ(file_.Metadata("kind").value(), KindName(kind_));
    seed_ = static_cast<uint64_t>(file_.MetadataInt("seed").value());
    const auto starts = file_.MetadataInts("start_pos").value();
    const auto counts = file_.MetadataInts("tokens_per_step").value();
    num_steps_ = file_.MetadataInt("steps").value();
    ASSERT_EQ(starts.size(), counts.size());
    for (size_t r = 0; r < starts.size(); ++r) {
      if (counts[r] > 0) Read(static_cast<int64_t>(r), starts[r], counts[r] * num_steps_);
    }
    ASSERT_FALSE(requests_.empty());
  }

  fixtures::RequestFixture Fixture(const Stored& request) const {
    return fixtures::RequestFixture(config_, seed_, request.index);
  }

  std::vector<float> X(const Stored& request, int64_t token) const {
    std::vector<float> x(static_cast<size_t>(kHcStreams * config_.hidden));
    Fixture(request).X(token, x);
    return x;
  }

  // Rows that stages are given: of the history by formula, of the step as they are stored.
  std::vector<Bf16> KvRow(const Stored& s, int64_t position) const {
    std::vector<Bf16> row(kHeadDim);
    if (position < s.start_pos) {
      Fixture(s).KvRow(position, row);
    } else {
      std::ranges::copy(RowOf(s.kv, position - s.start_pos, kHeadDim), row.begin());
    }
    return row;
  }
  std::vector<Bf16> CompressedRow(const Stored& s, int64_t row) const {
    std::vector<Bf16> values(kHeadDim);
    if (row < s.num_old_rows()) {
      Fixture(s).CmpRow(row, values);
    } else {
      std::ranges::copy(RowOf(s.cmp_rows, row - s.num_old_rows(), kHeadDim), values.begin());
    }
    return values;
  }
  std::vector<float> StateRow(const Stored& s, int64_t position) const {
    std::vector<float> row(static_cast<size_t>(state_width()));
    if (position < s.start_pos) {
      Fixture(s).StateRow(position, row);
    } else {
      const int64_t i = position - s.start_pos - s.first_state_token();
      std::ranges::copy(RowOf(s.state_rows, i, state_width()), row.begin());
    }
    return row;
  }
  std::vector<float> InnerStateRow(const Stored& s, int64_t position) const {
    std::vector<float> row(kInnerWidth);
    if (position < s.start_pos) {
      Fixture(s).InnerStateRow(position, row);
    } else {
      const int64_t i = position - s.start_pos - s.first_state_token();
      std::ranges::copy(RowOf(s.inner_state_rows, i, kInnerWidth), row.begin());
    }
    return row;
  }

  void CheckPointwiseStages(const Golden& golden, const Stored& s, int64_t p) const;
  void CheckAttention(const Golden& golden, const Stored& s, int64_t p) const;
  void CheckIndexer(const Golden& golden, const Stored& s, int64_t p) const;
  void CheckStateRows(const Golden& golden, const Stored& s) const;
  void CheckEvents(const Golden& golden) const;

  static constexpr int64_t kInnerWidth = 4 * kIndexDim;
  int64_t state_width() const { return (kind_ == AttentionKind::kCsa ? 4 : 2) * kHeadDim; }
  int64_t head_lanes() const { return int64_t{config_.num_heads} * kHeadDim; }

  ModelConfig config_ = ModelConfig::Flash();
  SafetensorsFile file_;
  AttentionKind kind_ = AttentionKind::kSwa;
  int64_t ratio_ = 0;
  uint64_t seed_ = 0;
  int64_t num_steps_ = 0;
  std::vector<Stored> requests_;

 private:
  template <typename T>
  void ReadTensor(const Stored& request, const char* name, std::initializer_list<int64_t> shape,
                  std::vector<T>& out) {
    auto values = file_.Values<T>(fmt::format("r{}.{}", request.index, name), shape);
    ASSERT_TRUE(values) << values.error().message;
    out = std::move(*values);
  }

  void Read(int64_t index, int64_t start_pos, int64_t n) {
    Stored s;
    s.index = index;
    s.start_pos = start_pos;
    s.num_tokens = n;
    s.ratio = ratio_;
    const std::string prefix = fmt::format("r{}.", index);
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
    if (kind_ != AttentionKind::kSwa) ReadCompressor(s);
    if (kind_ == AttentionKind::kCsa) ReadIndexer(s, stored, probes);
    requests_.push_back(std::move(s));
  }

  void ReadCompressor(Stored& s) {
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      if ((s.start_pos + t + 1) % ratio_ == 0) s.event_pos.push_back(s.start_pos + t);
    }
    const auto events = static_cast<int64_t>(s.event_pos.size());
    std::vector<int64_t> event_pos;
    ReadTensor(s, "event_pos", {events}, event_pos);
    ASSERT_EQ(event_pos, s.event_pos);
    ReadTensor(s, "event_rope_cos", {events, kRopePairs}, s.event_rope_cos);
    ReadTensor(s, "event_rope_sin", {events, kRopePairs}, s.event_rope_sin);
    ReadTensor(s, "cmp_rows", {events, kHeadDim}, s.cmp_rows);
    ReadTensor(s, "state_rows", {s.num_tokens - s.first_state_token(), state_width()},
               s.state_rows);
  }

  void ReadIndexer(Stored& s, int64_t stored, int64_t probes) {
    const auto events = static_cast<int64_t>(s.event_pos.size());
    ReadTensor(s, "idx_rows", {events, kIndexDim}, s.idx_rows);
    ReadTensor(s, "idx_scales", {events}, s.idx_scales);
    ReadTensor(s, "inner_state_rows", {s.num_tokens - s.first_state_token(), kInnerWidth},
               s.inner_state_rows);
    ReadTensor(s, "idx_q", {probes, config_.num_index_heads, kIndexDim}, s.idx_q);
    ReadTensor(s, "idx_q_scale", {probes, config_.num_index_heads}, s.idx_q_scale);
    ReadTensor(s, "idx_weights", {probes, config_.num_index_heads}, s.idx_weights);
    ReadTensor(s, "topk_idx", {stored, config_.index_topk}, s.topk_idx);
    ReadTensor(s, "topk_score", {stored, config_.index_topk}, s.topk_score);
    ReadTensor(s, "topk_next", {stored}, s.topk_next);
  }
};

#define EXPECT_RULE(verdict_expression)                                       \
  do {                                                                        \
    const Verdict verdict_ = (verdict_expression);                            \
    EXPECT_TRUE(verdict_.ok) << #verdict_expression << "\n" << verdict_.text; \
  } while (false)

TEST_P(LayerVectors, RopeHelper) {
  std::vector<float> actual, expected;
  const auto add = [](std::vector<float>& rows, const RopeRow& row) {
    rows.insert(rows.end(), row.cos.begin(), row.cos.end());
    rows.insert(rows.end(), row.sin.begin(), row.sin.end());
  };
  for (const Stored& s : requests_) {
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      add(actual, RopeRowAt(kind_, s.start_pos + t));
      add(expected, s.Rope(t));
    }
    for (size_t e = 0; e < s.event_pos.size(); ++e) {  // the block's first position
      add(actual, RopeRowAt(kind_, s.event_pos[e] / ratio_ * ratio_));
      add(expected, s.EventRope(static_cast<int64_t>(e)));
    }
  }
  EXPECT_RULE(JudgeRopeRows(actual, expected));
}

// The stages of probe p that look at one token alone.
void LayerVectors::CheckPointwiseStages(const Golden& golden, const Stored& s, int64_t p) const {
  const int64_t hidden = config_.hidden;
  const int64_t token = s.probe_tokens[static_cast<size_t>(p)];
  const int64_t row = Stored::PlaceOf(s.tokens, token);
  ASSERT_GE(row, 0);
  const std::vector<float> x = X(s, token);

  const HcPreResult hc = golden.HcPre(x);
  EXPECT_RULE(JudgeRounded(hc.x_mixed, RowOf(s.x_mixed, p, hidden)));
  EXPECT_RULE(JudgeGate(hc.post, RowOf(s.post, p, 4)));
  EXPECT_RULE(JudgeGate(hc.comb, RowOf(s.comb, p, 16)));
  EXPECT_RULE(JudgeRounded(golden.AttnNorm(RowOf(s.x_mixed, p, hidden)), RowOf(s.xn, row, hidden)));

  const Quantized qr = golden.ProjectLatent(RowOf(s.xn, row, hidden));
  EXPECT_RULE(JudgeCodes(qr.codes, RowOf(s.qr, p, config_.q_rank)));
  EXPECT_RULE(JudgeLatentScale(std::span(&qr.scale, 1), RowOf(s.qr_scale, p, 1)));
  const auto scale = s.qr_scale[static_cast<size_t>(p)];
  EXPECT_RULE(
      JudgeRounded(golden.ProjectQuery(RowOf(s.qr, p, config_.q_rank), scale, s.Rope(token)),
                   RowOf(s.q, p, head_lanes())));

  EXPECT_RULE(JudgeAttnOut(golden.ProjectOutput(RowOf(s.heads, p, head_lanes())),
                           RowOf(s.attn_out, row, hidden)));
  EXPECT_RULE(JudgeXOut(
      golden.HcPost(x, RowOf(s.attn_out, row, hidden), RowOf(s.post, p, 4), RowOf(s.comb, p, 16)),
      RowOf(s.x_out, p, 4 * hidden)));
}

// Heads of probe p, from the rows before it and the stored selection. All rows of a request are
// known in files of one step alone.
void LayerVectors::CheckAttention(const Golden& golden, const Stored& s, int64_t p) const {
  const int64_t token = s.probe_tokens[static_cast<size_t>(p)];
  const int64_t position = s.start_pos + token;
  std::vector<std::vector<Bf16>> window, compressed;
  for (int64_t q = std::max<int64_t>(0, position - kWindowRows + 1); q <= position; ++q) {
    window.push_back(KvRow(s, q));
  }
  if (kind_ == AttentionKind::kHca) {
    for (int64_t r = 0; r < s.num_visible_rows(token); ++r) {
      compressed.push_back(CompressedRow(s, r));
    }
  }
  if (kind_ == AttentionKind::kCsa) {
    const int64_t row = Stored::PlaceOf(s.tokens, token);
    for (const int32_t selected : RowOf(s.topk_idx, row, config_.index_topk)) {
      if (selected >= 0) compressed.push_back(CompressedRow(s, selected));
    }
  }
  const auto pointers = [](const std::vector<std::vector<Bf16>>& rows) {
    std::vector<const Bf16*> result;
    for (const auto& row : rows) result.push_back(row.data());
    return result;
  };
  EXPECT_RULE(JudgeHeads(golden
                             .Attend(RowOf(s.q, p, head_lanes()), pointers(window),
                                     pointers(compressed), s.Rope(token))
                             .heads,
                         RowOf(s.heads, p, head_lanes())));
}

// The indexer of probe p: its query, head weights, scores and selection.
void LayerVectors::CheckIndexer(const Golden& golden, const Stored& s, int64_t p) const {
  const int64_t token = s.probe_tokens[static_cast<size_t>(p)];
  const int64_t row = Stored::PlaceOf(s.tokens, token);
  ASSERT_GE(row, 0);
  const int64_t heads = config_.num_index_heads;
  const IndexQueryResult query = golden.IndexQuery(
      RowOf(s.qr, p, config_.q_rank), s.qr_scale[static_cast<size_t>(p)], s.Rope(token));
  const auto codes = RowOf(s.idx_q, p, heads * kIndexDim);
  const auto scales = RowOf(s.idx_q_scale, p, heads);
  const auto weights = RowOf(s.idx_weights, p, heads);
  EXPECT_RULE(JudgeCodes(query.codes, codes));
  EXPECT_RULE(JudgeIndexQueryScale(query.scales, scales));
  EXPECT_RULE(JudgeGate(golden.IndexWeights(RowOf(s.xn, row, config_.hidden)), weights));

  const int64_t n = s.num_visible_rows(token);
  const int64_t num_old = std::min(n, s.num_old_rows());
  std::vector<int8_t> keys(static_cast<size_t>(num_old * kIndexDim));
  std::vector<float> key_scales;
  const fixtures::RequestFixture fixture = Fixture(s);
  for (int64_t c = 0; c < num_old; ++c) {
    fixture.IdxRow(c, std::span(keys).subspan(static_cast<size_t>(c * kIndexDim), kIndexDim));
    key_scales.push_back(fixture.IdxScale(c));
  }
  const auto new_keys = RowOf(s.idx_rows, 0, (n - num_old) * kIndexDim);
  keys.insert(keys.end(), new_keys.begin(), new_keys.end());
  key_scales.insert(key_scales.end(), s.idx_scales.begin(), s.idx_scales.begin() + (n - num_old));

  const Selection selection =
      TopK(Scores({{codes.begin(), codes.end()}, {scales.begin(), scales.end()}}, weights, keys,
                  key_scales),
           config_.index_topk);
  const auto expected_score = RowOf(s.topk_score, row, config_.index_topk);
  const float expected_next = s.topk_next[static_cast<size_t>(row)];
  EXPECT_EQ(selection.count(), std::min<int64_t>(n, config_.index_topk));
  EXPECT_RULE(JudgeScores(selection.score, expected_score));
  EXPECT_RULE(JudgeNextScore(selection.next_score, expected_next, ScoreBound(expected_score)));
  EXPECT_RULE(JudgeSelection(selection.idx, RowOf(s.topk_idx, row, config_.index_topk),
                             expected_score, expected_next));
}

// State rows of the last new tokens whose xn is stored.
void LayerVectors::CheckStateRows(const Golden& golden, const Stored& s) const {
  for (int64_t t = s.first_state_token(); t < s.num_tokens; ++t) {
    const int64_t row = Stored::PlaceOf(s.tokens, t);
    if (row < 0) continue;
    SCOPED_TRACE(Where(s, t));
    const auto xn = RowOf(s.xn, row, config_.hidden);
    const int64_t i = t - s.first_state_token();
    EXPECT_RULE(
        JudgeState(golden.StateRow(xn, s.start_pos + t), RowOf(s.state_rows, i, state_width())));
    if (kind_ != AttentionKind::kCsa) continue;
    EXPECT_RULE(JudgeState(golden.InnerStateRow(xn, s.start_pos + t),
                           RowOf(s.inner_state_rows, i, kInnerWidth)));
  }
}

// The rows that events emit, each from the state rows of its block (and of the block before).
void LayerVectors::CheckEvents(const Golden& golden) const {
  std::vector<int8_t> idx_rows, expected_idx_rows;
  std::vector<float> idx_scales, expected_idx_scales;
  for (const Stored& s : requests_) {
    for (size_t e = 0; e < s.event_pos.size(); ++e) {
      SCOPED_TRACE(Where(s, s.event_pos[e] - s.start_pos));
      const auto event = static_cast<int64_t>(e);
      const int64_t block = s.event_pos[e] / ratio_;
      std::vector<std::vector<float>> state, inner_state;
      std::vector<const float*> state_rows, inner_state_rows;
      const int64_t first_block = kind_ == AttentionKind::kCsa ? block - 1 : block;
      for (int64_t q = first_block * ratio_; q <= s.event_pos[e]; ++q) {
        state_rows.push_back(q < 0 ? nullptr : state.emplace_back(StateRow(s, q)).data());
        if (kind_ != AttentionKind::kCsa) continue;
        inner_state_rows.push_back(q < 0 ? nullptr
                                         : inner_state.emplace_back(InnerStateRow(s, q)).data());
      }
      EXPECT_RULE(JudgeRounded(golden.CompressRow(state_rows, s.EventRope(event)),
                               RowOf(s.cmp_rows, event, kHeadDim)));
      if (kind_ != AttentionKind::kCsa) continue;
      const Quantized key = golden.IndexRow(inner_state_rows, s.EventRope(event));
      idx_rows.insert(idx_rows.end(), key.codes.begin(), key.codes.end());
      idx_scales.push_back(key.scale);
    }
    expected_idx_rows.insert(expected_idx_rows.end(), s.idx_rows.begin(), s.idx_rows.end());
    expected_idx_scales.insert(expected_idx_scales.end(), s.idx_scales.begin(), s.idx_scales.end());
  }
  EXPECT_RULE(JudgeIndexRows(idx_rows, expected_idx_rows, idx_scales, expected_idx_scales, 1));
}

TEST_P(LayerVectors, EveryStageFromGivenInputs) {
  const auto layer = fixtures::MakeLayerFixture(config_, kind_, seed_);
  const Golden golden(config_, kind_, layer.views());
  for (const Stored& s : requests_) {
    for (size_t i = 0; i < s.tokens.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      SCOPED_TRACE(Where(s, s.tokens[i]));
      EXPECT_RULE(
          JudgeRounded(golden.ProjectKv(RowOf(s.xn, row, config_.hidden), s.Rope(s.tokens[i])),
                       RowOf(s.kv, s.tokens[i], kHeadDim)));
    }
    if (kind_ != AttentionKind::kSwa) CheckStateRows(golden, s);
    ParallelFor(static_cast<int64_t>(s.probe_tokens.size()), [&](int64_t p) {
      SCOPED_TRACE(Where(s, s.probe_tokens[static_cast<size_t>(p)]));
      CheckPointwiseStages(golden, s, p);
      CheckAttention(golden, s, p);
      if (kind_ == AttentionKind::kCsa) CheckIndexer(golden, s, p);
    });
  }
  // The state rows that events pool are all known in files of one step alone.
  if (kind_ != AttentionKind::kSwa && num_steps_ == 1) CheckEvents(golden);
}

TEST_P(LayerVectors, EndToEnd) {
  const auto layer = fixtures::MakeLayerFixture(config_, kind_, seed_);
  const Golden golden(config_, kind_, layer.views());
  const int64_t hidden = config_.hidden;
  SelectionAgreement whole_file;
  std::mutex mutex;
  for (const Stored& s : requests_) {
    Decoder decoder(golden, s.start_pos, HistoryOf(Fixture(s)));
    size_t num_events = 0;
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      SCOPED_TRACE(Where(s, t));
      const int64_t position = s.start_pos + t;
      const auto event = static_cast<int64_t>(num_events);
      if (num_events < s.event_pos.size() && s.event_pos[num_events] == position) {
        const RopeRow event_rope = s.EventRope(event);
        decoder.Append(X(s, t), s.Rope(t), &event_rope);
        ++num_events;
        EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kCompressedRow,
                                  decoder.CompressedAt(position / ratio_),
                                  RowOf(s.cmp_rows, event, kHeadDim)));
        if (kind_ == AttentionKind::kCsa) {
          const Quantized key = decoder.IndexAt(position / ratio_);
          EXPECT_RULE(JudgeEndToEndIndexRow(key.codes, key.scale,
                                            RowOf(s.idx_rows, event, kIndexDim),
                                            s.idx_scales[static_cast<size_t>(event)]));
        }
      } else {
        decoder.Append(X(s, t), s.Rope(t));
      }
      EXPECT_RULE(
          JudgeEndToEnd(EndToEndTensor::kKv, decoder.KvAt(position), RowOf(s.kv, t, kHeadDim)));
      const int64_t i = t - s.first_state_token();
      if (i >= 0 && kind_ != AttentionKind::kSwa) {
        EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kState, decoder.StateAt(position),
                                  RowOf(s.state_rows, i, state_width())));
      }
      if (i >= 0 && kind_ == AttentionKind::kCsa) {
        EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kState, decoder.InnerStateAt(position),
                                  RowOf(s.inner_state_rows, i, kInnerWidth)));
      }
    }
    EXPECT_EQ(num_events, s.event_pos.size());
    ParallelFor(static_cast<int64_t>(s.tokens.size()), [&](int64_t row) {
      const int32_t token = s.tokens[static_cast<size_t>(row)];
      SCOPED_TRACE(Where(s, token));
      const TokenResult result = decoder.DecodeAt(s.start_pos + token, X(s, token), s.Rope(token));
      bool differs = false;
      if (kind_ == AttentionKind::kCsa) {
        const SelectionAgreement agreement =
            JudgeSelectionSet(result.selection.idx, RowOf(s.topk_idx, row, config_.index_topk));
        EXPECT_RULE(agreement.verdict);
        differs = agreement.num_common < agreement.num_rows;
        const std::scoped_lock lock(mutex);
        whole_file.num_common += agreement.num_common;
        whole_file.num_rows += agreement.num_rows;
      }
      EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kAttnOut, result.attn_out,
                                RowOf(s.attn_out, row, hidden), differs));
      const int64_t p = Stored::PlaceOf(s.probe_tokens, token);
      if (p < 0) return;
      EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kQ, result.q, RowOf(s.q, p, head_lanes())));
      EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kHeads, result.heads,
                                RowOf(s.heads, p, head_lanes()), differs));
      const auto x_out = RowOf(s.x_out, p, 4 * hidden);
      EXPECT_RULE(JudgeEndToEnd(EndToEndTensor::kXOut, result.x_out, x_out, differs));
      EXPECT_RULE(JudgeXOutPoints(kind_, result.x_out, x_out, differs));
    });
  }
  if (kind_ == AttentionKind::kCsa) {
    EXPECT_RULE(JudgeFileAgreement(whole_file.num_common, whole_file.num_rows));
  }
}

std::string NameOf(const testing::TestParamInfo<const char*>& file) { return file.param; }

INSTANTIATE_TEST_SUITE_P(Swa, LayerVectors,
                         testing::Values("swa_short", "swa_mixed", "swa_ragged", "swa_tail",
                                         "swa_grow"),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Hca, LayerVectors,
                         testing::Values("hca_short", "hca_mixed", "hca_ragged", "hca_tail",
                                         "hca_grow"),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Csa, LayerVectors,
                         testing::Values("csa_short", "csa_leaf", "csa_mixed", "csa_ragged",
                                         "csa_tail", "csa_grow"),
                         NameOf);

}  // namespace
}  // namespace millipede::reference
