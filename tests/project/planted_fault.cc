// A program with one fault, named by its argument, that the sanitizer it is built with must report.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "millipede/executor.h"

namespace {

// Every item adds to one plain number, and lasts long enough for the other threads to join in.
class RacyTask : public millipede::Task {
 public:
  void Run(int64_t /*item*/, int /*thread*/) const override {
    ++sum_;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  int64_t sum() const { return sum_; }

 private:
  mutable int64_t sum_ = 0;
};

int64_t Race() {
  const std::unique_ptr<millipede::Executor> executor =
      std::move(millipede::MakeThreadExecutor(2)).value();
  const RacyTask task;
  executor->Run(1000, task);
  return task.sum();
}

int64_t Overrun(size_t size) { return std::vector<int64_t>(size).data()[size]; }

int64_t Leak() {
  static int64_t* volatile lost = nullptr;
  lost = new int64_t[1000]{};
  const int64_t value = lost[0];
  lost = nullptr;
  return value;
}

int64_t Overflow(int64_t one) { return std::numeric_limits<int64_t>::max() + one; }

}  // namespace

int main(int argc, char** argv) {
  const std::string_view fault = argc == 2 ? argv[1] : "";
  int64_t value = 0;
  if (fault == "race") value = Race();
  if (fault == "overrun") value = Overrun(static_cast<size_t>(argc));
  if (fault == "leak") value = Leak();
  if (fault == "overflow") value = Overflow(argc);
  std::printf("not reported: %s %lld\n", argv[argc - 1], static_cast<long long>(value));
  return 0;
}
