// Runs independent tokens of the golden on plain threads.
#ifndef MILLIPEDE_REFERENCE_PARALLEL_H_
#define MILLIPEDE_REFERENCE_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace millipede::reference {

// Calls body(i) once for each i in [0, n), on up to `num_threads` threads; 0 means all of the
// machine's. Returns when all calls have. An exception of a body is rethrown.
void ParallelFor(int64_t n, const std::function<void(int64_t)>& body, int num_threads = 0);

}  // namespace millipede::reference

#endif  // MILLIPEDE_REFERENCE_PARALLEL_H_
