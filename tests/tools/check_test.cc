// Every rule of --check can fail: each value of a good step is spoilt once.
#include "tools/check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "tools/arguments.h"
#include "tools/decode_step.h"
#include "tools/progress.h"

namespace millipede::testing {
namespace {

using tools::StepRecord;

constexpr AttentionKind kSwa = AttentionKind::kSwa;
constexpr AttentionKind kHca = AttentionKind::kHca;
constexpr AttentionKind kCsa = AttentionKind::kCsa;

tools::StepArguments TinyArguments(AttentionKind kind, bool output_only) {
  tools::StepWords words;
  words.attention = KindName(kind);
  words.preset = "tiny";
  words.seed = "5";
  words.seq = "3";
  words.threads = "2";
  words.check = true;
  words.output_only = output_only;
  if (output_only) {
    words.batch = "2";
  } else {
    // Blocks end in the last request and, of CSA, in the second; CSA candidates of the first are
    // more than are selected.
    words.start_pos = kind == kCsa ? "2100,2,125" : "300,2,125";
  }
  return *tools::ParseStepArguments(words);
}

// A good step of each kind, made once; tests spoil copies of them.
class CheckTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::ostringstream sink;
    const tools::Streams streams{sink, sink};
    tools::Progress progress(streams);
    for (const AttentionKind kind : {kSwa, kHca, kCsa}) {
      auto step = tools::ExecuteDecodeStep(TinyArguments(kind, false), progress);
      ASSERT_TRUE(step) << step.error().message;
      steps_.emplace(kind, *std::move(step));
    }
    auto output = tools::ExecuteOutputStep(TinyArguments(kSwa, true), progress);
    ASSERT_TRUE(output) << output.error().message;
    output_ = new tools::OutputStep(*std::move(output));
  }

  static void TearDownTestSuite() {
    steps_.clear();
    delete output_;
    output_ = nullptr;
  }

  static tools::RuleTable Check(const StepRecord& record) {
    std::ostringstream sink;
    const tools::Streams streams{sink, sink};
    tools::Progress progress(streams);
    return tools::CheckStep(record, *steps_.at(record.kind).weights, 2, progress);
  }

  static tools::RuleTable Check(const tools::OutputRecord& record) {
    std::ostringstream sink;
    const tools::Streams streams{sink, sink};
    tools::Progress progress(streams);
    return tools::CheckOutput(record, output_->weights, 2, progress);
  }

  static const StepRecord& good(AttentionKind kind) { return *steps_.at(kind).record; }
  static const tools::OutputRecord& good_output() { return output_->record; }

  // The rule of `tensor` called `rule` holds on the good step and fails on a spoilt one.
  static void ExpectViolated(const tools::RuleTable& table, const std::string& tensor,
                             const std::string& rule) {
    EXPECT_FALSE(table.ok());
    const tools::RuleRow* row = table.Find(tensor, rule);
    ASSERT_NE(row, nullptr) << tensor << ": " << rule;
    EXPECT_GT(row->num_violations, 0) << tensor << ": " << rule << "\n" << table.Text();
    ASSERT_FALSE(row->violations.empty());
    EXPECT_FALSE(row->violations.front().where.empty());
    EXPECT_FALSE(row->violations.front().text.empty());
  }

  static std::map<AttentionKind, tools::DecodeStep> steps_;
  static tools::OutputStep* output_;
};

std::map<AttentionKind, tools::DecodeStep> CheckTest::steps_;
tools::OutputStep* CheckTest::output_ = nullptr;

TEST_F(CheckTest, GoodStepsHold) {
  for (const AttentionKind kind : {kSwa, kHca, kCsa}) {
    const tools::RuleTable table = Check(good(kind));
    EXPECT_TRUE(table.ok()) << table.Text();
    EXPECT_TRUE(steps_.at(kind).counter_differences.empty());
    EXPECT_GT(table.num_values(), 0);
  }
}

struct Spoiling {
  const char* name;
  const char* tensor;
  const char* rule;
  std::function<void(StepRecord&)> spoil;
  AttentionKind kind = kSwa;
};

// The pool row of a request's row `i` (a position of a ring).
std::byte* RowOf(std::vector<std::byte>& bytes, const tools::PoolRecord& pool, size_t request,
                 int64_t i) {
  return bytes.data() +
         tools::PoolRowOf(pool.kind, pool.pages[request], i) * FormatOf(pool.kind).row_bytes;
}

