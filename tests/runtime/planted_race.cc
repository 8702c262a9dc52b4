// Two threads of an executor add to one plain variable. The thread sanitizer has to report it.
#include <cstdint>
#include <cstdio>
#include <memory>

#include "millipede/executor.h"

namespace {

class RacyTask final : public millipede::Task {
 public:
  void Run(int64_t item, int /*thread*/) const override { sum_ = sum_ + item; }
  int64_t sum() const { return sum_; }

 private:
  mutable int64_t sum_ = 0;
};

}  // namespace

int main() {
  const auto executor = millipede::MakeThreadExecutor(2).value();
  const RacyTask task;
  for (int repeat = 0; repeat < 1000; ++repeat) executor->Run(1000, task);
  std::printf("sum %lld\n", static_cast<long long>(task.sum()));
  return 0;
}
