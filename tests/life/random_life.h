// Random histories: made from a seed, carried out, and cut down to a minimal script when they fail.
#ifndef MILLIPEDE_TESTS_LIFE_RANDOM_LIFE_H_
#define MILLIPEDE_TESTS_LIFE_RANDOM_LIFE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "life/life_world.h"
#include "life/op.h"

namespace millipede::testing {

// A fault put in on purpose, to see that histories find it.
enum class Plant : uint8_t {
  kNone,
  kByte,  // a byte of a cache row changes behind the library's back
  kCopy,  // forks leave out one layer's copies
};

struct LifeFailure {
  LifeSetup setup;
  std::vector<Op> script;  // minimal: without any one call it does not fail
  std::string what;

  std::string Text() const;
};

struct LifeReport {
  int64_t num_steps = 0;
  int64_t num_golden_steps = 0;
  int64_t num_refusals = 0;  // of deliberate misuse, each the right one
  std::optional<LifeFailure> failure;
};

// Runs the history of a seed for `num_steps` steps. `kinds` as for SetupOf.
LifeReport RunHistory(uint64_t seed, int64_t num_steps, const std::vector<AttentionKind>& kinds,
                      Plant plant = Plant::kNone);

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_LIFE_RANDOM_LIFE_H_
