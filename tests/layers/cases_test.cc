// Faults that were reported against other engines, as they concern the sliding window: what a token
// may see, what a step may write, softmax at its edges, and RoPE rows as inputs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "millipede/stages.h"
#include "support/decode_world.h"
#include "support/executors.h"
#include "support/golden_check.h"

namespace millipede {
namespace {

using reference::RuleProfile;
using testing::AlignedBytes;
using testing::AllExecutors;
using testing::DecodeWorld;
using testing::EntryResult;
using testing::ExpectGoldenStages;
using testing::NamedExecutor;
using testing::SameBits;
using testing::StepEntry;

constexpr AttentionKind kKind = AttentionKind::kSwa;
constexpr Bf16 kHuge = {0x7149};  // about 1e30

class CasesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Executor> serial_ = MakeSerialExecutor();
  Context context_{*serial_};
  ModelConfig config_ = ModelConfig::Tiny();
};

// The cases that hold for every kind.
class KindCasesTest : public CasesTest, public ::testing::WithParamInterface<AttentionKind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, KindCasesTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         testing::KindTestName);

// --- Visibility ----------------------------------------------------------------------------------

TEST_P(KindCasesTest, TheRowBehindTheWindowIsNotSeenAndTheOldestInItIs) {
  for (const int64_t p : {127, 128, 129, 255, 256, 300}) {
    SCOPED_TRACE(p);
    DecodeWorld plain(config_, GetParam());
    plain.Add(0, p);
    const EntryResult expected = plain.Step(context_, {{.id = 0}}).at(0);

    DecodeWorld behind(config_, GetParam());
    behind.Add(0, p);
    std::ranges::fill(behind.RawRow(0, p - kWindowRows + kWindowRows * (p < kWindowRows)), kHuge);
    EXPECT_TRUE(SameBits(behind.Step(context_, {{.id = 0}}).at(0), expected));

    DecodeWorld oldest(config_, GetParam());
    oldest.Add(0, p);
    for (Bf16& value : oldest.RawRow(0, p - (kWindowRows - 1))) value.bits ^= 0x8000U;
    const EntryResult changed = oldest.Step(context_, {{.id = 0}}).at(0);
    EXPECT_FALSE(SameBits(changed.heads, expected.heads));
    ExpectGoldenStages(oldest, changed, RuleProfile::kTiny);
  }
}

TEST_P(KindCasesTest, ATokenDoesNotSeeLaterOnesOfItsStep) {
  for (const int64_t start : {2, 126, 300, 2050}) {
    DecodeWorld plain(config_, GetParam());
    plain.Add(0, start);
    const EntryResult expected = plain.Step(context_, {{.id = 0, .num_tokens = 8}}).at(0);
    for (int64_t j = 0; j < 8; ++j) {
      SCOPED_TRACE(std::to_string(start) + " token " + std::to_string(j));
      DecodeWorld edited(config_, GetParam());
      edited.edit_x = [&](int64_t, int64_t position, std::span<float> row) {
        if (position != start + j) return;
        for (size_t i = 0; i < row.size(); ++i) row[i] = i % 3 == 0 ? 1e4F : -row[i];
      };
      edited.Add(0, start);
      const EntryResult result = edited.Step(context_, {{.id = 0, .num_tokens = 8}}).at(0);
      const auto same_until = [](const std::vector<float>& a, const std::vector<float>& b) {
        return std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
      };
      const int64_t width = 4 * config_.hidden;
      EXPECT_GE(same_until(result.x_out, expected.x_out), j * width);
      // From it on every token differs.
      for (int64_t t = j; t < 8; ++t) {
        EXPECT_FALSE(std::equal(
            result.heads.begin() + t * 4096, result.heads.begin() + t * 4096 + 4096,
            expected.heads.begin() + t * 4096, [](Bf16 a, Bf16 b) { return a.bits == b.bits; }))
            << t;
      }
    }
  }
}

// --- Inactive requests, short batches ------------------------------------------------------------

