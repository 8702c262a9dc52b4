#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/info.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <algorithm>

#include "millipede/executor.h"
#include "runtime/num_threads.h"

namespace millipede {
namespace {

class TbbExecutor final : public Executor {
 public:
  explicit TbbExecutor(int num_threads)
      : num_threads_(num_threads),
        // oneTBB has no more workers than this, and says so on stderr when asked for more.
        arena_(std::min(num_threads, oneapi::tbb::info::default_concurrency())) {}

  int num_threads() const override { return num_threads_; }

  void Run(int64_t num_items, const Task& task) override {
    using Range = oneapi::tbb::blocked_range<int64_t>;
    arena_.execute([&] {
      // One item per task: items are coarse already, and stealing evens out the rest.
      oneapi::tbb::parallel_for(
          Range(0, num_items, 1),
          [&task](const Range& range) {
            const int thread = oneapi::tbb::this_task_arena::current_thread_index();
            for (int64_t item = range.begin(); item < range.end(); ++item) task.Run(item, thread);
          },
          oneapi::tbb::simple_partitioner());
    });
  }

 private:
  int num_threads_;
  oneapi::tbb::task_arena arena_;
};

}  // namespace

Result<std::unique_ptr<Executor>> MakeTbbExecutor(int num_threads) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckNumThreads(num_threads));
  return std::make_unique<TbbExecutor>(num_threads);
} catch (const std::bad_alloc&) {
  return OutOfMemory("num_threads", "the executor");
}

}  // namespace millipede
