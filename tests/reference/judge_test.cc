// Every rule: what it admits at its edge, and that it fails just beyond.
#include "reference/judge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace millipede::reference {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

using Rule = std::function<Verdict(Values, Values)>;

// A rule |a - e| <= bound, none out, for values of size e.
struct BoundRule {
  const char* name;
  Rule judge;
  float e;
  double bound;
};

Verdict AttnOut(Values a, Values e) { return JudgeAttnOut(a, e); }
Verdict AttnOutTiny(Values a, Values e) { return JudgeAttnOut(a, e, RuleProfile::kTiny); }

const BoundRule kBoundRules[] = {
    {"Rounded at 0", JudgeRounded, 0, 1e-4},
    {"Rounded", JudgeRounded, -2, 1e-4 + 2.0 / 128},
    {"Gate", JudgeGate, 0.5, 1e-5 + 0.5e-4},
    {"LatentScale", JudgeLatentScale, 0.02F, 2e-6},
    {"IndexQueryScale", JudgeIndexQueryScale, 0.02F, 4e-5},
    {"State", JudgeState, 3, 1e-4 + 3e-4},
    {"Heads", JudgeHeads, 2, 8e-3 * 2 + 2.0 / 128},
    {"AttnOut", AttnOut, -2, 3e-3 * 2 + 2.0 / 128},
    {"AttnOut on tiny", AttnOutTiny, -2, 6e-3 * 2 + 2.0 / 128},
    {"XOut", JudgeXOut, 4, 1e-6 + 4e-5},
};

TEST(Judge, BoundsHoldForEveryPoint) {
  for (const BoundRule& rule : kBoundRules) {
    SCOPED_TRACE(rule.name);
    // 512 values of one size have that size as rms.
    const std::vector<float> e(512, rule.e);
    std::vector<float> a = e;
    EXPECT_TRUE(rule.judge(a, e).ok);
    EXPECT_EQ(rule.judge(a, e).worst, 0);
    for (const double sign : {-1.0, 1.0}) {
      a[300] = static_cast<float>(rule.e + sign * 0.98 * rule.bound);
      const Verdict inside = rule.judge(a, e);
      EXPECT_TRUE(inside.ok) << inside.text;
      EXPECT_NEAR(inside.worst, 0.98, 0.01);
      a[300] = static_cast<float>(rule.e + sign * 1.02 * rule.bound);
      const Verdict outside = rule.judge(a, e);
      EXPECT_FALSE(outside.ok);
      EXPECT_EQ(outside.worst_index, 300);
      EXPECT_EQ(outside.num_out, 1);
      EXPECT_NE(outside.text.find("at 300"), std::string::npos) << outside.text;
    }
  }
}

// Each two-argument rule, also those of whole rows.
const std::pair<const char*, Rule> kRules[] = {
    {"RopeRows", [](Values a, Values e) { return JudgeRopeRows(a, e, RuleProfile::kTiny); }},
    {"Rounded", JudgeRounded},
    {"Gate", JudgeGate},
    {"Codes", [](Values a, Values e) { return JudgeCodes(a, e, RuleProfile::kTiny); }},
    {"LatentScale", JudgeLatentScale},
    {"IndexQueryScale", JudgeIndexQueryScale},
    {"State", JudgeState},
    {"Scores", JudgeScores},
    {"Heads", JudgeHeads},
    {"AttnOut", AttnOut},
    {"XOut", JudgeXOut},
    {"EndToEnd", [](Values a, Values e) { return JudgeEndToEnd(EndToEndTensor::kQ, a, e, true); }},
    {"XOutPoints",
     [](Values a, Values e) { return JudgeXOutPoints(AttentionKind::kSwa, a, e, true); }},
};

TEST(Judge, ValuesThatAreNotFiniteFailOnEitherSide) {
  for (const auto& [name, judge] : kRules) {
    SCOPED_TRACE(name);
    const std::vector<float> good(512, 1.0F);
    EXPECT_TRUE(judge(good, good).ok);
    for (const float bad_value : {kNaN, kInf, -kInf}) {
      std::vector<float> bad = good;
      bad[511] = bad_value;
      EXPECT_FALSE(judge(bad, good).ok);
      EXPECT_FALSE(judge(good, bad).ok);
      EXPECT_FALSE(judge(bad, bad).ok);
    }
    EXPECT_FALSE(judge(std::vector<float>(511, 1.0F), good).ok);
    EXPECT_FALSE(judge(std::vector<float>(), good).ok);
  }
}

TEST(Judge, HeadsHaveTheirOwnRms) {
  std::vector<float> e(1024, 1.0F);
  for (size_t i = 512; i < 1024; ++i) e[i] = 100.0F;
  std::vector<float> a = e;
  a[600] = 101.5F;  // 1.5 of 8e-3 * 100 + 100 / 128
  EXPECT_TRUE(JudgeHeads(a, e).ok);
  a[5] = 1.1F;  // far outside head 0's bound, far inside head 1's
  EXPECT_FALSE(JudgeHeads(a, e).ok);
}

