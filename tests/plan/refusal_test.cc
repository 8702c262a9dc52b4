// Every refusal of Plan::Create: one fault each in a step that is otherwise accepted. No refusal
// writes anything, and every one names the request and the field.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "millipede/plan.h"
#include "support/plan_fixture.h"

namespace millipede {
namespace {

using testing::EngineRing;
using testing::EngineSpace;

constexpr auto kSwa = AttentionKind::kSwa;

class Refusal : public ::testing::Test {
 protected:
  // Three requests, at 0, 40 and 1000; the middle one has a ring that is far from full.
  Refusal()
      : space_(24),
        pool_(std::move(*LayerPool::Create(PoolKind::kRaw, 24))),
        rings_{{space_, {3, 1, 2, 0}}, {space_, {9, 17, 8, 23}}, {space_, {20, 21, 5, 6}}} {
    for (int64_t i = 0; i < 24 * pool_.view().page_stride_bytes; ++i) {
      pool_.view().base[i] = static_cast<std::byte>(i * 37 >> 3);
    }
    Reset();
  }

  void Reset() {
    config_ = ModelConfig::Tiny();
    steps_ = {rings_[0].Step(0, 1), rings_[1].Step(40, 3), rings_[2].Step(1000, 8)};
    spaces_ = space_.spaces();
  }

  Result<Plan> Create() { return Plan::Create(config_, kind_, num_layers_, spaces_, steps_); }

  // `request` is -1 where no request is at fault.
  void ExpectRefused(ErrorCode code, int64_t request, const std::string& field,
                     const std::string& value = "") {
    const EngineSpace space_before = space_;
    const auto pool_bytes = static_cast<size_t>(24 * pool_.view().page_stride_bytes);
    const std::vector<std::byte> pool_before(pool_.view().base, pool_.view().base + pool_bytes);
    const std::vector<EngineRing> rings_before = rings_;

    const auto plan = Create();
    ASSERT_FALSE(plan) << field;
    const Error& error = plan.error();
    EXPECT_EQ(ErrorCodeName(error.code), ErrorCodeName(code)) << error.message;
    EXPECT_EQ(error.request, request) << error.message;
    EXPECT_EQ(error.field, field) << error.message;
    EXPECT_NE(error.message.find(field + ": "), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("allowed: "), std::string::npos) << error.message;
    EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
    if (request >= 0) {
      const std::string prefix = "request " + std::to_string(request) + ": ";
      EXPECT_EQ(error.message.rfind(prefix, 0), 0U) << error.message;
    }
    EXPECT_NE(error.message.find(value), std::string::npos) << error.message;

    EXPECT_EQ(space_, space_before);
    EXPECT_EQ(std::memcmp(pool_.view().base, pool_before.data(), pool_bytes), 0);
    for (size_t r = 0; r < rings_.size(); ++r) {
      for (size_t i = 0; i < rings_[r].entries.size(); ++i) {
        EXPECT_EQ(rings_[r].entries[i].page, rings_before[r].entries[i].page);
        EXPECT_EQ(rings_[r].entries[i].epoch, rings_before[r].entries[i].epoch);
      }
    }
  }

