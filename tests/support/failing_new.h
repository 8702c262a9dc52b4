// An operator new that counts, and runs out of memory when it is told to. Linking failing_new.cc
// replaces that of the program.
#ifndef MILLIPEDE_TESTS_SUPPORT_FAILING_NEW_H_
#define MILLIPEDE_TESTS_SUPPORT_FAILING_NEW_H_

#include <cstdint>

namespace millipede::testing {

// From now on, after `num_allocations` more, one allocation of this thread fails, or all do.
void FailAllocations(int64_t num_allocations, bool all);

// None fails from now on. Whether one has since FailAllocations.
bool StopFailing();

// Allocations so far, on all threads.
int64_t NumAllocations();

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_SUPPORT_FAILING_NEW_H_
