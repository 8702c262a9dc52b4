// Long random runs: a script of steps with requests that come and go, and what running it leaves.
#ifndef MILLIPEDE_TESTS_SUPPORT_SOAK_H_
#define MILLIPEDE_TESTS_SUPPORT_SOAK_H_

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "support/decode_world.h"

namespace millipede::testing {

inline constexpr std::array kSoakKinds = {AttentionKind::kSwa, AttentionKind::kHca,
                                          AttentionKind::kCsa};

struct SoakJoin {
  int64_t id = 0;
  int64_t start_pos = 0;
};

// A step of one kind: requests that leave and join before it, and what it decodes.
struct SoakStep {
  AttentionKind kind = AttentionKind::kSwa;
  std::vector<int64_t> leaves;
  std::vector<SoakJoin> joins;
  std::vector<StepEntry> entries;
};

// Steps of all kinds by turns of chance. Six requests of each kind are there at a time: one of any
// length to the ceiling, the others short; those that leave are followed by new ones. The first of
// each place is the longest, so that no later one needs more memory. Entries are of 1 to 8 tokens,
// some wider, some accepted in part, some inactive.
std::vector<SoakStep> MakeSoakScript(int64_t num_steps, uint64_t seed);

// What a run leaves: a checksum of the outputs of each step, and one of the rows that each request
// had in its caches when it left, or at the end.
struct SoakTrail {
  std::vector<uint64_t> steps;
  std::vector<uint64_t> caches;
  int64_t longest = 0;       // most tokens that a request had
  int64_t growth_bytes = 0;  // of resident memory from warm_up_steps to the end
};

struct SoakRun {
  std::array<DecodeWorld*, 3> worlds{};  // by kind
  std::function<Executor&(int64_t step)> executor;
  std::function<bool(int64_t id)> owns = [](int64_t) { return true; };  // requests that take part
  int64_t warm_up_steps = 0;
};
SoakTrail RunSoak(const std::vector<SoakStep>& script, const SoakRun& run);

// Of this process, with what the heap holds free given back.
int64_t ResidentBytes();

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_SUPPORT_SOAK_H_