  EngineSpace space_;
  LayerPool pool_;
  std::vector<EngineRing> rings_;
  ModelConfig config_;
  AttentionKind kind_ = kSwa;
  int32_t num_layers_ = 2;
  KindSpaces spaces_;
  std::vector<StepRequest> steps_;
};

TEST_F(Refusal, TheUnchangedStepIsAccepted) {
  const auto plan = Create();
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->num_tokens(), 12);
}

TEST_F(Refusal, InvalidConfig) {
  config_.head_dim = 256;
  ExpectRefused(ErrorCode::kInvalidConfig, -1, "head_dim", "256");
}

TEST_F(Refusal, UnknownKind) {
  kind_ = static_cast<AttentionKind>(9);
  ExpectRefused(ErrorCode::kInvalidArgument, -1, "kind", "unknown");
}

TEST_F(Refusal, NumLayers) {
  for (const int32_t num_layers : {0, -1, std::numeric_limits<int32_t>::max()}) {
    num_layers_ = num_layers;
    ExpectRefused(ErrorCode::kInvalidArgument, -1, "num_layers", std::to_string(num_layers));
  }
}

TEST_F(Refusal, NullAndMalformedSpaces) {
  spaces_.raw.epochs = nullptr;
  ExpectRefused(ErrorCode::kInvalidArgument, -1, "spaces.raw.epochs");
  Reset();
  spaces_.raw.ref_counts = nullptr;
  ExpectRefused(ErrorCode::kInvalidArgument, -1, "spaces.raw.ref_counts");
  Reset();
  spaces_.raw.generation = nullptr;
  ExpectRefused(ErrorCode::kInvalidArgument, -1, "spaces.raw.generation");
  for (const int32_t num_pages : {0, -5, kMaxPagesPerSpace + 1}) {
    Reset();
    spaces_.raw.num_pages = num_pages;
    ExpectRefused(ErrorCode::kInvalidArgument, -1, "spaces.raw.num_pages",
                  std::to_string(num_pages));
  }
}

TEST_F(Refusal, InactiveRequestWithTokens) {
  steps_[1].active = false;
  ExpectRefused(ErrorCode::kInactiveTokens, 1, "num_tokens", "3");
  steps_[1].num_tokens = -1;
  ExpectRefused(ErrorCode::kInactiveTokens, 1, "num_tokens", "-1");
}

TEST_F(Refusal, NegativeNumbers) {
  steps_[2].num_tokens = -4;
  ExpectRefused(ErrorCode::kInvalidArgument, 2, "num_tokens", "-4");
  Reset();
  steps_[2].start_pos = -1;
  ExpectRefused(ErrorCode::kInvalidArgument, 2, "start_pos", "-1");
  steps_[2].start_pos = std::numeric_limits<int64_t>::min();
  ExpectRefused(ErrorCode::kInvalidArgument, 2, "start_pos");
}

TEST_F(Refusal, StartPastTheCeiling) {
  steps_[2].start_pos = kMaxContextTokens;
  ExpectRefused(ErrorCode::kContextCeiling, 2, "start_pos", "1048576");
  Reset();
  config_.max_context_tokens = 1000;
  ExpectRefused(ErrorCode::kContextCeiling, 2, "start_pos", "1000");
}

TEST_F(Refusal, StepCrossingTheCeiling) {
  steps_[1] = rings_[1].Step(kMaxContextTokens - 3, 4);
  ExpectRefused(ErrorCode::kContextCeiling, 1, "num_tokens", "4");
  steps_[1].num_tokens = std::numeric_limits<int64_t>::max();
  ExpectRefused(ErrorCode::kContextCeiling, 1, "num_tokens");
  steps_[1].num_tokens = 3;
  EXPECT_TRUE(Create());
  Reset();
  config_.max_context_tokens = 1007;
  ExpectRefused(ErrorCode::kContextCeiling, 2, "num_tokens", "8");
  config_.max_context_tokens = 1008;
  EXPECT_TRUE(Create());
}

TEST_F(Refusal, RangePastTheCeiling) {
  config_.max_context_tokens = 1008;
  steps_[2].pages.raw.valid = {900, 1009};
  ExpectRefused(ErrorCode::kContextCeiling, 2, "raw.valid.end", "1009");
}

TEST_F(Refusal, RingOfTheWrongPageCount) {
  steps_[1].pages.raw.pages = std::span(rings_[1].entries).first(3);
  ExpectRefused(ErrorCode::kRingPages, 1, "raw.pages", "3");
  steps_[1].pages.raw.pages = {};
  ExpectRefused(ErrorCode::kRingPages, 1, "raw.pages", "0");
  rings_[1].entries.push_back(space_.Own(4));
  steps_[1].pages.raw.pages = rings_[1].entries;
  ExpectRefused(ErrorCode::kRingPages, 1, "raw.pages", "5");
}

TEST_F(Refusal, PageIdOutOfRange) {
  for (const int32_t page : {-1, -7, 24, std::numeric_limits<int32_t>::max()}) {
    rings_[2].entries[3].page = page;
    ExpectRefused(ErrorCode::kPageOutOfRange, 2, "raw.pages[3].page", std::to_string(page));
  }
}

TEST_F(Refusal, PageNotAcquired) {
  space_.Free(8);
  ExpectRefused(ErrorCode::kPageNotAcquired, 1, "raw.pages[2].page", "page 8");
  space_.ref_counts[8] = -1;  // an engine's broken count is no owner either
  ExpectRefused(ErrorCode::kPageNotAcquired, 1, "raw.pages[2].page", "page 8");
}

TEST_F(Refusal, StaleEpoch) {
  space_.Free(8);
  space_.Own(8);
  ExpectRefused(ErrorCode::kStaleEpoch, 1, "raw.pages[2].epoch", "page 8");
}

TEST_F(Refusal, OnePageTwiceInAList) {
  rings_[2].entries[2] = rings_[2].entries[0];
  ExpectRefused(ErrorCode::kDuplicatePage, 2, "raw.pages[2].page", "page 20");
}

TEST_F(Refusal, MalformedRange) {
  steps_[1].pages.raw.valid = {-1, 40};
  ExpectRefused(ErrorCode::kRangeMismatch, 1, "raw.valid", "-1");
  steps_[1].pages.raw.valid = {41, 40};
  ExpectRefused(ErrorCode::kRangeMismatch, 1, "raw.valid", "41");
  steps_[1].pages.raw.valid = {0, -40};
  ExpectRefused(ErrorCode::kRangeMismatch, 1, "raw.valid", "-40");
}

TEST_F(Refusal, RangeThatDoesNotEndAtTheStart) {
  for (const int64_t end : {39, 41}) {
    steps_[1].pages.raw.valid = {0, end};
    ExpectRefused(ErrorCode::kRangeMismatch, 1, "raw.valid.end", std::to_string(end));
  }
  Reset();
  steps_[0].pages.raw.valid = {0, 1};
  ExpectRefused(ErrorCode::kRangeMismatch, 0, "raw.valid.end", "1");
}

TEST_F(Refusal, RangeLongerThanTheRing) {
  steps_[2].pages.raw.valid = {871, 1000};
  ExpectRefused(ErrorCode::kRangeMismatch, 2, "raw.valid.begin", "871");
  steps_[2].pages.raw.valid = {std::numeric_limits<int64_t>::min(), 1000};
  ExpectRefused(ErrorCode::kRangeMismatch, 2, "raw.valid");
}

TEST_F(Refusal, RingThatLacksARowTheStepReads) {
  steps_[2].pages.raw.valid = {874, 1000};  // the first token's window starts at 873
  ExpectRefused(ErrorCode::kRangeMissingRows, 2, "raw.valid.begin", "874");
  steps_[2].pages.raw.valid = {1000, 1000};
  ExpectRefused(ErrorCode::kRangeMissingRows, 2, "raw.valid.begin", "1000");
  steps_[2].pages.raw.valid = {873, 1000};  // 127 rows of 128 are enough
  EXPECT_TRUE(Create());
  Reset();
  steps_[1].pages.raw.valid = {1, 40};
  ExpectRefused(ErrorCode::kRangeMissingRows, 1, "raw.valid.begin", "1");
}

TEST_F(Refusal, SharedWritePage) {
  // Tokens 1000 to 1007 are written at ring rows 104 to 111, in the last page.
  space_.ref_counts[6] = 2;
  ExpectRefused(ErrorCode::kSharedWritePage, 2, "raw.pages[3].page", "page 6 has 2 references");
}

TEST_F(Refusal, SharedPagesThatAreOnlyReadAreAccepted) {
  for (const int32_t page : {20, 21, 5}) space_.ref_counts[static_cast<size_t>(page)] = 3;
  EXPECT_TRUE(Create());
  steps_[2].num_tokens = 25;  // now rows 104 to 127 and 0: page 20 is written too
  ExpectRefused(ErrorCode::kSharedWritePage, 2, "raw.pages[0].page", "page 20");
}

TEST_F(Refusal, WritePageNamedByTwoRequests) {
  // Request 1 writes rows 40 to 42, its ring page 1, which is page 17. Request 2 reads it.
  rings_[2].entries[0] = rings_[1].entries[1];
  ExpectRefused(ErrorCode::kWriteConflict, 2, "raw.pages[0].page", "request 1");
  // Both write it.
  Reset();
  rings_[2].entries[0] = {20, space_.epochs[20]};
  rings_[2].entries[3] = rings_[1].entries[1];
  ExpectRefused(ErrorCode::kWriteConflict, 2, "raw.pages[3].page", "page 17");
  // The earlier request reads what the later one writes.
  Reset();
  rings_[2].entries[3] = {6, space_.epochs[6]};
  rings_[1].entries[3] = rings_[2].entries[3];
  ExpectRefused(ErrorCode::kWriteConflict, 1, "raw.pages[3].page", "request 2");
}

TEST_F(Refusal, PagesThatTwoRequestsOnlyReadAreAccepted) {
  rings_[2].entries[0] = rings_[1].entries[3];
  space_.ref_counts[23] = 2;
  EXPECT_TRUE(Create());
}

TEST_F(Refusal, OneRequestTwiceInAStep) {
  steps_[0] = steps_[2];
  ExpectRefused(ErrorCode::kWriteConflict, 2, "raw.pages[3].page", "request 0");
}

TEST_F(Refusal, MoreThan2To31WorkItems) {
  // 2048 times a million tokens is one too many. Lists are not reached, so one serves all.
  steps_.assign(2048, rings_[0].Step(0, kMaxContextTokens));
  ExpectRefused(ErrorCode::kTooMuchWork, 2047, "num_tokens", "2147483648");
  // One token fewer passes this check and is refused for its lists alone.
  steps_.back().num_tokens -= 1;
  ExpectRefused(ErrorCode::kWriteConflict, 1, "raw.pages[0].page");
  // More requests than an index can name: the span is not read.
  const auto plan = Plan::Create(config_, kSwa, 1, spaces_,
                                 std::span<const StepRequest>(steps_.data(), size_t{1} << 31));
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kTooMuchWork);
  EXPECT_EQ(plan.error().field, "requests");
}

