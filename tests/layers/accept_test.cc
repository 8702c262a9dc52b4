// Accepting a part of a step leaves what decoding the accepted tokens alone would have left. A few
// of the cases of accept_full_test.cc, quick enough for sanitizers.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "layers/accept_matrix.h"

namespace millipede {
namespace {

using testing::DecodeWorld;
using testing::ExpectAcceptedIsAll;
using testing::ExpectAnyPrefix;
using testing::SerialTruth;

TEST(AcceptTest, Swa) {
  ExpectAnyPrefix(AttentionKind::kSwa, 0, {1, 5});
  ExpectAnyPrefix(AttentionKind::kSwa, 125, {4});
  ExpectAcceptedIsAll(AttentionKind::kSwa, 300, {33, 130}, {0, 1, 32, 127, 128, 129, 130});
}

TEST(AcceptTest, Hca) {
  ExpectAnyPrefix(AttentionKind::kHca, 256 + 125, {4});
  ExpectAcceptedIsAll(AttentionKind::kHca, 256 + 127, {1, 33}, {0, 1, 2, 32});
  ExpectAcceptedIsAll(AttentionKind::kHca, 256 + 64, {130}, {0, 1, 127, 128, 129, 130});
}

TEST(AcceptTest, Csa) {
  for (const int64_t phase : {0, 1, 2, 3}) {
    ExpectAnyPrefix(AttentionKind::kCsa, 300 + phase, {6});
    ExpectAcceptedIsAll(AttentionKind::kCsa, 2 + phase, {33}, {0, 3, 4, 31});
  }
  ExpectAcceptedIsAll(AttentionKind::kCsa, 301, {130}, {0, 1, 127, 128, 129, 130});
}

// The comparison sees a row that is not as it should be, and a range.
TEST(AcceptTest, ADifferenceIsSeen) {
  const SerialTruth truth(AttentionKind::kCsa, 301, 3);
  DecodeWorld world(ModelConfig::Tiny(), AttentionKind::kCsa);
  world.Add(5, 301);
  truth.ExpectSameCaches(world, 5);
  const auto fails = [&](auto&& spoil) {
    ::testing::TestPartResultArray results;
    {
      ::testing::ScopedFakeTestPartResultReporter reporter(
          ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
      spoil();
      truth.ExpectSameCaches(world, 5);
      spoil();
    }
    return results.size();
  };
  EXPECT_EQ(fails([] {}), 0);
  EXPECT_EQ(fails([&] { world.RawRow(5, 200)[7].bits ^= 1; }), 1);
  EXPECT_EQ(fails([&] { world.MainRow(5, 74)[511].bits ^= 1; }), 1);
  EXPECT_EQ(fails([&] { world.StateRow(5, 300)[0] *= -1; }), 1);
  EXPECT_EQ(fails([&] { world.InnerStateRow(5, 298)[0] *= -1; }), 1);
  EXPECT_EQ(fails([&] { world.IndexRow(5, 0)[0] ^= 1; }), 1);
  EXPECT_EQ(fails([&] { world.IndexScale(5, 74) *= -1; }), 1);
}

}  // namespace
}  // namespace millipede
