#include "bench/machine/thread_team.h"

#include <time.h>

#include <chrono>
#include <numeric>

namespace millipede::bench {
namespace {

// Spins, and gives the core away now and then in case it is shared.
template <typename Condition>
void SpinUntil(const Condition& condition) {
  for (uint32_t spins = 1; !condition(); ++spins) {
    if (spins % 4096 == 0) std::this_thread::yield();
  }
}

// Processor time of the calling thread.
double ThreadCpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace

ThreadTeam::ThreadTeam(int num_threads) : cpu_seconds_(static_cast<size_t>(num_threads)) {
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { Work(thread); });
  }
}

ThreadTeam::~ThreadTeam() {
  stopping_.store(true);
  region_.fetch_add(1);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::Run(int64_t num_items, const Task& task) {
  const auto start = std::chrono::steady_clock::now();
  task_ = &task;
  num_items_ = num_items;
  next_item_.store(num_threads());
  num_working_.store(static_cast<int>(workers_.size()));
  region_.fetch_add(1);
  RunItems(0);
  SpinUntil([this] { return num_working_.load() == 0; });
  last_region_.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  last_region_.cpu_seconds =
      std::accumulate(cpu_seconds_.begin(), cpu_seconds_.end(), 0.0) / num_threads();
  total_.seconds += last_region_.seconds;
  total_.cpu_seconds += last_region_.cpu_seconds;
}

void ThreadTeam::RunItems(int thread) {
  const double start = ThreadCpuSeconds();
  for (int64_t item = thread; item < num_items_; item = next_item_.fetch_add(1)) {
    task_->Run(item, thread);
  }
  cpu_seconds_[static_cast<size_t>(thread)] = ThreadCpuSeconds() - start;
}

void ThreadTeam::Work(int thread) {
  for (uint64_t last_region = 0;; ++last_region) {
    SpinUntil([this, last_region] { return region_.load() != last_region; });
    if (stopping_.load()) return;
    RunItems(thread);
    num_working_.fetch_sub(1);
  }
}

RegionTime TimeRegion(ThreadTeam& team, int64_t num_items, const Task& task) {
  team.Run(num_items, task);
  return team.last_region();
}

}  // namespace millipede::bench
