// Bytes that a step may not read have no part in it: whatever they hold, every output keeps its
// bits. And a token's NaN stays in its own request, behind it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "support/decode_world.h"

namespace millipede {
namespace {

using testing::DecodeWorld;
using testing::EntryResult;
using testing::FillPattern;
using testing::kNanPattern;
using testing::SameBits;
using testing::StepEntry;

// As bf16 pairs and as float32: NaN; infinities and NaN; infinities of either sign; huge.
constexpr std::array<uint32_t, 5> kPatterns = {kNanPattern, 0x7F80FF80, 0x7F800000, 0xFF800000,
                                               0x7F7F7F7F};

const std::map<int64_t, int64_t> kStarts = {{0, 0},   {1, 2},   {2, 100},
                                            {3, 130}, {4, 301}, {5, 2175}};

// Steps that cross blocks and a ring's end.
const std::vector<StepEntry> kEntries = {{.id = 0, .num_tokens = 5},  {.id = 1, .num_tokens = 3},
                                         {.id = 2, .num_tokens = 33}, {.id = 3, .num_tokens = 1},
                                         {.id = 4, .num_tokens = 9},  {.id = 5, .num_tokens = 8}};

class PoisonTest : public ::testing::TestWithParam<AttentionKind> {
 protected:
  DecodeWorld MakeWorld() {
    DecodeWorld world(config_, GetParam());
    for (const auto& [id, start] : kStarts) world.Add(id, start);
    // The pages of the step's new rows, so that they can be poisoned too.
    for (const StepEntry& entry : kEntries) world.Prepare(entry.id, entry.num_tokens);
    return world;
  }

  // The rows that the next step of a request may read of what is in its caches, found from its
  // position alone.
  template <typename Body>
  void ForEachReadableRow(DecodeWorld& world, int64_t id, const Body& body) {
    const int64_t p = world.position(id);
    const AttentionKind kind = GetParam();
    for (int64_t i = std::max<int64_t>(0, p - 127); i < p; ++i) {
      body(std::as_writable_bytes(world.RawRow(id, i)));
    }
    if (kind == AttentionKind::kSwa) return;
    const int64_t ratio = kind == AttentionKind::kHca ? 128 : 4;
    for (int64_t r = 0; r < p / ratio; ++r) body(std::as_writable_bytes(world.MainRow(id, r)));
    const int64_t blocks_before = kind == AttentionKind::kHca ? 0 : 1;
    for (int64_t i = std::max<int64_t>(0, p / ratio - blocks_before) * ratio; i < p; ++i) {
      body(std::as_writable_bytes(world.StateRow(id, i)));
      if (kind == AttentionKind::kCsa) body(std::as_writable_bytes(world.InnerStateRow(id, i)));
    }
    if (kind == AttentionKind::kHca) return;
    for (int64_t r = 0; r < p / ratio; ++r) {
      body(std::as_writable_bytes(world.IndexRow(id, r)));
      body(std::as_writable_bytes(std::span(&world.IndexScale(id, r), 1)));
    }
  }

  // Fills the pools up to a few pages behind the last one in use, all but the readable rows.
  void Poison(DecodeWorld& world, uint32_t pattern) {
    std::vector<std::vector<std::byte>> kept;
    for (const auto& [id, start] : kStarts) {
      ForEachReadableRow(
          world, id, [&](std::span<std::byte> row) { kept.emplace_back(row.begin(), row.end()); });
    }
    const AttentionKind kind = GetParam();
    std::vector<PoolKind> pools = {PoolKind::kRaw};
    if (kind == AttentionKind::kHca)
      pools.insert(pools.end(), {PoolKind::kHcaMain, PoolKind::kHcaState});
    if (kind == AttentionKind::kCsa) {
      pools.insert(pools.end(),
                   {PoolKind::kCsaMain, PoolKind::kCsaIndexRows, PoolKind::kCsaIndexScales,
                    PoolKind::kCsaState, PoolKind::kCsaInnerState});
    }
    for (const PoolKind pool : pools) {
      const std::span<std::byte> bytes = world.Bytes(pool);
      const auto used = static_cast<size_t>(128 * FormatOf(pool).page_bytes());
      FillPattern(bytes.first(std::min(bytes.size(), used)), pattern);
    }
    size_t next = 0;
    for (const auto& [id, start] : kStarts) {
      ForEachReadableRow(world, id, [&](std::span<std::byte> row) {
        std::copy(kept[next].begin(), kept[next].end(), row.begin());
        ++next;
      });
    }
    world.buffer_pattern = pattern;
  }

