// Marks, forks and copies on write: which pages are shared, which are copied, and that every
// layer's rows go along.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "millipede/request.h"
#include "pages/request_lists.h"
#include "support/decoded_request.h"

namespace millipede {
namespace {

using testing::SetDecoded;

constexpr auto kSwa = AttentionKind::kSwa;
constexpr auto kHca = AttentionKind::kHca;
constexpr auto kCsa = AttentionKind::kCsa;
constexpr int kNumLayers = 2;  // of each kind

// Pages of each of kRequestLists.
const std::vector<int32_t> kAmple = {64, 40, 128, 300, 310, 64, 64};

void ExpectRefused(const Status& status, ErrorCode code, const std::string& field,
                   const std::string& text) {
  ASSERT_FALSE(status) << text;
  EXPECT_EQ(ErrorCodeName(status.error().code), ErrorCodeName(code)) << status.error().message;
  EXPECT_EQ(status.error().field, field) << status.error().message;
  EXPECT_NE(status.error().message.find(text), std::string::npos) << status.error().message;
}
template <typename T>
void ExpectRefused(const Result<T>& result, ErrorCode code, const std::string& field,
                   const std::string& text) {
  ExpectRefused(result ? Status() : Status(tl::make_unexpected(result.error())), code, field, text);
}

// Spaces of all kinds, and the pools of two layers of each.
class Sharing : public ::testing::Test {
 protected:
  explicit Sharing(const std::vector<int32_t>& sizes = kAmple) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      owned_.push_back(std::move(*PageSpace::Create(sizes[i])));
    }
    for (size_t i = 0; i < sizes.size(); ++i) spaces_.*kRequestLists[i].space = &owned_[i];
    for (const AttentionKind kind : kAttentionKinds) {
      std::vector<LayerPools>& layers = layers_[static_cast<size_t>(kind)];
      layers.resize(kNumLayers);
      for (const RequestRows& rows : kRequestRows) {
        if (rows.kind != kind) continue;
        for (LayerPools& layer : layers) {
          pools_.push_back(std::move(*LayerPool::Create(rows.pool, sizes[rows.list])));
          layer.*rows.view = pools_.back().view();
        }
      }
    }
  }

  RequestPools pools() const { return {layers_[0], layers_[1], layers_[2]}; }

  // A request that decoded `position` tokens here, whose rows are told apart by `tag`.
  Request Decoded(int64_t position, uint64_t tag) {
    Request request = std::move(*Request::Create(spaces_, position));
    SetDecoded(request, position);
    Write(request, tag, 0);
    return request;
  }

  // Commits tokens up to `position`: their rows, told apart by `tag`, and the ranges.
  Status Advance(Request& request, int64_t position, uint64_t tag) {
    const int64_t from = request.position(kSwa);
    if (Status status = request.Prepare(position - from, pools()); !status) return status;
    for (const AttentionKind kind : kAttentionKinds) {
      RequestRanges ranges = RangesOf(*request.state(), kind);
      for (const RequestRows& rows : kRequestRows) {
        if (rows.kind != kind) continue;
        RowRange& range = ranges.*rows.range;
        if (rows.is_ring()) {
          range = {std::max(range.begin, position - rows.format().ring_rows()), position};
        } else {
          range.end = position / (kind == kHca ? 128 : 4);
        }
      }
      SetRanges(*request.state(), kind, ranges);
    }
    Write(request, tag, from);
    return {};
  }

  // Fills the rows of positions from `from` on, and of blocks that end behind it.
  void Write(const Request& request, uint64_t tag, int64_t from) {
    Visit(request, [&](std::byte* row, const RequestRows& rows, int layer, int64_t index) {
      const int64_t ratio = rows.kind == kHca ? 128 : 4;
      if ((rows.is_ring() ? index : (index + 1) * ratio - 1) < from) return;
      FillRow(row, rows, layer, index, tag);
    });
  }