void Flip(Bf16& value) { value.bits ^= 0x4100; }
void Flip(std::byte& value) { value ^= std::byte{0x10}; }

const Spoiling kSpoilings[] = {
    {"RopeCos", "rope", "stage, from positions",
     [](StepRecord& r) { r.inputs.rope_cos[40] += 0.5F; }},
    {"RopeSin", "rope", "stage, from positions",
     [](StepRecord& r) { r.inputs.rope_sin[40] += 0.5F; }},
    {"X", "x_mixed", "stage, from x", [](StepRecord& r) { r.inputs.x[0] += 3; }},
    {"XMixed", "x_mixed", "stage, from x", [](StepRecord& r) { Flip(r.values.x_mixed[9]); }},
    {"Post", "post", "stage, from x", [](StepRecord& r) { r.values.post[5] += 0.01F; }},
    {"Comb", "comb", "stage, from x", [](StepRecord& r) { r.values.comb[21] += 0.01F; }},
    {"Xn", "xn", "stage, from x_mixed", [](StepRecord& r) { Flip(r.values.xn[300]); }},
    {"Qr", "qr", "stage, from xn", [](StepRecord& r) { r.values.qr[70] ^= 0x20; }},
    {"QrScale", "qr_scale", "stage, from xn", [](StepRecord& r) { r.values.qr_scale[1] *= 1.01F; }},
    {"Q", "q", "stage, from qr and qr_scale", [](StepRecord& r) { Flip(r.values.q[5000]); }},
    {"Kv", "kv", "stage, from xn", [](StepRecord& r) { Flip(r.values.kv[700]); }},
    {"KvIsSeenByHeads", "heads", "stage, from q and the rows",
     [](StepRecord& r) {
       for (size_t i = 0; i < kHeadDim; ++i) r.values.kv[i] = {0x4180};
     }},
    {"Heads", "heads", "stage, from q and the rows",
     [](StepRecord& r) { Flip(r.values.heads[6000]); }},
    {"AttnOut", "attn_out", "stage, from heads",
     [](StepRecord& r) { Flip(r.values.attn_out[400]); }},
    {"XOut", "x_out", "stage, from attn_out, post and comb",
     [](StepRecord& r) { r.values.x_out[2000] += 0.01F; }},
    {"NanInHeads", "heads", "stage, from q and the rows",
     [](StepRecord& r) { r.values.heads[8] = {0x7FC0}; }},
    {"NanInXOut", "x_out", "stage, from attn_out, post and comb",
     [](StepRecord& r) { r.values.x_out[8] = std::numeric_limits<float>::quiet_NaN(); }},
    {"RunWritesAnyRow", "raw rows", "bit-unchanged by run",
     [](StepRecord& r) { Flip(r.caches.pool(PoolKind::kRaw).after_run.front()); }},
    {"RunWritesTheLastRow", "raw rows", "bit-unchanged by run",
     [](StepRecord& r) { Flip(r.caches.pool(PoolKind::kRaw).after_run.back()); }},
    {"CommitWritesNobodysFirstPage", "raw rows", "bit-unchanged by commit",
     [](StepRecord& r) { Flip(r.caches.pool(PoolKind::kRaw).after_commit.front()); }},
    {"CommitWritesNobodysLastPage", "raw rows", "bit-unchanged by commit",
     [](StepRecord& r) { Flip(r.caches.pool(PoolKind::kRaw).after_commit.back()); }},
    {"CommitWritesTheRowBefore", "raw rows", "bit-unchanged by commit",
     [](StepRecord& r) {
       tools::PoolRecord& pool = r.caches.pool(PoolKind::kRaw);
       Flip(RowOf(pool.after_commit, pool, 0, r.caches.start_pos[0] - 1)[77]);
     }},
    {"CommitMissesARow", "raw rows", "written by commit, exact",
     [](StepRecord& r) {
       tools::PoolRecord& pool = r.caches.pool(PoolKind::kRaw);
       pool.after_commit = pool.before;
     }},
    {"CommitWritesAnotherRow", "raw rows", "written by commit, exact",
     [](StepRecord& r) {
       auto& pages = r.caches.pool(PoolKind::kRaw).pages;
       std::swap(pages[0], pages[2]);
     }},
    {"Position", "positions", "after commit, exact",
     [](StepRecord& r) { r.caches.ends[1].position -= 1; }},
    {"ListEnd", "list ends", "after commit, exact",
     [](StepRecord& r) { r.caches.ends[1].list_ends[0] -= 1; }},

    {"EventRope", "rope", "stage, from positions",
     [](StepRecord& r) { r.inputs.event_rope_cos[20] += 0.5F; }, kHca},
    {"StateRow", "state_rows", "stage, from xn",
     [](StepRecord& r) { r.values.state[1500] += 0.1F; }, kHca},
    {"StateRowIsPooled", "cmp_rows", "stage, from state rows",
     [](StepRecord& r) {
       for (size_t i = 0; i < 1024; ++i) r.values.state[7 * 1024 + i] = 50;
     },
     kHca},
    {"CompressedRow", "cmp_rows", "stage, from state rows",
     [](StepRecord& r) { Flip(r.values.cmp_rows[100]); }, kHca},
    {"CompressedRowIsSeenByHeads", "heads", "stage, from q and the rows",
     [](StepRecord& r) {
       for (Bf16& value : r.values.cmp_rows) value = {0x4180};
     },
     kHca},
    {"RunWritesAnotherMainRow", "main rows", "bit-unchanged by run",
     [](StepRecord& r) { Flip(r.caches.pool(PoolKind::kHcaMain).after_run[70]); }, kHca},
    {"RunWritesStateRows", "state rows", "bit-unchanged by run",
     [](StepRecord& r) { Flip(r.caches.pool(PoolKind::kHcaState).after_run.back()); }, kHca},
    {"CommitWritesMainRows", "main rows", "bit-unchanged by commit",
     [](StepRecord& r) {
       tools::PoolRecord& pool = r.caches.pool(PoolKind::kHcaMain);
       Flip(*RowOf(pool.after_commit, pool, 2, 0));
     },
     kHca},
    {"CommitMissesAStateRow", "state rows", "written by commit, exact",
     [](StepRecord& r) {
       tools::PoolRecord& pool = r.caches.pool(PoolKind::kHcaState);
       Flip(*RowOf(pool.after_commit, pool, 1, 4));
     },
     kHca},
    {"MainListEnd", "list ends", "after commit, exact",
     [](StepRecord& r) { r.caches.ends[2].list_ends[1] = 0; }, kHca},

    {"CsaStateRow", "state_rows", "stage, from xn",
     [](StepRecord& r) { r.values.state[4000] += 0.1F; }, kCsa},
    {"InnerStateRow", "inner_state_rows", "stage, from xn",
     [](StepRecord& r) { r.values.inner_state[1000] += 0.1F; }, kCsa},
    {"CsaCompressedRow", "cmp_rows", "stage, from state rows",
     [](StepRecord& r) { Flip(r.values.cmp_rows[600]); }, kCsa},
    {"IndexRow", "idx_rows", "stage, from inner state rows",
     [](StepRecord& r) { r.values.idx_rows[130] ^= 0x20; }, kCsa},
    {"IndexScale", "idx_rows", "stage, from inner state rows",
     [](StepRecord& r) { r.values.idx_scales[1] *= 1.5F; }, kCsa},
    {"IdxQ", "idx_q", "stage, from qr and qr_scale",
     [](StepRecord& r) { r.values.idx_q[700] ^= 0x20; }, kCsa},
    {"IdxQScale", "idx_q_scale", "stage, from qr and qr_scale",
     [](StepRecord& r) { r.values.idx_q_scale[5] *= 1.01F; }, kCsa},
    {"IdxWeights", "idx_weights", "stage, from xn",
     [](StepRecord& r) { r.values.idx_weights[6] += 0.01F; }, kCsa},
    {"TopkScore", "topk_score", "stage, from idx_q and the keys",
     [](StepRecord& r) { r.values.topk_score[30] *= 1.01F; }, kCsa},
    {"ScorePadding", "topk_score", "stage, from idx_q and the keys",
     [](StepRecord& r) { r.values.topk_score.back() = 0; }, kCsa},
    {"SelectionOrder", "topk_idx", "stage, from idx_q and the keys",
     [](StepRecord& r) { std::swap(r.values.topk_idx[1], r.values.topk_idx[400]); }, kCsa},
    {"RowSelectedTwice", "topk_idx", "stage, from idx_q and the keys",
     [](StepRecord& r) { r.values.topk_idx[3] = r.values.topk_idx[4]; }, kCsa},
    {"RowSelectedThatNobodySees", "topk_idx", "stage, from idx_q and the keys",
     [](StepRecord& r) { r.values.topk_idx[3] = 1 << 20; }, kCsa},
    {"SelectionPadding", "topk_idx", "stage, from idx_q and the keys",
     [](StepRecord& r) { r.values.topk_idx.back() = 0; }, kCsa},
    {"TopkNext", "topk_next", "stage, from idx_q and the keys",
     [](StepRecord& r) { r.values.topk_next[0] *= 1.01F; }, kCsa},
    {"WiderSelection", "topk_idx", "begins one place more, exact",
     [](StepRecord& r) { std::swap(r.values.wide_idx[0], r.values.wide_idx[1]); }, kCsa},
    {"SelectionIsSeenByHeads", "heads", "stage, from q and the rows",
     [](StepRecord& r) {
       for (size_t i = 0; i < 256; ++i) r.values.topk_idx[i] = 511 - static_cast<int32_t>(i);
     },
     kCsa},
    {"RunWritesAnotherIndexRow", "index rows", "bit-unchanged by run",
     [](StepRecord& r) { Flip(r.caches.pool(PoolKind::kCsaIndexRows).after_run[70]); }, kCsa},
    {"RunWritesAnotherIndexScale", "index scales", "bit-unchanged by run",
     [](StepRecord& r) { Flip(r.caches.pool(PoolKind::kCsaIndexScales).after_run[70]); }, kCsa},
    {"CommitWritesIndexRows", "index rows", "bit-unchanged by commit",
     [](StepRecord& r) { Flip(r.caches.pool(PoolKind::kCsaIndexRows).after_commit[70]); }, kCsa},
    {"CommitMissesAnInnerRow", "inner rows", "written by commit, exact",
     [](StepRecord& r) {
       tools::PoolRecord& pool = r.caches.pool(PoolKind::kCsaInnerState);
       Flip(*RowOf(pool.after_commit, pool, 0, 2101));
     },
     kCsa},
};

