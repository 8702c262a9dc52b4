// The threads of the command.
#ifndef MILLIPEDE_TOOLS_EXECUTOR_H_
#define MILLIPEDE_TOOLS_EXECUTOR_H_

#include <memory>

#include "millipede/executor.h"
#include "millipede/status.h"

namespace millipede::tools {

// oneTBB; plain threads under the thread sanitizer, which cannot see into oneTBB.
inline Result<std::unique_ptr<Executor>> MakeExecutor(int num_threads) {
#ifdef MILLIPEDE_THREAD_SANITIZER
  return MakeThreadExecutor(num_threads);
#else
  return MakeTbbExecutor(num_threads);
#endif
}

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_EXECUTOR_H_