  // Whether every readable row is the one written under `tag`, those from position `from` on under
  // `new_tag`.
  void ExpectRows(const Request& request, uint64_t tag,
                  int64_t from = std::numeric_limits<int64_t>::max(), uint64_t new_tag = 0) {
    int64_t num_bad = 0;
    Visit(request, [&](std::byte* row, const RequestRows& rows, int layer, int64_t index) {
      const int64_t ratio = rows.kind == kHca ? 128 : 4;
      const bool is_new = (rows.is_ring() ? index : (index + 1) * ratio - 1) >= from;
      std::vector<std::byte> expected(static_cast<size_t>(rows.format().row_bytes));
      FillRow(expected.data(), rows, layer, index, is_new ? new_tag : tag);
      if (std::memcmp(expected.data(), row, expected.size()) == 0) return;
      if (num_bad++ == 0) {
        ADD_FAILURE() << KindName(rows.kind) << '.' << rows.name << " layer " << layer << " row "
                      << index;
      }
    });
    EXPECT_EQ(num_bad, 0);
  }

  // Of every readable row.
  uint64_t Digest(const Request& request) {
    uint64_t digest = 14695981039346656037ULL;
    Visit(request, [&](const std::byte* row, const RequestRows& rows, int, int64_t) {
      for (int32_t i = 0; i < rows.format().row_bytes; ++i) {
        digest = (digest ^ static_cast<uint64_t>(row[i])) * 1099511628211ULL;
      }
    });
    return digest;
  }

  std::vector<int32_t> Free() const {
    std::vector<int32_t> free;
    for (const PageSpace& space : owned_) free.push_back(space.num_free());
    return free;
  }
  std::vector<uint64_t> Generations() const {
    std::vector<uint64_t> generations;
    for (const PageSpace& space : owned_) generations.push_back(space.generation());
    return generations;
  }
  std::vector<int32_t> RefCounts(const Request& request) const {
    std::vector<int32_t> counts;
    for (size_t i = 0; i < kRequestLists.size(); ++i) {
      for (const PageEntry& entry : (*request.state()).*kRequestLists[i].pages) {
        counts.push_back(owned_[i].ref_count(entry.page));
      }
    }
    return counts;
  }

  std::vector<PageSpace> owned_;
  std::vector<LayerPool> pools_;
  std::array<std::vector<LayerPools>, kNumAttentionKinds> layers_;
  RequestSpaces spaces_;

 private:
  // Every row a request holds, in every layer.
  template <typename Visitor>
  void Visit(const Request& request, const Visitor& visitor) {
    for (const RequestRows& rows : kRequestRows) {
      if (!request.state()->spaces.Has(rows.kind)) continue;
      const std::vector<PageEntry>& pages = (*request.state()).*kRequestLists[rows.list].pages;
      const RowRange range = RangesOf(*request.state(), rows.kind).*rows.range;
      const PoolFormat format = rows.format();
      for (int layer = 0; layer < kNumLayers; ++layer) {
        const PoolView pool =
            layers_[static_cast<size_t>(rows.kind)][static_cast<size_t>(layer)].*rows.view;
        for (int64_t index = range.begin; index < range.end; ++index) {
          const int64_t slot = rows.is_ring() ? index % format.ring_rows() : index;
          const int32_t page = pages[static_cast<size_t>(slot / format.rows_per_page)].page;
          visitor(pool.base + page * pool.page_stride_bytes +
                      slot % format.rows_per_page * format.row_bytes,
                  rows, layer, index);
        }
      }
    }
  }

  static void FillRow(std::byte* row, const RequestRows& rows, int layer, int64_t index,
                      uint64_t tag) {
    uint64_t bits = tag * 0x9E3779B97F4A7C15ULL + static_cast<uint64_t>(index) * 1009 +
                    static_cast<uint64_t>(layer) * 31 + static_cast<uint64_t>(rows.pool) * 7 +
                    static_cast<uint64_t>(rows.kind);
    for (int32_t i = 0; i < rows.format().row_bytes; i += 4) {
      bits = bits * 6364136223846793005ULL + 1442695040888963407ULL;
      const auto word = static_cast<uint32_t>(bits >> 32);
      std::memcpy(row + i, &word, 4);
    }
  }
};

