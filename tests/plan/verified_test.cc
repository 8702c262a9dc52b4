// What a plan remembers of a Request's lists is about one space: it is not taken for another's.
#include <gtest/gtest.h>

#include <utility>

#include "millipede/plan.h"
#include "millipede/request.h"

namespace millipede {
namespace {

class VerifiedTest : public ::testing::Test {
 protected:
  Result<Plan> MakePlan(const KindSpaces& spaces) {
    StepRequest step;
    step.start_pos = kStart;
    step.num_tokens = 1;
    step.request = &request_;
    return Plan::Create(ModelConfig::Tiny(), AttentionKind::kCsa, 1, spaces, {&step, 1});
  }

  static constexpr int64_t kStart = 8000;  // 2000 rows, 63 pages
  PageSpace raw_ = PageSpace::Create(4).value();
  PageSpace main_ = PageSpace::Create(300).value();
  PageSpace index_ = PageSpace::Create(300).value();
  PageSpace state_ = PageSpace::Create(4).value();
  PageSpace inner_state_ = PageSpace::Create(4).value();
  RequestSpaces spaces_ = {.raw = &raw_,
                           .csa_main = &main_,
                           .csa_index = &index_,
                           .csa_state = &state_,
                           .csa_inner_state = &inner_state_};
  Request request_ = Request::Create(spaces_, kStart).value();
};

TEST_F(VerifiedTest, ASpaceOfFewerPagesIsAnother) {
  const KindSpaces whole = spaces_.views(AttentionKind::kCsa);
  KindSpaces small = whole;
  small.main.num_pages = 10;
  for (int turn = 0; turn < 2; ++turn) {
    const auto refused = MakePlan(small);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().field, "request");
    ASSERT_TRUE(MakePlan(whole));  // remembers the lists
  }
}

TEST_F(VerifiedTest, ANewSpaceInThePlaceOfTheOldIsAnother) {
  ASSERT_TRUE(MakePlan(spaces_.views(AttentionKind::kCsa)));
  main_ = PageSpace::Create(300).value();
  const auto refused = MakePlan(spaces_.views(AttentionKind::kCsa));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kPageNotAcquired);
  EXPECT_EQ(refused.error().field, "main.pages[0].page");
}

TEST_F(VerifiedTest, APageGivenBackBehindTheRequestIsSeen) {
  ASSERT_TRUE(MakePlan(spaces_.views(AttentionKind::kCsa)));
  const PageEntry entry = request_.pages(AttentionKind::kCsa).main.pages[7];
  ASSERT_TRUE(main_.Release({&entry, 1}));
  const auto refused = MakePlan(spaces_.views(AttentionKind::kCsa));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kPageNotAcquired);
  EXPECT_EQ(refused.error().field, "main.pages[7].page");
}

}  // namespace
}  // namespace millipede
