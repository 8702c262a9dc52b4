#include "reference/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace millipede::reference {

void ParallelFor(int64_t n, const std::function<void(int64_t)>& body, int num_threads) {
  if (num_threads <= 0) {
    num_threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  std::atomic<int64_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (int64_t i = next++; i < n; i = next++) {
      try {
        body(i);
      } catch (...) {
        const std::scoped_lock lock(mutex);
        failure = std::current_exception();
        next = n;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int64_t i = 1; i < std::min<int64_t>(num_threads, n); ++i) threads.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace millipede::reference
