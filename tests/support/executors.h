// The executors a test runs everything on, and one that runs nothing.
#ifndef MILLIPEDE_TESTS_SUPPORT_EXECUTORS_H_
#define MILLIPEDE_TESTS_SUPPORT_EXECUTORS_H_

#include <memory>
#include <string>
#include <vector>

#include "millipede/executor.h"

namespace millipede::testing {

struct NamedExecutor {
  std::string name;
  std::unique_ptr<Executor> executor;
};

// Serial, and 1 to `max_threads` threads of each of the others. oneTBB's binaries are not
// instrumented, so under the thread sanitizer it would only report its own innards: left out there.
inline std::vector<NamedExecutor> AllExecutors(int max_threads = 4) {
  std::vector<NamedExecutor> executors;
  executors.push_back({"serial", MakeSerialExecutor()});
  for (int threads = 1; threads <= max_threads; ++threads) {
    executors.push_back(
        {"threads-" + std::to_string(threads), MakeThreadExecutor(threads).value()});
#ifndef __SANITIZE_THREAD__
    executors.push_back({"tbb-" + std::to_string(threads), MakeTbbExecutor(threads).value()});
#endif
  }
  return executors;
}

// Of as many threads as it says, and idle.
class CountedExecutor final : public Executor {
 public:
  explicit CountedExecutor(int num_threads) : num_threads_(num_threads) {}
  int num_threads() const override { return num_threads_; }
  void Run(int64_t /*num_items*/, const Task& /*task*/) override {}

 private:
  int num_threads_;
};

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_SUPPORT_EXECUTORS_H_
