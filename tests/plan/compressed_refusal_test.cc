// The refusals of HCA and CSA lists: one fault each, in each list, in a step that is otherwise
// accepted. No refusal writes anything, and every one names the request and the field.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "millipede/plan.h"
#include "support/plan_fixture.h"

namespace millipede {
namespace {

using testing::EngineRequest;
using testing::EngineSpace;
using testing::EngineSpaces;

constexpr auto kHca = AttentionKind::kHca;
constexpr auto kCsa = AttentionKind::kCsa;

// One list as the engine and the public structs hold it.
struct List {
  std::string name;
  EngineSpace EngineSpaces::*space;
  std::vector<PageEntry> EngineRequest::*entries;
  PageListView RequestPages::*view;
  PageSpaceView KindSpaces::*space_view;
};

const List kMain = {"main", &EngineSpaces::main, &EngineRequest::main, &RequestPages::main,
                    &KindSpaces::main};
const List kIndex = {"index", &EngineSpaces::index, &EngineRequest::index, &RequestPages::index,
                     &KindSpaces::index};
const List kState = {"state", &EngineSpaces::state, &EngineRequest::state, &RequestPages::state,
                     &KindSpaces::state};
const List kInnerState = {"inner_state", &EngineSpaces::inner_state, &EngineRequest::inner_state,
                          &RequestPages::inner_state, &KindSpaces::inner_state};

class CompressedRefusal : public ::testing::TestWithParam<AttentionKind> {
 protected:
  // Requests at 5, 4100 and 16380; the last one's step of 8 finishes the block that ends at 16383.
  static constexpr int64_t kStarts[] = {5, 4100, 16'380};
  static constexpr int64_t kTokens[] = {1, 3, 8};

  CompressedRefusal() {
    for (int r = 0; r < 3; ++r) {
      requests_.emplace_back(kind_, spaces_, kStarts[r] + kTokens[r], random_);
    }
    for (const auto& [kind, num_pages] :
         std::vector<std::pair<PoolKind, int32_t>>{{PoolKind::kHcaMain, 200},
                                                   {PoolKind::kHcaState, 55},
                                                   {PoolKind::kCsaInnerState, 21}}) {
      pools_.push_back(std::move(*LayerPool::Create(kind, num_pages)));
      const std::span<std::byte> bytes = BytesOf(pools_.back());
      for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 >> 3);
    }
    accepted_spaces_ = spaces_;
    accepted_requests_ = requests_;
    Reset();
  }

  static std::span<std::byte> BytesOf(const LayerPool& pool) {
    const PoolView view = pool.view();
    return {view.base, static_cast<size_t>(view.page_stride_bytes * view.num_pages)};
  }

  void Reset() {
    config_ = ModelConfig::Tiny();
    spaces_ = accepted_spaces_;
    for (size_t r = 0; r < 3; ++r) requests_[r] = accepted_requests_[r];
    SetSteps();
    views_ = spaces_.views(kind_);
  }

  // Views of the lists as they now are; their sizes may have changed.
  void SetSteps() {
    steps_.clear();
    for (size_t r = 0; r < 3; ++r) steps_.push_back(requests_[r].Step(kStarts[r], kTokens[r]));
  }

  Result<Plan> Create() { return Plan::Create(config_, kind_, 2, views_, steps_); }

  void ExpectAccepted() {
    const auto plan = Create();
    EXPECT_TRUE(plan) << plan.error().message;
  }

