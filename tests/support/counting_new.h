// Counting what a program allocates. A test links counting_new.cc to have it.
#ifndef MILLIPEDE_TESTS_SUPPORT_COUNTING_NEW_H_
#define MILLIPEDE_TESTS_SUPPORT_COUNTING_NEW_H_

#include <cstdint>

namespace millipede::testing {

// Calls of operator new so far, on all threads.
int64_t NumAllocations();

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_SUPPORT_COUNTING_NEW_H_