  std::unique_ptr<Executor> executor_ = MakeThreadExecutor(2).value();
  Context context_{*executor_};
  ModelConfig config_ = ModelConfig::Tiny();
};

TEST_P(PoisonTest, WhatAStepMayNotReadHasNoPartInIt) {
  DecodeWorld clean = MakeWorld();
  const std::map<int64_t, EntryResult> first = clean.Step(context_, kEntries);
  const std::map<int64_t, EntryResult> second = clean.Step(context_, kEntries);
  for (const auto& [id, result] : second) {
    for (const float value : result.x_out) ASSERT_TRUE(std::isfinite(value)) << id;
  }
  for (const uint32_t pattern : kPatterns) {
    SCOPED_TRACE(pattern);
    DecodeWorld world = MakeWorld();
    Poison(world, pattern);
    for (const auto& [id, result] : world.Step(context_, kEntries)) {
      EXPECT_TRUE(SameBits(result, first.at(id))) << id;
    }
    for (const StepEntry& entry : kEntries) world.Prepare(entry.id, entry.num_tokens);
    Poison(world, pattern);
    for (const auto& [id, result] : world.Step(context_, kEntries)) {
      EXPECT_TRUE(SameBits(result, second.at(id))) << id;
    }
  }
}

// Every row that may be read is read, by a step that ends a block of either kind: a change shows.
TEST_P(PoisonTest, WhatAStepReadsHasAPartInIt) {
  DecodeWorld clean = MakeWorld();
  const std::vector<StepEntry> step = {{.id = 2, .num_tokens = 33}};
  const EntryResult expected = clean.Step(context_, step).at(2);
  size_t num_rows = 0;
  {
    DecodeWorld world = MakeWorld();
    ForEachReadableRow(world, 2, [&](std::span<std::byte>) { ++num_rows; });
  }
  ASSERT_GE(num_rows, 100U);
  for (size_t poisoned = 0; poisoned < num_rows; poisoned += 7) {
    DecodeWorld world = MakeWorld();
    size_t row_index = 0;
    ForEachReadableRow(world, 2, [&](std::span<std::byte> row) {
      if (row_index++ == poisoned) FillPattern(row, 0x3FC03FC0);  // 1.5 everywhere
    });
    EXPECT_FALSE(SameBits(world.Step(context_, step).at(2), expected)) << "row " << poisoned;
  }
}

// The token's own request is spoilt from there on; nothing before it, and no other request.
TEST_P(PoisonTest, ATokensNanStaysInItsRequestBehindIt) {
  DecodeWorld clean = MakeWorld();
  const std::map<int64_t, EntryResult> first = clean.Step(context_, kEntries);
  const std::map<int64_t, EntryResult> second = clean.Step(context_, kEntries);
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    SCOPED_TRACE(value);
    DecodeWorld world = MakeWorld();
    constexpr int64_t kSpoilt = 2;  // 33 tokens from 100
    constexpr int64_t kTokensBefore = 10;
    world.edit_x = [value](int64_t id, int64_t position, std::span<float> row) {
      if (id == kSpoilt && position == 100 + kTokensBefore) row[3] = value;
    };
    const std::map<int64_t, EntryResult> spoilt = world.Step(context_, kEntries);
    for (const auto& [id, result] : spoilt) {
      if (id != kSpoilt) {
        EXPECT_TRUE(SameBits(result, first.at(id))) << id;
      }
    }
    const std::vector<float>& x_out = spoilt.at(kSpoilt).x_out;
    const std::vector<float>& expected = first.at(kSpoilt).x_out;
    const auto token_bytes = static_cast<size_t>(4 * config_.hidden) * sizeof(float);
    EXPECT_EQ(std::memcmp(x_out.data(), expected.data(), kTokensBefore * token_bytes), 0);
    EXPECT_NE(std::memcmp(x_out.data() + kTokensBefore * 4 * config_.hidden,
                          expected.data() + kTokensBefore * 4 * config_.hidden, token_bytes),
              0);
    for (const auto& [id, result] : world.Step(context_, kEntries)) {
      if (id != kSpoilt) {
        EXPECT_TRUE(SameBits(result, second.at(id))) << id;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, PoisonTest,
                         ::testing::Values(AttentionKind::kSwa, AttentionKind::kHca,
                                           AttentionKind::kCsa),
                         testing::KindTestName);

}  // namespace
}  // namespace millipede