  void ExpectRefused(ErrorCode code, int64_t request, const std::string& field,
                     const std::string& value = "") {
    const EngineSpaces spaces_before = spaces_;
    std::vector<std::vector<std::byte>> pools_before;
    for (const LayerPool& pool : pools_) {
      pools_before.emplace_back(BytesOf(pool).begin(), BytesOf(pool).end());
    }
    const std::vector<EngineRequest> requests_before = requests_;

    const auto plan = Create();
    ASSERT_FALSE(plan) << field;
    const Error& error = plan.error();
    EXPECT_EQ(ErrorCodeName(error.code), ErrorCodeName(code)) << error.message;
    EXPECT_EQ(error.request, request) << error.message;
    EXPECT_EQ(error.field, field) << error.message;
    EXPECT_NE(error.message.find(field + ": "), std::string::npos) << error.message;
    EXPECT_NE(error.message.find("allowed: "), std::string::npos) << error.message;
    EXPECT_NE(error.message.find(value), std::string::npos) << error.message;

    EXPECT_EQ(spaces_, spaces_before);
    for (size_t i = 0; i < pools_.size(); ++i) {
      EXPECT_EQ(
          std::memcmp(BytesOf(pools_[i]).data(), pools_before[i].data(), pools_before[i].size()),
          0);
    }
    for (size_t r = 0; r < 3; ++r) {
      for (const List& list : Lists()) {
        const auto& now = requests_[r].*list.entries;
        const auto& before = requests_before[r].*list.entries;
        ASSERT_EQ(now.size(), before.size());
        for (size_t i = 0; i < now.size(); ++i) {
          EXPECT_EQ(now[i].page, before[i].page);
          EXPECT_EQ(now[i].epoch, before[i].epoch);
        }
      }
    }
  }

  std::vector<List> Rings() const {
    return kind_ == kHca ? std::vector<List>{kState} : std::vector<List>{kState, kInnerState};
  }
  std::vector<List> Ragged() const {
    return kind_ == kHca ? std::vector<List>{kMain} : std::vector<List>{kMain, kIndex};
  }
  std::vector<List> Lists() const {
    std::vector<List> lists = Ragged();
    for (const List& ring : Rings()) lists.push_back(ring);
    return lists;
  }

  std::vector<PageEntry>& Entries(int r, const List& list) {
    return requests_[static_cast<size_t>(r)].*list.entries;
  }
  RowRange& Valid(int r, const List& list) {
    return (steps_[static_cast<size_t>(r)].pages.*list.view).valid;
  }
  EngineSpace& Space(const List& list) { return spaces_.*list.space; }
  static size_t At(int32_t page) { return static_cast<size_t>(page); }

  static std::string EntryField(const List& list, int64_t index, const std::string& member) {
    return list.name + ".pages[" + std::to_string(index) + "]." + member;
  }

  int64_t ratio() const { return kind_ == kHca ? 128 : 4; }
  // The logical page that request 2 writes its first new row to: row 127 of HCA, 4095 of CSA.
  int64_t write_page() const { return kind_ == kHca ? 3 : 127; }

