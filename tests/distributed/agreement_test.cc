// Ranks that disagree, and ranks that cannot go on: every rank gets an error, none waits, nothing
// is written, and the group can go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "distributed/group_world.h"

namespace millipede {
namespace {

using testing::AlignedBytes;
using testing::CreateGroup;
using testing::GroupWorld;
using ::testing::HasSubstr;
using testing::ShardLayer;
using ::testing::StartsWith;
using testing::WorldRank;
using testing::WorldSize;

bool OnLastRank() { return WorldRank() == WorldSize() - 1; }
int World() { return MPI_Comm_c2f(MPI_COMM_WORLD); }

// Every rank's error, with the same words.
template <typename T>
void ExpectDisagreement(const Result<T>& result, const std::string& field) {
  ASSERT_FALSE(result);
  EXPECT_EQ(ErrorCodeName(result.error().code), "RanksDisagree") << result.error().message;
  EXPECT_EQ(result.error().field, field);
  EXPECT_THAT(result.error().message, HasSubstr("on rank 0, "));
  EXPECT_THAT(result.error().message, HasSubstr("; allowed: the same on every rank"));
}

// The failing rank's own error, and the others' that says so.
template <typename T>
void ExpectFailureOfLastRank(const Result<T>& result, const std::string& own_message) {
  ASSERT_FALSE(result);
  if (OnLastRank()) {
    EXPECT_THAT(result.error().message, StartsWith(own_message));
    EXPECT_NE(ErrorCodeName(result.error().code), "RankFailed");
  } else {
    EXPECT_EQ(ErrorCodeName(result.error().code), "RankFailed") << result.error().message;
    EXPECT_THAT(result.error().message,
                StartsWith("rank " + std::to_string(WorldSize() - 1) + ": " + own_message));
  }
}

TEST(GroupTest, EveryFieldOfTheConfigIsCompared) {
  struct Case {
    const char* field;
    void (*change)(ModelConfig&);
  };
  const Case cases[] = {
      {"config.hidden", [](ModelConfig& c) { c.hidden *= 2; }},
      {"config.num_heads", [](ModelConfig& c) { c.num_heads *= 2; }},
      {"config.q_rank", [](ModelConfig& c) { c.q_rank *= 2; }},
      {"config.o_rank", [](ModelConfig& c) { c.o_rank *= 2; }},
      {"config.o_groups", [](ModelConfig& c) { c.o_groups = 2 * WorldSize(); }},
      {"config.num_index_heads", [](ModelConfig& c) { c.num_index_heads *= 2; }},
      {"config.index_topk", [](ModelConfig& c) { c.index_topk -= 1; }},
      {"config.rms_eps", [](ModelConfig& c) { c.rms_eps = 2e-6F; }},
      {"config.sinkhorn_rounds", [](ModelConfig& c) { c.sinkhorn_rounds -= 1; }},
      {"config.hc_eps", [](ModelConfig& c) { c.hc_eps = 3e-6F; }},
      {"config.layer_ratios.size", [](ModelConfig& c) { c.layer_ratios.push_back(4); }},
      {"config.layer_ratios",
       [](ModelConfig& c) {
         c.layer_ratios = {128, 0};
       }},
      {"config.max_context_tokens", [](ModelConfig& c) { c.max_context_tokens -= 1; }},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.field);
    ModelConfig config = ModelConfig::Tiny();
    config.num_heads = 32;
    config.o_groups = WorldSize();
    config.layer_ratios = {0, 128};
    if (OnLastRank()) one.change(config);
    ExpectDisagreement(CreateGroup(config), one.field);
  }
}

TEST(GroupTest, ADegreeThatDoesNotDivideTheGroupsIsRefused) {
  ModelConfig config = ModelConfig::Tiny();
  config.o_groups = 1;
  config.num_heads = 8;
  const auto group = CreateGroup(config);
  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().message, "degree: " + std::to_string(WorldSize()) +
                                       "; allowed: a divisor of the 1 output groups");
  // Degree 3 by any number of processes.
  for (const int32_t degree : {3, 0, -2, 8}) {
    const auto other = TensorParallel::Create(ModelConfig::Tiny(), degree, World());
    ASSERT_FALSE(other);
    EXPECT_EQ(ErrorCodeName(other.error().code), "InvalidArgument");
    EXPECT_EQ(other.error().field, "degree");
  }
}

TEST(GroupTest, ADegreeOtherThanTheProcessesIsRefused) {
  const auto all = TensorParallel::Create(ModelConfig::Tiny(), 1, World());
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().message,
            "degree: 1; allowed: " + std::to_string(WorldSize()) + ", the processes");
  const int32_t degree = OnLastRank() ? 1 : WorldSize();
  ExpectFailureOfLastRank(TensorParallel::Create(ModelConfig::Tiny(), degree, World()),
                          "degree: 1; allowed: ");
}