class SpoiltStepTest : public CheckTest, public ::testing::WithParamInterface<Spoiling> {};

TEST_P(SpoiltStepTest, IsSeen) {
  StepRecord record = good(GetParam().kind);
  GetParam().spoil(record);
  ExpectViolated(Check(record), GetParam().tensor, GetParam().rule);
}

std::string SpoilingName(const ::testing::TestParamInfo<Spoiling>& step) { return step.param.name; }
INSTANTIATE_TEST_SUITE_P(Check, SpoiltStepTest, ::testing::ValuesIn(kSpoilings), SpoilingName);

// Under the standard profile every end-to-end rule is there, and can fail.
class SpoiltEndToEndTest : public CheckTest, public ::testing::WithParamInterface<Spoiling> {};

TEST_P(SpoiltEndToEndTest, IsSeen) {
  StepRecord record = good(GetParam().kind);
  record.profile = reference::RuleProfile::kStandard;
  const tools::RuleTable before = Check(record);
  GetParam().spoil(record);
  const tools::RuleTable after = Check(record);
  ExpectViolated(after, GetParam().tensor, GetParam().rule);
  // These rules were not set for shapes this small, and need not hold on the good step.
  EXPECT_GT(after.Find(GetParam().tensor, GetParam().rule)->worst,
            2 * before.Find(GetParam().tensor, GetParam().rule)->worst);
}

