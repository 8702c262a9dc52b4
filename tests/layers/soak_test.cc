// Two thousand steps of random batches on every executor: they end with the bits of one thread, and
// with the memory they began with.
#include "support/soak.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "support/executors.h"

namespace millipede {
namespace {

using testing::DecodeWorld;
using testing::ResidentBytes;
using testing::SoakTrail;

constexpr int64_t kSteps = 2000;
constexpr int64_t kMaxGrowthBytes = int64_t{4} << 20;

SoakTrail Soak(const std::function<Executor&(int64_t step)>& executor) {
  std::vector<std::unique_ptr<DecodeWorld>> worlds;
  testing::SoakRun run{.executor = executor, .warm_up_steps = 300};
  for (const AttentionKind kind : testing::kSoakKinds) {
    worlds.push_back(std::make_unique<DecodeWorld>(ModelConfig::Tiny(), kind));
    run.worlds[static_cast<size_t>(kind)] = worlds.back().get();
  }
  return RunSoak(testing::MakeSoakScript(kSteps, 2026), run);
}

TEST(SoakTest, RandomStepsOnAllExecutorsEndAsThoseOfOneThread) {
  const auto serial = MakeSerialExecutor();
  const SoakTrail expected = Soak([&](int64_t) -> Executor& { return *serial; });
  EXPECT_EQ(expected.longest, kMaxContextTokens);
  EXPECT_GT(expected.caches.size(), 100U);

  const std::vector<testing::NamedExecutor> executors = testing::AllExecutors(/*max_threads=*/8);
  std::mt19937_64 random(7);
  std::vector<size_t> picked;
  const SoakTrail actual = Soak([&](int64_t) -> Executor& {
    picked.push_back(random() % executors.size());
    return *executors[picked.back()].executor;
  });
  ASSERT_EQ(actual.steps.size(), static_cast<size_t>(kSteps));
  for (size_t step = 0; step < actual.steps.size(); ++step) {
    ASSERT_EQ(actual.steps[step], expected.steps[step])
        << step << ", " << executors[picked[step]].name;
  }
  EXPECT_EQ(actual.caches, expected.caches);
  EXPECT_LT(actual.growth_bytes, kMaxGrowthBytes);
  EXPECT_LT(expected.growth_bytes, kMaxGrowthBytes);
  RecordProperty("growth_bytes", std::to_string(actual.growth_bytes));
}

// A page a step.
TEST(SoakTest, GrowthWouldBeSeen) {
  const int64_t before = ResidentBytes();
  std::vector<std::vector<char>> leaked;
  for (int64_t step = 0; step < kSteps; ++step) leaked.emplace_back(4096, 'x');
  EXPECT_GT(ResidentBytes() - before, kMaxGrowthBytes);
}

}  // namespace
}  // namespace millipede
