// The packed work of HCA and CSA steps against a plain model: what each row of each pool holds, and
// rows, shards, leaves and merges taken one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "millipede/plan.h"
#include "support/plan_fixture.h"

namespace millipede {
namespace {

using testing::EngineRequest;
using testing::EngineSpaces;

constexpr auto kHca = AttentionKind::kHca;
constexpr auto kCsa = AttentionKind::kCsa;

using RowOwner = std::pair<int64_t, int64_t>;  // request, and position or row

// What each row of a ring pool holds before the step.
std::vector<RowOwner> RingPool(const std::vector<StepRequest>& steps, size_t num_pages,
                               int64_t page_rows, int64_t ring_rows,
                               PageListView RequestPages::*list) {
  std::vector<RowOwner> pool(num_pages * static_cast<size_t>(page_rows), {-1, -1});
  for (size_t r = 0; r < steps.size(); ++r) {
    if (!steps[r].active || steps[r].num_tokens == 0) continue;
    const PageListView& ring = steps[r].pages.*list;
    for (int64_t p = ring.valid.begin; p < ring.valid.end; ++p) {
      const int64_t slot = p % ring_rows;
      const int64_t page = ring.pages[static_cast<size_t>(slot / page_rows)].page;
      pool[static_cast<size_t>(page * page_rows + slot % page_rows)] = {r, p};
    }
  }
  return pool;
}

// Checks the packed work of `steps` of one kind.
class Checker {
 public:
  Checker(AttentionKind kind, const EngineSpaces& spaces, const std::vector<StepRequest>& steps)
      : kind_(kind),
        ratio_(kind == kHca ? 128 : 4),
        state_rows_(kind == kHca ? 8 : 2),
        spaces_(spaces),
        steps_(steps) {}

  void Check() {
    const auto plan = Plan::Create(ModelConfig::Tiny(), kind_, 1, spaces_.views(kind_), steps_);
    ASSERT_TRUE(plan) << plan.error().message;
    const PackedWork& work = plan->work();
    for (size_t r = 0; r < steps_.size(); ++r) {
      const int64_t num_tokens = steps_[r].active ? steps_[r].num_tokens : 0;
      for (int64_t i = 0; i < num_tokens; ++i) tokens_.emplace_back(r, steps_[r].start_pos + i);
    }
    ASSERT_EQ(work.queries.size(), tokens_.size());
    CheckPages(work.main_page_offsets, work.main_pages, &RequestPages::main);
    CheckWriteRows(work);
    CheckEvents(work);
    if (kind_ == kHca) {
      CheckPieces(work.shard_offsets, work.shards, work.main_pages, &RequestPages::main, 128,
                  &HcaShard::first_row, &HcaShard::num_rows);
      EXPECT_TRUE(work.leaf_offsets.empty() && work.leaves.empty() && work.merges.empty());
      EXPECT_TRUE(work.index_pages.empty() && work.index_page_offsets.empty());
      EXPECT_TRUE(work.inner_event_sources.empty() && work.merge_offsets.empty());
    } else {
      CheckPages(work.index_page_offsets, work.index_pages, &RequestPages::index);
      CheckPieces(work.leaf_offsets, work.leaves, work.index_pages, &RequestPages::index, 2048,
                  &CsaLeaf::first_candidate, &CsaLeaf::num_candidates);
      CheckMerges(work);
      EXPECT_TRUE(work.shards.empty() && work.shard_offsets.empty());
    }
  }

 private:
  bool TakesPart(size_t r) const { return steps_[r].active && steps_[r].num_tokens > 0; }

