// Running a named parallel region, and the books kept of it.
#ifndef MILLIPEDE_RUNTIME_CONTEXT_H_
#define MILLIPEDE_RUNTIME_CONTEXT_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "millipede/executor.h"
#include "runtime/float_mode.h"
#include "runtime/num_threads.h"
#include "runtime/trace_span.h"

namespace millipede {

// One thread's counts for one request.
struct RequestCounts {
  int64_t query_tokens = 0;
  int64_t window_rows = 0;
  int64_t raw_rows_written = 0;
  int64_t shards = 0;
  int64_t leaves = 0;
  int64_t candidates = 0;
  int64_t merges = 0;
  int64_t compressed_rows = 0;
  int64_t events = 0;
  int64_t state_rows_written = 0;
  uint32_t raw_ring_pages = 0;  // bit i: page i of the request's ring was read or written
};

struct Context::Impl {
  // A cache line of its own per thread, so that counting does not make threads share one.
  struct alignas(64) Thread {
    int64_t num_items = 0;
    std::vector<RequestCounts> requests;
  };

  Executor* executor = nullptr;
  Trace::Impl* trace = nullptr;  // null without a trace
  int num_threads = 0;           // the executor's
  std::vector<Thread> threads;   // [num_threads], none if there cannot be as many
  std::vector<RegionStats> regions;
};

// kInvalidArgument unless the executor's threads are as many as a context takes. What else is
// declared here is for contexts that are.
inline Status CheckContext(const Context& context) {
  return CheckNumThreads(context.num_threads());
}

// Makes room for the counts of `num_requests` requests; called outside parallel regions.
void ReserveRequestCounts(Context& context, int64_t num_requests);

// The counts of a request on one thread of a region; only that thread touches them.
inline RequestCounts& CountsOf(Context& context, int thread, int64_t request) {
  return context.impl().threads[static_cast<size_t>(thread)].requests[static_cast<size_t>(request)];
}

// Runs `task` as the region `name` (static storage) and records its time. Where the books have no
// memory for another region, nothing has run.
void RunRegion(Context& context, const char* name, int64_t num_items, const Task& task);

// While it lives, the calling thread's own work is the region `name` (static storage), of no items.
class CallerRegion {
 public:
  CallerRegion(Context& context, const char* name);
  ~CallerRegion();
  CallerRegion(const CallerRegion&) = delete;
  CallerRegion& operator=(const CallerRegion&) = delete;

 private:
  Context::Impl& context_;
  size_t region_;  // of the context's
  TraceSpan traced_;
  std::chrono::steady_clock::time_point begin_;
};

// Calls body(item, thread) for each item in [0, num_items) as the region `name`, with the default
// floating-point mode.
template <typename Body>
void ParallelFor(Context& context, const char* name, int64_t num_items, const Body& body) {
  class BodyTask final : public Task {
   public:
    BodyTask(Context& task_context, const char* task_name, const Body& task_body)
        : context_(task_context), name_(task_name), body_(task_body) {}
    void Run(int64_t item, int thread) const override {
      const FloatModeGuard guard;
      const TraceItem traced(context_.impl().trace, name_, item, thread);
      context_.impl().threads[static_cast<size_t>(thread)].num_items += 1;
      body_(item, thread);
    }

   private:
    Context& context_;
    const char* name_;
    const Body& body_;
  };
  RunRegion(context, name, num_items, BodyTask(context, name, body));
}

}  // namespace millipede

#endif  // MILLIPEDE_RUNTIME_CONTEXT_H_
