#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "millipede/plan.h"
#include "support/plan_fixture.h"

namespace millipede {
namespace {

using testing::EngineRequest;
using testing::EngineRing;
using testing::EngineSpace;
using testing::EngineSpaces;

class Explain : public ::testing::Test {
 protected:
  // At 10 with 3 tokens, idle, and at 1,048,568 with 8.
  Plan Make() {
    StepRequest idle;
    idle.active = false;
    const std::vector<StepRequest> steps = {first_.Step(10, 3), idle, second_.Step(1'048'568, 8)};
    auto plan = Plan::Create(ModelConfig::Tiny(), AttentionKind::kSwa, 2, space_.spaces(), steps);
    EXPECT_TRUE(plan);
    return std::move(*plan);
  }

  EngineSpace space_{16};
  EngineRing first_{space_, {0, 1, 2, 3}};
  EngineRing second_{space_, {7, 6, 5, 4}};
};

TEST_F(Explain, JsonHasTheDocumentedKeys) {
  const Plan plan = Make();
  const auto json = nlohmann::json::parse(plan.explain_json(3));
  EXPECT_EQ(json.at("kind"), "swa");
  EXPECT_EQ(json.at("num_layers"), 2);
  EXPECT_EQ(json.at("num_tokens"), 11);
  EXPECT_EQ(json.at("window_rows"), 11 + 12 + 13 + 8 * 128);
  EXPECT_EQ(json.at("shards_per_query"), 0);
  EXPECT_EQ(json.at("leaves_per_query"), 0);
  EXPECT_EQ(json.at("merges"), 0);
  EXPECT_EQ(json.at("raw_pages"), 5);
  EXPECT_EQ(json.at("raw_pages_read"), 5);
  EXPECT_EQ(json.at("raw_pages_written"), 2);
  EXPECT_EQ(json.at("work_items"), 11);
  EXPECT_EQ(json.at("workspace_bytes"), plan.workspace_bytes(3));
  EXPECT_EQ(json.at("workspace_threads"), 3);
  EXPECT_EQ(json.at("overlay_bytes"), 11 * 1024);
  EXPECT_EQ(std::stoull(json.at("fingerprint").get<std::string>(), nullptr, 16),
            plan.fingerprint());

  const auto& requests = json.at("requests");
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(requests[0], nlohmann::json({{"request", 0},
                                         {"start_pos", 10},
                                         {"num_tokens", 3},
                                         {"window_rows", 36},
                                         {"compressed_rows", 0},
                                         {"events", 0},
                                         {"shards_per_query", 0},
                                         {"leaves_per_query", 0},
                                         {"merges", 0},
                                         {"main_pages", 0},
                                         {"index_pages", 0},
                                         {"raw_pages", 1},
                                         {"raw_pages_read", 1},
                                         {"raw_pages_written", 1}}));
  EXPECT_EQ(requests[1].at("num_tokens"), 0);
  EXPECT_EQ(requests[1].at("window_rows"), 0);
  EXPECT_EQ(requests[1].at("raw_pages"), 0);
  EXPECT_EQ(requests[2].at("request"), 2);
  EXPECT_EQ(requests[2].at("start_pos"), 1'048'568);
  EXPECT_EQ(requests[2].at("window_rows"), 1024);
  EXPECT_EQ(requests[2].at("raw_pages"), 4);
  EXPECT_EQ(requests[2].at("raw_pages_read"), 4);
  EXPECT_EQ(requests[2].at("raw_pages_written"), 1);
  EXPECT_EQ(json.size(), 20U);  // a key added is a key to document
}

TEST_F(Explain, TextHasALinePerRequestAndTotals) {
  const std::string text = Make().explain(3);
  for (const char* part :
       {"swa step for 2 layers: 3 requests, 11 tokens\n",
        "request 0: start 10, tokens 3, window rows 11 to 13, raw pages 1 (1 read, 1 written)\n",
        "request 1: no tokens\n",
        "request 2: start 1048568, tokens 8, window rows 128 to 128, raw pages 4 (4 read, 1 "
        "written)\n",
        "total: window rows 1060, raw pages 5, work items 11\n", "(3 threads)", "fingerprint "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
  }
}

// What the plan of one request with one token says.
nlohmann::json JsonOf(AttentionKind kind, int64_t start, int64_t num_tokens = 1) {
  std::mt19937_64 random(2);
  EngineSpaces spaces(1, 8300);
  const EngineRequest request(kind, spaces, start + num_tokens, random);
  const std::vector<StepRequest> steps = {request.Step(start, num_tokens)};
  const auto plan = Plan::Create(ModelConfig::Tiny(), kind, 1, spaces.views(kind), steps);
  EXPECT_TRUE(plan) << plan.error().message;
  return nlohmann::json::parse(plan->explain_json());
}

TEST_F(Explain, HcaShards) {
  for (const auto& [start, shards] : std::vector<std::pair<int64_t, int64_t>>{
           {126, 0}, {127, 1}, {16'383, 1}, {16'511, 2}, {1'048'575, 64}}) {
    const auto json = JsonOf(AttentionKind::kHca, start);
    EXPECT_EQ(json.at("kind"), "hca");
    EXPECT_EQ(json.at("shards_per_query"), shards) << start;
    EXPECT_EQ(json.at("leaves_per_query"), 0);
    EXPECT_EQ(json.at("merges"), 0);
    EXPECT_EQ(json.at("compressed_rows"), (start + 1) / 128);
    EXPECT_EQ(json.at("events"), (start + 1) % 128 == 0 ? 1 : 0);
    EXPECT_EQ(json.at("main_pages"), ((start + 1) / 128 + 31) / 32);
    EXPECT_EQ(json.at("index_pages"), 0);
    EXPECT_EQ(json.at("work_items"), 1 + shards + ((start + 1) % 128 == 0 ? 1 : 0));
    EXPECT_EQ(json.at("requests")[0].at("shards_per_query"), shards);
  }
}

TEST_F(Explain, CsaLeaves) {
  for (const auto& [start, leaves] :
       std::vector<std::pair<int64_t, int64_t>>{{2, 0}, {127, 1}, {16'383, 2}, {1'048'575, 128}}) {
    const auto json = JsonOf(AttentionKind::kCsa, start);
    EXPECT_EQ(json.at("leaves_per_query"), leaves) << start;
    EXPECT_EQ(json.at("shards_per_query"), 0);
    EXPECT_EQ(json.at("merges"), leaves == 0 ? 0 : leaves - 1);
    EXPECT_EQ(json.at("compressed_rows"), (start + 1) / 4);
    EXPECT_EQ(json.at("index_pages"), ((start + 1) / 4 + 31) / 32);
    EXPECT_EQ(json.at("main_pages"), json.at("index_pages"));
    EXPECT_EQ(json.at("requests")[0].at("leaves_per_query"), leaves);
  }
}

// Sums are sums over queries, and the most of any query is the last one's.
TEST_F(Explain, SumsOverQueries) {
  const auto json = JsonOf(AttentionKind::kCsa, 8190, 4);
  EXPECT_EQ(json.at("compressed_rows"), 2047 + 3 * 2048);
  EXPECT_EQ(json.at("events"), 1);
  EXPECT_EQ(json.at("leaves_per_query"), 1);
  EXPECT_EQ(JsonOf(AttentionKind::kCsa, 8194, 4).at("leaves_per_query"), 2);
  EXPECT_EQ(JsonOf(AttentionKind::kCsa, 8194, 4).at("merges"), 3);
}

TEST_F(Explain, CompressedText) {
  std::mt19937_64 random(2);
  EngineSpaces spaces(2, 300);
  for (const auto& [kind, expected] : std::vector<std::pair<AttentionKind, std::string>>{
           {AttentionKind::kHca,
            "request 0: start 16380, tokens 8, window rows 128 to 128, compressed rows 1021, "
            "events 1, shards per query 1, main pages 4, raw pages"},
           {AttentionKind::kCsa,
            "request 0: start 16380, tokens 8, window rows 128 to 128, compressed rows 32766, "
            "events 2, leaves per query 3, merges 9, main pages 129, index pages 129, "
            "raw pages"}}) {
    const EngineRequest request(kind, spaces, 16'388, random);
    const std::vector<StepRequest> steps = {request.Step(16'380, 8)};
    const auto plan = Plan::Create(ModelConfig::Tiny(), kind, 1, spaces.views(kind), steps);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_NE(plan->explain().find(expected), std::string::npos) << plan->explain();
  }
}

TEST_F(Explain, AnEmptyStep) {
  const auto plan = Plan::Create(ModelConfig::Tiny(), AttentionKind::kSwa, 1, space_.spaces(), {});
  ASSERT_TRUE(plan);
  const auto json = nlohmann::json::parse(plan->explain_json());
  EXPECT_TRUE(json.at("requests").empty());
  EXPECT_EQ(json.at("num_tokens"), 0);
  EXPECT_EQ(json.at("workspace_threads"), 1);
}

}  // namespace
}  // namespace millipede
