// What each thread executed and when: events in memory, to count or to write for a viewer of
// timelines. Without a trace a task costs one branch more.
#ifndef MILLIPEDE_TRACE_H_
#define MILLIPEDE_TRACE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "millipede/config.h"
#include "millipede/executor.h"
#include "millipede/status.h"

namespace millipede {

struct PackedWork;  // plan.h

// What an event stands for. The first two are of the calling thread.
enum class TraceTask : uint8_t {
  kCall,        // a run or a commit of a layer
  kRegion,      // a parallel region; `index` is how many items it was given
  kItem,        // an item of a region that is none of what follows; `index` is the item
  kWiden,       // rows that attention reads, once for the queries of a request that share them
  kWindow,      // the window tile of a query
  kShard,       // HCA: shard `index` of a query
  kSelected,    // CSA: tile `index` of the rows selected for a query
  kLeafScores,  // CSA: the scores of leaf `index` for queries of one request together
  kLeaf,        // CSA: the choice among the candidates of leaf `index` of a query
  kMerge,       // CSA: merge `index` of the choices of a query
  kEvent,       // HCA, CSA: compressed row `index`
  kIndexEvent,  // CSA: index key `index`
  kCommit,      // the accepted rows of request `index` to its rings
};

// One stretch of one thread's time.
struct TraceEvent {
  TraceTask task = TraceTask::kItem;
  AttentionKind kind = AttentionKind::kSwa;  // of the layer; means nothing where layer is -1
  int32_t layer = -1;        // the plan's layer index; -1 if no call named the layer
  const char* name = "";     // of the region or call, static storage
  int32_t index = -1;        // see TraceTask
  int32_t request = -1;      // batch index; -1 if it is of none, or of several
  int32_t first_query = -1;  // query tokens [first_query, first_query + num_queries)
  int32_t num_queries = 0;
  int64_t rows = 0;      // what attention, scoring, compression and commit go through; else tokens
  int64_t bytes = 0;     // of caches and weights that it reads or writes
  int64_t begin_ns = 0;  // of std::chrono::steady_clock
  int64_t end_ns = 0;
};

// The events of one thread never overlap but by one lying in another; memory for them is mapped
// lazily and bounded, and what is past the bound is counted and dropped. Read it between calls.
// One that was moved from can only be assigned or destroyed.
class Trace {
 public:
  static constexpr int64_t kDefaultMaxEvents = int64_t{1} << 20;  // 64 MiB a thread if all are used
  static constexpr int64_t kMaxEvents = int64_t{1} << 32;

  // Room for `max_events` events of each of `num_threads` threads and of the calling thread.
  // kInvalidArgument unless 1 <= num_threads <= 1024 and 1 <= max_events <= kMaxEvents;
  // kOutOfMemory.
  static Result<Trace> Create(int num_threads, int64_t max_events = kDefaultMaxEvents);

  Trace(Trace&&) noexcept;
  Trace& operator=(Trace&&) noexcept;
  ~Trace();

  int num_threads() const;

  // The events of a thread in [0, num_threads), by time of begin; an event comes before those that
  // lie in it.
  std::span<const TraceEvent> events(int thread) const;

  // The same of the calling thread: calls, and regions in them.
  std::span<const TraceEvent> calls() const;

  int64_t num_dropped() const;
  void Clear();

  struct Impl;  // internal
  Impl& impl() { return *impl_; }

 private:
  explicit Trace(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// While it lives, work done with `context` is that of layer `layer` and is traced as such; an event
// of its own spans it. Calls may lie in one another: after the inner one, work is the outer one's
// again. Layer::Run and Commit do this themselves; engines that call the stages one by one may.
// `name` is static storage; `work`, if given, tells the request of each query and outlives this.
class TraceCall {
 public:
  TraceCall(Context& context, const char* name, AttentionKind kind, int32_t layer,
            const PackedWork* work = nullptr);
  ~TraceCall();
  TraceCall(const TraceCall&) = delete;
  TraceCall& operator=(const TraceCall&) = delete;

 private:
  Trace::Impl* trace_;  // null without a trace
  TraceEvent* event_ = nullptr;

  // The layer of the call that this one lies in.
  AttentionKind outer_kind_ = AttentionKind::kSwa;
  int32_t outer_layer_ = -1;
  const PackedWork* outer_work_ = nullptr;
};

}  // namespace millipede

#endif  // MILLIPEDE_TRACE_H_
