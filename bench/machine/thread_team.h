// Threads for measuring: they spin between regions, so that a short region is timed, not a wake-up.
#ifndef MILLIPEDE_BENCH_MACHINE_THREAD_TEAM_H_
#define MILLIPEDE_BENCH_MACHINE_THREAD_TEAM_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "millipede/executor.h"

namespace millipede::bench {

// How long a region took.
struct RegionTime {
  double seconds = 0;
  // Processor time in the items, divided by the number of threads: what `seconds` would be if no
  // other program ran and no thread waited for another.
  double cpu_seconds = 0;
};

// num_threads - 1 own threads and the caller. Thread t runs item t first and then whichever items
// are left, so a region of num_threads items has one per thread.
class ThreadTeam final : public Executor {
 public:
  explicit ThreadTeam(int num_threads);
  ~ThreadTeam() override;
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  int num_threads() const override { return static_cast<int>(workers_.size()) + 1; }
  void Run(int64_t num_items, const Task& task) override;

  const RegionTime& last_region() const { return last_region_; }

  // Sums over the regions since the last call of ResetTotal.
  const RegionTime& total() const { return total_; }
  void ResetTotal() { total_ = {}; }

 private:
  void RunItems(int thread);
  void Work(int thread);

  std::vector<std::thread> workers_;
  std::vector<double> cpu_seconds_;  // of each thread in the last region
  RegionTime last_region_;
  RegionTime total_;
  const Task* task_ = nullptr;
  int64_t num_items_ = 0;
  std::atomic<int64_t> next_item_{0};
  std::atomic<int> num_working_{0};
  std::atomic<uint64_t> region_{0};
  std::atomic<bool> stopping_{false};
};

// Runs the task's items and returns how long they took.
RegionTime TimeRegion(ThreadTeam& team, int64_t num_items, const Task& task);

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_MACHINE_THREAD_TEAM_H_