TEST_F(Sharing, AForkSharesFullPagesAndCopiesTheRest) {
  for (const int64_t position : {0, 1, 5, 127, 128, 129, 300, 512, 4096, 4099, 4224}) {
    SCOPED_TRACE(position);
    const Request parent = Decoded(position, 1);
    const auto free = Free();
    auto child = parent.Fork(position, pools());
    ASSERT_TRUE(child) << child.error().message;
    const int32_t hca_rows = static_cast<int32_t>(position / 128);
    const int32_t csa_rows = static_cast<int32_t>(position / 4);
    EXPECT_EQ(free[0] - Free()[0], 4);
    EXPECT_EQ(free[1] - Free()[1], hca_rows % 32 == 0 ? 0 : 1);
    EXPECT_EQ(free[2] - Free()[2], 16);
    EXPECT_EQ(free[3] - Free()[3], csa_rows % 32 == 0 ? 0 : 1);
    EXPECT_EQ(free[4] - Free()[4], csa_rows % 32 == 0 ? 0 : 1);
    EXPECT_EQ(free[5] - Free()[5], 4);
    EXPECT_EQ(free[6] - Free()[6], 4);
    const auto& parent_main = parent.state()->csa_main;
    const auto& child_main = child->state()->csa_main;
    ASSERT_EQ(child_main.size(), parent_main.size());
    for (size_t i = 0; i < child_main.size(); ++i) {
      const bool full = static_cast<int32_t>(i) < csa_rows / 32;
      EXPECT_EQ(child_main[i].page == parent_main[i].page, full);
      EXPECT_EQ(owned_[3].ref_count(child_main[i].page), full ? 2 : 1);
    }
    for (const auto kind : {kSwa, kHca, kCsa}) EXPECT_EQ(child->position(kind), position);
    EXPECT_EQ(child->EarliestRewind(), parent.EarliestRewind());
    ExpectRows(*child, 1);
    ExpectRows(parent, 1);
    // Each goes its own way.
    ASSERT_TRUE(Advance(*child, position + 150, 2));
    ExpectRows(*child, 1, position, 2);
    ExpectRows(parent, 1);
  }
  EXPECT_EQ(Free(), kAmple);
}

TEST_F(Sharing, AForkOneTokenBack) {
  for (const int64_t position : {1, 4, 128, 129, 256, 300, 4096}) {
    SCOPED_TRACE(position);
    const Request parent = Decoded(position, 1);
    auto child = parent.Fork(position - 1, pools());
    ASSERT_TRUE(child) << child.error().message;
    for (const auto kind : {kSwa, kHca, kCsa}) EXPECT_EQ(child->position(kind), position - 1);
    ExpectRows(*child, 1);
    ASSERT_TRUE(Advance(*child, position + 40, 2));
    ExpectRows(*child, 1, position - 1, 2);
    ExpectRows(parent, 1);
    EXPECT_EQ(parent.position(kCsa), position);
  }
  // Where the rings lack the rows, it is refused as a rewind is.
  const Request imported = std::move(*Request::Create(spaces_, 256));
  ExpectRefused(imported.Fork(255, pools()), ErrorCode::kRangeMissingRows, "position",
                "of the ring hca.state");
}

