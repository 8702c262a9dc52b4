// Steps made from arbitrary bytes, for fuzzing plan: a batch that is as it should be, and then, if
// the bytes say so, damaged in a few places.
#ifndef MILLIPEDE_TESTS_FUZZ_PLAN_INPUT_H_
#define MILLIPEDE_TESTS_FUZZ_PLAN_INPUT_H_

#include <cstddef>
#include <cstdint>

namespace millipede::testing {

// Plans the step and, if it is not refused, checks that nothing in the plan lies outside a pool or
// an array, then goes through some of its life: run, commit, pages released in between. Ends the
// program with a message if anything is not as it should be. True if the step was planned.
bool PlanBytes(const uint8_t* data, size_t size);

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_FUZZ_PLAN_INPUT_H_
