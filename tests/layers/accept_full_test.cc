// Every step width from 1 to 33, and 130, for SWA and at every phase of a CSA block, any
// prefix accepted, then 16 tokens more: bit-equal to never having run the rejected ones.
#include <gtest/gtest.h>

#include "layers/accept_matrix.h"

namespace millipede {
namespace {

using testing::ExpectAllWidths;

TEST(AcceptFullTest, Swa) {
  for (const int64_t start : {0, 100, 127, 300}) ExpectAllWidths(AttentionKind::kSwa, start);
}

TEST(AcceptFullTest, CsaFromTheStart) {
  for (const int64_t start : {0, 1, 2, 3, 5, 7}) ExpectAllWidths(AttentionKind::kCsa, start);
}

TEST(AcceptFullTest, CsaEveryPhase) {
  for (const int64_t start : {300, 301, 302, 303}) ExpectAllWidths(AttentionKind::kCsa, start);
}

}  // namespace
}  // namespace millipede
