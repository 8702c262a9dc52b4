#ifndef MILLIPEDE_RUNTIME_NUM_THREADS_H_
#define MILLIPEDE_RUNTIME_NUM_THREADS_H_

#include "base/error.h"

namespace millipede {

inline constexpr int kMaxThreads = 1024;

inline Status CheckNumThreads(int num_threads) {
  if (num_threads < 1 || num_threads > kMaxThreads) {
    return MakeError(ErrorCode::kInvalidArgument, "num_threads", "{}; allowed: 1 to {}",
                     num_threads, kMaxThreads);
  }
  return {};
}

}  // namespace millipede

#endif  // MILLIPEDE_RUNTIME_NUM_THREADS_H_