TEST(Judge, CodesMayBeOffByOneInOnePercent) {
  const std::vector<int8_t> e(1024, 5);
  std::vector<int8_t> a = e;
  for (size_t i = 0; i < 10; ++i) a[100 * i] = i % 2 == 0 ? 4 : 6;
  const Verdict edge = JudgeCodes(a, e);
  EXPECT_TRUE(edge.ok) << edge.text;
  EXPECT_EQ(edge.num_out, 10);
  EXPECT_EQ(edge.num_allowed, 10);
  a[1] = 6;
  EXPECT_FALSE(JudgeCodes(a, e).ok);
  a = e;
  a[7] = 7;  // by two: never
  EXPECT_FALSE(JudgeCodes(a, e).ok);

  const std::vector<int8_t> short_e(64, 0);
  std::vector<int8_t> short_a = short_e;
  short_a[0] = 1;
  EXPECT_FALSE(JudgeCodes(short_a, short_e).ok);
  for (size_t i = 0; i < 8; ++i) short_a[i] = -1;
  EXPECT_TRUE(JudgeCodes(short_a, short_e, RuleProfile::kTiny).ok);
  short_a[8] = 1;
  EXPECT_FALSE(JudgeCodes(short_a, short_e, RuleProfile::kTiny).ok);
  short_a = short_e;
  short_a[0] = 2;
  EXPECT_FALSE(JudgeCodes(short_a, short_e, RuleProfile::kTiny).ok);
}

TEST(Judge, RopeRowsAreComparedAsBf16) {
  const float stored = std::bit_cast<float>(0x3F0A0000U);
  const float next = std::bit_cast<float>(0x3F0B0000U);
  const std::vector<float> e(2000, stored);
  std::vector<float> a(2000, std::bit_cast<float>(0x3F0A7FFFU));  // rounds to the stored value
  EXPECT_TRUE(JudgeRopeRows(a, e).ok);
  EXPECT_EQ(JudgeRopeRows(a, e).num_out, 0);
  a[0] = a[1] = next;
  EXPECT_TRUE(JudgeRopeRows(a, e).ok);  // 0.1 % by one ulp
  a[2] = next;
  EXPECT_FALSE(JudgeRopeRows(a, e).ok);
  a[1] = a[2] = stored;
  a[0] = std::bit_cast<float>(0x3F0C0000U);  // two ulps
  EXPECT_FALSE(JudgeRopeRows(a, e).ok);
  a[0] = -stored;
  EXPECT_FALSE(JudgeRopeRows(a, e).ok);
}

class IndexRows : public testing::Test {
 protected:
  static constexpr size_t kRows = 5;
  Verdict Judge(int64_t loose) const { return JudgeIndexRows(a_, e_, a_scale_, e_scale_, loose); }
  void Flip(size_t row, size_t count, int8_t by = 1) {
    for (size_t i = 0; i < count; ++i) a_[row * 128 + i] = static_cast<int8_t>(10 + by);
  }
  std::vector<int8_t> e_ = std::vector<int8_t>(kRows * 128, 10), a_ = e_;
  std::vector<float> e_scale_ = std::vector<float>(kRows, 0.02F), a_scale_ = e_scale_;
};

TEST_F(IndexRows, TenPercentOfEachRow) {
  for (size_t row = 0; row < kRows; ++row) Flip(row, 12);
  EXPECT_TRUE(Judge(0).ok) << Judge(0).text;
  Flip(3, 13);
  EXPECT_FALSE(Judge(0).ok);
  EXPECT_EQ(Judge(0).worst_index, 3);
  EXPECT_TRUE(Judge(1).ok);
  Flip(4, 128);
  EXPECT_FALSE(Judge(1).ok);
  EXPECT_TRUE(Judge(2).ok);
}

TEST_F(IndexRows, OffByTwoNeverPasses) {
  Flip(1, 1, -2);
  EXPECT_FALSE(Judge(5).ok);
}

TEST_F(IndexRows, Scales) {
  a_scale_[2] = 0.02F * (1 + 0.98e-4F);
  EXPECT_TRUE(Judge(0).ok);
  a_scale_[2] = 0.02F * (1 + 1.05e-4F);
  EXPECT_FALSE(Judge(0).ok);
  EXPECT_TRUE(Judge(1).ok);
  a_scale_[2] = 0.02F * 1.0098F;
  EXPECT_TRUE(Judge(1).ok);
  a_scale_[2] = 0.02F * 1.0102F;
  EXPECT_FALSE(Judge(5).ok);
  a_scale_[2] = kNaN;
  EXPECT_FALSE(Judge(5).ok);
}