TEST_F(Sharing, MarksAt257And299OfAParentAt300) {
  Request parent = Decoded(257, 1);
  auto first = parent.Mark(pools());
  ASSERT_TRUE(first) << first.error().message;
  ASSERT_TRUE(Advance(parent, 299, 2));
  auto second = parent.Mark(pools());
  ASSERT_TRUE(second);
  ASSERT_TRUE(Advance(parent, 300, 3));
  EXPECT_EQ(first->position(), 257);
  EXPECT_EQ(second->position(), 299);
  const uint64_t before = Digest(parent);
  for (const int64_t length : {257, 299, 300}) {
    SCOPED_TRACE(length);
    auto child = parent.Fork(length, pools());
    ASSERT_TRUE(child) << child.error().message;
    EXPECT_EQ(child->position(kHca), length);
    ASSERT_TRUE(Advance(*child, 420, 9));
    EXPECT_EQ(parent.position(kHca), 300);
    EXPECT_EQ(Digest(parent), before);
  }
  const Request at_257 = std::move(*parent.Fork(257, pools()));
  ExpectRows(at_257, 1);
  const Request at_299 = std::move(*second->Fork(pools()));
  ExpectRows(at_299, 1, 257, 2);
  ExpectRefused(
      parent.Fork(258, pools()), ErrorCode::kInvalidArgument, "position",
      "258; allowed: 300, one token less, or the length of a mark; the nearest is at 257");
  ExpectRefused(parent.Fork(290, pools()), ErrorCode::kInvalidArgument, "position",
                "the nearest is at 299");
  for (const int64_t position : {int64_t{301}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
    EXPECT_FALSE(parent.Fork(position, pools()));
  }
}

TEST_F(Sharing, AMarkOutlivesItsRequestAndGivesItsPagesBack) {
  std::optional<RequestMark> mark;
  {
    Request parent = Decoded(4300, 1);
    mark = std::move(*parent.Mark(pools()));
    ASSERT_TRUE(Advance(parent, 4500, 2));
  }
  EXPECT_NE(Free(), kAmple);
  {
    const Request child = std::move(*mark->Fork(pools()));
    const Request twin = std::move(*mark->Fork(pools()));
    ExpectRows(child, 1);
    ExpectRows(twin, 1);
  }
  RequestMark moved = std::move(*mark);
  EXPECT_EQ(mark->position(), 0);
  ExpectRefused(mark->Fork(pools()), ErrorCode::kCallOrder, "request", "released");
  EXPECT_EQ(moved.position(), 4300);
  ExpectRows(std::move(*moved.Fork(pools())), 1);
  mark.reset();
  Request other = Decoded(10, 5);
  moved = std::move(*other.Mark(pools()));  // the mark that stood there goes
  EXPECT_EQ(moved.position(), 10);
  ASSERT_TRUE(other.Release());
  EXPECT_NE(Free(), kAmple);
  { const RequestMark last = std::move(moved); }
  EXPECT_EQ(Free(), kAmple);
}

TEST_F(Sharing, AMarkThatIsGoneIsNotFound) {
  Request parent = Decoded(100, 1);
  auto mark = std::optional(std::move(*parent.Mark(pools())));
  ASSERT_TRUE(Advance(parent, 200, 2));
  EXPECT_TRUE(parent.Fork(100, pools()));
  mark.reset();
  ExpectRefused(parent.Fork(100, pools()), ErrorCode::kInvalidArgument, "position",
                "or the length of a mark; it has none");
  for (const int64_t position : {int64_t{-1}, int64_t{201}, INT64_MIN, INT64_MAX}) {
    ExpectRefused(parent.Fork(position, pools()), ErrorCode::kInvalidArgument, "position",
                  "it has none");
  }
  const auto again = parent.Mark(pools());
  ASSERT_TRUE(again);
  EXPECT_EQ(parent.state()->marks.size(), 1U);
}

// The first has rows that the other's request had lost when it came back to that length.
TEST_F(Sharing, OfMarksOfOneLengthTheFirstServes) {
  Request parent = Decoded(100, 1);
  const auto first = parent.Mark(pools());
  ASSERT_TRUE(Advance(parent, 101, 2));
  ASSERT_TRUE(parent.Rewind(100));
  const auto second = parent.Mark(pools());
  ASSERT_TRUE(Advance(parent, 101, 3));
  ASSERT_TRUE(first && second);
  const auto state_begin = [](const Request& request) {
    return request.pages(AttentionKind::kCsa).state.valid.begin;
  };
  EXPECT_EQ(state_begin(std::move(*first->Fork(pools()))), 92);
  EXPECT_EQ(state_begin(std::move(*second->Fork(pools()))), 93);
  const Request child = std::move(*parent.Fork(100, pools()));
  EXPECT_EQ(state_begin(child), 92);
  ExpectRows(child, 1);
}

// What a request decodes after a rewind need not be what it had decoded when the mark was taken.
TEST_F(Sharing, AMarkBehindARewindIsNoLengthOfTheRequest) {
  Request parent = Decoded(100, 1);
  const auto kept = parent.Mark(pools());
  ASSERT_TRUE(Advance(parent, 101, 2));
  const auto passed = parent.Mark(pools());
  ASSERT_TRUE(kept && passed);
  ASSERT_TRUE(parent.Rewind(100));
  ASSERT_TRUE(Advance(parent, 140, 3));
  ExpectRefused(parent.Fork(101, pools()), ErrorCode::kInvalidArgument, "position",
                "the nearest is at 100");
  ExpectRows(*parent.Fork(100, pools()), 1);
  ExpectRows(*passed->Fork(pools()), 1, 100, 2);
}

TEST_F(Sharing, FreeingOneOfThreeSharersLeavesTheOthersWhole) {
  for (int gone = 0; gone < 3; ++gone) {
    std::vector<std::unique_ptr<Request>> sharers;
    sharers.push_back(std::make_unique<Request>(Decoded(4200, 1)));
    for (int i = 0; i < 2; ++i) {
      sharers.push_back(std::make_unique<Request>(std::move(*sharers[0]->Fork(4200, pools()))));
    }
    EXPECT_EQ(owned_[3].ref_count(sharers[2]->state()->csa_main[0].page), 3);
    sharers.erase(sharers.begin() + gone);
    EXPECT_EQ(owned_[3].ref_count(sharers[0]->state()->csa_main[0].page), 2);
    // Its pages go to someone else.
    Request other = Decoded(4200, 7);
    for (const auto& sharer : sharers) ExpectRows(*sharer, 1);
    ASSERT_TRUE(Advance(*sharers[0], 4400, 2));
    ExpectRows(*sharers[0], 1, 4200, 2);
    ExpectRows(*sharers[1], 1);
    ExpectRows(other, 7);
  }
  EXPECT_EQ(Free(), kAmple);
}

// 128 CSA rows fill four pages; a token back, the last of them is open again.
TEST_F(Sharing, WritingToASharedPageTakesACopy) {
  Request parent = Decoded(512, 1);
  const Request child = std::move(*parent.Fork(512, pools()));
  ASSERT_TRUE(parent.Rewind(511));
  const PageEntry shared = parent.state()->csa_main[3];
  EXPECT_EQ(owned_[3].ref_count(shared.page), 2);
  const auto free = Free();
  const auto counts = RefCounts(child);
  ExpectRefused(parent.Prepare(1), ErrorCode::kSharedWritePage, "csa_main.pages[3].page",
                "2 references; allowed: 1, or the layers' pools to copy it in");
  {
    const auto plan = std::make_shared<int>();
    SetLivePlan(*parent.state(), kHca, plan);
    ExpectRefused(parent.Prepare(1, pools()), ErrorCode::kCallOrder, "request", "hca plan");
    EXPECT_TRUE(parent.Prepare(0));  // nothing to copy
    SetLivePlan(*parent.state(), kHca, nullptr);
  }
  RequestPools lacking = pools();
  lacking.csa = {};
  ExpectRefused(parent.Prepare(1, lacking), ErrorCode::kInvalidArgument, "pools.csa", "none");
  EXPECT_EQ(Free(), free);
  EXPECT_EQ(RefCounts(child), counts);

  ASSERT_TRUE(parent.Prepare(1, pools()));
  EXPECT_NE(parent.state()->csa_main[3].page, shared.page);
  EXPECT_EQ(child.state()->csa_main[3].page, shared.page);
  EXPECT_EQ(owned_[3].ref_count(shared.page), 1);
  EXPECT_EQ(free[3] - Free()[3], 1);
  EXPECT_EQ(free[4] - Free()[4], 1);
  ExpectRows(parent, 1);
  ASSERT_TRUE(parent.Prepare(1));  // its own by now
  ASSERT_TRUE(Advance(parent, 600, 2));
  ExpectRows(parent, 1, 511, 2);
  ExpectRows(child, 1);
}

// An engine may share any page. The raw ring is one list for three kinds.
TEST_F(Sharing, SharedRingPagesAreCopiedToo) {
  Request request = Decoded(200, 1);
  const std::vector<PageEntry> old = request.state()->raw;
  const std::vector<PageEntry> state = request.state()->csa_state;
  ASSERT_TRUE(owned_[0].Share(old));
  ASSERT_TRUE(owned_[5].Share(std::span(state).first(1)));
  ASSERT_TRUE(request.Prepare(2, pools()));  // 200 and 201 go to raw page 2 and CSA state page 0
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(request.state()->raw[i].page == old[i].page, i != 2) << i;
    EXPECT_EQ(owned_[0].ref_count(old[i].page), i == 2 ? 1 : 2);
    EXPECT_EQ(request.state()->csa_state[i].page == state[i].page, i != 0) << i;
  }
  ExpectRows(request, 1);
  ASSERT_TRUE(Advance(request, 400, 2));
  ExpectRows(request, 1, 200, 2);
  for (size_t i = 0; i < 4; ++i) EXPECT_NE(request.state()->raw[i].page, old[i].page);
  ASSERT_TRUE(owned_[0].Release(old));
  ASSERT_TRUE(owned_[5].Release(std::span(state).first(1)));
  ASSERT_TRUE(request.Release());
  EXPECT_EQ(Free(), kAmple);
}

