// Capacity costs nothing: what a short request needs does not know how long one may be.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "support/decode_world.h"

namespace millipede {
namespace {

constexpr AttentionKind kKind = AttentionKind::kSwa;

// Sanitizers keep freed memory and shadows of their own resident.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kResidentBytesTell = false;
#else
constexpr bool kResidentBytesTell = true;
#endif

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

// Everything of a one-token step of a request at `start_pos`, under a ceiling of
// `max_context_tokens`: spaces, pools and page lists for it, plan, and the run itself.
struct Footprint {
  std::vector<size_t> array_lengths;
  int64_t workspace_bytes = 0;
  int64_t overlay_bytes = 0;
  int64_t resident_bytes = 0;
};

Footprint FootprintOf(AttentionKind kind, int64_t max_context_tokens, int64_t start_pos) {
  ModelConfig config = ModelConfig::Tiny();
  config.max_context_tokens = max_context_tokens;
  const auto& fixture = testing::SharedFixture(config, kind, 7);
  const auto executor = MakeSerialExecutor();
  Context context(*executor);
  const Layer layer = Layer::Create(config, kind, fixture.views()).value();

  const int64_t resident_before = ResidentBytes();
  const auto num_pages = static_cast<int32_t>(64 * (max_context_tokens / 128 + 8));
  std::vector<PageSpace> spaces;
  std::vector<LayerPool> pools;
  for (int pool = 0; pool < kNumPoolKinds; ++pool) {
    spaces.push_back(PageSpace::Create(num_pages).value());
    pools.push_back(LayerPool::Create(static_cast<PoolKind>(pool), num_pages).value());
  }
  const auto space = [&](PoolKind pool) { return &spaces[static_cast<size_t>(pool)]; };
  const auto view = [&](PoolKind pool) { return pools[static_cast<size_t>(pool)].view(); };
  RequestSpaces request_spaces;
  request_spaces.raw = space(PoolKind::kRaw);
  request_spaces.hca_main = space(PoolKind::kHcaMain);
  request_spaces.hca_state = space(PoolKind::kHcaState);
  request_spaces.csa_main = space(PoolKind::kCsaMain);
  request_spaces.csa_index = space(PoolKind::kCsaIndexRows);
  request_spaces.csa_state = space(PoolKind::kCsaState);
  request_spaces.csa_inner_state = space(PoolKind::kCsaInnerState);
  Request request = Request::Create(request_spaces, start_pos).value();
  EXPECT_TRUE(request.Prepare(1));
  const StepRequest step[] = {{.start_pos = start_pos, .num_tokens = 1, .request = &request}};
  const Plan plan = Plan::Create(config, kind, 1, request_spaces.views(kind), step).value();
  const bool csa = kind == AttentionKind::kCsa;
  const LayerPools layer_pools = {.raw = view(PoolKind::kRaw),
                                  .main = view(csa ? PoolKind::kCsaMain : PoolKind::kHcaMain),
                                  .index_rows = view(PoolKind::kCsaIndexRows),
                                  .index_scales = view(PoolKind::kCsaIndexScales),
                                  .state = view(csa ? PoolKind::kCsaState : PoolKind::kHcaState),
                                  .inner_state = view(PoolKind::kCsaInnerState)};

  const PackedWork& work = plan.work();
  const auto num_events = static_cast<int64_t>(work.events.size());
  std::vector<float> x(static_cast<size_t>(kHcStreams) * 256, 0.5F);
  const std::vector<float> cos(kRopePairs, 1.0F);
  const std::vector<float> sin(kRopePairs, 0.0F);
  const auto rope = [&](int64_t rows) {
    return RopeRows{MakeView(cos.data(), rows, kRopePairs), MakeView(sin.data(), rows, kRopePairs)};
  };
  testing::AlignedBytes workspace(plan.workspace_bytes(1));
  testing::AlignedBytes overlay(plan.overlay_bytes());
  const StepTensors tensors = {.x = MakeView<const float>(x.data(), 1, kHcStreams, 256),
                               .rope = rope(1),
                               .event_rope = rope(num_events),
                               .x_out = MakeView(x.data(), 1, kHcStreams, 256)};
  EXPECT_TRUE(layer.Run(context, plan, 0, layer_pools, tensors, workspace.span(), overlay.span()));
  return {
      {work.requests.size(), work.queries.size(), work.window_sources.size(), work.events.size(),
       work.event_sources.size(), work.inner_event_sources.size(), work.main_pages.size(),
       work.index_pages.size(), work.shards.size(), work.leaves.size(), work.merges.size(),
       work.shard_offsets.size(), work.leaf_offsets.size(), work.merge_offsets.size()},
      plan.workspace_bytes(1),
      plan.overlay_bytes(),
      ResidentBytes() - resident_before};
}

// The resident bytes of the same, of a process of its own: the heap keeps what it is given back, so
// that a second run in one process would look cheaper than the first.
int64_t ResidentBytesOf(AttentionKind kind, int64_t max_context_tokens, int64_t start_pos) {
  testing::SharedFixture(ModelConfig::Tiny(), kind, 7);
  int ends[2] = {};
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const int64_t bytes = FootprintOf(kind, max_context_tokens, start_pos).resident_bytes;
    _exit(write(ends[1], &bytes, sizeof(bytes)) == sizeof(bytes) ? 0 : 1);
  }
  int64_t bytes = -1;
  EXPECT_EQ(read(ends[0], &bytes, sizeof(bytes)), static_cast<ssize_t>(sizeof(bytes)));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ends[0]);
  close(ends[1]);
  return bytes;
}

class KindMemoryTest : public ::testing::TestWithParam<AttentionKind> {};

TEST_P(KindMemoryTest, A128TokenRequestDoesNotKnowTheCeiling) {
  const Footprint least = FootprintOf(GetParam(), 128, 127);
  const Footprint small = FootprintOf(GetParam(), 4096, 127);
  const Footprint large = FootprintOf(GetParam(), kMaxContextTokens, 127);
  for (const Footprint* other : {&small, &large}) {
    EXPECT_EQ(other->array_lengths, least.array_lengths);
    EXPECT_EQ(other->workspace_bytes, least.workspace_bytes);
    EXPECT_EQ(other->overlay_bytes, least.overlay_bytes);
  }
  if (kResidentBytesTell) {
    const int64_t at_4k = ResidentBytesOf(GetParam(), 4096, 127);
    const int64_t at_1m = ResidentBytesOf(GetParam(), kMaxContextTokens, 127);
    EXPECT_GT(at_4k, 0);
    EXPECT_LT(std::abs(at_1m - at_4k), 1 << 20);
  }
}

TEST_P(KindMemoryTest, WorkspaceAndOverlayOfAMillionTokensAreThoseOfAThousand) {
  const Footprint thousand = FootprintOf(GetParam(), kMaxContextTokens, 1000);
  const Footprint million = FootprintOf(GetParam(), kMaxContextTokens, kMaxContextTokens - 2);
  EXPECT_EQ(thousand.workspace_bytes, million.workspace_bytes);
  EXPECT_EQ(thousand.overlay_bytes, million.overlay_bytes);
}

INSTANTIATE_TEST_SUITE_P(Kinds, KindMemoryTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         testing::KindTestName);

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
