// Every rule of --check can fail: each value of a good step is spoilt once.
#include "tools/check.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

#include "tools/arguments.h"
#include "tools/decode_step.h"
#include "tools/progress.h"

namespace millipede::testing {
namespace {

using tools::StepRecord;

tools::StepArguments TinyArguments(bool output_only) {
  tools::StepWords words;
  words.preset = "tiny";
  words.seed = "5";
  words.seq = "3";
  words.threads = "2";
  words.check = true;
  words.output_only = output_only;
  if (output_only) {
    words.batch = "2";
  } else {
    words.start_pos = "300,2,125";
  }
  return *tools::ParseStepArguments(words);
}

// A good step, made once; tests spoil copies of it.
class CheckTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::ostringstream sink;
    const tools::Streams streams{sink, sink};
    tools::Progress progress(streams);
    auto step = tools::ExecuteDecodeStep(TinyArguments(false), progress);
    ASSERT_TRUE(step) << step.error().message;
    step_ = new tools::DecodeStep(*std::move(step));
    auto output = tools::ExecuteOutputStep(TinyArguments(true), progress);
    ASSERT_TRUE(output) << output.error().message;
    output_ = new tools::OutputStep(*std::move(output));
  }

  static void TearDownTestSuite() {
    delete step_;
    delete output_;
    step_ = nullptr;
    output_ = nullptr;
  }

  static tools::RuleTable Check(const StepRecord& record) {
    std::ostringstream sink;
    const tools::Streams streams{sink, sink};
    tools::Progress progress(streams);
    return tools::CheckStep(record, *step_->weights, 2, progress);
  }

  static tools::RuleTable Check(const tools::OutputRecord& record) {
    std::ostringstream sink;
    const tools::Streams streams{sink, sink};
    tools::Progress progress(streams);
    return tools::CheckOutput(record, output_->weights, 2, progress);
  }

  static const StepRecord& good() { return *step_->record; }
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

  static tools::DecodeStep* step_;
  static tools::OutputStep* output_;
};

tools::DecodeStep* CheckTest::step_ = nullptr;
tools::OutputStep* CheckTest::output_ = nullptr;

TEST_F(CheckTest, TheGoodStepHolds) {
  const tools::RuleTable table = Check(good());
  EXPECT_TRUE(table.ok()) << table.Text();
  EXPECT_TRUE(step_->counter_differences.empty());
  EXPECT_GT(table.num_values(), 0);
}

struct Spoiling {
  const char* name;
  const char* tensor;
  const char* rule;
  std::function<void(StepRecord&)> spoil;
};

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
     [](StepRecord& r) { Flip(r.rings.pool_after_run.front()); }},
    {"RunWritesTheLastRow", "raw rows", "bit-unchanged by run",
     [](StepRecord& r) { Flip(r.rings.pool_after_run.back()); }},
    {"CommitWritesNobodysFirstPage", "raw rows", "bit-unchanged by commit",
     [](StepRecord& r) { Flip(r.rings.pool_after_commit.front()); }},
    {"CommitWritesNobodysLastPage", "raw rows", "bit-unchanged by commit",
     [](StepRecord& r) { Flip(r.rings.pool_after_commit.back()); }},
    {"CommitWritesTheRowBefore", "raw rows", "bit-unchanged by commit",
     [](StepRecord& r) {
       const int64_t place = (r.rings.start_pos[0] - 1) % tools::kRingRows;
       const int64_t page = r.rings.pages[0][static_cast<size_t>(place / kPageRows)];
       const int64_t row = page * kPageRows + place % kPageRows;
       Flip(r.rings.pool_after_commit[static_cast<size_t>(row * tools::kRawRowBytes + 77)]);
     }},
    {"CommitMissesARow", "raw rows", "written by commit, exact",
     [](StepRecord& r) { r.rings.pool_after_commit = r.rings.pool_before; }},
    {"CommitWritesAnotherRow", "raw rows", "written by commit, exact",
     [](StepRecord& r) { std::swap(r.rings.pages[0], r.rings.pages[2]); }},
    {"Position", "positions", "after commit, exact",
     [](StepRecord& r) { r.rings.end_pos[1] -= 1; }},
};

class SpoiltStepTest : public CheckTest, public ::testing::WithParamInterface<Spoiling> {};

TEST_P(SpoiltStepTest, IsSeen) {
  StepRecord record = good();
  GetParam().spoil(record);
  ExpectViolated(Check(record), GetParam().tensor, GetParam().rule);
}

std::string SpoilingName(const ::testing::TestParamInfo<Spoiling>& step) { return step.param.name; }
INSTANTIATE_TEST_SUITE_P(Check, SpoiltStepTest, ::testing::ValuesIn(kSpoilings), SpoilingName);

// Under the standard profile every end-to-end rule is there, and can fail.
class SpoiltEndToEndTest : public CheckTest, public ::testing::WithParamInterface<Spoiling> {};

TEST_P(SpoiltEndToEndTest, IsSeen) {
  StepRecord record = good();
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
                 }}),
    SpoilingName);

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