TEST(GroupTest, AConfigThatOneRankRefuses) {
  ModelConfig config = ModelConfig::Tiny();
  if (OnLastRank()) config.head_dim = 256;
  ExpectFailureOfLastRank(CreateGroup(config), "head_dim: 256");
}

// Ready to run a step of one request of this rank.
class RunTest : public ::testing::Test {
 protected:
  static constexpr AttentionKind kKind = AttentionKind::kHca;
  static constexpr int64_t kTokens = 5;  // from position 124: an event at 127

  RunTest() {
    group_.Add(WorldRank(), kStart);
    world().Prepare(WorldRank(), kTokens);
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto width = static_cast<size_t>(4 * config_.hidden);
      fixtures::RequestFixture(config_, 7, WorldRank())
          .X(t, std::span(x_).subspan(static_cast<size_t>(t) * width, width));
    }
    before_ = Pools();
  }

  testing::DecodeWorld& world() { return group_.world(); }

  Plan MakePlan(AttentionKind kind = kKind, int32_t num_layers = 1) {
    StepRequest step{.start_pos = kStart, .num_tokens = kTokens, .pages = {}};
    if (kind == kKind) {
      step.request = &world().request(WorldRank());
    } else {  // the request's own kind is the only one it has
      step.pages.raw = world().request(WorldRank()).pages(kKind).raw;
    }
    return Plan::Create(config_, kind, num_layers, world().spaces(), {&step, 1}).value();
  }

  StepTensors Tensors() {
    return {.x = MakeView<const float>(x_.data(), kTokens, kHcStreams, config_.hidden),
            .rope = {MakeView<const float>(rope_.data(), kTokens, kRopePairs),
                     MakeView<const float>(rope_.data(), kTokens, kRopePairs)},
            .event_rope = {MakeView<const float>(rope_.data(), 1, kRopePairs),
                           MakeView<const float>(rope_.data(), 1, kRopePairs)},
            .x_out = MakeView(x_out_.data(), kTokens, kHcStreams, config_.hidden)};
  }

  Status Run(const Plan& plan, int32_t layer_index = 0) {
    return RunWith(group_.layer(), plan, Tensors(), layer_index);
  }
  Status RunWith(const Layer& layer, const Plan& plan, const StepTensors& tensors,
                 int32_t layer_index = 0) {
    return group_.group().Run(context_, layer, plan, layer_index, world().pools(), tensors,
                              workspace_.span(), overlay_.span());
  }

  std::vector<std::byte> Pools() {
    std::vector<std::byte> all(world().raw_bytes().begin(), world().raw_bytes().end());
    const auto append = [&](std::span<const std::byte> bytes) {
      all.insert(all.end(), bytes.begin(), bytes.end());
    };
    append(world().Bytes(PoolKind::kHcaState));
    append(std::as_bytes(world().MainRow(WorldRank(), 0)));
    return all;
  }
  void ExpectNothingWritten() {
    EXPECT_EQ(Pools(), before_);
    EXPECT_EQ(x_out_, std::vector<float>(x_out_.size(), -1));
    for (const std::byte byte : overlay_.span()) ASSERT_EQ(byte, std::byte{0xFF});
  }
  void ExpectRuns(const Plan& plan) {
    const Status status = Run(plan);
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_NE(x_out_.back(), -1);
  }

  static constexpr int64_t kStart = 124;
  ModelConfig config_ = ModelConfig::Tiny();
  GroupWorld group_{config_, kKind};
  std::unique_ptr<Executor> executor_ = MakeSerialExecutor();
  Context context_{*executor_};
  std::vector<float> x_ = std::vector<float>(static_cast<size_t>(kTokens * 4 * config_.hidden));
  std::vector<float> x_out_ = std::vector<float>(x_.size(), -1);
  std::vector<float> rope_ = std::vector<float>(kTokens * kRopePairs, 0.5F);
  AlignedBytes workspace_{int64_t{32} << 20};
  AlignedBytes overlay_{int64_t{1} << 20};
  std::vector<std::byte> before_;
};

TEST_F(RunTest, PlansOfAnotherNumberOfLayersDisagree) {
  ExpectDisagreement(Run(MakePlan(kKind, OnLastRank() ? 3 : 2)), "plan.num_layers");
  ExpectNothingWritten();
  ExpectRuns(MakePlan());
}

TEST_F(RunTest, AnotherLayerIndexDisagrees) {
  const Plan plan = MakePlan(kKind, 2);
  ExpectDisagreement(Run(plan, OnLastRank() ? 1 : 0), "layer_index");
  ExpectNothingWritten();
  ExpectRuns(plan);
}