TEST_F(Sharing, PrepareCopiesAllOrNothing) {
  Request parent = Decoded(512, 1);
  const Request child = std::move(*parent.Fork(512, pools()));
  ASSERT_TRUE(parent.Rewind(511));
  // One free page for the copy and for the page behind it.
  std::vector<PageEntry> taken(static_cast<size_t>(owned_[4].num_free()) - 1);
  ASSERT_TRUE(owned_[4].Acquire(taken));
  const auto free = Free();
  const auto generations = Generations();
  const auto counts = RefCounts(parent);
  ExpectRefused(parent.Prepare(5, pools()), ErrorCode::kOutOfPages, "csa_index", "2 pages needed");
  EXPECT_EQ(Free(), free);
  EXPECT_EQ(Generations(), generations);
  EXPECT_EQ(RefCounts(parent), counts);
  EXPECT_EQ(parent.state()->csa_main[3].page, child.state()->csa_main[3].page);
  EXPECT_TRUE(parent.Prepare(1, pools()));
}

TEST_F(Sharing, MarkAndForkAreAllOrNothing) {
  Request parent = Decoded(4300, 1);
  const auto counts = RefCounts(parent);
  for (size_t scarce = 0; scarce < kRequestLists.size(); ++scarce) {
    if (kRequestLists[scarce].pool == PoolKind::kHcaMain) continue;
    SCOPED_TRACE(kRequestLists[scarce].name);
    std::vector<PageEntry> taken(static_cast<size_t>(owned_[scarce].num_free()));
    ASSERT_TRUE(owned_[scarce].Acquire(taken));
    const auto free = Free();
    const auto generations = Generations();
    ExpectRefused(parent.Fork(4300, pools()), ErrorCode::kOutOfPages, kRequestLists[scarce].name,
                  "allowed: at most 0 free");
    ExpectRefused(parent.Mark(pools()), ErrorCode::kOutOfPages, kRequestLists[scarce].name,
                  "allowed: at most 0 free");
    EXPECT_EQ(Free(), free);
    EXPECT_EQ(Generations(), generations);
    EXPECT_EQ(RefCounts(parent), counts);
    ASSERT_TRUE(owned_[scarce].Release(taken));
  }
  EXPECT_TRUE(parent.state()->marks.empty());
  EXPECT_TRUE(parent.Fork(4300, pools()));
}

