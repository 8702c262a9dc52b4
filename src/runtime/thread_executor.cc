#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "millipede/executor.h"
#include "runtime/num_threads.h"

namespace millipede {
namespace {

// Workers sleep between regions; in a region every thread takes the next item until none is left.
class ThreadExecutor final : public Executor {
 public:
  ThreadExecutor() = default;
  ~ThreadExecutor() override {
    {
      const std::scoped_lock lock(mutex_);
      stopping_ = true;
    }
    region_started_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  Status Start(int num_threads) {
    try {
      workers_.reserve(static_cast<size_t>(num_threads) - 1);
      for (int thread = 1; thread < num_threads; ++thread) {
        workers_.emplace_back([this, thread] { Work(thread); });
      }
    } catch (const std::system_error& error) {
      return MakeError(ErrorCode::kOutOfMemory, "num_threads", "{}; cannot start a thread: {}",
                       num_threads, error.what());
    }
    return {};
  }

  int num_threads() const override { return static_cast<int>(workers_.size()) + 1; }

  void Run(int64_t num_items, const Task& task) override {
    {
      const std::scoped_lock lock(mutex_);
      task_ = &task;
      num_items_ = num_items;
      next_item_.store(0, std::memory_order_relaxed);
      num_working_ = static_cast<int>(workers_.size());
      ++region_;
    }
    region_started_.notify_all();
    TakeItems(task, num_items, 0);
    std::unique_lock lock(mutex_);
    region_done_.wait(lock, [this] { return num_working_ == 0; });
  }

 private:
  void TakeItems(const Task& task, int64_t num_items, int thread) {
    for (;;) {
      const int64_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
      if (item >= num_items) return;
      task.Run(item, thread);
    }
  }

  void Work(int thread) {
    uint64_t last_region = 0;
    for (;;) {
      const Task* task = nullptr;
      int64_t num_items = 0;
      {
        std::unique_lock lock(mutex_);
        region_started_.wait(lock, [&] { return stopping_ || region_ != last_region; });
        if (stopping_) return;
        last_region = region_;
        task = task_;
        num_items = num_items_;
      }
      TakeItems(*task, num_items, thread);
      {
        const std::scoped_lock lock(mutex_);
        if (--num_working_ > 0) continue;
      }
      region_done_.notify_one();
    }
  }

  std::vector<std::thread> workers_;
  std::mutex mutex_;  // guards what follows, but for next_item_
  std::condition_variable region_started_;
  std::condition_variable region_done_;
  const Task* task_ = nullptr;
  int64_t num_items_ = 0;
  int num_working_ = 0;
  uint64_t region_ = 0;
  bool stopping_ = false;
  std::atomic<int64_t> next_item_{0};
};

}  // namespace

Result<std::unique_ptr<Executor>> MakeThreadExecutor(int num_threads) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckNumThreads(num_threads));
  auto executor = std::make_unique<ThreadExecutor>();
  MILLIPEDE_RETURN_IF_ERROR(executor->Start(num_threads));
  return executor;
} catch (const std::bad_alloc&) {
  return OutOfMemory("num_threads", "the executor");
}

}  // namespace millipede