TEST_F(RunTest, AnotherKindDisagrees) {
  const Layer swa =
      Layer::Create(
          config_, AttentionKind::kSwa,
          WeightsOfShard(config_, world().fixture().views(), group_.group().shard()).value(),
          group_.group().shard())
          .value();
  const Plan plan = MakePlan();
  const Status status =
      OnLastRank() ? RunWith(swa, MakePlan(AttentionKind::kSwa), Tensors()) : Run(plan);
  ExpectDisagreement(status, "plan.kind");
  ExpectNothingWritten();
  ExpectRuns(plan);
}

TEST_F(RunTest, AnotherCallDisagrees) {
  const Plan plan = MakePlan();
  const int64_t groups = config_.o_groups / WorldSize();
  OutputWeights weights;
  for (int64_t g = 0; g < groups; ++g) {
    weights.wo_a.emplace_back();
    weights.wo_b.emplace_back();
  }
  const Status status =
      OnLastRank()
          ? group_.group().ProjectOutput(
                context_, weights, {.data = nullptr, .shape = {0, 8, 512}, .stride0 = 4096}, {})
          : Run(plan);
  ExpectDisagreement(status, "call");
  ExpectNothingWritten();
  ExpectRuns(plan);
}

TEST_F(RunTest, ALayerOfAnotherShardOrConfigIsRefused) {
  const Plan plan = MakePlan();
  const OutputShard own = group_.group().shard();
  const Layer whole = ShardLayer(world(), {});
  ExpectFailureOfLastRank(RunWith(OnLastRank() ? whole : group_.layer(), plan, Tensors()),
                          "layer.shard: 0 of 1; allowed: ");
  const Layer other = ShardLayer(world(), {.rank = 0, .degree = own.degree});
  ExpectFailureOfLastRank(RunWith(OnLastRank() ? other : group_.layer(), plan, Tensors()),
                          "layer.shard: 0 of ");
  ExpectNothingWritten();
  ExpectRuns(plan);
}

TEST_F(RunTest, ARankWhoseArgumentsAreRefused) {
  const Plan plan = MakePlan();
  StepTensors tensors = Tensors();
  if (OnLastRank()) tensors.x.shape[2] -= 1;
  ExpectFailureOfLastRank(RunWith(group_.layer(), plan, tensors), "tensors.x: shape ");
  ExpectNothingWritten();
  ExpectRuns(plan);
}

TEST_F(RunTest, ARankWhoseLayerIsCommitted) {
  const Plan plan = MakePlan(kKind, 2);
  ExpectRuns(plan);
  const std::vector<int64_t> accepted = {kTokens};
  if (OnLastRank()) {
    ASSERT_TRUE(Commit(context_, plan, 0, world().pools(), overlay_.span(), accepted));
  }
  ExpectFailureOfLastRank(Run(plan), "layer_index: layer 0 is committed");
}

// CSA with given selections fails after the agreement before the run, in the midst of it.
TEST(LateFailureTest, ARankThatFailsInTheRun) {
  const ModelConfig config = ModelConfig::Tiny();
  GroupWorld group(config, AttentionKind::kCsa);
  group.Add(WorldRank(), 40);
  const auto executor = MakeSerialExecutor();
  Context context(*executor);
  std::vector<int32_t> selection(static_cast<size_t>(config.index_topk), -1);
  for (int32_t i = 0; i < 10; ++i) selection[static_cast<size_t>(i)] = i;
  if (OnLastRank()) selection[3] = 4;  // twice
  group.world().selections[WorldRank()] = selection;
  std::string message;
  try {
    group.Step(context, {{.id = WorldRank(), .num_tokens = 1}});
  } catch (const std::runtime_error& error) {
    message = error.what();
  }
  if (OnLastRank()) {
    EXPECT_THAT(message, StartsWith("request 0: selection"));
  } else {
    EXPECT_THAT(message,
                StartsWith("rank " + std::to_string(WorldSize() - 1) + ": request 0: selection"));
  }
  EXPECT_EQ(group.world().position(WorldRank()), 40);
  group.world().selections[WorldRank()][3] = 3;
  group.Step(context, {{.id = WorldRank(), .num_tokens = 1}});
  EXPECT_EQ(group.world().position(WorldRank()), 41);
}

TEST_F(RunTest, FailStandsForACall) {
  const Plan plan = MakePlan();
  const std::string long_message = "no plan: " + std::string(2000, 'x');
  const Status status =
      OnLastRank() ? group_.group().Fail({ErrorCode::kOutOfPages, 2, "", long_message}) : Run(plan);
  ExpectFailureOfLastRank(status, "no plan: xxx");
  if (OnLastRank()) {
    EXPECT_EQ(status.error().request, 2);
  }
  ExpectNothingWritten();
  ExpectRuns(plan);
}

}  // namespace
}  // namespace millipede
