// What run, commit and the stages refuse: one clear error, and nothing written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "millipede/layer.h"
#include "support/decode_world.h"
#include "support/executors.h"

namespace millipede {
namespace {

using testing::AlignedBytes;
using testing::CountedExecutor;
using testing::DecodeWorld;

constexpr AttentionKind kKind = AttentionKind::kSwa;

// A valid step of two requests of which each test spoils one thing.
class RefusalsTest : public ::testing::Test {
 protected:
  RefusalsTest() {
    world_.Add(0, 300);
    world_.Add(1, 10);
    Replan(2);
  }

  void Replan(int32_t num_layers) {
    const StepRequest step[] = {
        {.start_pos = 300, .num_tokens = 3, .request = &world_.request(0), .pages = {}},
        {.start_pos = 10, .num_tokens = 1, .request = &world_.request(1), .pages = {}}};
    plan_ = std::make_unique<Plan>(
        Plan::Create(config_, kKind, num_layers, world_.spaces(), step).value());
    before_.assign(world_.raw_bytes().begin(), world_.raw_bytes().end());
  }

  StepTensors Tensors() {
    return {.x = MakeView<const float>(x_.data(), 4, kHcStreams, config_.hidden),
            .rope = {MakeView<const float>(cos_.data(), 4, kRopePairs),
                     MakeView<const float>(sin_.data(), 4, kRopePairs)},
            .x_out = MakeView(x_out_.data(), 4, kHcStreams, config_.hidden)};
  }

  Status Run(int32_t layer = 0) { return RunWith(Tensors(), world_.pools(), layer); }
  Status RunWith(const StepTensors& tensors, const LayerPools& pools, int32_t layer = 0,
                 const StepActivations& activations = {}) {
    return world_.layer().Run(context_, *plan_, layer, pools, tensors, workspace_.span(),
                              overlay_.span(), activations);
  }
  Result<std::vector<RequestRanges>> CommitLayer(int32_t layer, std::vector<int64_t> accepted) {
    return Commit(context_, *plan_, layer, world_.pools(), overlay_.span(), accepted);
  }

  template <typename T>
  void ExpectRefused(const Result<T>& result, ErrorCode code, const std::string& field) {
    ASSERT_FALSE(result);
    EXPECT_EQ(ErrorCodeName(result.error().code), ErrorCodeName(code)) << result.error().message;
    EXPECT_EQ(result.error().field, field) << result.error().message;
    EXPECT_NE(result.error().message.find("allowed: "), std::string::npos)
        << result.error().message;
    EXPECT_EQ(std::memcmp(before_.data(), world_.raw_bytes().data(), before_.size()), 0);
  }
  // The same, and no output either.
  void ExpectNothingRan(const Status& status, ErrorCode code, const std::string& field) {
    ExpectRefused(status, code, field);
    for (const float value : x_out_) ASSERT_EQ(value, -77.0F);
  }