TEST_P(KindCasesTest, InactiveRequestsKeepEveryByteAndOutputRowsPastTheStepKeepTheirs) {
  DecodeWorld world(config_, GetParam(), 64);
  world.Add(0, 300);
  world.Add(1, 77);
  world.Add(2, 130);
  std::vector<std::byte> before(world.raw_bytes().begin(), world.raw_bytes().end());

  std::vector<StepRequest> step(3);
  step[0] = {.start_pos = 300, .num_tokens = 5, .request = &world.request(0), .pages = {}};
  step[1] = {.active = false, .request = &world.request(1), .pages = {}};
  step[2] = {.start_pos = 130, .num_tokens = 1, .request = &world.request(2), .pages = {}};
  const Plan plan = Plan::Create(config_, GetParam(), 1, world.spaces(), step).value();
  ASSERT_EQ(plan.num_tokens(), 6);

  // Buffers are two rows longer than the step; what lies past it is a pattern.
  constexpr int64_t kRows = 8;
  const int64_t width = 4 * config_.hidden;
  std::vector<float> x(static_cast<size_t>(kRows * width), 0.5F);
  std::vector<float> x_out(x.size(), -77.0F);
  std::vector<float> cos(kRows * kRopePairs, 1.0F);
  std::vector<float> sin(kRows * kRopePairs, 0.0F);
  AlignedBytes workspace(plan.workspace_bytes(1));
  AlignedBytes overlay(plan.overlay_bytes());
  StepTensors tensors = {.x = MakeView<const float>(x.data(), 6, kHcStreams, config_.hidden),
                         .rope = {MakeView<const float>(cos.data(), 6, kRopePairs),
                                  MakeView<const float>(sin.data(), 6, kRopePairs)},
                         .x_out = MakeView(x_out.data(), 6, kHcStreams, config_.hidden)};
  const auto num_events = static_cast<int64_t>(plan.work().events.size());
  tensors.event_rope = {MakeView<const float>(cos.data(), num_events, kRopePairs),
                        MakeView<const float>(sin.data(), num_events, kRopePairs)};
  ASSERT_TRUE(world.layer().Run(context_, plan, 0, world.pools(), tensors, workspace.span(),
                                overlay.span()));
  // Run leaves all rings alone, and the rows past the step.
  EXPECT_EQ(std::memcmp(before.data(), world.raw_bytes().data(), before.size()), 0);
  EXPECT_EQ(std::count(x_out.begin() + 6 * width, x_out.end(), -77.0F), 2 * width);
  EXPECT_EQ(std::count(x_out.begin(), x_out.begin() + 6 * width, -77.0F), 0);

  const std::vector<int64_t> accepted = {3, 0, 1};
  ASSERT_TRUE(Commit(context_, plan, 0, world.pools(), overlay.span(), accepted));
  // Commit writes the accepted tokens' rows and nothing else.
  std::vector<std::byte> expected = before;
  const auto set_row = [&](int64_t id, int64_t position, int64_t token) {
    const auto row = world.RawRow(id, position);
    const auto offset = reinterpret_cast<std::byte*>(row.data()) - world.raw_bytes().data();
    std::memcpy(expected.data() + offset, OverlayKv(plan, overlay.span()).row(token),
                row.size_bytes());
  };
  for (int64_t i = 0; i < 3; ++i) set_row(0, 300 + i, i);
  set_row(2, 130, 5);
  EXPECT_EQ(std::memcmp(expected.data(), world.raw_bytes().data(), expected.size()), 0);
  EXPECT_NE(std::memcmp(before.data(), world.raw_bytes().data(), before.size()), 0);
  EXPECT_EQ(world.position(0), 303);
  EXPECT_EQ(world.position(1), 77);
  EXPECT_EQ(world.position(2), 131);
}

TEST_P(KindCasesTest, AStepWithoutTokensDoesNothing) {
  DecodeWorld world(config_, GetParam(), 16);
  world.Add(0, 50);
  const std::vector<std::byte> before(world.raw_bytes().begin(), world.raw_bytes().end());
  EXPECT_TRUE(world.Step(context_, {{.id = 0, .num_tokens = 0, .active = false}}).empty());
  EXPECT_TRUE(world.Step(context_, {}).empty());
  EXPECT_EQ(std::memcmp(before.data(), world.raw_bytes().data(), before.size()), 0);
  EXPECT_EQ(world.position(0), 50);
}

TEST_P(KindCasesTest, TailsOfEveryLength) {
  for (const int64_t length : {1, 31, 32, 33, 63, 64, 65, 257, 300, 513}) {
    SCOPED_TRACE(length);
    DecodeWorld world(config_, GetParam());
    world.Add(0, length - 1);
    ExpectGoldenStages(world, world.Step(context_, {{.id = 0}}).at(0), RuleProfile::kTiny);
  }
}

// --- Softmax -------------------------------------------------------------------------------------

// One token's attention over chosen rows, through the public stage: the rows stand in the ring, the
// last one is the token's own.
class AttendCase {
 public:
  AttendCase(const ModelConfig& config, int64_t num_rows)
      : config_(config),
        space_(PageSpace::Create(4).value()),
        pool_(LayerPool::Create(PoolKind::kRaw, 4).value()) {
    RequestSpaces spaces;
    spaces.raw = &space_;
    request_.emplace(Request::Create(spaces, num_rows - 1).value());
    rows_.assign(static_cast<size_t>(num_rows * kHeadDim), Bf16{});
    q_.assign(static_cast<size_t>(config.num_heads) * kHeadDim, Bf16{});
    sink_.assign(static_cast<size_t>(config.num_heads), -std::numeric_limits<float>::infinity());
  }