void Blow(std::vector<Bf16>& values) { values[3] = {0x4700}; }

INSTANTIATE_TEST_SUITE_P(
    Check, SpoiltEndToEndTest,
    ::testing::Values(
        Spoiling{"Kv", "kv", "end to end, rms", [](StepRecord& r) { Blow(r.values.kv); }},
        Spoiling{"Q", "q", "end to end, rms", [](StepRecord& r) { Blow(r.values.q); }},
        Spoiling{"Heads", "heads", "end to end, rms", [](StepRecord& r) { Blow(r.values.heads); }},
        Spoiling{"AttnOut", "attn_out", "end to end, rms",
                 [](StepRecord& r) { Blow(r.values.attn_out); }},
        Spoiling{"XOut", "x_out", "end to end, rms",
                 [](StepRecord& r) { r.values.x_out[3] = 1e4F; }},
        Spoiling{"XOutPoints", "x_out", "end to end, points",
                 [](StepRecord& r) {
                   for (size_t i = 0; i < 40; ++i) r.values.x_out[i] += 0.1F;
                 }},
        Spoiling{"State", "state_rows", "end to end, rms",
                 [](StepRecord& r) { r.values.state[3] = 1e3F; }, kHca},
        Spoiling{"CompressedRow", "cmp_rows", "end to end, rms",
                 [](StepRecord& r) { Blow(r.values.cmp_rows); }, kHca},
        Spoiling{"HcaHeads", "heads", "end to end, rms",
                 [](StepRecord& r) { Blow(r.values.heads); }, kHca},
        Spoiling{"InnerState", "inner_state_rows", "end to end, rms",
                 [](StepRecord& r) { r.values.inner_state[3] = 1e3F; }, kCsa},
        Spoiling{"IndexRow", "idx_rows", "end to end, rms",
                 [](StepRecord& r) { r.values.idx_scales[0] *= 2; }, kCsa},
        Spoiling{"CsaHeads", "heads", "end to end, rms",
                 [](StepRecord& r) { Blow(r.values.heads); }, kCsa}),
    SpoilingName);

