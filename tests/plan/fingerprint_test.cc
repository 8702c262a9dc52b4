#include "plan/fingerprint.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <random>
#include <set>
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

TEST(Fingerprint, HighBitsDoNotCancel) {
  const auto hash = [](std::vector<uint64_t> words) {
    Fingerprint fingerprint;
    for (const uint64_t word : words) fingerprint.Add(word);
    return fingerprint.value();
  };
  const uint64_t top = uint64_t{1} << 63;
  std::set<uint64_t> seen;
  for (const auto& words : std::vector<std::vector<uint64_t>>{
           {}, {0}, {0, 0}, {1, 0}, {0, 1}, {top, 0}, {0, top}, {top, top}, {1, 2}, {2, 1}}) {
    EXPECT_TRUE(seen.insert(hash(words)).second);
  }
}

TEST(Fingerprint, IntegersCountWithTheirNumber) {
  const auto hash = [](std::vector<int32_t> values) {
    Fingerprint fingerprint;
    fingerprint.Add(values);
    return fingerprint.value();
  };
  std::set<uint64_t> seen;
  for (const auto& values : std::vector<std::vector<int32_t>>{
           {}, {0}, {0, 0}, {0, 0, 0}, {-1}, {-1, 0}, {0, -1}, {1, 2, 3}, {1, 2, 4}, {1, 3, 3}}) {
    EXPECT_TRUE(seen.insert(hash(values)).second);
  }
}

// Everything a plan is made from.
struct Inputs {
  ModelConfig config = ModelConfig::Tiny();
  int32_t num_layers = 2;
  EngineSpace space{16};
  EngineRing first{space, {0, 1, 2, 3}};
  EngineRing second{space, {4, 5, 6, 7}};
  std::vector<StepRequest> steps = {first.Step(10, 3), second.Step(1000, 8)};

  Inputs() = default;
  Inputs(const Inputs&) = delete;

  uint64_t Hash() {
    const auto plan = Plan::Create(config, AttentionKind::kSwa, num_layers, space.spaces(), steps);
    EXPECT_TRUE(plan) << plan.error().message;
    return plan->fingerprint();
  }
};

TEST(Fingerprint, EqualInputsHaveEqualPlans) {
  Inputs a;
  Inputs b;
  EXPECT_EQ(a.Hash(), a.Hash());
  EXPECT_EQ(a.Hash(), b.Hash());
  ++b.space.generation;  // a release elsewhere changes no plan
  EXPECT_EQ(a.Hash(), b.Hash());
  // An idle request is the same however it says so.
  a.steps[0] = {};
  b.steps[0].active = false;
  b.steps[0].num_tokens = 0;
  EXPECT_EQ(a.Hash(), b.Hash());
}

TEST(Fingerprint, EveryInputCounts) {
  const std::vector<std::pair<std::string, std::function<void(Inputs&)>>> changes = {
      {"nothing", [](Inputs&) {}},
      {"hidden", [](Inputs& in) { in.config.hidden += 2; }},
      {"num_heads", [](Inputs& in) { in.config.num_heads = 16; }},
      {"q_rank", [](Inputs& in) { in.config.q_rank += 1; }},
      {"o_rank", [](Inputs& in) { in.config.o_rank += 1; }},
      {"o_groups", [](Inputs& in) { in.config.o_groups = 2; }},
      {"num_index_heads", [](Inputs& in) { in.config.num_index_heads += 1; }},
      {"index_topk", [](Inputs& in) { in.config.index_topk -= 1; }},
      {"sinkhorn_rounds", [](Inputs& in) { in.config.sinkhorn_rounds -= 1; }},
      {"rms_eps", [](Inputs& in) { in.config.rms_eps = 2e-6F; }},
      {"hc_eps", [](Inputs& in) { in.config.hc_eps = 2e-6F; }},
      {"max_context_tokens", [](Inputs& in) { in.config.max_context_tokens = 2000; }},
      {"layer_ratios", [](Inputs& in) { in.config.layer_ratios.push_back(0); }},
      {"num_layers", [](Inputs& in) { in.num_layers = 3; }},
      {"fewer tokens", [](Inputs& in) { in.steps[1].num_tokens = 7; }},
      {"start", [](Inputs& in) { in.steps[1] = in.second.Step(1001, 8); }},
      {"range", [](Inputs& in) { in.steps[1].pages.raw.valid.begin += 1; }},
      {"idle", [](Inputs& in) { in.steps[0] = {}; }},
      {"one request more", [](Inputs& in) { in.steps.emplace_back(); }},
      {"order", [](Inputs& in) { std::swap(in.steps[0], in.steps[1]); }},
      {"page", [](Inputs& in) { in.second.entries[1] = in.space.Own(9); }},
      {"epoch", [](Inputs& in) { in.second.entries[1] = in.space.Own(5); }},
      {"page order", [](Inputs& in) { std::swap(in.first.entries[2], in.first.entries[3]); }},
      {"space size",
       [](Inputs& in) {
         in.space.epochs.push_back(0);
         in.space.ref_counts.push_back(0);
       }},
  };
  std::set<uint64_t> seen;
  for (const auto& [name, change] : changes) {
    Inputs inputs;
    change(inputs);
    EXPECT_TRUE(seen.insert(inputs.Hash()).second) << name;
  }
}