  // Just the pages of rows up to the end of the step.
  void CheckPages(const std::vector<int32_t>& offsets, const std::vector<int32_t>& pages,
                  PageListView RequestPages::*list) {
    std::vector<int32_t> expected_offsets = {0};
    std::vector<int32_t> expected;
    for (size_t r = 0; r < steps_.size(); ++r) {
      if (TakesPart(r)) {
        const int64_t rows = (steps_[r].start_pos + steps_[r].num_tokens) / ratio_;
        for (int64_t page = 0; page * 32 < rows; ++page) {
          expected.push_back((steps_[r].pages.*list).pages[static_cast<size_t>(page)].page);
        }
      }
      expected_offsets.push_back(static_cast<int32_t>(expected.size()));
    }
    EXPECT_EQ(offsets, expected_offsets);
    EXPECT_EQ(pages, expected);
  }

  int64_t RingRow(size_t t, PageListView RequestPages::*list) const {
    const auto [r, position] = tokens_[t];
    const int64_t slot = position % (kind_ == kHca ? 128 : 8);
    const auto& pages = (steps_[static_cast<size_t>(r)].pages.*list).pages;
    return pages[static_cast<size_t>(slot / state_rows_)].page * state_rows_ + slot % state_rows_;
  }

  void CheckWriteRows(const PackedWork& work) {
    for (size_t t = 0; t < tokens_.size(); ++t) {
      const QueryToken& query = work.queries[t];
      ASSERT_EQ(query.request, tokens_[t].first);
      ASSERT_EQ(query.position, tokens_[t].second);
      ASSERT_EQ(query.state_write_row, RingRow(t, &RequestPages::state));
      ASSERT_EQ(query.inner_state_write_row,
                kind_ == kCsa ? RingRow(t, &RequestPages::inner_state) : -1);
    }
  }

  void CheckSources(const int32_t* sources, const std::vector<RowOwner>& pool, RowOwner boundary) {
    const int64_t count = kind_ == kHca ? 128 : 8;
    for (int64_t i = 0; i < count; ++i) {
      const RowOwner expected{boundary.first, boundary.second - (count - 1) + i};
      if (expected.second < 0) {
        ASSERT_EQ(sources[i], -1);
      } else if (expected.second < steps_[static_cast<size_t>(boundary.first)].start_pos) {
        ASSERT_GE(sources[i], 0);
        ASSERT_EQ(pool.at(static_cast<size_t>(sources[i])), expected);
      } else {
        ASSERT_LE(sources[i], -2);
        ASSERT_EQ(tokens_.at(static_cast<size_t>(-2 - sources[i])), expected);
      }
    }
  }

  int64_t RaggedRow(RowOwner row, PageListView RequestPages::*list) const {
    const auto& pages = (steps_[static_cast<size_t>(row.first)].pages.*list).pages;
    return int64_t{pages[static_cast<size_t>(row.second / 32)].page} * 32 + row.second % 32;
  }

  void CheckEvents(const PackedWork& work) {
    const int64_t ring_rows = kind_ == kHca ? 128 : 8;
    const auto state =
        RingPool(steps_, spaces_.state.epochs.size(), state_rows_, ring_rows, &RequestPages::state);
    const auto inner = RingPool(steps_, spaces_.inner_state.epochs.size(), state_rows_, ring_rows,
                                &RequestPages::inner_state);
    const auto width = static_cast<size_t>(ring_rows);
    size_t e = 0;
    for (size_t t = 0; t < tokens_.size(); ++t) {
      if ((tokens_[t].second + 1) % ratio_ != 0) continue;
      ASSERT_LT(e, work.events.size());
      const CompressEvent& event = work.events[e];
      const RowOwner row{tokens_[t].first, tokens_[t].second / ratio_};
      ASSERT_EQ(event.request, row.first);
      ASSERT_EQ(event.query, static_cast<int64_t>(t));
      ASSERT_EQ(event.row, row.second);
      ASSERT_EQ(event.rope_position, row.second * ratio_);
      ASSERT_EQ(event.main_write_row, RaggedRow(row, &RequestPages::main));
      ASSERT_EQ(event.index_write_row, kind_ == kCsa ? RaggedRow(row, &RequestPages::index) : -1);
      ASSERT_LE((e + 1) * width, work.event_sources.size());
      CheckSources(&work.event_sources[e * width], state, tokens_[t]);
      if (kind_ == kCsa) {
        ASSERT_LE((e + 1) * width, work.inner_event_sources.size());
        CheckSources(&work.inner_event_sources[e * width], inner, tokens_[t]);
      }
      ++e;
    }
    ASSERT_EQ(work.events.size(), e);
    ASSERT_EQ(work.event_sources.size(), e * width);
  }

