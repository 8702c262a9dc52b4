// The output projection in halves: each shard's products, then their sum.
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/decode_world.h"
#include "support/executors.h"

namespace millipede {
namespace {

using testing::AlignedBytes;
using testing::SameBits;

// Groups of weights by formula, with odd sizes: neither hidden nor rank fills whole panels or
// tiles.
struct Projection {
  explicit Projection(int32_t num_groups) {
    config = ModelConfig::Tiny();
    config.o_groups = num_groups;
    config.num_heads = 2 * num_groups;
    config.hidden = 1048;
    config.o_rank = 24;
    const auto& fixture = testing::SharedFixture(config, AttentionKind::kSwa, 5);
    const LayerWeights plain = fixture.views();
    const int64_t rank = config.o_rank;
    for (int64_t g = 0; g < num_groups; ++g) {
      weights.wo_a.push_back(
          MatrixBf16::Pack(MakeView(plain.wo_a.row(g), rank, 2 * kHeadDim)).value());
      weights.wo_b.push_back(MatrixInt8::Pack({.data = plain.wo_b.data + g * rank,
                                               .shape = {config.hidden, rank},
                                               .stride0 = plain.wo_b.stride0},
                                              plain.wo_b_scale)
                                 .value());
    }
  }

  OutputWeights Of(RowRange groups) const {
    return {{weights.wo_a.begin() + groups.begin, weights.wo_a.begin() + groups.end},
            {weights.wo_b.begin() + groups.begin, weights.wo_b.begin() + groups.end}};
  }

  ModelConfig config;
  OutputWeights weights;
};

TEST(OutputGroupsTest, HalvesHaveTheBitsOfTheWhole) {
  for (const int32_t num_groups : {1, 2, 3, 4, 6, 7, 8}) {
    const Projection projection(num_groups);
    const ModelConfig& config = projection.config;
    const int64_t hidden = config.hidden;
    for (const int64_t num_tokens : {1, 5, 70}) {
      std::vector<Bf16> heads(static_cast<size_t>(num_tokens * config.num_heads * kHeadDim));
      const fixtures::RequestFixture data(config, 5, 0);
      const auto width = static_cast<size_t>(config.num_heads) * kHeadDim;
      for (size_t t = 0; t < static_cast<size_t>(num_tokens); ++t) {
        data.Heads(static_cast<int64_t>(t), std::span(heads).subspan(t * width, width));
      }
      const auto all_heads = MakeView(heads.data(), num_tokens, config.num_heads, kHeadDim);
      std::vector<Bf16> expected(static_cast<size_t>(num_tokens * hidden));
      for (const auto& named : testing::AllExecutors(2)) {
        Context context(*named.executor);
        AlignedBytes scratch(StageScratchBytes(config, num_tokens, context.num_threads()));
        ASSERT_TRUE(ProjectOutput(context, config, projection.weights, all_heads,
                                  MakeView(expected.data(), num_tokens, hidden), scratch.span()));
        for (int32_t degree = 1; degree <= num_groups; ++degree) {
          if (num_groups % degree != 0) continue;
          SCOPED_TRACE(std::to_string(num_groups) + " groups, degree " + std::to_string(degree));
          std::vector<float> partials(static_cast<size_t>(num_tokens * num_groups * hidden), NAN);
          const auto all_partials = MakeView(partials.data(), num_tokens, num_groups, hidden);
          for (int32_t rank = 0; rank < degree; ++rank) {
            const RowRange groups = GroupsOf(config, {rank, degree}).value();
            const int64_t n = groups.end - groups.begin;
            // Views of the shard's part, as far apart as the whole tensors' rows.
            const TensorView<const Bf16, 3> own_heads{heads.data() + groups.begin * 2 * kHeadDim,
                                                      {num_tokens, 2 * n, kHeadDim},
                                                      all_heads.stride0};
            const TensorView<float, 3> own_partials{partials.data() + groups.begin * hidden,
                                                    {num_tokens, n, hidden},
                                                    all_partials.stride0};
            ASSERT_TRUE(ProjectOutputGroups(context, config, projection.Of(groups), own_heads,
                                            own_partials, scratch.span()));
          }
          std::vector<Bf16> sum(expected.size(), Bf16{0xFFFF});
          ASSERT_TRUE(SumOutputGroups(context, config, all_partials,
                                      MakeView(projection.weights.wo_b[0].scale(), hidden),
                                      MakeView(sum.data(), num_tokens, hidden)));
          EXPECT_TRUE(SameBits(sum, expected));
        }
      }
    }
  }
}

TEST(OutputGroupsTest, ShardsCutTheGroupsEvenly) {
  const ModelConfig config = Projection(6).config;
  const RowRange groups = GroupsOf(config, {.rank = 2, .degree = 3}).value();
  EXPECT_EQ(groups.begin, 4);
  EXPECT_EQ(groups.end, 6);
  for (const int32_t degree : {0, -1, 4, 5, 12}) {
    const auto refused = GroupsOf(config, {.rank = 0, .degree = degree});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "shard.degree: " + std::to_string(degree) +
                                           "; allowed: a divisor of the 6 output groups");
  }
  for (const int32_t rank : {-1, 3}) {
    const auto refused = GroupsOf(config, {.rank = rank, .degree = 3});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "shard.rank: " + std::to_string(rank) + "; allowed: 0 to 2");
  }
}