// Judged by how many rows differ, of which there is no worst one.
TEST_F(CheckTest, SelectionsAreJudgedEndToEndAsSets) {
  StepRecord record = good(kCsa);
  record.profile = reference::RuleProfile::kStandard;
  EXPECT_EQ(Check(record).Find("topk_idx", "end to end, sets")->num_violations, 0);
  // The first request's tokens see more rows than they select: put ones in that are left out.
  const auto topk = static_cast<size_t>(record.config.index_topk);
  std::vector<bool> selected(600);
  for (size_t i = 0; i < topk; ++i) {
    selected[static_cast<size_t>(record.values.topk_idx[i])] = true;
  }
  size_t place = 0;
  for (int32_t row = 0; row < 525; ++row) {
    if (!selected[static_cast<size_t>(row)]) record.values.topk_idx[place++] = row;
  }
  ASSERT_GT(place, 0U);
  const tools::RuleTable some = Check(record);
  EXPECT_EQ(some.Find("topk_idx", "end to end, sets")->num_out, static_cast<int64_t>(place));
  EXPECT_EQ(some.Find("topk_idx", "end to end, sets")->num_violations, 0);

  for (size_t i = topk; i < topk + 100; ++i) record.values.topk_idx[i] = 599 - static_cast<int>(i);
  const tools::RuleTable many = Check(record);
  ExpectViolated(many, "topk_idx", "end to end, sets");
  ExpectViolated(many, "topk_idx", "end to end, all sets together");
}

TEST_F(CheckTest, LongStepsAreJudgedDeeplyAtAFewTokens) {
  StepRecord record = good(kHca);
  EXPECT_EQ(tools::DeeplyJudgedTokens(record).size(), 9U);
  EXPECT_EQ(tools::CoverageOf(record), "all 9 tokens in full");
  record.caches.num_tokens = {1, 2, 4000, 0};
  record.inputs.request.assign(4003, 0);
  record.inputs.position.assign(4003, kMaxContextTokens - 1);
  record.config = ModelConfig::Flash();
  EXPECT_EQ(tools::DeeplyJudgedTokens(record), (std::vector<int64_t>{0, 1, 2, 3, 2003, 4002}));
  EXPECT_NE(tools::CoverageOf(record).find("of 6, the first"), std::string::npos);
}

TEST_F(CheckTest, TheGoodOutputHalfHolds) {
  const tools::RuleTable table = Check(good_output());
  EXPECT_TRUE(table.ok()) << table.Text();
}

TEST_F(CheckTest, TheOutputHalfCanFail) {
  tools::OutputRecord record = good_output();
  Flip(record.values.attn_out[10]);
  ExpectViolated(Check(record), "attn_out", "stage, from heads");
  record = good_output();
  record.values.x_out[10] += 0.01F;
  ExpectViolated(Check(record), "x_out", "stage, from attn_out, post and comb");
  record = good_output();
  record.values.post[0] += 0.01F;
  ExpectViolated(Check(record), "post", "stage, from x");
  record = good_output();
  record.values.comb[0] += 0.01F;
  ExpectViolated(Check(record), "comb", "stage, from x");
  record = good_output();
  record.profile = reference::RuleProfile::kStandard;
  record.values.x_out[10] = 1e4F;
  ExpectViolated(Check(record), "x_out", "end to end, rms");
}

}  // namespace
}  // namespace millipede::testing
