#include "geometry/visibility.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace millipede {
namespace {

constexpr auto kSwa = AttentionKind::kSwa;
constexpr auto kHca = AttentionKind::kHca;
constexpr auto kCsa = AttentionKind::kCsa;

// What the last token of a history of `length` tokens sees, written out by hand.
struct Line {
  int64_t length;
  int64_t window_begin, window_rows;
  int64_t hca_rows, shards, shard_tail, hca_pages;
  int64_t candidates, leaves, leaf_tail, merges, csa_pages;
};
constexpr Line kTable[] = {
    {1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0},
    {127, 0, 127, 0, 0, 0, 0, 31, 1, 31, 0, 1},
    {128, 0, 128, 1, 1, 1, 1, 32, 1, 32, 0, 1},
    {129, 1, 128, 1, 1, 1, 1, 32, 1, 32, 0, 1},
    {12'288, 12'160, 128, 96, 1, 96, 3, 3072, 2, 1024, 1, 96},
    {16'384, 16'256, 128, 128, 1, 128, 4, 4096, 2, 2048, 1, 128},
    {32'768, 32'640, 128, 256, 2, 128, 8, 8192, 4, 2048, 3, 256},
    {524'288, 524'160, 128, 4096, 32, 128, 128, 131'072, 64, 2048, 63, 4096},
    {1'048'575, 1'048'447, 128, 8191, 64, 127, 256, 262'143, 128, 2047, 127, 8192},
    {1'048'576, 1'048'448, 128, 8192, 64, 128, 256, 262'144, 128, 2048, 127, 8192},
};

TEST(Visibility, WrittenTable) {
  for (const Line& line : kTable) {
    SCOPED_TRACE(line.length);
    const int64_t p = line.length - 1;
    EXPECT_EQ(VisibleTokens(p), line.length);
    EXPECT_EQ(WindowRange(p).begin, line.window_begin);
    EXPECT_EQ(WindowRange(p).end - WindowRange(p).begin, line.window_rows);
    EXPECT_EQ(WindowRange(p).end, line.length);
    EXPECT_EQ(VisibleRows(kSwa, p), 0);
    EXPECT_EQ(VisibleRows(kHca, p), line.hca_rows);
    EXPECT_EQ(NumShards(line.hca_rows), line.shards);
    EXPECT_EQ(ShardTail(line.hca_rows), line.shard_tail);
    EXPECT_EQ(PagesForRows(line.hca_rows), line.hca_pages);
    EXPECT_EQ(VisibleRows(kCsa, p), line.candidates);
    EXPECT_EQ(NumLeaves(line.candidates), line.leaves);
    EXPECT_EQ(LeafTail(line.candidates), line.leaf_tail);
    EXPECT_EQ(NumMerges(line.leaves), line.merges);
    EXPECT_EQ(PagesForRows(line.candidates), line.csa_pages);
    EXPECT_EQ(AttendedRows(kSwa, p, 512), 0);
    EXPECT_EQ(AttendedRows(kHca, p, 512), line.hca_rows);
    EXPECT_EQ(AttendedRows(kCsa, p, 512), line.candidates < 512 ? line.candidates : 512);
  }
}

// Cuts `rows` one row at a time, and merges pieces pairwise until one is left.
struct Cut {
  int64_t pieces = 0;
  int64_t tail = 0;
  int64_t merges = 0;
};
Cut CutByHand(int64_t rows, int64_t piece) {
  std::vector<int64_t> pieces;
  for (int64_t i = 0; i < rows; ++i) {
    if (pieces.empty() || pieces.back() == piece) pieces.push_back(0);
    ++pieces.back();
  }
  Cut cut;
  cut.pieces = static_cast<int64_t>(pieces.size());
  cut.tail = pieces.empty() ? 0 : pieces.back();
  for (size_t level = pieces.size(); level > 1; level = (level + 1) / 2) {
    cut.merges += static_cast<int64_t>(level / 2);
  }
  return cut;
}

TEST(Visibility, AgreesWithCountingTokens) {
  std::mt19937_64 random(3);
  std::vector<int64_t> lengths = {1, 2, 3, 4, 5, 8191, 8192, 8193, 16'383, 16'385, 65'541};
  for (int i = 0; i < 40; ++i) lengths.push_back(1 + static_cast<int64_t>(random() % 70'000));
  for (int i = 0; i < 3; ++i) lengths.push_back(1 + static_cast<int64_t>(random() % 1'048'576));
  for (const int64_t length : lengths) {
    SCOPED_TRACE(length);
    const int64_t p = length - 1;
    int64_t window = 0;
    int64_t first = -1;
    int64_t hca = 0;
    int64_t csa = 0;
    for (int64_t q = 0; q <= p; ++q) {
      if (p - q < 128) {
        if (first < 0) first = q;
        ++window;
      }
      if (q % 128 == 127) ++hca;
      if (q % 4 == 3) ++csa;
    }
    EXPECT_EQ(WindowRange(p).begin, first);
    EXPECT_EQ(WindowRange(p).end - WindowRange(p).begin, window);
    EXPECT_EQ(VisibleRows(kHca, p), hca);
    EXPECT_EQ(VisibleRows(kCsa, p), csa);
    const Cut shards = CutByHand(hca, 128);
    EXPECT_EQ(NumShards(hca), shards.pieces);
    EXPECT_EQ(ShardTail(hca), shards.tail);
    const Cut leaves = CutByHand(csa, 2048);
    EXPECT_EQ(NumLeaves(csa), leaves.pieces);
    EXPECT_EQ(LeafTail(csa), leaves.tail);
    EXPECT_EQ(NumMerges(NumLeaves(csa)), leaves.merges);
    EXPECT_EQ(PagesForRows(csa), CutByHand(csa, 32).pieces);
  }
}

TEST(Visibility, TailsAtPieceBoundaries) {
  for (const int64_t rows : {0,   1,   31,  32,  33,   63,   64,   65,   127,  128,
                             129, 257, 300, 513, 2047, 2048, 2049, 4095, 4096, 4097}) {
    EXPECT_EQ(NumShards(rows), CutByHand(rows, 128).pieces) << rows;
    EXPECT_EQ(ShardTail(rows), CutByHand(rows, 128).tail) << rows;
    EXPECT_EQ(NumLeaves(rows), CutByHand(rows, 2048).pieces) << rows;
    EXPECT_EQ(LeafTail(rows), CutByHand(rows, 2048).tail) << rows;
  }
}

}  // namespace
}  // namespace millipede
