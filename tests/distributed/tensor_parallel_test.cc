// Tensor parallel changes no bit: outputs and caches of every request are those of one process that
// runs the whole batch.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "distributed/group_world.h"

namespace millipede {
namespace {

using testing::AlignedBytes;
using testing::CreateGroup;
using testing::DecodeWorld;
using testing::EntryResult;
using testing::GroupWorld;
using testing::SameBits;
using testing::StepEntry;
using testing::WorldRank;
using testing::WorldSize;

template <typename T>
bool SameRow(std::span<T> a, std::span<T> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Every row that the request's lists hold, whatever pages they lie in.
void ExpectSameCaches(DecodeWorld& a, DecodeWorld& b, int64_t id) {
  const RequestPages lists = a.request(id).pages(a.kind());
  const RequestPages others = b.request(id).pages(b.kind());
  const auto each = [](const PageListView& list, const PageListView& other, const auto& same) {
    ASSERT_EQ(list.valid.begin, other.valid.begin);
    ASSERT_EQ(list.valid.end, other.valid.end);
    for (int64_t i = list.valid.begin; i < list.valid.end; ++i) ASSERT_TRUE(same(i)) << i;
  };
  each(lists.raw, others.raw, [&](int64_t p) { return SameRow(a.RawRow(id, p), b.RawRow(id, p)); });
  if (a.kind() == AttentionKind::kSwa) return;
  each(lists.main, others.main,
       [&](int64_t row) { return SameRow(a.MainRow(id, row), b.MainRow(id, row)); });
  each(lists.state, others.state,
       [&](int64_t p) { return SameRow(a.StateRow(id, p), b.StateRow(id, p)); });
  if (a.kind() == AttentionKind::kHca) return;
  each(lists.index, others.index, [&](int64_t row) {
    return SameRow(a.IndexRow(id, row), b.IndexRow(id, row)) &&
           SameRow(std::span(&a.IndexScale(id, row), 1), std::span(&b.IndexScale(id, row), 1));
  });
  each(lists.inner_state, others.inner_state,
       [&](int64_t p) { return SameRow(a.InnerStateRow(id, p), b.InnerStateRow(id, p)); });
}

// A script of steps, run by all ranks together and by each alone.
void ExpectBitsOfOneProcess(const ModelConfig& config, AttentionKind kind,
                            const std::map<int64_t, int64_t>& starts,
                            const std::vector<std::vector<StepEntry>>& steps, int num_threads = 1) {
  const auto executor = MakeThreadExecutor(num_threads).value();
  Context context(*executor);
  Context alone_context(*executor);
  GroupWorld group(config, kind);
  DecodeWorld alone(config, kind);
  for (const auto& [id, start] : starts) {
    group.Add(id, start);
    alone.Add(id, start);
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    SCOPED_TRACE(i);
    const std::map<int64_t, EntryResult> results = group.Step(context, steps[i]);
    const std::map<int64_t, EntryResult> expected = alone.Step(alone_context, steps[i]);
    for (const StepEntry& entry : steps[i]) {
      if (!entry.active || !group.owns(entry.id)) continue;
      SCOPED_TRACE(entry.id);
      ASSERT_TRUE(results.contains(entry.id));
      EXPECT_TRUE(SameBits(results.at(entry.id), expected.at(entry.id)));
      for (const float value : results.at(entry.id).x_out) ASSERT_TRUE(std::isfinite(value));
    }
    for (const auto& [id, start] : starts) {
      SCOPED_TRACE(id);
      if (group.owns(id)) ExpectSameCaches(group.world(), alone, id);
    }
  }
}

class TensorParallelTest : public ::testing::TestWithParam<AttentionKind> {
 protected:
  ModelConfig config_ = ModelConfig::Tiny();
};

TEST_P(TensorParallelTest, UnevenAndInactiveRequests) {
  const std::map<int64_t, int64_t> starts = {{0, 0},   {1, 126},  {2, 300}, {3, 2051},
                                             {4, 127}, {5, 8188}, {6, 31},  {9, 16380}};
  ExpectBitsOfOneProcess(config_, GetParam(), starts,
                         {{{.id = 0, .num_tokens = 1},
                           {.id = 5, .num_tokens = 9},
                           {.id = 1, .num_tokens = 8},
                           {.id = 2, .num_tokens = 3},
                           {.id = 9, .num_tokens = 5}},
                          // One rank's requests alone, and others' that are inactive.
                          {{.id = 0, .num_tokens = 7},
                           {.id = 3, .active = false},
                           {.id = 4, .num_tokens = 2},
                           {.id = 2, .active = false}},
                          // Nobody's.
                          {{.id = 1, .active = false}, {.id = 2, .active = false}},
                          {},
                          // Some of it rejected.
                          {{.id = 6, .num_tokens = 40},
                           {.id = 3, .num_tokens = 8, .accepted = 5},
                           {.id = 5, .num_tokens = 8, .accepted = 0},
                           {.id = 4, .num_tokens = 130, .accepted = 129},
                           {.id = 1}},
                          {{.id = 5}, {.id = 3}, {.id = 4}, {.id = 9}, {.id = 6}}});
}

TEST_P(TensorParallelTest, RanksWithoutRequests) {
  ExpectBitsOfOneProcess(config_, GetParam(), {{1, 4100}},
                         {{{.id = 1, .num_tokens = 8}}, {{.id = 1}}});
}

TEST_P(TensorParallelTest, StepsOfSeveralRounds) {
  ExpectBitsOfOneProcess(config_, GetParam(), {{0, 90}, {1, 500}, {2, 3}},
                         {{{.id = 0, .num_tokens = 600}, {.id = 1, .num_tokens = 5}},
                          {{.id = 1, .num_tokens = 257}, {.id = 2, .num_tokens = 256}}},
                         2);
}

TEST_P(TensorParallelTest, OtherGroupCounts) {
  // Of these sums some pair groups of different ranks, and some carry an odd one up.
  for (const int32_t groups_per_rank : {1, 3}) {
    ModelConfig config = config_;
    config.o_groups = groups_per_rank * WorldSize();
    config.num_heads = 2 * config.o_groups;
    config.hidden = 208;
    SCOPED_TRACE(config.o_groups);
    ExpectBitsOfOneProcess(config, GetParam(), {{0, 300}, {1, 127}, {3, 5000}},
                           {{{.id = 0, .num_tokens = 3}, {.id = 1, .num_tokens = 2}, {.id = 3}}});
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TensorParallelTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         testing::KindTestName);

// Packed weights of `groups`.
OutputWeights PackGroups(const ModelConfig& config, const LayerWeights& weights, RowRange groups) {
  const int64_t rank = config.o_rank;
  const int64_t lanes = int64_t{config.heads_per_group()} * kHeadDim;
  OutputWeights packed;
  for (int64_t g = groups.begin; g < groups.end; ++g) {
    packed.wo_a.push_back(MatrixBf16::Pack(MakeView(weights.wo_a.row(g), rank, lanes)).value());
    packed.wo_b.push_back(MatrixInt8::Pack({.data = weights.wo_b.data + g * rank,
                                            .shape = {config.hidden, rank},
                                            .stride0 = weights.wo_b.stride0},
                                           weights.wo_b_scale)
                              .value());
  }
  return packed;
}

TEST(TensorParallelStageTest, ProjectOutputOfStridedTensors) {
  const ModelConfig config = ModelConfig::Tiny();
  const auto& fixture = testing::SharedFixture(config, AttentionKind::kSwa, 7);
  const LayerWeights weights = fixture.views();
  TensorParallel group = CreateGroup(config).value();
  const OutputWeights own = PackGroups(config, weights, GroupsOf(config, group.shard()).value());
  const OutputWeights all = PackGroups(config, weights, {0, config.o_groups});
  const auto executor = MakeThreadExecutor(2).value();
  Context context(*executor);

  const int64_t num_tokens = 3 + 70 * (WorldRank() % 3);
  const int64_t heads_stride = int64_t{config.num_heads} * kHeadDim + 24;
  const int64_t out_stride = config.hidden + 3;
  std::vector<Bf16> heads(static_cast<size_t>(num_tokens * heads_stride), Bf16{0xFFFF});
  for (int64_t t = 0; t < num_tokens; ++t) {
    fixtures::RequestFixture(config, 3, WorldRank())
        .Heads(t, std::span(heads).subspan(static_cast<size_t>(t * heads_stride),
                                           static_cast<size_t>(config.num_heads) * kHeadDim));
  }
  TensorView<Bf16, 3> heads_view = MakeView(heads.data(), num_tokens, config.num_heads, kHeadDim);
  heads_view.stride0 = heads_stride;
  std::vector<Bf16> out(static_cast<size_t>(num_tokens * out_stride), Bf16{7});
  std::vector<Bf16> expected = out;
  TensorView<Bf16, 2> out_view = MakeView(out.data(), num_tokens, config.hidden);
  out_view.stride0 = out_stride;
  TensorView<Bf16, 2> expected_view = out_view;
  expected_view.data = expected.data();

  AlignedBytes scratch(StageScratchBytes(config, num_tokens, 2));
  ASSERT_TRUE(
      millipede::ProjectOutput(context, config, all, heads_view, expected_view, scratch.span()));
  ASSERT_TRUE(group.ProjectOutput(context, own, heads_view, out_view));
  EXPECT_TRUE(SameBits(out, expected));  // the gaps between rows included
  bool any = false;
  for (const Bf16 value : out) any |= value.bits != 7;
  EXPECT_TRUE(any);

  // Heads to the others, and the products of their tokens.
  int64_t all_tokens = 0;
  for (int r = 0; r < WorldSize(); ++r) all_tokens += 3 + 70 * (r % 3);
  const int64_t others = WorldSize() - 1;
  const int64_t group_heads = config.num_heads / WorldSize();
  const int64_t own_groups = config.o_groups / WorldSize();
  EXPECT_EQ(group.bytes_sent(), others * num_tokens * group_heads * kHeadDim * 2 +
                                    (all_tokens - num_tokens) * own_groups * config.hidden * 4);
}

TEST(TensorParallelStageTest, AShardHoldsItsGroupsAlone) {
  const ModelConfig config = ModelConfig::Tiny();
  GroupWorld group(config, AttentionKind::kCsa);
  const int64_t group_bytes =
      int64_t{config.o_rank} * config.heads_per_group() * kHeadDim * 2 +  // wo_a
      int64_t{config.hidden} * config.o_rank +                            // wo_b
      int64_t{config.hidden} * 4;                                         // its scale
  EXPECT_EQ(group.world().layer().weight_bytes() - group.layer().weight_bytes(),
            (config.o_groups - config.o_groups / WorldSize()) * group_bytes);
}

}  // namespace
}  // namespace millipede