TEST_F(Sharing, PoolsAreChecked) {
  Request parent = Decoded(300, 1);
  const auto free = Free();
  for (const AttentionKind kind : kAttentionKinds) {
    RequestPools lacking = pools();
    (kind == kSwa ? lacking.swa : kind == kHca ? lacking.hca : lacking.csa) = {};
    const std::string field = "pools." + std::string(KindName(kind));
    ExpectRefused(parent.Fork(300, lacking), ErrorCode::kInvalidArgument, field, "none");
    ExpectRefused(parent.Mark(lacking), ErrorCode::kInvalidArgument, field, "none");
  }
  for (const RequestRows& rows : kRequestRows) {
    PoolView& pool = layers_[static_cast<size_t>(rows.kind)][1].*rows.view;
    const PoolView good = pool;
    const std::string field =
        "pools." + std::string(KindName(rows.kind)) + "[1]." + std::string(rows.name);
    pool.base = nullptr;
    ExpectRefused(parent.Fork(300, pools()), ErrorCode::kPlanMismatch, field + ".base", "null");
    pool = good;
    ++pool.num_pages;
    ExpectRefused(parent.Mark(pools()), ErrorCode::kPlanMismatch, field + ".num_pages", "allowed");
    pool = good;
  }
  EXPECT_EQ(Free(), free);
}