TEST(OutputGroupsTest, RefusalsWriteNothing) {
  const Projection projection(4);
  const ModelConfig& config = projection.config;
  const auto executor = MakeSerialExecutor();
  Context context(*executor);
  AlignedBytes scratch(StageScratchBytes(config, 1, 1));
  std::vector<Bf16> heads(4 * kHeadDim);
  std::vector<float> partials(static_cast<size_t>(4 * config.hidden), -1);
  const auto run = [&](const OutputWeights& weights, int64_t num_heads, int64_t num_groups,
                       Scratch part) {
    return ProjectOutputGroups(context, config, weights, MakeView(heads.data(), 1, num_heads, 512),
                               MakeView(partials.data(), 1, num_groups, config.hidden), part);
  };
  const OutputWeights two = projection.Of({1, 3});
  OutputWeights uneven = two;
  uneven.wo_b.pop_back();
  EXPECT_EQ(run({}, 4, 2, scratch.span()).error().field, "weights");
  EXPECT_EQ(run(uneven, 4, 2, scratch.span()).error().field, "weights");
  EXPECT_EQ(run(two, 3, 2, scratch.span()).error().field, "heads");
  EXPECT_EQ(run(two, 4, 1, scratch.span()).error().field, "partials");
  EXPECT_EQ(run(two, 4, 2, scratch.span().first(64)).error().field, "scratch");
  EXPECT_EQ(partials, std::vector<float>(partials.size(), -1));

  std::vector<Bf16> out(static_cast<size_t>(config.hidden), Bf16{7});
  const auto sum = [&](int64_t num_groups, TensorView<const float, 1> scale, int64_t hidden) {
    return SumOutputGroups(context, config, MakeView(partials.data(), 1, num_groups, config.hidden),
                           scale, MakeView(out.data(), 1, hidden));
  };
  const auto scale = MakeView(two.wo_b[0].scale(), config.hidden);
  auto sparse = scale;
  sparse.stride0 = 2;
  EXPECT_EQ(sum(2, scale, config.hidden).error().field, "partials");
  EXPECT_EQ(sum(4, {}, config.hidden).error().field, "wo_b_scale");
  EXPECT_EQ(sum(4, sparse, config.hidden).error().field, "wo_b_scale");
  EXPECT_EQ(sum(4, scale, config.hidden - 1).error().field, "attn_out");
  for (const Bf16 value : out) EXPECT_EQ(value.bits, 7);
}

TEST(OutputGroupsTest, ALayerOfAShardIsNotRunAlone) {
  testing::DecodeWorld world(ModelConfig::Tiny(), AttentionKind::kSwa);
  world.Add(0, 5);
  const OutputShard shard{.rank = 1, .degree = 2};
  const LayerWeights all = world.fixture().views();
  const LayerWeights part = WeightsOfShard(world.config(), all, shard).value();
  EXPECT_EQ(Layer::Create(world.config(), world.kind(), all, shard).error().field, "wo_a");
  EXPECT_EQ(Layer::Create(world.config(), world.kind(), part).error().field, "wo_a");
  EXPECT_EQ(WeightsOfShard(world.config(), part, shard).error().field, "wo_a");
  const Layer layer = Layer::Create(world.config(), world.kind(), part, shard).value();
  EXPECT_EQ(layer.shard().rank, 1);
  world.run_layer = [&](Context& context, const Plan& plan, const LayerPools& pools,
                        const StepTensors& tensors, std::span<std::byte> workspace,
                        std::span<std::byte> overlay, const StepActivations& activations) {
    return layer.Run(context, plan, 0, pools, tensors, workspace, overlay, activations);
  };
  const auto executor = MakeSerialExecutor();
  Context context(*executor);
  try {
    world.Step(context, {{.id = 0}});
    FAIL() << "not refused";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(),
                 "layer: a shard, 1 of 2; allowed: a layer of all output groups, or "
                 "TensorParallel::Run");
  }
}

}  // namespace
}  // namespace millipede