  AttentionKind kind_ = GetParam();
  std::mt19937_64 random_{17};
  EngineSpaces spaces_{6, 600};
  std::vector<EngineRequest> requests_;
  EngineSpaces accepted_spaces_{6, 600};
  std::vector<EngineRequest> accepted_requests_;
  std::vector<LayerPool> pools_;
  ModelConfig config_;
  KindSpaces views_;
  std::vector<StepRequest> steps_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, CompressedRefusal, ::testing::Values(kHca, kCsa),
                         [](const auto& kind) { return std::string(KindName(kind.param)); });

class CsaRefusal : public CompressedRefusal {};
INSTANTIATE_TEST_SUITE_P(Kinds, CsaRefusal, ::testing::Values(kCsa));

TEST_P(CompressedRefusal, TheUnchangedStepIsAccepted) { ExpectAccepted(); }

TEST_P(CompressedRefusal, NullAndMalformedSpaces) {
  for (const List& list : Lists()) {
    Reset();
    (views_.*list.space_view).epochs = nullptr;
    ExpectRefused(ErrorCode::kInvalidArgument, -1, "spaces." + list.name + ".epochs");
    Reset();
    (views_.*list.space_view).generation = nullptr;
    ExpectRefused(ErrorCode::kInvalidArgument, -1, "spaces." + list.name + ".generation");
    Reset();
    (views_.*list.space_view).num_pages = 0;
    ExpectRefused(ErrorCode::kInvalidArgument, -1, "spaces." + list.name + ".num_pages", "0");
  }
}

TEST_P(CompressedRefusal, BadEntries) {
  for (const List& list : Lists()) {
    for (const int64_t index : {0, 2, 3}) {
      const auto at = static_cast<size_t>(index);
      const int32_t num_pages = (spaces_.*list.space).view().num_pages;
      for (const int32_t page : {-2, num_pages, std::numeric_limits<int32_t>::min(),
                                 std::numeric_limits<int32_t>::max()}) {
        Reset();
        Entries(2, list)[at].page = page;
        ExpectRefused(ErrorCode::kPageOutOfRange, 2, EntryField(list, index, "page"),
                      std::to_string(page));
      }
      Reset();
      const int32_t page = Entries(2, list)[at].page;
      const std::string named = "page " + std::to_string(page);
      Space(list).Free(page);
      ExpectRefused(ErrorCode::kPageNotAcquired, 2, EntryField(list, index, "page"), named);
      Space(list).Own(page);
      ExpectRefused(ErrorCode::kStaleEpoch, 2, EntryField(list, index, "epoch"), named);
      Reset();
      Entries(2, list)[at] = Entries(2, list)[1];
      const int64_t later = std::max<int64_t>(index, 1);
      ExpectRefused(ErrorCode::kDuplicatePage, 2, EntryField(list, later, "page"),
                    "pages[" + std::to_string(std::min<int64_t>(index, 1)) + "]");
    }
  }
}

TEST_P(CompressedRefusal, RingOfTheWrongPageCount) {
  for (const List& list : Rings()) {
    for (const bool more : {false, true}) {
      Reset();
      auto& entries = Entries(1, list);
      if (more) {
        entries.push_back(entries[0]);
      } else {
        entries.pop_back();
      }
      SetSteps();
      ExpectRefused(ErrorCode::kRingPages, 1, list.name + ".pages", std::to_string(entries.size()));
    }
  }
}

TEST_P(CompressedRefusal, RingRanges) {
  for (const List& list : Rings()) {
    const int64_t ring_rows = kind_ == kHca ? 128 : 8;
    // The open block and, for CSA, the block before it.
    const int64_t needed = kind_ == kHca ? 16'256 : 16'376;
    const std::string valid = list.name + ".valid";
    Reset();
    Valid(2, list) = {needed, 16'380};
    ExpectAccepted();
    Valid(2, list) = {needed + 1, 16'380};
    ExpectRefused(ErrorCode::kRangeMissingRows, 2, valid + ".begin", std::to_string(needed + 1));
    Valid(2, list) = {16'380 - ring_rows - 1, 16'380};
    ExpectRefused(ErrorCode::kRangeMismatch, 2, valid + ".begin");
    for (const int64_t end : {16'379, 16'381}) {
      Valid(2, list) = {needed, end};
      ExpectRefused(ErrorCode::kRangeMismatch, 2, valid + ".end", std::to_string(end));
    }
    Valid(2, list) = {16'381, 16'380};
    ExpectRefused(ErrorCode::kRangeMismatch, 2, valid);
    Valid(2, list) = {-1, 16'380};
    ExpectRefused(ErrorCode::kRangeMismatch, 2, valid);
    config_.max_context_tokens = 16'388;
    Valid(2, list) = {needed, 16'389};
    ExpectRefused(ErrorCode::kContextCeiling, 2, valid + ".end", "16389");
  }
}

TEST_P(CompressedRefusal, ShortLists) {
  for (const List& list : Ragged()) {
    Reset();
    // The rows before the step fit, those it makes do not. HCA's new row shares its page.
    auto& entries = Entries(2, list);
    const size_t covering = entries.size();
    EXPECT_EQ(covering, kind_ == kHca ? 4U : 129U);
    entries.pop_back();
    SetSteps();
    ExpectRefused(ErrorCode::kShortList, 2, list.name + ".pages", std::to_string(covering - 1));
    entries.clear();
    SetSteps();
    ExpectRefused(ErrorCode::kShortList, 2, list.name + ".pages", "0 pages");
  }
  // Rows right at the end of a page: the step's own row needs one page more.
  for (const List& list : Ragged()) {
    Reset();
    const int64_t start = 32 * ratio() + ratio() - 1;
    requests_[1] = EngineRequest(kind_, spaces_, start, random_);
    SetSteps();
    steps_[1] = requests_[1].Step(start, 1);
    if (list.name == "index") {
      requests_[1].main.push_back(requests_[2].main.back());
      steps_[1] = requests_[1].Step(start, 1);
    }
    EXPECT_EQ(Entries(1, list).size(), 1U);
    ExpectRefused(ErrorCode::kShortList, 1, list.name + ".pages", "1 pages");
  }
}

TEST_P(CompressedRefusal, Holes) {
  for (const List& list : Ragged()) {
    for (const int64_t index : {int64_t{0}, int64_t{2}, write_page()}) {
      Reset();
      Entries(2, list)[static_cast<size_t>(index)] = {};
      ExpectRefused(ErrorCode::kHole, 2, EntryField(list, index, "page"), "-1");
    }
  }
  // A ring has no holes, only wrong pages.
  Reset();
  Entries(2, kState)[1] = {};
  ExpectRefused(ErrorCode::kPageOutOfRange, 2, "state.pages[1].page", "-1");
}

TEST_P(CompressedRefusal, RaggedRanges) {
  const int64_t rows = 16'380 / ratio();
  const auto set = [&](RowRange range) {
    for (const List& list : Ragged()) Valid(2, list) = range;
  };
  for (const int64_t begin : {int64_t{1}, int64_t{-1}, rows}) {
    set({begin, rows});
    ExpectRefused(ErrorCode::kHole, 2, "main.valid.begin", std::to_string(begin));
  }
  for (const int64_t end : {rows - 1, rows + 1, int64_t{0}, int64_t{-3}}) {
    set({0, end});
    ExpectRefused(ErrorCode::kRangeMismatch, 2, "main.valid.end", std::to_string(end));
  }
  set({0, std::numeric_limits<int64_t>::max()});
  ExpectRefused(ErrorCode::kContextCeiling, 2, "main.valid.end");
  config_.max_context_tokens = 16'388;
  set({0, 16'388 / ratio() + 1});
  ExpectRefused(ErrorCode::kContextCeiling, 2, "main.valid.end");
}

TEST_P(CompressedRefusal, SharedWritePages) {
  for (const List& list : Ragged()) {
    Reset();
    // Pages that are only read may have many owners, the one with the new row may not. Request 1
    // finishes no block.
    for (const PageEntry& entry : Entries(1, list)) Space(list).ref_counts[At(entry.page)] = 2;
    for (int64_t i = 0; i < write_page(); ++i) {
      Space(list).ref_counts[At(Entries(2, list)[static_cast<size_t>(i)].page)] = 3;
    }
    ExpectAccepted();
    Space(list).ref_counts[At(Entries(2, list)[static_cast<size_t>(write_page())].page)] = 2;
    ExpectRefused(ErrorCode::kSharedWritePage, 2, EntryField(list, write_page(), "page"),
                  "2 references");
  }
  for (const List& list : Rings()) {
    Reset();
    // 16380 to 16387: HCA rows 124 to 127 and 0 to 3, pages 15 and 0; all of a CSA ring.
    const int64_t index = kind_ == kHca ? 15 : 1;
    Space(list).ref_counts[At(Entries(2, list)[static_cast<size_t>(index)].page)] = 2;
    ExpectRefused(ErrorCode::kSharedWritePage, 2, EntryField(list, index, "page"), "2 references");
    if (kind_ != kHca) continue;
    Reset();
    Space(list).ref_counts[At(Entries(2, list)[1].page)] = 2;
    ExpectAccepted();
  }
}

TEST_P(CompressedRefusal, PagesThatTwoRequestsOnlyReadAreAccepted) {
  for (const List& list : Ragged()) {
    Reset();
    const PageEntry page = Entries(1, list)[0];
    Space(list).ref_counts[At(page.page)] = 2;
    Entries(2, list)[1] = page;
    ExpectAccepted();
  }
}

TEST_P(CompressedRefusal, AWritePageNamedByAnotherRequest) {
  for (const List& list : Ragged()) {
    Reset();
    // The earlier request reads what the later one writes, and the other way round.
    Entries(1, list)[0] = Entries(2, list)[static_cast<size_t>(write_page())];
    ExpectRefused(ErrorCode::kWriteConflict, 1, EntryField(list, 0, "page"), "request 2");
    Reset();
    std::swap(requests_[1], requests_[2]);
    steps_ = {requests_[0].Step(5, 1), requests_[1].Step(16'380, 8), requests_[2].Step(4100, 3)};
    ExpectAccepted();
    Entries(2, list)[0] = Entries(1, list)[static_cast<size_t>(write_page())];
    ExpectRefused(ErrorCode::kWriteConflict, 2, EntryField(list, 0, "page"), "request 1");
  }
  for (const List& list : Rings()) {
    Reset();
    const size_t index = kind_ == kHca ? 15 : 1;
    const size_t read = kind_ == kHca ? 7 : 1;  // request 1 writes 4100 to 4102, elsewhere
    Entries(1, list)[read] = Entries(2, list)[index];
    ExpectRefused(ErrorCode::kWriteConflict, 1,
                  EntryField(list, static_cast<int64_t>(read), "page"), "request 2");
  }
  // Both write it.
  for (const List& list : Ragged()) {
    Reset();
    requests_[1] = EngineRequest(kind_, spaces_, 16'388, random_);
    Entries(1, list)[static_cast<size_t>(write_page())] =
        Entries(2, list)[static_cast<size_t>(write_page())];
    SetSteps();
    steps_[1] = requests_[1].Step(16'380, 8);
    ExpectRefused(ErrorCode::kWriteConflict, 2, EntryField(list, write_page(), "page"),
                  "request 1");
  }
}

// Fewer tokens than the step's are counted up to the request at fault: the sum, not the product.
TEST_P(CompressedRefusal, MoreThan2To31WorkItems) {
  int64_t items = 0;  // of one request that decodes a million tokens from 0
  const int64_t piece = kind_ == kHca ? 128 : 2048;
  for (int64_t p = 0; p < kMaxContextTokens; ++p) {
    const int64_t pieces = ((p + 1) / ratio() + piece - 1) / piece;
    items += 1 + pieces + ((p + 1) % ratio() == 0 ? 1 : 0);
    if (kind_ == kCsa && pieces > 0) items += pieces - 1;
  }
  const int64_t most = std::numeric_limits<int32_t>::max() / items;
  StepRequest wide = requests_[0].Step(0, kMaxContextTokens);
  steps_.assign(static_cast<size_t>(most) + 1, wide);
  EXPECT_LT((most + 1) * kMaxContextTokens, std::numeric_limits<int32_t>::max());
  ExpectRefused(ErrorCode::kTooMuchWork, most, "num_tokens", std::to_string((most + 1) * items));
  // One request fewer is refused for its lists alone.
  steps_.pop_back();
  ExpectRefused(ErrorCode::kShortList, 0, "main.pages");
}

// For HCA that takes 8 million requests; the check is the same.
TEST_P(CsaRefusal, MorePagesThanAnOffsetCanName) {
  constexpr int64_t kPages = 8192;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max() / kPages;
  steps_.assign(size_t{kMost} + 1, requests_[0].Step(kMaxContextTokens - 1, 1));
  ExpectRefused(ErrorCode::kTooMuchWork, kMost, "num_tokens", std::to_string((kMost + 1) * kPages));
}

TEST_P(CsaRefusal, ListsThatDisagree) {
  for (const RowRange range : {RowRange{0, 4094}, RowRange{0, 4096}, RowRange{1, 4095}}) {
    Reset();
    Valid(2, kIndex) = range;
    ExpectRefused(ErrorCode::kListsDisagree, 2, "index.valid", std::to_string(range.end));
    Reset();
    Valid(2, kMain) = range;
    ExpectRefused(ErrorCode::kListsDisagree, 2, "index.valid", std::to_string(range.end));
  }
}

// A page twice in the longest list there is, in whatever order pages stand.
TEST_P(CompressedRefusal, OnePageTwiceInALongList) {
  EngineSpaces spaces(1, 9000);
  EngineRequest request(kind_, spaces, kMaxContextTokens, random_);
  const size_t num_pages = kind_ == kHca ? 256 : 8192;
  for (const bool sorted : {false, true}) {
    for (const List& list : Ragged()) {
      auto& entries = request.*list.entries;
      ASSERT_EQ(entries.size(), num_pages);
      if (sorted) {
        std::ranges::sort(entries, {}, &PageEntry::page);
      }
      for (const auto& [first, second] : std::vector<std::pair<size_t, size_t>>{
               {0, num_pages - 1}, {0, 1}, {num_pages - 2, num_pages - 1}, {100, 200}}) {
        const std::vector<PageEntry> good = entries;
        entries[second] = entries[first];
        const StepRequest step = request.Step(kMaxContextTokens - 1, 1);
        const auto plan =
            Plan::Create(ModelConfig::Tiny(), kind_, 1, spaces.views(kind_), {&step, 1});
        ASSERT_FALSE(plan);
        EXPECT_EQ(plan.error().code, ErrorCode::kDuplicatePage) << plan.error().message;
        EXPECT_EQ(plan.error().field, EntryField(list, static_cast<int64_t>(second), "page"));
        entries = good;
      }
    }
  }
  const StepRequest step = request.Step(kMaxContextTokens - 1, 1);
  EXPECT_TRUE(Plan::Create(ModelConfig::Tiny(), kind_, 1, spaces.views(kind_), {&step, 1}));
}

// A Request object of the right raw space and one wrong other space; ids and epochs are the same.
TEST_P(CompressedRefusal, RequestOfAnotherSpace) {
  std::vector<PageSpace> owned;
  owned.reserve(14);
  for (int i = 0; i < 14; ++i) owned.push_back(std::move(*PageSpace::Create(64)));
  PageSpace* RequestSpaces::*members[] = {&RequestSpaces::raw,
                                          &RequestSpaces::hca_main,
                                          &RequestSpaces::hca_state,
                                          &RequestSpaces::csa_main,
                                          &RequestSpaces::csa_index,
                                          &RequestSpaces::csa_state,
                                          &RequestSpaces::csa_inner_state};
  RequestSpaces spaces;
  RequestSpaces twins;
  for (size_t i = 0; i < 7; ++i) {
    spaces.*members[i] = &owned[i];
    twins.*members[i] = &owned[7 + i];
  }
  const auto request = Request::Create(spaces, 4100);
  const auto twin = Request::Create(twins, 4100);
  ASSERT_TRUE(request && twin);
  StepRequest step;
  step.start_pos = 4100;
  step.num_tokens = 1;
  step.request = &*request;
  size_t num_refused = 0;
  for (const auto member : members) {
    RequestSpaces mixed = spaces;
    mixed.*member = twins.*member;
    const auto plan = Plan::Create(ModelConfig::Tiny(), kind_, 1, mixed.views(kind_), {&step, 1});
    if (plan) continue;
    ++num_refused;
    EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(plan.error().field, "request");
    EXPECT_EQ(plan.error().request, 0);
  }
  EXPECT_EQ(num_refused, kind_ == kHca ? 3U : 5U);
  EXPECT_TRUE(Plan::Create(ModelConfig::Tiny(), kind_, 1, spaces.views(kind_), {&step, 1}));
}

// A request whose spaces for the kind were not given has no lists at all.
TEST_P(CompressedRefusal, RequestWithoutTheKind) {
  auto raw = std::move(*PageSpace::Create(16));
  RequestSpaces spaces;
  spaces.raw = &raw;
  const auto request = Request::Create(spaces, 0);
  ASSERT_TRUE(request);
  StepRequest step;
  step.num_tokens = 1;
  step.request = &*request;
  const auto plan = Plan::Create(ModelConfig::Tiny(), kind_, 1, spaces_.views(kind_), {&step, 1});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(plan.error().field, "request");
}

}  // namespace
}  // namespace millipede