TEST_F(Refusal, TheFirstRequestAtFaultIsNamed) {
  space_.Free(1);
  space_.Free(8);
  ExpectRefused(ErrorCode::kPageNotAcquired, 0, "raw.pages[1].page", "page 1");
}

// --- Request objects -----------------------------------------------------------------------------

class RequestRefusal : public ::testing::Test {
 protected:
  void ExpectRefused(const StepRequest& step, const KindSpaces& spaces, ErrorCode code,
                     const std::string& field) {
    const auto plan = Plan::Create(ModelConfig::Tiny(), kSwa, 1, spaces, {&step, 1});
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code, code) << plan.error().message;
    EXPECT_EQ(plan.error().request, 0);
    EXPECT_EQ(plan.error().field, field) << plan.error().message;
  }

  PageSpace raw_ = std::move(*PageSpace::Create(16));
  PageSpace other_ = std::move(*PageSpace::Create(16));
};

TEST_F(RequestRefusal, ReleasedOrMovedFrom) {
  RequestSpaces spaces;
  spaces.raw = &raw_;
  auto request = Request::Create(spaces, 10);
  ASSERT_TRUE(request);
  StepRequest step;
  step.start_pos = 10;
  step.num_tokens = 1;
  step.request = &*request;
  EXPECT_TRUE(Plan::Create(ModelConfig::Tiny(), kSwa, 1, spaces.views(kSwa), {&step, 1}));
  Request moved = std::move(*request);
  ExpectRefused(step, spaces.views(kSwa), ErrorCode::kInvalidArgument, "request");
  step.request = &moved;
  EXPECT_TRUE(Plan::Create(ModelConfig::Tiny(), kSwa, 1, spaces.views(kSwa), {&step, 1}));
  ASSERT_TRUE(moved.Release());
  ExpectRefused(step, spaces.views(kSwa), ErrorCode::kInvalidArgument, "request");
}

TEST_F(RequestRefusal, OfAnotherSpace) {
  // Page ids and epochs happen to be the same in both spaces.
  RequestSpaces spaces;
  spaces.raw = &raw_;
  RequestSpaces other_spaces;
  other_spaces.raw = &other_;
  const auto request = Request::Create(spaces, 10);
  const auto twin = Request::Create(other_spaces, 10);
  ASSERT_TRUE(request && twin);
  StepRequest step;
  step.start_pos = 10;
  step.num_tokens = 1;
  step.request = &*request;
  ExpectRefused(step, other_spaces.views(kSwa), ErrorCode::kInvalidArgument, "request");
}

TEST_F(RequestRefusal, NotWhereTheStepStarts) {
  RequestSpaces spaces;
  spaces.raw = &raw_;
  const auto request = Request::Create(spaces, 10);
  ASSERT_TRUE(request);
  StepRequest step;
  step.start_pos = 11;
  step.num_tokens = 1;
  step.request = &*request;
  ExpectRefused(step, spaces.views(kSwa), ErrorCode::kRangeMismatch, "raw.valid.end");
}

}  // namespace
}  // namespace millipede