  // Row by row: the pieces of a query hold each visible row once, in order, in full pieces but for
  // the last, and name the page each row lies in.
  template <typename Piece>
  void CheckPieces(const std::vector<int32_t>& offsets, const std::vector<Piece>& pieces,
                   const std::vector<int32_t>& pages, PageListView RequestPages::*list,
                   int32_t most, int32_t Piece::*first_row, int32_t Piece::*num_rows) {
    ASSERT_EQ(offsets.size(), tokens_.size() + 1);
    ASSERT_EQ(offsets[0], 0);
    size_t next = 0;
    for (size_t t = 0; t < tokens_.size(); ++t) {
      const auto [r, position] = tokens_[t];
      const int64_t rows = (position + 1) / ratio_;
      const auto& list_pages = (steps_[static_cast<size_t>(r)].pages.*list).pages;
      int64_t row = 0;
      while (row < rows) {
        ASSERT_LT(next, pieces.size());
        const Piece& piece = pieces[next++];
        ASSERT_EQ(piece.query, static_cast<int64_t>(t));
        ASSERT_EQ(piece.*first_row, row);
        ASSERT_EQ(piece.*num_rows, std::min<int64_t>(most, rows - row));
        for (int64_t i = 0; i < piece.*num_rows; ++i, ++row) {
          const auto page = static_cast<size_t>(piece.first_page + i / 32);
          ASSERT_EQ(pages.at(page), list_pages[static_cast<size_t>(row / 32)].page);
        }
      }
      ASSERT_EQ(offsets[t + 1], static_cast<int64_t>(next));
    }
    ASSERT_EQ(pieces.size(), next);
  }

  void CheckMerges(const PackedWork& work) {
    ASSERT_EQ(work.merge_offsets.size(), tokens_.size() + 1);
    ASSERT_EQ(work.merge_offsets[0], 0);
    size_t next = 0;
    for (size_t t = 0; t < tokens_.size(); ++t) {
      const auto num_leaves = static_cast<size_t>(work.leaf_offsets[t + 1] - work.leaf_offsets[t]);
      std::vector<int32_t> level(num_leaves);
      std::iota(level.begin(), level.end(), 0);
      size_t num_merges = 0;
      while (level.size() > 1) {
        std::vector<int32_t> above;
        for (size_t i = 0; i < level.size(); i += 2) {
          above.push_back(level[i]);
          if (i + 1 == level.size()) continue;
          ASSERT_LT(next, work.merges.size());
          ASSERT_EQ(work.merges[next].left, level[i]);
          ASSERT_EQ(work.merges[next].right, level[i + 1]);
          ++next;
          ++num_merges;
        }
        level = above;
      }
      ASSERT_EQ(num_merges, num_leaves == 0 ? 0 : num_leaves - 1);
      ASSERT_EQ(work.merge_offsets[t + 1], static_cast<int64_t>(next));
    }
    ASSERT_EQ(work.merges.size(), next);
  }

