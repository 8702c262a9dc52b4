#include "millipede/request.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pages/request_state.h"
#include "support/decoded_request.h"

namespace millipede {
namespace {

using testing::SetDecoded;

constexpr auto kSwa = AttentionKind::kSwa;
constexpr auto kHca = AttentionKind::kHca;
constexpr auto kCsa = AttentionKind::kCsa;

// One space per list, of given sizes.
struct Spaces {
  std::vector<PageSpace> owned;
  RequestSpaces spaces;

  explicit Spaces(const std::vector<int32_t>& sizes) {
    for (const int32_t size : sizes) owned.push_back(std::move(*PageSpace::Create(size)));
    spaces = {&owned[0], &owned[1], &owned[2], &owned[3], &owned[4], &owned[5], &owned[6]};
  }
  std::vector<int32_t> Free() const {
    std::vector<int32_t> free;
    for (const PageSpace& space : owned) free.push_back(space.num_free());
    return free;
  }
  std::vector<uint64_t> Generations() const {
    std::vector<uint64_t> generations;
    for (const PageSpace& space : owned) generations.push_back(space.generation());
    return generations;
  }
};

const std::vector<int32_t> kAmple = {16, 1000, 64, 20'000, 20'000, 16, 16};

void ExpectRange(const RowRange& range, int64_t begin, int64_t end) {
  EXPECT_EQ(range.begin, begin);
  EXPECT_EQ(range.end, end);
}

TEST(Request, FreshRequestHoldsRingsOnly) {
  Spaces s(kAmple);
  auto request = Request::Create(s.spaces);
  ASSERT_TRUE(request);
  for (const auto kind : {kSwa, kHca, kCsa}) {
    EXPECT_EQ(request->position(kind), 0);
    EXPECT_EQ(request->pages(kind).raw.pages.size(), 4U);
    ExpectRange(request->pages(kind).raw.valid, 0, 0);
  }
  EXPECT_EQ(request->pages(kHca).main.pages.size(), 0U);
  EXPECT_EQ(request->pages(kHca).state.pages.size(), 16U);
  EXPECT_EQ(request->pages(kCsa).state.pages.size(), 4U);
  EXPECT_EQ(request->pages(kCsa).inner_state.pages.size(), 4U);
  EXPECT_EQ(s.Free(), (std::vector<int32_t>{12, 1000, 48, 20'000, 20'000, 12, 12}));
}

TEST(Request, RangesAfterAHistory) {
  struct Line {
    int64_t start, raw_begin, hca_rows, hca_state_begin, csa_rows, csa_state_begin;
  };
  for (const Line& line : std::vector<Line>{{1, 0, 0, 0, 0, 0},
                                            {3, 0, 0, 0, 0, 0},
                                            {4, 0, 0, 0, 1, 0},
                                            {7, 0, 0, 0, 1, 0},
                                            {8, 0, 0, 0, 2, 4},
                                            {127, 0, 0, 0, 31, 120},
                                            {128, 0, 1, 128, 32, 124},
                                            {129, 1, 1, 128, 32, 124},
                                            {300, 172, 2, 256, 75, 296},
                                            {32'769, 32'641, 256, 32'768, 8192, 32'764}}) {
    SCOPED_TRACE(line.start);
    Spaces s(kAmple);
    auto request = Request::Create(s.spaces, line.start);
    ASSERT_TRUE(request);
    for (const auto kind : {kSwa, kHca, kCsa}) {
      EXPECT_EQ(request->position(kind), line.start);
      ExpectRange(request->pages(kind).raw.valid, line.raw_begin, line.start);
    }
    const RequestPages hca = request->pages(kHca);
    ExpectRange(hca.main.valid, 0, line.hca_rows);
    ExpectRange(hca.state.valid, line.hca_state_begin, line.start);
    EXPECT_EQ(static_cast<int64_t>(hca.main.pages.size()), (line.hca_rows + 31) / 32);
    const RequestPages csa = request->pages(kCsa);
    ExpectRange(csa.main.valid, 0, line.csa_rows);
    ExpectRange(csa.index.valid, 0, line.csa_rows);
    ExpectRange(csa.state.valid, line.csa_state_begin, line.start);
    ExpectRange(csa.inner_state.valid, line.csa_state_begin, line.start);
    EXPECT_EQ(static_cast<int64_t>(csa.main.pages.size()), (line.csa_rows + 31) / 32);
    EXPECT_EQ(csa.index.pages.size(), csa.main.pages.size());
  }
}

TEST(Request, AllKindsShareTheRawEntries) {
  Spaces s(kAmple);
  auto request = Request::Create(s.spaces, 100);
  ASSERT_TRUE(request);
  const auto raw = request->pages(kSwa).raw.pages;
  EXPECT_EQ(request->pages(kHca).raw.pages.data(), raw.data());
  EXPECT_EQ(request->pages(kCsa).raw.pages.data(), raw.data());
  std::set<int32_t> distinct;
  for (const PageEntry& entry : raw) {
    distinct.insert(entry.page);
    EXPECT_EQ(s.owned[0].ref_count(entry.page), 1);
    EXPECT_EQ(s.owned[0].view().epochs[entry.page], entry.epoch);
  }
  EXPECT_EQ(distinct.size(), 4U);
  // A range each.
  SetRanges(*request->state(), kHca, {{5, 108}, {}, {}, {}, {}});
  EXPECT_EQ(request->position(kHca), 108);
  EXPECT_EQ(request->position(kSwa), 100);
  EXPECT_EQ(request->position(kCsa), 100);
}

TEST(Request, CreateIsAllOrNothing) {
  for (size_t scarce = 0; scarce < kAmple.size(); ++scarce) {
    std::vector<int32_t> sizes = kAmple;
    sizes[scarce] = 1;  // 10,000 tokens need more than one page of every list
    Spaces s(sizes);
    const auto free = s.Free();
    const auto generations = s.Generations();
    const auto request = Request::Create(s.spaces, 10'000);
    ASSERT_FALSE(request) << scarce;
    EXPECT_EQ(request.error().code, ErrorCode::kOutOfPages);
    EXPECT_EQ(s.Free(), free);
    EXPECT_EQ(s.Generations(), generations);
  }
}

TEST(Request, CreateChecksItsArguments) {
  Spaces s(kAmple);
  for (const int64_t start : {int64_t{-1}, kMaxContextTokens + 1}) {
    const auto request = Request::Create(s.spaces, start);
    ASSERT_FALSE(request);
    EXPECT_EQ(request.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(request.error().field, "start_pos");
  }
  const auto request = Request::Create({});
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().field, "spaces.raw");

  // The raw space alone is of no kind, nor is a part of what a kind needs.
  RequestSpaces none;
  none.raw = s.spaces.raw;
  none.swa = false;
  none.hca_main = s.spaces.hca_main;
  none.csa_main = s.spaces.csa_main;
  none.csa_index = s.spaces.csa_index;
  none.csa_state = s.spaces.csa_state;
  const auto of_none = Request::Create(none);
  ASSERT_FALSE(of_none);
  EXPECT_EQ(of_none.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(of_none.error().field, "spaces");
  EXPECT_EQ(s.Free(), kAmple);
  none.hca_state = s.spaces.hca_state;
  EXPECT_TRUE(Request::Create(none));
  EXPECT_EQ(s.Free(), kAmple);
}

TEST(Request, UnusedKindsTakeNoPages) {
  Spaces s(kAmple);
  RequestSpaces spaces;
  spaces.raw = s.spaces.raw;
  spaces.csa_main = s.spaces.csa_main;  // without the rest of CSA
  auto request = Request::Create(spaces, 5000);
  ASSERT_TRUE(request);
  EXPECT_TRUE(spaces.Has(kSwa));
  EXPECT_FALSE(spaces.Has(kHca));
  EXPECT_FALSE(spaces.Has(kCsa));
  EXPECT_EQ(request->position(kSwa), 5000);
  EXPECT_EQ(request->position(kCsa), 0);
  EXPECT_TRUE(request->pages(kCsa).raw.pages.empty());
  EXPECT_TRUE(request->Prepare(1000));
  EXPECT_EQ(s.Free(), (std::vector<int32_t>{12, 1000, 64, 20'000, 20'000, 16, 16}));
}

TEST(Request, PrepareAcquiresWhatTheStepMayWrite) {
  Spaces s(kAmple);
  auto request = Request::Create(s.spaces, 126);  // 31 CSA rows, no HCA row
  ASSERT_TRUE(request);
  EXPECT_EQ(request->pages(kCsa).main.pages.size(), 1U);
  ASSERT_TRUE(request->Prepare(1));  // no row of either kind
  EXPECT_EQ(request->pages(kHca).main.pages.size(), 0U);
  EXPECT_EQ(request->pages(kCsa).main.pages.size(), 1U);
  ASSERT_TRUE(request->Prepare(2));  // the first HCA row and CSA row 31
  EXPECT_EQ(request->pages(kHca).main.pages.size(), 1U);
  EXPECT_EQ(request->pages(kCsa).main.pages.size(), 1U);
  ASSERT_TRUE(request->Prepare(6));  // CSA row 32 needs a second page
  EXPECT_EQ(request->pages(kCsa).main.pages.size(), 2U);
  EXPECT_EQ(request->pages(kCsa).index.pages.size(), 2U);
  const auto free = s.Free();
  ASSERT_TRUE(request->Prepare(6));  // again: nothing is missing
  EXPECT_EQ(s.Free(), free);
  EXPECT_EQ(request->position(kCsa), 126);
}

TEST(Request, PrepareIsAllOrNothing) {
  for (const size_t scarce : {1, 3, 4}) {
    std::vector<int32_t> sizes = kAmple;
    sizes[scarce] = 2;
    Spaces s(sizes);
    auto request = Request::Create(s.spaces, 100);
    ASSERT_TRUE(request);
    const auto free = s.Free();
    const auto generations = s.Generations();
    const Status status = request->Prepare(20'000);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kOutOfPages);
    EXPECT_EQ(s.Free(), free);
    EXPECT_EQ(s.Generations(), generations);
    EXPECT_EQ(request->pages(kHca).main.pages.size(), 0U);
    EXPECT_EQ(request->pages(kCsa).main.pages.size(), 1U);
  }
}

TEST(Request, ListsMayDrawFromOneSpace) {
  auto shared = std::move(*PageSpace::Create(10));
  Spaces s(kAmple);
  RequestSpaces spaces = s.spaces;
  spaces.csa_main = &shared;
  spaces.csa_index = &shared;
  EXPECT_FALSE(Request::Create(spaces, 6 * 128));  // 6 pages each of 10 together
  EXPECT_EQ(shared.num_free(), 10);
  auto request = Request::Create(spaces, 5 * 128);
  ASSERT_TRUE(request);
  EXPECT_EQ(shared.num_free(), 0);
  ASSERT_TRUE(request->Release());
  EXPECT_EQ(shared.num_free(), 10);
}

TEST(Request, PrepareStopsAtTheCeiling) {
  auto raw = std::move(*PageSpace::Create(4));
  RequestSpaces spaces;
  spaces.raw = &raw;
  auto request = Request::Create(spaces, kMaxContextTokens - 3);
  ASSERT_TRUE(request);
  EXPECT_TRUE(request->Prepare(3));
  for (const int64_t num_tokens : {int64_t{4}, INT64_MAX}) {
    const Status status = request->Prepare(num_tokens);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kContextCeiling);
    EXPECT_EQ(status.error().field, "num_tokens");
  }
  const Status negative = request->Prepare(-1);
  ASSERT_FALSE(negative);
  EXPECT_EQ(negative.error().code, ErrorCode::kInvalidArgument);
}

TEST(Request, PagesGoBackOnReleaseDestructionAndAssignment) {
  Spaces s(kAmple);
  {
    auto request = Request::Create(s.spaces, 9000);
    ASSERT_TRUE(request);
    EXPECT_NE(s.Free(), kAmple);
  }
  EXPECT_EQ(s.Free(), kAmple);

  auto request = Request::Create(s.spaces, 9000);
  ASSERT_TRUE(request);
  const auto generations = s.Generations();
  EXPECT_TRUE(request->Release());
  EXPECT_EQ(s.Free(), kAmple);
  for (size_t i = 0; i < generations.size(); ++i) {
    EXPECT_GT(s.Generations()[i], generations[i]);
  }
  EXPECT_TRUE(request->Release());
  EXPECT_EQ(request->position(kSwa), 0);
  EXPECT_TRUE(request->pages(kSwa).raw.pages.empty());
  const Status status = request->Prepare(1);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kCallOrder);

  auto first = Request::Create(s.spaces, 10);
  auto second = Request::Create(s.spaces, 20);
  ASSERT_TRUE(first && second);
  *first = std::move(*second);
  EXPECT_EQ(first->position(kSwa), 20);
  EXPECT_EQ(s.Free()[0], 12);
  EXPECT_EQ(second->position(kSwa), 0);
  EXPECT_TRUE(second->Release());
  EXPECT_EQ(s.Free()[0], 12);
}

TEST(Request, AHolderOfTheStateSeesTheRelease) {
  Spaces s(kAmple);
  std::shared_ptr<Request::State> state;
  {
    auto request = Request::Create(s.spaces, 50);
    ASSERT_TRUE(request);
    state = request->state();
    EXPECT_FALSE(state->released);
  }
  EXPECT_TRUE(state->released);
  EXPECT_EQ(s.Free(), kAmple);
}

// --- Rewind --------------------------------------------------------------------------------------

void ExpectRefused(const Status& status, ErrorCode code, const std::string& field,
                   const std::string& text) {
  ASSERT_FALSE(status) << text;
  EXPECT_EQ(ErrorCodeName(status.error().code), ErrorCodeName(code)) << status.error().message;
  EXPECT_EQ(status.error().field, field) << status.error().message;
  EXPECT_NE(status.error().message.find(text), std::string::npos) << status.error().message;
}

// The rows that a step at `start` reads, by the rules of attention and pooling.
bool Holds(const Request& request, int64_t start) {
  const int64_t window = std::max<int64_t>(0, start - 127);
  const int64_t hca_block = start / 128 * 128;
  const int64_t csa_block = std::max<int64_t>(0, start / 4 * 4 - 4);
  return request.pages(kSwa).raw.valid.begin <= window &&
         request.pages(kHca).raw.valid.begin <= window &&
         request.pages(kCsa).raw.valid.begin <= window &&
         request.pages(kHca).state.valid.begin <= hca_block &&
         request.pages(kCsa).state.valid.begin <= csa_block &&
         request.pages(kCsa).inner_state.valid.begin <= csa_block;
}

TEST(RequestRewind, GoesAsFarAsEveryRingHoldsTheRows) {
  Spaces s(kAmple);
  for (const int64_t position :
       {0, 1, 3, 4, 5, 7, 8, 9, 12, 100, 127, 128, 129, 255, 256, 257, 300, 384, 511, 1000}) {
    for (const bool decoded : {true, false}) {  // or imported
      SCOPED_TRACE(::testing::Message() << position << ' ' << decoded);
      auto request = Request::Create(s.spaces, position);
      ASSERT_TRUE(request);
      if (decoded) SetDecoded(*request, position);
      int64_t earliest = position;
      while (earliest > 0 && Holds(*request, earliest - 1)) --earliest;
      EXPECT_EQ(request->EarliestRewind(), earliest);
      if (decoded) {
        EXPECT_LE(earliest, std::max<int64_t>(0, position - 1));
      }
      if (decoded && position > 128) {
        EXPECT_EQ(earliest, position - 1);
      }
      for (int64_t to = std::max<int64_t>(0, earliest - 3); to < earliest; ++to) {
        ExpectRefused(request->Rewind(to), ErrorCode::kRangeMissingRows, "position",
                      "allowed: at least " + std::to_string(earliest));
        EXPECT_EQ(request->position(kHca), position);
      }
      const RequestPages hca = request->pages(kHca);
      const RequestPages csa = request->pages(kCsa);
      const auto free = s.Free();
      EXPECT_TRUE(request->Rewind(position));
      EXPECT_TRUE(request->Rewind(earliest));
      for (const auto kind : {kSwa, kHca, kCsa}) {
        ExpectRange(request->pages(kind).raw.valid, hca.raw.valid.begin, earliest);
      }
      ExpectRange(request->pages(kHca).main.valid, 0, earliest / 128);
      ExpectRange(request->pages(kHca).state.valid, hca.state.valid.begin, earliest);
      ExpectRange(request->pages(kCsa).main.valid, 0, earliest / 4);
      ExpectRange(request->pages(kCsa).index.valid, 0, earliest / 4);
      ExpectRange(request->pages(kCsa).state.valid, csa.state.valid.begin, earliest);
      ExpectRange(request->pages(kCsa).inner_state.valid, csa.inner_state.valid.begin, earliest);
      EXPECT_EQ(s.Free(), free);  // pages stay
      EXPECT_EQ(request->EarliestRewind(), earliest);
    }
  }
}

TEST(RequestRewind, TheRefusalNamesRingAndRow) {
  Spaces s(kAmple);
  auto request = Request::Create(s.spaces, 300);
  ASSERT_TRUE(request);
  SetDecoded(*request, 300);
  ExpectRefused(request->Rewind(298), ErrorCode::kRangeMissingRows, "position",
                "298 reads rows from 171 of the ring swa.raw, which holds [172, 300); allowed: at "
                "least 299");
  SetRanges(*request->state(), kSwa, {.raw = {0, 300}});
  SetRanges(*request->state(), kHca, {.raw = {0, 300}, .main = {0, 2}, .state = {256, 300}});
  SetRanges(*request->state(), kCsa,
            {.raw = {0, 300}, .main = {0, 75}, .index = {0, 75}, .state = {0, 300}});
  ExpectRefused(request->Rewind(255), ErrorCode::kRangeMissingRows, "position",
                "255 reads rows from 128 of the ring hca.state");
  EXPECT_EQ(request->EarliestRewind(), 256);
}

TEST(RequestRewind, KindsAtDifferentPositionsMeet) {
  Spaces s(kAmple);
  auto request = Request::Create(s.spaces, 0);
  ASSERT_TRUE(request);
  SetDecoded(*request, 50);
  SetRanges(*request->state(), kSwa, {.raw = {0, 53}});  // the others' plans came to nothing
  ExpectRefused(request->Rewind(51), ErrorCode::kInvalidArgument, "position",
                "51; allowed: 0 to 50, the position of hca");
  EXPECT_TRUE(request->Rewind(50));
  for (const auto kind : {kSwa, kHca, kCsa}) EXPECT_EQ(request->position(kind), 50);
  ExpectRefused(request->Rewind(-1), ErrorCode::kInvalidArgument, "position", "-1; allowed: 0 to");
}

TEST(RequestRewind, NotAfterReleaseNorUnderALivePlan) {
  Spaces s(kAmple);
  auto request = Request::Create(s.spaces, 0);
  ASSERT_TRUE(request);
  SetDecoded(*request, 50);
  for (const auto kind : {kSwa, kHca, kCsa}) {
    const auto plan = std::make_shared<int>();
    SetLivePlan(*request->state(), kind, plan);
    ExpectRefused(request->Rewind(49), ErrorCode::kCallOrder, "request",
                  "a " + std::string(KindName(kind)) + " plan of it is live");
    SetLivePlan(*request->state(), kind, nullptr);
  }
  EXPECT_TRUE(request->Prepare(100));
  ASSERT_TRUE(request->Release());
  ExpectRefused(request->Rewind(0), ErrorCode::kCallOrder, "request", "released");
  EXPECT_EQ(request->EarliestRewind(), 0);
}

// A model without SWA layers: its raw space serves the other kinds alone.
TEST(RequestRewind, AKindThatIsNotUsedHasNoSay) {
  Spaces s(kAmple);
  RequestSpaces spaces = s.spaces;
  spaces.swa = false;
  auto request = Request::Create(spaces, 203);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->position(kSwa), 0);
  EXPECT_TRUE(request->pages(kSwa).raw.pages.empty());
  EXPECT_EQ(request->pages(kHca).raw.pages.size(), 4U);
  EXPECT_TRUE(request->Rewind(202));
  EXPECT_EQ(request->position(kCsa), 202);
  EXPECT_EQ(request->position(kSwa), 0);
}

}  // namespace
}  // namespace millipede
