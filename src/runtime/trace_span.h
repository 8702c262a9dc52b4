// Recording what is executed, from the code that executes it.
#ifndef MILLIPEDE_RUNTIME_TRACE_SPAN_H_
#define MILLIPEDE_RUNTIME_TRACE_SPAN_H_

#include <cstdint>
#include <vector>

#include "base/mapped_memory.h"
#include "millipede/trace.h"

namespace millipede {

struct Trace::Impl {
  // A cache line of its own per thread, as only that thread writes it in a region.
  struct alignas(64) Lane {
    MappedMemory memory;  // [max_events]
    int64_t num_events = 0;
    int64_t num_dropped = 0;
    TraceEvent* item = nullptr;  // the region's item that the thread is at
  };

  Lane& caller() { return lanes.back(); }

  int64_t max_events = 0;
  std::vector<Lane> lanes;  // [threads + 1], the calling thread's last

  // The layer that work is done for; set between regions.
  AttentionKind kind = AttentionKind::kSwa;
  int32_t layer = -1;
  const PackedWork* work = nullptr;
};

// What an event says beside its time and layer. A request that is not given is that of the queries,
// if it is one.
struct TraceArgs {
  TraceTask task = TraceTask::kItem;
  int64_t index = -1;
  int64_t request = -1;
  int64_t first_query = -1;
  int64_t num_queries = 1;
  int64_t rows = 0;
  int64_t bytes = 0;
};

// A new event of the lane that begins now; null if there is no room.
TraceEvent* BeginTraceEvent(Trace::Impl& trace, Trace::Impl::Lane& lane, const char* name,
                            const TraceArgs& args);
void EndTraceEvent(TraceEvent& event);
void SetTraceArgs(const Trace::Impl& trace, const TraceArgs& args, TraceEvent& event);

// An event of its lifetime; none if `trace` is null.
class TraceSpan {
 public:
  TraceSpan(Trace::Impl* trace, int thread, const TraceArgs& args) {
    if (trace != nullptr) {
      event_ = BeginTraceEvent(*trace, trace->lanes[static_cast<size_t>(thread)], "", args);
    }
  }
  // Of the calling thread, outside parallel regions.
  TraceSpan(Trace::Impl* trace, const char* name, const TraceArgs& args) {
    if (trace != nullptr) event_ = BeginTraceEvent(*trace, trace->caller(), name, args);
  }
  ~TraceSpan() {
    if (event_ != nullptr) EndTraceEvent(*event_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceEvent* event_ = nullptr;
};

// The event of a region's item.
class TraceItem {
 public:
  TraceItem(Trace::Impl* trace, const char* region, int64_t item, int thread) {
    if (trace == nullptr) return;
    lane_ = &trace->lanes[static_cast<size_t>(thread)];
    lane_->item = BeginTraceEvent(*trace, *lane_, region, {.index = item});
  }
  ~TraceItem() {
    if (lane_ == nullptr || lane_->item == nullptr) return;
    EndTraceEvent(*lane_->item);
    lane_->item = nullptr;
  }
  TraceItem(const TraceItem&) = delete;
  TraceItem& operator=(const TraceItem&) = delete;

 private:
  Trace::Impl::Lane* lane_ = nullptr;
};

// Says what the item that `thread` is at does.
inline void DescribeItem(Trace::Impl* trace, int thread, const TraceArgs& args) {
  if (trace == nullptr) return;
  TraceEvent* const item = trace->lanes[static_cast<size_t>(thread)].item;
  if (item != nullptr) SetTraceArgs(*trace, args, *item);
}

}  // namespace millipede

#endif  // MILLIPEDE_RUNTIME_TRACE_SPAN_H_