// A model without SWA layers has no SWA pools.
TEST_F(Sharing, KindsThatAreNotUsedNeedNoPools) {
  spaces_.swa = false;
  const Request parent = std::move(*Request::Create(spaces_, 300));
  RequestPools used = pools();
  used.swa = {};
  const auto child = parent.Fork(300, used);
  ASSERT_TRUE(child) << child.error().message;
  EXPECT_EQ(child->position(kHca), 300);
  EXPECT_EQ(child->position(kSwa), 0);
}

TEST_F(Sharing, OnlyLiveRequestsAtOnePositionWithoutLivePlans) {
  Request request = Decoded(100, 1);
  const auto mark = request.Mark(pools());
  ASSERT_TRUE(mark);
  ASSERT_TRUE(Advance(request, 110, 2));
  for (const AttentionKind kind : kAttentionKinds) {
    const auto plan = std::make_shared<int>();
    SetLivePlan(*request.state(), kind, plan);
    ExpectRefused(request.Mark(pools()), ErrorCode::kCallOrder, "request", "plan of it is live");
    ExpectRefused(request.Fork(110, pools()), ErrorCode::kCallOrder, "request", "is live");
    ExpectRefused(request.Fork(109, pools()), ErrorCode::kCallOrder, "request", "is live");
    EXPECT_TRUE(request.Fork(100, pools()));  // a mark stands for itself
    SetLivePlan(*request.state(), kind, nullptr);
  }
  SetRanges(*request.state(), kCsa, {.raw = {0, 108}});
  ExpectRefused(request.Mark(pools()), ErrorCode::kCallOrder, "request",
                "hca is at position 110 and csa at 108; allowed: every kind at one");
  ExpectRefused(request.Fork(110, pools()), ErrorCode::kCallOrder, "request", "csa at 108");
  ASSERT_TRUE(request.Release());
  ExpectRefused(request.Mark(pools()), ErrorCode::kCallOrder, "request", "released");
  ExpectRefused(request.Fork(110, pools()), ErrorCode::kCallOrder, "request", "released");
  const Request moved = std::move(request);
  ExpectRefused(request.Mark(pools()), ErrorCode::kCallOrder, "request", "released");
}

// Somebody gave pages of the request back behind its back: nothing of them is read.
TEST_F(Sharing, StalePagesAreRefused) {
  for (size_t i = 0; i < kRequestLists.size(); ++i) {
    const RequestList& list = kRequestLists[i];
    SCOPED_TRACE(list.name);
    Request request = Decoded(4300, 1);
    const auto& pages = (*request.state()).*list.pages;
    const size_t index = pages.size() - 1;  // a ring page, or the open page of a ragged list
    const std::string field = std::string(list.name) + ".pages[" + std::to_string(index) + "].";
    const std::vector<PageEntry> last = {pages[index]};
    ASSERT_TRUE(owned_[i].Release(last));
    ExpectRefused(request.Fork(4300, pools()), ErrorCode::kPageNotAcquired, field + "page",
                  "has no owner");
    std::vector<PageEntry> again(1);
    ASSERT_TRUE(owned_[i].Acquire(again));
    ASSERT_EQ(again[0].page, last[0].page);
    ExpectRefused(request.Mark(pools()), ErrorCode::kStaleEpoch, field + "epoch", "the epoch of");
    ASSERT_TRUE(owned_[i].Share(again));
    ExpectRefused(request.Prepare(200, pools()), ErrorCode::kStaleEpoch, field + "epoch",
                  "the epoch of");
    const Status released = request.Release();
    ASSERT_FALSE(released);
    EXPECT_EQ(released.error().code, ErrorCode::kStaleEpoch);
    ASSERT_TRUE(owned_[i].Release(again));
    ASSERT_TRUE(owned_[i].Release(again));
    EXPECT_EQ(Free(), kAmple);
  }
}

TEST_F(Sharing, AStaleFullPageIsRefusedAndNothingKept) {
  Request request = Decoded(4300, 1);
  const std::vector<PageEntry> page = {request.state()->csa_index[2]};
  ASSERT_TRUE(owned_[4].Release(page));
  const auto free = Free();
  const auto counts = RefCounts(request);
  ExpectRefused(request.Fork(4300, pools()), ErrorCode::kPageNotAcquired, "pages[2].page",
                "has no owner");
  EXPECT_EQ(Free(), free);
  EXPECT_EQ(RefCounts(request), counts);
}

}  // namespace
}  // namespace millipede
