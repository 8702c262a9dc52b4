// Threads come through Executor; what was executed is reported by Context.
#ifndef MILLIPEDE_EXECUTOR_H_
#define MILLIPEDE_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "millipede/status.h"

namespace millipede {

// One parallel region's body, called once per item.
class Task {
 public:
  virtual ~Task() = default;

  // `item` in [0, num_items); `thread` in [0, num_threads), and no two calls that overlap in time
  // have the same one. Does not throw.
  virtual void Run(int64_t item, int thread) const = 0;
};

// Runs n independent items on a fixed number of threads. Derive from it to bring your own pool.
class Executor {
 public:
  virtual ~Executor() = default;

  // 1 to 1024, and always the same. Every call with a Context of another number is refused with
  // kInvalidArgument naming num_threads.
  virtual int num_threads() const = 0;

  // Calls task.Run(i, thread) once for each i in [0, num_items), in any order, and returns when all
  // have returned. What the caller wrote before is visible to every item, and what they wrote is
  // visible to the caller after. May throw std::bad_alloc and nothing else, with no item running;
  // the call of the library then fails with kOutOfMemory, and what it writes may be written in part
  // until it is made again.
  virtual void Run(int64_t num_items, const Task& task) = 0;
};

// On the calling thread alone.
std::unique_ptr<Executor> MakeSerialExecutor();

// oneTBB, on at most `num_threads` threads (and no more than the machine has), the caller's
// included; the executor's num_threads() is what was asked for. kInvalidArgument unless
// 1 <= num_threads <= 1024.
Result<std::unique_ptr<Executor>> MakeTbbExecutor(int num_threads);

// num_threads - 1 own std::threads and the caller. Same errors.
Result<std::unique_ptr<Executor>> MakeThreadExecutor(int num_threads);

// What the executed code did, counted where it is done: for one request of the batch, or summed.
struct WorkCounters {
  int64_t query_tokens = 0;        // tokens that went through attention, summed over layers
  int64_t window_rows = 0;         // window rows attended, summed over those tokens
  int64_t raw_rows_written = 0;    // rows commit wrote to the raw ring, summed over layers
  int64_t raw_pages_touched = 0;   // distinct raw pages of a request read or written by any layer
  int64_t shards = 0;              // HCA shards attended, summed over tokens
  int64_t leaves = 0;              // CSA leaves scored, summed over tokens
  int64_t candidates = 0;          // CSA candidates scored, summed over tokens
  int64_t merges = 0;              // merges of CSA selections, summed over tokens
  int64_t compressed_rows = 0;     // compressed rows attended, summed over tokens
  int64_t events = 0;              // compressed rows emitted
  int64_t state_rows_written = 0;  // rows commit wrote to state rings
};

// Time and calls of one named parallel region.
struct RegionStats {
  std::string_view name;  // static storage
  int64_t num_calls = 0;
  int64_t num_items = 0;  // work items that ran
  double seconds = 0;
};

class Trace;  // trace.h

// The executor and the books of the calls made with it. Passed by reference to every stage; one
// call at a time. There is no global state.
class Context {
 public:
  explicit Context(Executor& executor);  // borrowed
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Executor& executor() const;
  int num_threads() const;  // the executor's, when the context was made

  WorkCounters counters() const;                 // all requests, since the last reset
  WorkCounters counters(int64_t request) const;  // of the batch; zeros for an index not seen
  std::vector<RegionStats> regions() const;      // in order of first use
  void Reset();

  // From now on, what is executed is also written to `trace`, which is borrowed and may serve
  // several contexts in turn. kInvalidArgument if it has room for fewer threads than there are, or
  // if the executor has a number of threads that a context does not take.
  Status StartTrace(Trace& trace);
  void StopTrace();

  struct Impl;  // internal
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace millipede

#endif  // MILLIPEDE_EXECUTOR_H_
