// Capacity costs nothing: what a short request needs does not know how long one may be.
#include <gtest/gtest.h>

#include <fstream>

#include "support/decode_world.h"

namespace millipede {
namespace {

using testing::DecodeWorld;

constexpr AttentionKind kKind = AttentionKind::kSwa;

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

TEST(MemoryTest, UnusedPoolsOfMillionTokenContextsAreNotResident) {
  // 64 requests of 1M tokens: 8,192 main pages each and their rings, in each pool's own space.
  constexpr int32_t kPages = 64 * 8192;
  const int64_t before = ResidentBytes();
  std::vector<PageSpace> spaces;
  std::vector<LayerPool> pools;
  for (int kind = 0; kind < kNumPoolKinds; ++kind) {
    spaces.push_back(PageSpace::Create(kPages).value());
    pools.push_back(LayerPool::Create(static_cast<PoolKind>(kind), kPages).value());
  }
  EXPECT_LT(ResidentBytes() - before, 1 << 20);
  // Nor when a short request takes pages of it.
  RequestSpaces request_spaces;
  request_spaces.raw = &spaces[0];
  const Request request = Request::Create(request_spaces, 128).value();
  EXPECT_LT(ResidentBytes() - before, 1 << 20);
}

struct Sizes {
  size_t queries, window_sources, requests;
  int64_t workspace_bytes, overlay_bytes, window_rows, pages;
  bool operator==(const Sizes&) const = default;
};

Sizes SizesOf(int64_t max_context_tokens, int64_t start_pos) {
  ModelConfig config = ModelConfig::Flash();
  config.max_context_tokens = max_context_tokens;
  PageSpace space = PageSpace::Create(64).value();
  RequestSpaces spaces;
  spaces.raw = &space;
  const Request request = Request::Create(spaces, start_pos).value();
  const StepRequest step[] = {
      {.start_pos = start_pos, .num_tokens = 1, .request = &request, .pages = {}}};
  const Plan plan = Plan::Create(config, kKind, 1, spaces.views(kKind), step).value();
  const PackedWork& work = plan.work();
  return {work.queries.size(),     work.window_sources.size(), work.requests.size(),
          plan.workspace_bytes(2), plan.overlay_bytes(),       work.window_rows,
          work.raw_pages_read};
}

TEST(MemoryTest, ObjectsOfA128TokenRequestDoNotKnowTheCeiling) {
  EXPECT_EQ(SizesOf(128, 127), SizesOf(kMaxContextTokens, 127));
}

TEST(MemoryTest, AMillionTokensPlanLikeAThousand) {
  const Sizes thousand = SizesOf(kMaxContextTokens, 1000);
  EXPECT_EQ(thousand, SizesOf(kMaxContextTokens, kMaxContextTokens - 1));
  EXPECT_EQ(thousand.window_rows, 128);
  EXPECT_EQ(thousand.pages, 4);
}

TEST(MemoryTest, WorkspaceIsLinearInTokensPlusAPartPerThread) {
  PageSpace space = PageSpace::Create(64).value();
  RequestSpaces spaces;
  spaces.raw = &space;
  const Request request = Request::Create(spaces, 0).value();
  const auto workspace = [&](int64_t num_tokens, int num_threads) {
    const StepRequest step[] = {
        {.start_pos = 0, .num_tokens = num_tokens, .request = &request, .pages = {}}};
    return Plan::Create(ModelConfig::Flash(), kKind, 1, spaces.views(kKind), step)
        .value()
        .workspace_bytes(num_threads);
  };
  EXPECT_EQ(workspace(2048, 1) - workspace(1024, 1), workspace(4096, 1) - workspace(3072, 1));
  EXPECT_EQ(workspace(1024, 3) - workspace(1024, 2), workspace(2048, 9) - workspace(2048, 8));
}

}  // namespace
}  // namespace millipede