// Everything a plan of a compressed kind is made from.
struct CompressedInputs {
  AttentionKind kind;
  std::mt19937_64 random{1};
  EngineSpaces spaces{3, 100};
  std::vector<EngineRequest> requests;
  std::vector<int64_t> starts = {130, 4604};

  explicit CompressedInputs(AttentionKind attention_kind) : kind(attention_kind) {
    for (const int64_t start : starts) requests.emplace_back(kind, spaces, start + 8, random);
  }

  uint64_t Hash() {
    std::vector<StepRequest> steps;
    for (size_t r = 0; r < 2; ++r) steps.push_back(requests[r].Step(starts[r], 8));
    const auto plan = Plan::Create(ModelConfig::Tiny(), kind, 1, spaces.views(kind), steps);
    EXPECT_TRUE(plan) << plan.error().message;
    return plan->fingerprint();
  }
};

TEST(Fingerprint, EveryListCounts) {
  struct List {
    EngineSpace EngineSpaces::*space;
    std::vector<PageEntry> EngineRequest::*entries;
  };
  std::set<uint64_t> seen;
  for (const auto kind : {AttentionKind::kHca, AttentionKind::kCsa}) {
    std::vector<List> lists = {{&EngineSpaces::raw, &EngineRequest::raw},
                               {&EngineSpaces::main, &EngineRequest::main},
                               {&EngineSpaces::state, &EngineRequest::state}};
    if (kind == AttentionKind::kCsa) {
      lists.push_back({&EngineSpaces::index, &EngineRequest::index});
      lists.push_back({&EngineSpaces::inner_state, &EngineRequest::inner_state});
    }
    EXPECT_EQ(CompressedInputs(kind).Hash(), CompressedInputs(kind).Hash());
    EXPECT_TRUE(seen.insert(CompressedInputs(kind).Hash()).second);
    for (const List& list : lists) {
      CompressedInputs swapped(kind);
      auto& entries = swapped.requests[1].*list.entries;
      std::swap(entries[0], entries[1]);
      EXPECT_TRUE(seen.insert(swapped.Hash()).second);
      CompressedInputs renewed(kind);
      PageEntry& entry = (renewed.requests[0].*list.entries)[0];
      entry = (renewed.spaces.*list.space).Own(entry.page);
      EXPECT_TRUE(seen.insert(renewed.Hash()).second);
      CompressedInputs larger(kind);
      (larger.spaces.*list.space).epochs.push_back(0);
      (larger.spaces.*list.space).ref_counts.push_back(0);
      EXPECT_TRUE(seen.insert(larger.Hash()).second);
    }
    CompressedInputs moved(kind);
    moved.starts[1] -= 1;
    EXPECT_TRUE(seen.insert(moved.Hash()).second);
  }
}

}  // namespace
}  // namespace millipede
