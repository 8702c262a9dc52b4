#include "tools/rule_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millipede::testing {
namespace {

using ::testing::HasSubstr;
using tools::RuleTable;

reference::Verdict Good(double worst) {
  reference::Verdict verdict;
  verdict.worst = worst;
  return verdict;
}

reference::Verdict Bad(double worst, const std::string& text) {
  reference::Verdict verdict = Good(worst);
  verdict.ok = false;
  verdict.num_out = 1;
  verdict.text = text;
  return verdict;
}

TEST(RuleTableTest, SumsPerTensorAndRule) {
  RuleTable table;
  table.Add("q", "stage", 10, Good(0.25), "token 0");
  table.Add("q", "stage", 10, Good(0.5), "token 1");
  table.Add("q", "end to end", 10, Good(0.1), "token 0");
  ASSERT_EQ(table.rows().size(), 2U);
  const tools::RuleRow* row = table.Find("q", "stage");
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(row->num_judged, 2);
  EXPECT_EQ(row->num_values, 20);
  EXPECT_EQ(row->worst, 0.5);
  EXPECT_EQ(table.num_values(), 30);
  EXPECT_TRUE(table.ok());
  EXPECT_EQ(table.Find("kv", "stage"), nullptr);
}

TEST(RuleTableTest, OneViolationFailsTheTable) {
  RuleTable table;
  table.Add("q", "stage", 10, Bad(3, "too far"), "token 4");
  table.Add("q", "stage", 10, Good(0.5), "token 5");
  EXPECT_FALSE(table.ok());
  EXPECT_THAT(table.Text(), HasSubstr("VIOLATED (1)"));
  EXPECT_THAT(table.Text(), HasSubstr("token 4: too far"));
  EXPECT_EQ(table.Json()[0]["details"][0]["where"], "token 4");
  EXPECT_EQ(table.Json()[0]["ok"], false);
}

TEST(RuleTableTest, CountsViolationsThatItDoesNotKeep) {
  RuleTable table;
  const auto many = static_cast<int64_t>(RuleTable::kMaxViolations) + 5;
  for (int64_t i = 0; i < many; ++i) table.Add("q", "stage", 1, Bad(2, "far"), "token");
  EXPECT_EQ(table.rows()[0].num_violations, many);
  EXPECT_EQ(table.rows()[0].violations.size(), RuleTable::kMaxViolations);
  EXPECT_THAT(table.Text(), HasSubstr("and 5 more"));
}

TEST(RuleTableTest, MergeIsTheSameAsAdding) {
  RuleTable one;
  one.Add("q", "stage", 1, Good(0.5), "token 0");
  RuleTable two;
  two.Add("q", "stage", 2, Bad(7, "far"), "token 1");
  two.Add("kv", "stage", 3, Good(0), "token 1");
  one.Merge(two);
  RuleTable all;
  all.Add("q", "stage", 1, Good(0.5), "token 0");
  all.Add("q", "stage", 2, Bad(7, "far"), "token 1");
  all.Add("kv", "stage", 3, Good(0), "token 1");
  EXPECT_EQ(one.Json(), all.Json());
}

TEST(RuleTableTest, MergeSaysWhereTheOthersAre) {
  RuleTable one;
  RuleTable two;
  two.Add("q", "stage", 2, Bad(7, "far"), "token 1");
  one.Merge(two, "layer 3, ");
  EXPECT_EQ(one.rows()[0].violations[0].where, "layer 3, token 1");
}

TEST(RuleTableTest, HoldingVerdictsAreCounted) {
  RuleTable table;
  table.AddHolding("rows", "unchanged", 100, 51200);
  table.Add("rows", "unchanged", 512, Bad(2, "changed"), "page 7");
  EXPECT_EQ(table.rows()[0].num_judged, 101);
  EXPECT_EQ(table.num_values(), 51712);
  EXPECT_FALSE(table.ok());
}

}  // namespace
}  // namespace millipede::testing