  ModelConfig config_ = ModelConfig::Tiny();
  std::unique_ptr<Executor> executor_ = MakeSerialExecutor();
  Context context_{*executor_};
  DecodeWorld world_{config_, kKind, 16};
  std::unique_ptr<Plan> plan_;
  std::vector<std::byte> before_;
  std::vector<float> x_ = std::vector<float>(size_t{4} * 4 * 256, 0.25F);
  std::vector<float> x_out_ = std::vector<float>(x_.size(), -77.0F);
  std::vector<float> cos_ = std::vector<float>(size_t{4} * kRopePairs, 1.0F);
  std::vector<float> sin_ = std::vector<float>(size_t{4} * kRopePairs, 0.0F);
  AlignedBytes workspace_{1 << 24};
  AlignedBytes overlay_{1 << 16};
};

TEST_F(RefusalsTest, TheUnspoiledStepRuns) {
  ASSERT_TRUE(Run());
  for (const float value : x_out_) ASSERT_NE(value, -77.0F);
}

TEST_F(RefusalsTest, TensorsOfWrongShape) {
  StepTensors tensors = Tensors();
  tensors.x.shape[0] = 3;
  ExpectNothingRan(RunWith(tensors, world_.pools()), ErrorCode::kShapeMismatch, "tensors.x");
  tensors = Tensors();
  tensors.x.data = nullptr;
  ExpectNothingRan(RunWith(tensors, world_.pools()), ErrorCode::kShapeMismatch, "tensors.x");
  tensors = Tensors();
  tensors.x_out.stride0 = 4 * config_.hidden - 1;
  ExpectNothingRan(RunWith(tensors, world_.pools()), ErrorCode::kShapeMismatch, "tensors.x_out");
  tensors = Tensors();
  tensors.x.stride0 = std::numeric_limits<int64_t>::max() / 4;  // rows beyond what has an address
  ExpectNothingRan(RunWith(tensors, world_.pools()), ErrorCode::kShapeMismatch, "tensors.x");
  tensors = Tensors();
  tensors.rope.sin.shape[1] = 64;
  ExpectNothingRan(RunWith(tensors, world_.pools()), ErrorCode::kShapeMismatch, "rope.sin");
  tensors = Tensors();
  tensors.x.data = reinterpret_cast<const float*>(reinterpret_cast<const char*>(x_.data()) + 2);
  ExpectNothingRan(RunWith(tensors, world_.pools()), ErrorCode::kShapeMismatch, "tensors.x");
}

TEST_F(RefusalsTest, WeightsOfMoreBytesThanThereAre) {
  const Bf16 element{};
  constexpr int64_t kSide = int64_t{1} << 31;
  ExpectRefused(MatrixBf16::Pack({&element, {kSide, kSide}, kSide}), ErrorCode::kShapeMismatch,
                "weights");
}

TEST_F(RefusalsTest, ActivationsOfWrongShape) {
  std::vector<Bf16> q(size_t{4} * 8 * kHeadDim);
  StepActivations activations;
  activations.q = MakeView(q.data(), 4, 4, kHeadDim);
  ExpectNothingRan(RunWith(Tensors(), world_.pools(), 0, activations), ErrorCode::kShapeMismatch,
                   "activations.q");
}

TEST_F(RefusalsTest, BuffersTooSmallOrMisaligned) {
  const auto run = [&](std::span<std::byte> workspace, std::span<std::byte> overlay) {
    return world_.layer().Run(context_, *plan_, 0, world_.pools(), Tensors(), workspace, overlay);
  };
  const auto workspace_bytes = static_cast<size_t>(plan_->workspace_bytes(1));
  const auto overlay_bytes = static_cast<size_t>(plan_->overlay_bytes());
  ExpectNothingRan(run(workspace_.span().first(workspace_bytes - 1), overlay_.span()),
                   ErrorCode::kBufferTooSmall, "workspace");
  ExpectNothingRan(run(workspace_.span().subspan(4), overlay_.span()), ErrorCode::kBufferTooSmall,
                   "workspace");
  ExpectNothingRan(run(workspace_.span(), overlay_.span().first(overlay_bytes - 1)),
                   ErrorCode::kBufferTooSmall, "overlay");
  EXPECT_TRUE(run(workspace_.span().first(workspace_bytes), overlay_.span().first(overlay_bytes)));
}

TEST_F(RefusalsTest, PoolsOfAnotherShape) {
  LayerPools pools = world_.pools();
  pools.raw.num_pages -= 1;
  ExpectNothingRan(RunWith(Tensors(), pools), ErrorCode::kPlanMismatch, "pools.raw.num_pages");
  pools = world_.pools();
  pools.raw.base = nullptr;
  ExpectNothingRan(RunWith(Tensors(), pools), ErrorCode::kPlanMismatch, "pools.raw.base");
  pools = world_.pools();
  pools.raw.page_stride_bytes = 32 * 1024 - 2;
  ExpectNothingRan(RunWith(Tensors(), pools), ErrorCode::kPlanMismatch,
                   "pools.raw.page_stride_bytes");
}

TEST_F(RefusalsTest, PlanOfAnotherModel) {
  ModelConfig other = config_;
  other.q_rank = 96;
  const StepRequest step[] = {
      {.start_pos = 300, .num_tokens = 4, .request = &world_.request(0), .pages = {}}};
  plan_.reset();
  plan_ = std::make_unique<Plan>(Plan::Create(other, kKind, 1, world_.spaces(), step).value());
  ExpectNothingRan(Run(), ErrorCode::kPlanMismatch, "config.q_rank");
}

TEST_F(RefusalsTest, LayersThatDoNotExist) {
  ExpectNothingRan(Run(-1), ErrorCode::kInvalidArgument, "layer_index");
  ExpectNothingRan(Run(2), ErrorCode::kInvalidArgument, "layer_index");
  ExpectRefused(CommitLayer(2, {3, 1}), ErrorCode::kInvalidArgument, "layer_index");
}

TEST_F(RefusalsTest, CallsOutOfOrder) {
  ExpectRefused(CommitLayer(0, {3, 1}), ErrorCode::kCallOrder, "layer_index");
  ASSERT_TRUE(Run(1));
  ExpectRefused(CommitLayer(0, {3, 1}), ErrorCode::kCallOrder, "layer_index");
  const std::vector<float> first = x_out_;
  ASSERT_TRUE(Run(1));  // a rerun gives the same bits
  EXPECT_EQ(std::memcmp(first.data(), x_out_.data(), first.size() * sizeof(float)), 0);

  const auto one = CommitLayer(1, {2, 1});
  ASSERT_TRUE(one);
  EXPECT_TRUE(one->empty());
  EXPECT_EQ(world_.position(0), 300);  // not before the last layer
  before_.assign(world_.raw_bytes().begin(), world_.raw_bytes().end());
  ExpectRefused(Run(1), ErrorCode::kCallOrder, "layer_index");
  ExpectRefused(CommitLayer(1, {2, 1}), ErrorCode::kCallOrder, "layer_index");

  ASSERT_TRUE(Run(0));
  ExpectRefused(CommitLayer(0, {3, 1}), ErrorCode::kInvalidArgument, "accepted");
  const auto last = CommitLayer(0, {2, 1});
  ASSERT_TRUE(last);
  ASSERT_EQ(last->size(), 2U);
  EXPECT_EQ((*last)[0].raw.end, 302);
  EXPECT_EQ((*last)[0].raw.begin, 174);
  EXPECT_EQ((*last)[1].raw.end, 11);
  EXPECT_EQ((*last)[1].raw.begin, 0);
  EXPECT_EQ(world_.position(0), 302);
  EXPECT_EQ(world_.position(1), 11);
}

TEST_F(RefusalsTest, AcceptedCountsOutOfRange) {
  ASSERT_TRUE(Run());
  ExpectRefused(CommitLayer(0, {4, 1}), ErrorCode::kInvalidArgument, "accepted");
  ExpectRefused(CommitLayer(0, {-1, 1}), ErrorCode::kInvalidArgument, "accepted");
  ExpectRefused(CommitLayer(0, {3}), ErrorCode::kInvalidArgument, "accepted");
  ExpectRefused(CommitLayer(0, {}), ErrorCode::kInvalidArgument, "accepted");
}

TEST_F(RefusalsTest, ARequestReleasedSinceThePlanWasMade) {
  world_.Remove(1);
  const Status run = Run();
  ExpectNothingRan(run, ErrorCode::kCallOrder, "request");
  EXPECT_EQ(run.error().request, 1);
}

TEST_F(RefusalsTest, PagesOfOthersMayComeAndGo) {
  world_.Add(2, 40);
  world_.Remove(2);  // raises the generation
  EXPECT_TRUE(Run());
}

TEST_F(RefusalsTest, ASecondLivePlanOfARequest) {
  const StepRequest step[] = {
      {.start_pos = 300, .num_tokens = 4, .request = &world_.request(0), .pages = {}}};
  ExpectRefused(Plan::Create(config_, kKind, 1, world_.spaces(), step), ErrorCode::kCallOrder,
                "request");
  plan_.reset();
  EXPECT_TRUE(Plan::Create(config_, kKind, 1, world_.spaces(), step));
}

TEST_F(RefusalsTest, StagesCheckTheirArguments) {
  const fixtures::LayerFixture& fixture = world_.fixture();
  const LayerWeights weights = fixture.views();
  const MatrixBf16 wkv = MatrixBf16::Pack(weights.wkv).value();
  std::vector<Bf16> xn(size_t{2} * 256);
  std::vector<Bf16> kv(size_t{2} * kHeadDim, Bf16{0x1234});
  const RopeRows rope = {MakeView<const float>(cos_.data(), 2, kRopePairs),
                         MakeView<const float>(sin_.data(), 2, kRopePairs)};
  const auto project = [&](const MatrixBf16& matrix, TensorView<const Bf16, 2> in,
                           TensorView<Bf16, 2> out, Scratch scratch) {
    return ProjectKv(context_, config_, matrix, weights.kv_norm, in, rope, out, scratch);
  };
  const auto in = MakeView<const Bf16>(xn.data(), 2, 256);
  const auto out = MakeView(kv.data(), 2, kHeadDim);
  ExpectRefused(project(MatrixBf16::Pack(weights.wq_a).value(), in, out, workspace_.span()),
                ErrorCode::kShapeMismatch, "wkv");
  ExpectRefused(project(wkv, MakeView<const Bf16>(xn.data(), 4, 128), out, workspace_.span()),
                ErrorCode::kShapeMismatch, "xn");
  ExpectRefused(project(wkv, in, MakeView(kv.data(), 2, 256), workspace_.span()),
                ErrorCode::kShapeMismatch, "kv");
  ExpectRefused(project(wkv, in, out, workspace_.span().first(64)), ErrorCode::kBufferTooSmall,
                "scratch");
  for (const Bf16 value : kv) ASSERT_EQ(value.bits, 0x1234);
  EXPECT_TRUE(project(wkv, in, out, workspace_.span()));
}

TEST_F(RefusalsTest, StagesCheckTheirConfig) {
  const ModelConfig none{};
  const Scratch scratch = workspace_.span();
  constexpr auto kCode = ErrorCode::kInvalidConfig;
  ExpectRefused(HcPre(context_, none, {}, {}, {}, {}, {}, scratch), kCode, "hidden");
  ExpectRefused(AttnNorm(context_, none, {}, {}, {}), kCode, "hidden");
  ExpectRefused(ProjectLatent(context_, none, {}, {}, {}, {}, {}, scratch), kCode, "hidden");
  ExpectRefused(ProjectQuery(context_, none, {}, {}, {}, {}, {}, scratch), kCode, "hidden");
  ExpectRefused(ProjectKv(context_, none, {}, {}, {}, {}, {}, scratch), kCode, "hidden");
  ExpectRefused(ProjectIndexQuery(context_, none, {}, {}, {}, {}, {}, {}, scratch), kCode,
                "hidden");
  ExpectRefused(ProjectOutput(context_, none, {}, {}, {}, scratch), kCode, "hidden");
  ExpectRefused(ProjectOutputGroups(context_, none, {}, {}, {}, scratch), kCode, "hidden");
  ExpectRefused(SumOutputGroups(context_, none, {}, {}, {}), kCode, "hidden");
  ExpectRefused(HcPost(context_, none, {}, {}, {}, {}, {}), kCode, "hidden");
  ExpectRefused(WeightsOfShard(none, {}, {}), kCode, "hidden");
}

TEST_F(RefusalsTest, KindsAndNumbersOfRowsThatDoNotExist) {
  const auto kind = static_cast<AttentionKind>(9);
  ExpectRefused(Layer::Create(config_, kind, {}), ErrorCode::kInvalidArgument, "kind");
  ExpectRefused(ComputeRopeRows(kind, {}, {}, {}), ErrorCode::kInvalidArgument, "kind");
  EXPECT_EQ(world_.request(0).position(kind), 0);
  Bf16 value;
  const TensorView<Bf16, 2> negative = MakeView(&value, -3, config_.hidden);
  const std::vector<float> norm(static_cast<size_t>(config_.hidden));
  ExpectRefused(
      AttnNorm(context_, config_, MakeView(norm.data(), config_.hidden), negative, negative),
      ErrorCode::kShapeMismatch, "x_mixed");
}

TEST_F(RefusalsTest, WeightsOfWrongShape) {
  const fixtures::LayerFixture& fixture = world_.fixture();
  const auto create = [&](const std::function<void(LayerWeights&)>& spoil) {
    LayerWeights weights = fixture.views();
    spoil(weights);
    return Layer::Create(config_, kKind, weights);
  };
  EXPECT_TRUE(create([](LayerWeights&) {}));
  ExpectRefused(create([](LayerWeights& w) { w.hc_fn.shape[1] -= 4; }), ErrorCode::kShapeMismatch,
                "hc_fn");
  ExpectRefused(create([](LayerWeights& w) { w.hc_base.shape[0] = 23; }), ErrorCode::kShapeMismatch,
                "hc_fn");
  ExpectRefused(create([](LayerWeights& w) { w.wq_a.data = nullptr; }), ErrorCode::kShapeMismatch,
                "wq_a");
  ExpectRefused(create([](LayerWeights& w) { w.wkv.shape[0] = 511; }), ErrorCode::kShapeMismatch,
                "wkv");
  ExpectRefused(create([](LayerWeights& w) { w.wq_b_scale.shape[0] = 1; }),
                ErrorCode::kShapeMismatch, "wq_b");
  ExpectRefused(create([](LayerWeights& w) { w.wo_a.stride0 = 1; }), ErrorCode::kShapeMismatch,
                "wo_a");
  ExpectRefused(create([](LayerWeights& w) { w.wo_b.shape[1] -= 1; }), ErrorCode::kShapeMismatch,
                "wo_b");
  ExpectRefused(create([](LayerWeights& w) { w.attn_sink.shape[0] = 9; }),
                ErrorCode::kShapeMismatch, "attn_sink");
  ModelConfig config = config_;
  config.head_dim = 256;
  ExpectRefused(Layer::Create(config, kKind, fixture.views()), ErrorCode::kInvalidConfig,
                "head_dim");
  ExpectRefused(Layer::Create(config_, AttentionKind::kHca, fixture.views()),
                ErrorCode::kShapeMismatch, "cmp_wkv");
}

TEST_F(RefusalsTest, RopeHelper) {
  std::vector<float> cos(kRopePairs);
  std::vector<float> sin(kRopePairs);
  const auto compute = [&](int64_t position, int64_t rows) {
    const int64_t positions[] = {position};
    return ComputeRopeRows(kKind, positions, MakeView(cos.data(), rows, kRopePairs),
                           MakeView(sin.data(), rows, kRopePairs));
  };
  ExpectRefused(compute(-1, 1), ErrorCode::kInvalidArgument, "positions[0]");
  ExpectRefused(compute(kMaxContextTokens, 1), ErrorCode::kInvalidArgument, "positions[0]");
  ExpectRefused(compute(5, 2), ErrorCode::kShapeMismatch, "cos");
  EXPECT_TRUE(compute(kMaxContextTokens - 1, 1));
}

TEST_F(RefusalsTest, AnExecutorWithoutThreadsOrWithTooMany) {
  ASSERT_TRUE(Run());  // so that commit is refused for nothing else
  std::ranges::fill(x_out_, -77.0F);
  const std::vector<int64_t> accepted = {1, 1};
  for (const int threads : {0, -1, 1025, std::numeric_limits<int>::max()}) {
    SCOPED_TRACE(threads);
    CountedExecutor executor(threads);
    Context context(executor);
    const Plan& plan = *plan_;
    const std::vector<Status> calls = {
        world_.layer().Run(context, plan, 0, world_.pools(), Tensors(), workspace_.span(),
                           overlay_.span()),
        HcPre(context, config_, {}, {}, {}, {}, {}, {}),
        AttnNorm(context, config_, {}, {}, {}),
        ProjectLatent(context, config_, {}, {}, {}, {}, {}, {}),
        ProjectQuery(context, config_, {}, {}, {}, {}, {}, {}),
        ProjectKv(context, config_, {}, {}, {}, {}, {}, {}),
        ProjectState(context, config_, plan, {}, {}, {}, {}),
        Compress(context, config_, plan, {}, {}),
        ProjectIndexQuery(context, config_, {}, {}, {}, {}, {}, {}, {}),
        CompressIndex(context, config_, plan, {}, {}, {}),
        Select(context, config_, plan, {}, {}, {}, {}),
        Attend(context, config_, plan, {}, {}, {}),
        ProjectOutput(context, config_, {}, {}, {}, {}),
        ProjectOutputGroups(context, config_, {}, {}, {}, {}),
        SumOutputGroups(context, config_, {}, {}, {}),
        HcPost(context, config_, {}, {}, {}, {}, {})};
    for (const Status& call : calls) {
      ExpectNothingRan(call, ErrorCode::kInvalidArgument, "num_threads");
    }
    ExpectRefused(Commit(context, plan, 0, world_.pools(), overlay_.span(), accepted),
                  ErrorCode::kInvalidArgument, "num_threads");
  }
}

TEST(ScratchBytesTest, OfWhatNoCallTakesNoMemoryHas) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
  const ModelConfig config = ModelConfig::Pro();
  for (const int64_t tokens : {int64_t{-1}, std::numeric_limits<int64_t>::min(), kMostTokens + 1,
                               int64_t{1} << 60, kNone}) {
    EXPECT_EQ(StageScratchBytes(config, tokens, 1), kNone);
  }
  for (const int threads :
       {0, -1, 1025, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    EXPECT_EQ(StageScratchBytes(config, 1, threads), kNone);
    EXPECT_EQ(SelectScratchBytes(config, 512, threads), kNone);
  }
  for (const int64_t k : {int64_t{0}, int64_t{-1}, kMaxTopK + 1, kNone}) {
    EXPECT_EQ(SelectScratchBytes(config, k, 1), kNone);
  }
  EXPECT_EQ(StageScratchBytes(ModelConfig(), 1, 1), kNone);
  EXPECT_EQ(SelectScratchBytes(ModelConfig(), 1, 1), kNone);

  // The largest that a config can ask for, and no wrap on the way there.
  ModelConfig largest = config;
  largest.hidden = 1 << 20;
  largest.num_heads = largest.o_groups = largest.num_index_heads = 4096;
  largest.q_rank = largest.o_rank = 131071;
  largest.index_topk = 2048;
  ASSERT_TRUE(Validate(largest));
  for (const ModelConfig& shape : {config, largest}) {
    int64_t last = 0;
    for (const int64_t tokens : {int64_t{0}, int64_t{1}, int64_t{1} << 20, kMostTokens}) {
      const int64_t bytes = StageScratchBytes(shape, tokens, 1024);
      EXPECT_GT(bytes, last);
      EXPECT_GE(bytes, tokens * shape.o_groups * shape.o_rank * 5);
      EXPECT_LT(bytes, kNone);
      last = bytes;
    }
    EXPECT_GT(SelectScratchBytes(shape, kMaxTopK, 1024), SelectScratchBytes(shape, kMaxTopK, 1));
    EXPECT_LE(SelectScratchBytes(config, kMaxTopK, 1024), int64_t{1024} * (8 << 20));
  }
}

}  // namespace
}  // namespace millipede