TEST_F(IndexRows, SizesMustAgree) {
  a_.resize(4 * 128);
  EXPECT_FALSE(Judge(5).ok);
  e_.resize(4 * 128);
  EXPECT_FALSE(Judge(5).ok);
  a_scale_.resize(4);
  e_scale_.resize(4);
  EXPECT_TRUE(Judge(5).ok);
}

TEST(Judge, ScoresAreBoundByTheQuerysLargest) {
  const std::vector<float> e = {8, 2, -0.5F, -FLT_MAX, -FLT_MAX};
  EXPECT_NEAR(ScoreBound(e), 8e-5, 1e-12);
  std::vector<float> a = e;
  a[2] += 7e-5F;
  EXPECT_TRUE(JudgeScores(a, e).ok);
  a[2] += 3e-5F;
  EXPECT_FALSE(JudgeScores(a, e).ok);
  a = e;
  a[4] = -1e38F;
  EXPECT_FALSE(JudgeScores(a, e).ok);
  a = e;
  a[2] = -FLT_MAX;
  EXPECT_FALSE(JudgeScores(a, e).ok);
  EXPECT_TRUE(JudgeNextScore(1.00007F, 1, 8e-5).ok);
  EXPECT_FALSE(JudgeNextScore(1.0001F, 1, 8e-5).ok);
  EXPECT_TRUE(JudgeNextScore(-FLT_MAX, -FLT_MAX, 8e-5).ok);
  EXPECT_FALSE(JudgeNextScore(1, -FLT_MAX, 8e-5).ok);
  EXPECT_FALSE(JudgeNextScore(kNaN, 1, 8e-5).ok);
}

TEST(Judge, SelectionMaySwapNearlyEqualScores) {
  const std::vector<int32_t> e = {7, 3, 9, 4, -1};
  const std::vector<float> score = {8, 2.00001F, 2, 1, -FLT_MAX};  // bound 8e-5
  const float next = 0.99995F;
  using Rows = std::vector<int32_t>;
  const auto ok = [&](const Rows& a) { return JudgeSelection(a, e, score, next).ok; };
  EXPECT_TRUE(ok(e));
  EXPECT_TRUE(ok({7, 9, 3, 4, -1}));    // 1e-5 apart
  EXPECT_TRUE(ok({7, 3, 9, 100, -1}));  // the best row left out, 5e-5 below
  EXPECT_FALSE(ok({7, 3, 100, 4, -1}));
  EXPECT_FALSE(ok({3, 7, 9, 4, -1}));
  EXPECT_FALSE(ok({7, 3, 9, 9, -1}));   // a row twice
  EXPECT_FALSE(ok({7, 3, 9, -1, -1}));  // too few
  EXPECT_FALSE(ok({7, 3, 9, 4, 5}));    // too many
  EXPECT_FALSE(ok({7, 3, -1, 4, 9}));   // padding inside
  EXPECT_FALSE(ok({7, 3, 9, -2, -1}));
  EXPECT_FALSE(ok({7, 3, 9, 4}));
  EXPECT_FALSE(JudgeSelection(Rows{7, 3, 9, 100, -1}, e, score, -FLT_MAX).ok);
}

TEST(Judge, ExactMeansBits) {
  const std::vector<float> e = {0.0F, kNaN};
  EXPECT_TRUE(JudgeExact(e, std::vector<float>(e)).ok);
  EXPECT_FALSE(JudgeExact(std::vector<float>{-0.0F, kNaN}, e).ok);
  const std::vector<int64_t> big = {(int64_t{1} << 60) + 1};
  EXPECT_TRUE(JudgeExact(big, std::vector<int64_t>(big)).ok);
  EXPECT_FALSE(JudgeExact(std::vector<int64_t>{int64_t{1} << 60}, big).ok);
  EXPECT_FALSE(JudgeExact(std::vector<int32_t>{1}, std::vector<int64_t>{1}).ok);
  EXPECT_FALSE(JudgeExact(std::vector<int32_t>{1, 2}, std::vector<int32_t>{1}).ok);
  const std::vector<Bf16> bf16 = {{1}, {2}, {3}};
  EXPECT_FALSE(JudgeExact(std::vector<Bf16>{{1}, {2}, {4}}, bf16).ok);
}