  std::vector<Bf16>& rows() { return rows_; }  // [num_rows, 512], oldest first
  std::vector<Bf16>& q() { return q_; }
  std::vector<float>& sink() { return sink_; }
  const std::vector<float>& log_sum_exp() const { return log_sum_exp_; }

  // Heads [H, 512] before inverse RoPE.
  std::vector<Bf16> Run(Context& context) {
    const auto num_rows = static_cast<int64_t>(rows_.size()) / kHeadDim;
    const PoolView pool = pool_.view();
    const auto pages = request_->pages(kKind).raw.pages;
    for (int64_t p = 0; p + 1 < num_rows; ++p) {
      std::byte* page =
          pool.base + pages[static_cast<size_t>(p % 128 / 32)].page * pool.page_stride_bytes;
      std::memcpy(page + p % 32 * 1024, rows_.data() + p * kHeadDim, 1024);
    }
    KindSpaces spaces;
    spaces.raw = space_.view();
    const StepRequest step[] = {
        {.start_pos = num_rows - 1, .num_tokens = 1, .request = &*request_, .pages = {}}};
    const Plan plan = Plan::Create(config_, kKind, 1, spaces, step).value();
    std::vector<Bf16> heads(q_.size(), Bf16{0xFFFF});
    log_sum_exp_.assign(sink_.size(), NAN);
    AlignedBytes scratch(StageScratchBytes(config_, 1, context.num_threads()));
    const AttendInputs inputs = {
        .q = MakeView<const Bf16>(q_.data(), 1, config_.num_heads, kHeadDim),
        .sink = MakeView<const float>(sink_.data(), sink_.size()),
        .rope = {},
        .raw = pool,
        .new_kv = MakeView<const Bf16>(rows_.data() + (num_rows - 1) * kHeadDim, 1, kHeadDim)};
    const AttendOutputs outputs = {
        .heads = MakeView(heads.data(), 1, config_.num_heads, kHeadDim),
        .log_sum_exp = MakeView(log_sum_exp_.data(), 1, log_sum_exp_.size()),
        .inverse_rope = false};
    const Status status = Attend(context, config_, plan, inputs, outputs, scratch.span());
    EXPECT_TRUE(status) << status.error().message;
    return heads;
  }

 private:
  ModelConfig config_;
  PageSpace space_;
  LayerPool pool_;
  std::optional<Request> request_;
  std::vector<Bf16> rows_, q_;
  std::vector<float> sink_, log_sum_exp_;
};

float AsFloat(Bf16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result = 0;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// Random-looking rows, and a first lane that makes every score `score`.
void FillScored(std::vector<Bf16>& rows, std::vector<Bf16>& q, Bf16 first_lane) {
  uint32_t state = 12345;
  for (size_t i = 0; i < rows.size(); ++i) {
    state = state * 1664525U + 1013904223U;
    rows[i] = {static_cast<uint16_t>(0x3E00U + (state >> 24) + ((state >> 8 & 1U) << 15))};
    if (i % kHeadDim == 0) rows[i] = first_lane;
  }
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = i % kHeadDim == 0 ? Bf16{0x4B00} : Bf16{0};  // 2^23 in the first lane alone
  }
}

TEST_F(CasesTest, OneRowOfAVeryLowScoreIsThatRowExactly) {
  AttendCase one(config_, 1);
  FillScored(one.rows(), one.q(), Bf16{0xBFAC});  // -1.34375 * 2^23 / sqrt(512) = -5e5
  const std::vector<Bf16> heads = one.Run(context_);
  for (int32_t h = 0; h < config_.num_heads; ++h) {
    for (int32_t d = 0; d < kHeadDim; ++d) {
      ASSERT_EQ(heads[static_cast<size_t>(h * kHeadDim + d)].bits,
                one.rows()[static_cast<size_t>(d)].bits);
    }
    EXPECT_NEAR(one.log_sum_exp()[static_cast<size_t>(h)], -5e5F, 5e3F);
  }
  std::ranges::fill(one.sink(), 0.0F);
  for (const Bf16 value : one.Run(context_)) ASSERT_EQ(AsFloat(value), 0.0F);
}

