// Random steps over the ranks of a group end with the bits that each rank's requests have alone.
#include "support/soak.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "distributed/group_world.h"
#include "support/executors.h"

namespace millipede {
namespace {

using testing::DecodeWorld;
using testing::GroupWorld;
using testing::SoakTrail;

constexpr int64_t kSteps = 250;
constexpr int64_t kMaxGrowthBytes = int64_t{4} << 20;

// Runs the script with worlds of one kind each; `world_of` gives what MakeWorld made as one.
template <typename World>
SoakTrail Soak(const std::vector<std::unique_ptr<World>>& worlds, DecodeWorld& (*world_of)(World&),
               const std::function<Executor&(int64_t step)>& executor) {
  testing::SoakRun run{
      .executor = executor,
      .owns = [](int64_t id) { return id % testing::WorldSize() == testing::WorldRank(); },
      .warm_up_steps = 60};
  for (const AttentionKind kind : testing::kSoakKinds) {
    const auto i = static_cast<size_t>(kind);
    run.worlds[i] = &world_of(*worlds[i]);
  }
  return RunSoak(testing::MakeSoakScript(kSteps, 2027), run);
}

template <typename World>
std::vector<std::unique_ptr<World>> MakeWorlds() {
  std::vector<std::unique_ptr<World>> worlds;
  for (const AttentionKind kind : testing::kSoakKinds) {
    worlds.push_back(std::make_unique<World>(ModelConfig::Tiny(), kind));
  }
  return worlds;
}

TEST(SoakTest, RandomStepsOfAGroupEndAsThoseOfEachRankAlone) {
  const auto serial = MakeSerialExecutor();
  const SoakTrail expected = Soak<DecodeWorld>(
      MakeWorlds<DecodeWorld>(), [](DecodeWorld& world) -> DecodeWorld& { return world; },
      [&](int64_t) -> Executor& { return *serial; });

  // Every rank has threads of its own choice.
  const std::vector<testing::NamedExecutor> executors = testing::AllExecutors(/*max_threads=*/4);
  std::mt19937_64 random(static_cast<uint64_t>(testing::WorldRank()));
  const SoakTrail actual = Soak<GroupWorld>(
      MakeWorlds<GroupWorld>(), [](GroupWorld& group) -> DecodeWorld& { return group.world(); },
      [&](int64_t) -> Executor& { return *executors[random() % executors.size()].executor; });
  EXPECT_EQ(actual.steps, expected.steps);
  EXPECT_EQ(actual.caches, expected.caches);
  EXPECT_EQ(actual.longest, expected.longest);
  EXPECT_LT(actual.growth_bytes, kMaxGrowthBytes);
}

}  // namespace
}  // namespace millipede
