// Every step width from 1 to 33, and 130, at the phases of an HCA block that matter, any
// prefix accepted, then 16 tokens more: bit-equal to never having run the rejected ones.
#include <gtest/gtest.h>

#include "layers/accept_matrix.h"

namespace millipede {
namespace {

using testing::ExpectAllWidths;

class AcceptFullHcaTest : public ::testing::TestWithParam<int> {};

TEST_P(AcceptFullHcaTest, Phase) { ExpectAllWidths(AttentionKind::kHca, 256 + GetParam()); }

INSTANTIATE_TEST_SUITE_P(First, AcceptFullHcaTest, ::testing::Values(0, 1, 63));
INSTANTIATE_TEST_SUITE_P(Last, AcceptFullHcaTest, ::testing::Range(95, 128));

}  // namespace
}  // namespace millipede