TEST_F(CasesTest, RowsOfOneVeryLowScoreGiveTheirMean) {
  AttendCase all(config_, 128);
  FillScored(all.rows(), all.q(), Bf16{0xC02C});  // -2.6875 * 2^23 / sqrt(512) = -1e6
  const std::vector<Bf16> heads = all.Run(context_);
  for (int32_t d = 0; d < kHeadDim; ++d) {
    double mean = 0;
    double scale = 0;
    for (size_t r = 0; r < 128; ++r) {
      const double value = AsFloat(all.rows()[r * kHeadDim + static_cast<size_t>(d)]);
      mean += value / 128;
      scale += std::abs(value) / 128;
    }
    for (int32_t h = 0; h < config_.num_heads; ++h) {
      ASSERT_NEAR(AsFloat(heads[static_cast<size_t>(h * kHeadDim + d)]), mean,
                  std::abs(mean) / 128 + 1e-5 * scale);
    }
  }
}

TEST_F(CasesTest, FewRowsOnManyThreadsEqualOneThread) {
  for (const int64_t num_rows : {1, 3, 31, 127, 128}) {
    std::vector<Bf16> expected;
    for (const NamedExecutor& named : AllExecutors()) {
      SCOPED_TRACE(named.name + " rows " + std::to_string(num_rows));
      Context context(*named.executor);
      AttendCase attend(config_, num_rows);
      FillScored(attend.rows(), attend.q(), Bf16{0x3400});
      std::ranges::fill(attend.sink(), 1.5F);
      const std::vector<Bf16> heads = attend.Run(context);
      for (const Bf16 value : heads) ASSERT_TRUE(std::isfinite(AsFloat(value)));
      if (expected.empty()) expected = heads;
      EXPECT_TRUE(SameBits(heads, expected));
    }
  }
}

TEST_F(CasesTest, SinksOfEitherInfinityOrNone) {
  AttendCase attend(config_, 40);
  FillScored(attend.rows(), attend.q(), Bf16{0x3400});
  const std::vector<Bf16> without = attend.Run(context_);
  std::ranges::fill(attend.sink(), -1e30F);
  EXPECT_TRUE(SameBits(attend.Run(context_), without));
  std::ranges::fill(attend.sink(), std::numeric_limits<float>::infinity());
  for (const Bf16 value : attend.Run(context_)) ASSERT_EQ(AsFloat(value), 0.0F);
}

// --- RoPE ----------------------------------------------------------------------------------------

TEST_P(KindCasesTest, EachTokenTurnsByItsOwnRopeRow) {
  const int64_t start = 300;
  DecodeWorld plain(config_, GetParam());
  plain.Add(0, start);
  const EntryResult expected = plain.Step(context_, {{.id = 0, .num_tokens = 8}}).at(0);
  for (int64_t j = 0; j < 8; ++j) {
    SCOPED_TRACE(j);
    DecodeWorld edited(config_, GetParam());
    edited.edit_rope = [&](int64_t, int64_t position, std::span<float> cos, std::span<float> sin) {
      if (position != start + j) return;
      for (size_t i = 0; i < cos.size(); ++i) {
        cos[i] = std::cos(0.7F * static_cast<float>(i + 1));
        sin[i] = std::sin(0.7F * static_cast<float>(i + 1));
      }
    };
    edited.Add(0, start);
    const EntryResult result = edited.Step(context_, {{.id = 0, .num_tokens = 8}}).at(0);
    for (int64_t t = 0; t < 8; ++t) {
      const auto token_equal = [t](const std::vector<Bf16>& a, const std::vector<Bf16>& b,
                                   int64_t width) {
        return std::memcmp(a.data() + t * width, b.data() + t * width,
                           static_cast<size_t>(width) * sizeof(Bf16)) == 0;
      };
      const int64_t head_width = int64_t{config_.num_heads} * kHeadDim;
      EXPECT_EQ(token_equal(result.q, expected.q, head_width), t != j) << t;
      EXPECT_EQ(token_equal(result.kv, expected.kv, kHeadDim), t != j) << t;
      EXPECT_EQ(token_equal(result.heads, expected.heads, head_width), t < j) << t;
    }
    ExpectGoldenStages(edited, result, RuleProfile::kTiny);
  }
}

TEST_P(KindCasesTest, RopeRowsAreUsedUnrounded) {
  // Both rows round to the same bf16 values.
  const auto run = [&](float cos_value) {
    DecodeWorld world(config_, GetParam());
    world.edit_rope = [&](int64_t, int64_t, std::span<float> cos, std::span<float> sin) {
      std::ranges::fill(cos, cos_value);
      std::ranges::fill(sin, 0.5F);
    };
    world.Add(0, 10);
    EntryResult result = world.Step(context_, {{.id = 0}}).at(0);
    ExpectGoldenStages(world, result, RuleProfile::kTiny);
    return result;
  };
  EXPECT_FALSE(SameBits(run(0.8027F).q, run(0.8043F).q));
}

}  // namespace
}  // namespace millipede