  AttentionKind kind_;
  int64_t ratio_;
  int64_t state_rows_;  // per page
  const EngineSpaces& spaces_;
  const std::vector<StepRequest>& steps_;
  std::vector<RowOwner> tokens_;
};

struct Entry {
  int64_t start;
  int64_t num_tokens;
};

int32_t PagesFor(AttentionKind kind, const std::vector<Entry>& entries) {
  int64_t pages = 8;
  for (const Entry& entry : entries) {
    pages += (entry.start + entry.num_tokens) / (kind == kHca ? 128 : 4) / 32 + 2;
  }
  return static_cast<int32_t>(pages);
}

// A batch on random pages, checked, and then `inspect` sees its plan.
template <typename Inspect>
void CheckBatch(AttentionKind kind, const std::vector<Entry>& entries, Inspect inspect) {
  ::testing::Message trace;
  trace << KindName(kind);
  for (const Entry& entry : entries) trace << " " << entry.start << "+" << entry.num_tokens;
  SCOPED_TRACE(trace);
  std::mt19937_64 random(entries.size() * 77 + static_cast<uint64_t>(entries[0].start));
  EngineSpaces spaces(static_cast<int32_t>(entries.size()), PagesFor(kind, entries));
  std::vector<EngineRequest> requests;
  requests.reserve(entries.size());
  for (const Entry& entry : entries) {
    requests.emplace_back(kind, spaces, entry.start + entry.num_tokens, random);
  }
  std::vector<StepRequest> steps;
  for (size_t r = 0; r < entries.size(); ++r) {
    steps.push_back(requests[r].Step(entries[r].start, entries[r].num_tokens));
    if (entries[r].num_tokens == 0) steps.back().active = r % 2 == 0;
  }
  Checker(kind, spaces, steps).Check();
  const auto plan = Plan::Create(ModelConfig::Tiny(), kind, 1, spaces.views(kind), steps);
  ASSERT_TRUE(plan);
  inspect(*plan);
}

void CheckBatch(AttentionKind kind, const std::vector<Entry>& entries) {
  CheckBatch(kind, entries, [](const Plan&) {});
}

// Shards or leaves of query `t`.
int64_t PiecesOf(const Plan& plan, size_t t) {
  const auto& offsets = plan.kind() == kHca ? plan.work().shard_offsets : plan.work().leaf_offsets;
  return offsets[t + 1] - offsets[t];
}

// A row count or a start, and the shards or leaves it has.
struct Case {
  int64_t at;
  int64_t pieces;
};

TEST(Compressed, HcaShardsOfNamedRowCounts) {
  for (const Case& c : std::vector<Case>{{0, 0},
                                         {1, 1},
                                         {127, 1},
                                         {128, 1},
                                         {129, 2},
                                         {256, 2},
                                         {4100, 33},
                                         {8000, 63},
                                         {8065, 64},
                                         {8191, 64}}) {
    CheckBatch(kHca, {{c.at * 128 + 5, 1}}, [&](const Plan& plan) {
      EXPECT_EQ(PiecesOf(plan, 0), c.pieces) << c.at;
      EXPECT_EQ(plan.work().compressed_rows, c.at);
      EXPECT_TRUE(plan.work().events.empty());
    });
  }
  CheckBatch(kHca, {{1'048'575, 1}}, [](const Plan& plan) {
    EXPECT_EQ(PiecesOf(plan, 0), 64);
    EXPECT_EQ(plan.work().compressed_rows, 8192);
    EXPECT_EQ(plan.work().events.size(), 1U);
  });
}

TEST(Compressed, HcaStartsOfOneBatchDoNotPadEachOther) {
  CheckBatch(kHca, {{128, 3}, {999'999, 3}}, [](const Plan& plan) {
    const PackedWork& work = plan.work();
    EXPECT_EQ(work.compressed_rows, 3 * (1 + 7812));
    for (size_t t = 0; t < 6; ++t) {
      int64_t rows = 0;
      for (int32_t s = work.shard_offsets[t]; s < work.shard_offsets[t + 1]; ++s) {
        rows += work.shards[static_cast<size_t>(s)].num_rows;
      }
      EXPECT_EQ(rows, t < 3 ? 1 : 7812);
    }
    EXPECT_EQ(work.main_pages.size(), 1U + 245U);
  });
}

TEST(Compressed, HcaAnEventIsSeenByItsOwnTokenAndLaterOnes) {
  CheckBatch(kHca, {{380, 8}}, [](const Plan& plan) {
    ASSERT_EQ(plan.work().events.size(), 1U);
    EXPECT_EQ(plan.work().events[0].query, 3);
    EXPECT_EQ(plan.work().events[0].row, 2);
    EXPECT_EQ(plan.work().events[0].rope_position, 256);
    for (size_t t = 0; t < 8; ++t) {
      EXPECT_EQ(plan.work().shards[t].num_rows, t < 3 ? 2 : 3);
    }
  });
}

TEST(Compressed, CsaLeavesOfNamedCandidateCounts) {
  for (const int64_t candidates : {0, 1, 511, 512, 513, 2047, 2048, 2049, 4095, 4096, 4097, 131'071,
                                   131'072, 131'073, 262'143}) {
    CheckBatch(kCsa, {{candidates * 4 + 1, 1}}, [&](const Plan& plan) {
      EXPECT_EQ(PiecesOf(plan, 0), (candidates + 2047) / 2048);
      EXPECT_EQ(plan.work().compressed_rows, candidates);
      EXPECT_TRUE(plan.work().events.empty());
    });
  }
  CheckBatch(kCsa, {{1'048'575, 1}}, [](const Plan& plan) {
    EXPECT_EQ(plan.work().compressed_rows, 262'144);
    EXPECT_EQ(plan.work().merges.size(), 127U);
  });
}

TEST(Compressed, CsaLeavesOfNamedStarts) {
  for (const Case& c : std::vector<Case>{{2, 0}, {127, 1}, {16'383, 2}, {1'048'575, 128}}) {
    CheckBatch(kCsa, {{c.at, 1}},
               [&](const Plan& plan) { EXPECT_EQ(PiecesOf(plan, 0), c.pieces); });
  }
}

TEST(Compressed, EveryShortHistory) {
  for (const auto kind : {kHca, kCsa}) {
    for (int64_t start = 0; start <= 300; ++start) {
      CheckBatch(kind, {{start, 1}});
      CheckBatch(kind, {{start, 1 + start % 9}});
    }
  }
}

TEST(Compressed, TheLastTokensBeforeTheCeiling) {
  for (const auto kind : {kHca, kCsa}) {
    CheckBatch(kind, {{1'048'575, 1}});
    CheckBatch(kind, {{1'048'568, 8}});
    CheckBatch(kind, {{1'048'447, 1}, {1'048'446, 3}});
    CheckBatch(kind, {{1'048'576 - 300, 300}});
  }
}

// Several events of one request, on steps wider than the rings.
TEST(Compressed, WideSteps) {
  for (const int64_t start : {0, 1, 3, 100, 127, 128, 129, 1000, 4095}) {
    for (const int64_t num_tokens : {7, 8, 9, 127, 128, 129, 300}) {
      for (const auto kind : {kHca, kCsa}) {
        CheckBatch(kind, {{start, num_tokens}}, [&](const Plan& plan) {
          const int64_t ratio = kind == kHca ? 128 : 4;
          EXPECT_EQ(static_cast<int64_t>(plan.work().events.size()),
                    (start + num_tokens) / ratio - start / ratio);
        });
      }
    }
  }
}

TEST(Compressed, RandomMixes) {
  std::mt19937_64 random(11);
  for (const auto kind : {kHca, kCsa}) {
    for (int round = 0; round < 30; ++round) {
      std::vector<Entry> entries;
      for (int r = 0; r < 10; ++r) {
        static constexpr int64_t kStarts[] = {0,   1,   2,   3,    31,   32,     63,
                                              126, 127, 128, 2050, 4100, 16'383, 70'000};
        static constexpr int64_t kTokens[] = {0, 1, 2, 3, 4, 5, 8, 8, 9, 140};
        entries.push_back({kStarts[random() % 14], kTokens[random() % 10]});
      }
      CheckBatch(kind, entries);
    }
  }
}

// Rings that hold no more than the step reads.
TEST(Compressed, RingsThatAreNotFull) {
  std::mt19937_64 random(12);
  for (const auto kind : {kHca, kCsa}) {
    const int64_t ratio = kind == kHca ? 128 : 4;
    for (int64_t start = 500; start < 650; ++start) {
      EngineSpaces spaces(1, 64);
      const EngineRequest request(kind, spaces, start + 9, random);
      StepRequest step = request.Step(start, 9);
      const int64_t open_block = start / ratio * ratio;
      step.pages.raw.valid.begin = start - 127;
      step.pages.state.valid.begin = kind == kHca ? open_block : open_block - 4;
      step.pages.inner_state.valid.begin = open_block - 4;
      const std::vector<StepRequest> steps = {step};
      Checker(kind, spaces, steps).Check();
    }
  }
}

// Pages acquired ahead of the rows, and whatever stands behind them, are no part of the plan.
TEST(Compressed, EntriesBehindTheRowsOfTheStepAreNotLookedAt) {
  std::mt19937_64 random(13);
  for (const auto kind : {kHca, kCsa}) {
    EngineSpaces spaces(1, 64);
    EngineRequest request(kind, spaces, 4200, random);
    request.main.push_back({-1, 7});
    request.main.push_back({1'000'000, 7});
    request.main.push_back(request.main[0]);
    request.index.push_back({-5, 7});
    request.index.push_back({0, 0});
    const std::vector<StepRequest> steps = {request.Step(4100, 8)};
    Checker(kind, spaces, steps).Check();
  }
}

TEST(Compressed, ListsOfIdleRequestsAreNotLookedAt) {
  std::mt19937_64 random(14);
  auto* nowhere = reinterpret_cast<const PageEntry*>(uintptr_t{64});
  for (const auto kind : {kHca, kCsa}) {
    EngineSpaces spaces(1, 64);
    const EngineRequest request(kind, spaces, 400, random);
    StepRequest idle;
    idle.active = false;
    idle.start_pos = -7;
    for (PageListView RequestPages::*list :
         {&RequestPages::raw, &RequestPages::main, &RequestPages::index, &RequestPages::state,
          &RequestPages::inner_state}) {
      idle.pages.*list = {{nowhere, 4}, {77, -3}};
    }
    StepRequest empty = idle;
    empty.active = true;
    const std::vector<StepRequest> steps = {idle, request.Step(300, 90), empty};
    Checker(kind, spaces, steps).Check();
  }
}

TEST(Compressed, AStepWithoutTokens) {
  for (const auto kind : {kHca, kCsa}) {
    EngineSpaces spaces(1, 64);
    StepRequest idle;
    idle.active = false;
    const std::vector<StepRequest> steps = {idle, idle};
    Checker(kind, spaces, steps).Check();
    const std::vector<StepRequest> none;
    Checker(kind, spaces, none).Check();
  }
}

// The same work on any pages: only page numbers differ, and they differ as the pages do.
TEST(Compressed, PagePlacementMovesRowsOnly) {
  for (const auto kind : {kHca, kCsa}) {
    std::vector<std::vector<HcaShard>> shards;
    std::vector<std::vector<CsaLeaf>> leaves;
    for (uint64_t seed = 0; seed < 2; ++seed) {
      std::mt19937_64 random(seed);
      EngineSpaces spaces(1, 300);
      const EngineRequest request(kind, spaces, 20'008, random);
      const std::vector<StepRequest> steps = {request.Step(20'000, 8)};
      Checker(kind, spaces, steps).Check();
      const auto plan = Plan::Create(ModelConfig::Tiny(), kind, 1, spaces.views(kind), steps);
      ASSERT_TRUE(plan);
      shards.push_back(plan->work().shards);
      leaves.push_back(plan->work().leaves);
    }
    ASSERT_EQ(shards[0].size(), shards[1].size());
    for (size_t i = 0; i < shards[0].size(); ++i) {
      EXPECT_EQ(shards[0][i].first_page, shards[1][i].first_page);
    }
    ASSERT_EQ(leaves[0].size(), leaves[1].size());
    for (size_t i = 0; i < leaves[0].size(); ++i) {
      EXPECT_EQ(leaves[0][i].first_page, leaves[1][i].first_page);
    }
  }
}

}  // namespace
}  // namespace millipede