TEST(Judge, RelativeRmsLimits) {
  struct Limit {
    EndToEndTensor tensor;
    double limit, differing;
  };
  const Limit limits[] = {
      {EndToEndTensor::kKv, 5e-3, 5e-3},
      {EndToEndTensor::kState, 2e-3, 2e-3},
      {EndToEndTensor::kQ, 1e-2, 1e-2},
      {EndToEndTensor::kHeads, 1e-2, 0.25},
      {EndToEndTensor::kCompressedRow, 5e-3, 5e-3},
      {EndToEndTensor::kIndexRow, 2e-2, 2e-2},
      {EndToEndTensor::kAttnOut, 2.5e-2, 0.25},
      {EndToEndTensor::kXOut, 5e-3, 2e-2},
  };
  std::vector<float> e(100);
  for (size_t i = 0; i < e.size(); ++i) e[i] = i % 2 == 0 ? 2.0F : -1.0F;
  const double norm = std::sqrt(250.0);
  for (const Limit& limit : limits) {
    for (const bool differs : {false, true}) {
      std::vector<float> a = e;
      const double allowed = (differs ? limit.differing : limit.limit) * norm;
      a[3] = static_cast<float>(e[3] + 0.99 * allowed);
      EXPECT_TRUE(JudgeEndToEnd(limit.tensor, a, e, differs).ok);
      a[3] = static_cast<float>(e[3] + 1.01 * allowed);
      EXPECT_FALSE(JudgeEndToEnd(limit.tensor, a, e, differs).ok);
    }
  }
  const std::vector<float> zeros(4, 0.0F);
  EXPECT_TRUE(JudgeEndToEnd(EndToEndTensor::kKv, zeros, zeros).ok);
  EXPECT_FALSE(JudgeEndToEnd(EndToEndTensor::kKv, std::vector<float>(4, 1e-9F), zeros).ok);

  const std::vector<int8_t> codes(128, 50);
  EXPECT_TRUE(JudgeEndToEndIndexRow(codes, 0.0203F, codes, 0.02F).ok);
  EXPECT_FALSE(JudgeEndToEndIndexRow(codes, 0.0205F, codes, 0.02F).ok);
  EXPECT_FALSE(JudgeEndToEndIndexRow(codes, kNaN, codes, 0.02F).ok);
}

TEST(Judge, XOutBadPoints) {
  const std::vector<float> e(1000, 2.0F);
  const auto with = [&](size_t count, float value) {
    std::vector<float> a = e;
    std::fill_n(a.begin(), count, value);
    return a;
  };
  const float bad = 2.007F;  // 3.49e-3 of its size: bad by the SWA limit alone
  EXPECT_TRUE(JudgeXOutPoints(AttentionKind::kSwa, with(8, bad), e).ok);
  EXPECT_FALSE(JudgeXOutPoints(AttentionKind::kSwa, with(9, bad), e).ok);
  EXPECT_TRUE(JudgeXOutPoints(AttentionKind::kHca, with(1000, bad), e).ok);
  EXPECT_FALSE(JudgeXOutPoints(AttentionKind::kHca, with(9, 2.009F), e).ok);
  EXPECT_FALSE(JudgeXOutPoints(AttentionKind::kCsa, with(9, 2.009F), e).ok);
  EXPECT_TRUE(JudgeXOutPoints(AttentionKind::kSwa, with(300, bad), e, true).ok);
  EXPECT_FALSE(JudgeXOutPoints(AttentionKind::kSwa, with(301, bad), e, true).ok);
  EXPECT_TRUE(JudgeXOutPoints(AttentionKind::kSwa, with(1000, 2.0059F), e).ok);  // d/size 2.9e-3
  // Small values: d must pass t itself.
  const std::vector<float> small(1000, 1e-5F);
  EXPECT_TRUE(JudgeXOutPoints(AttentionKind::kSwa, std::vector<float>(1000, 2.9e-3F), small).ok);
  EXPECT_FALSE(JudgeXOutPoints(AttentionKind::kSwa, std::vector<float>(1000, 3.1e-3F), small).ok);
}

TEST(Judge, SelectionSets) {
  std::vector<int32_t> e(512, -1);
  for (int i = 0; i < 200; ++i) e[static_cast<size_t>(i)] = 3 * i;
  std::vector<int32_t> a(e);
  std::reverse(a.begin(), a.begin() + 200);
  for (size_t i = 0; i < 6; ++i) a[i] = 1001 + static_cast<int32_t>(i);
  const SelectionAgreement edge = JudgeSelectionSet(a, e);
  EXPECT_TRUE(edge.verdict.ok) << edge.verdict.text;
  EXPECT_EQ(edge.num_rows, 200);
  EXPECT_EQ(edge.num_common, 194);
  a[6] = 2000;
  EXPECT_FALSE(JudgeSelectionSet(a, e).verdict.ok);
  a = e;
  a[200] = 1;
  EXPECT_FALSE(JudgeSelectionSet(a, e).verdict.ok);
  EXPECT_TRUE(JudgeFileAgreement(990, 1000).ok);
  EXPECT_FALSE(JudgeFileAgreement(989, 1000).ok);
}

}  // namespace
}  // namespace millipede::reference
