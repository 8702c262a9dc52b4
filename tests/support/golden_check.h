// Judges every stage of a step by the golden, each fed the library's own values before it.
#ifndef MILLIPEDE_TESTS_SUPPORT_GOLDEN_CHECK_H_
#define MILLIPEDE_TESTS_SUPPORT_GOLDEN_CHECK_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "reference/golden.h"
#include "reference/judge.h"
#include "support/decode_world.h"

namespace millipede::testing {

// Where the golden finds the compressed rows that a request can read. Unset for kinds without.
struct CompressedRows {
  std::function<std::span<const Bf16>(int64_t row)> main;
  std::function<std::span<const int8_t>(int64_t row)> index;
  std::function<float(int64_t row)> index_scale;
};

// Adds a test failure for each violated rule. `tokens` lists tokens of the result to judge; empty
// means all. The world is the one that made the result: it gives the request's compressed rows.
void ExpectGoldenStages(DecodeWorld& world, const EntryResult& result,
                        reference::RuleProfile profile, std::vector<int64_t> tokens = {});

// The same for a result that no world made.
void ExpectGoldenStages(const reference::Golden& golden, const CompressedRows& rows,
                        const EntryResult& result, reference::RuleProfile profile,
                        std::vector<int64_t> tokens = {});

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_SUPPORT_GOLDEN_CHECK_H_
