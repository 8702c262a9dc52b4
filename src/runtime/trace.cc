#include "millipede/trace.h"

#include <chrono>
#include <new>
#include <utility>

#include "base/error.h"
#include "millipede/plan.h"
#include "runtime/context.h"
#include "runtime/num_threads.h"
#include "runtime/trace_span.h"

namespace millipede {
namespace {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::span<const TraceEvent> EventsOf(const Trace::Impl::Lane& lane) {
  return {reinterpret_cast<const TraceEvent*>(lane.memory.data()),
          static_cast<size_t>(lane.num_events)};
}

// Tokens of a request stand together, so what its ends share all between them do.
int64_t RequestOf(const PackedWork& work, int64_t first_query, int64_t num_queries) {
  const int32_t first = work.queries[static_cast<size_t>(first_query)].request;
  const int32_t last = work.queries[static_cast<size_t>(first_query + num_queries - 1)].request;
  return first == last ? first : -1;
}

}  // namespace

Result<Trace> Trace::Create(int num_threads, int64_t max_events) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckNumThreads(num_threads));
  if (max_events < 1 || max_events > kMaxEvents) {
    return MakeError(ErrorCode::kInvalidArgument, "max_events", "{}; allowed: 1 to {}", max_events,
                     kMaxEvents);
  }
  auto impl = std::make_unique<Impl>();
  impl->max_events = max_events;
  impl->lanes.resize(static_cast<size_t>(num_threads) + 1);
  for (Impl::Lane& lane : impl->lanes) {
    auto memory = MappedMemory::Map(max_events * int64_t{sizeof(TraceEvent)}, "trace");
    if (!memory) return tl::make_unexpected(std::move(memory).error());
    lane.memory = *std::move(memory);
  }
  return Trace(std::move(impl));
} catch (const std::bad_alloc&) {
  return OutOfMemory("trace", "its lanes");
}

Trace::Trace(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trace::Trace(Trace&&) noexcept = default;
Trace& Trace::operator=(Trace&&) noexcept = default;
Trace::~Trace() = default;

int Trace::num_threads() const { return static_cast<int>(impl_->lanes.size()) - 1; }

std::span<const TraceEvent> Trace::events(int thread) const {
  return EventsOf(impl_->lanes[static_cast<size_t>(thread)]);
}

std::span<const TraceEvent> Trace::calls() const { return EventsOf(impl_->lanes.back()); }

int64_t Trace::num_dropped() const {
  int64_t sum = 0;
  for (const Impl::Lane& lane : impl_->lanes) sum += lane.num_dropped;
  return sum;
}

void Trace::Clear() {
  for (Impl::Lane& lane : impl_->lanes) {
    lane.num_events = 0;
    lane.num_dropped = 0;
  }
}

TraceCall::TraceCall(Context& context, const char* name, AttentionKind kind, int32_t layer,
                     const PackedWork* work)
    : trace_(context.impl().trace) {
  if (trace_ == nullptr) return;
  outer_kind_ = trace_->kind;
  outer_layer_ = trace_->layer;
  outer_work_ = trace_->work;
  trace_->kind = kind;
  trace_->layer = layer;
  trace_->work = work;
  TraceArgs args{.task = TraceTask::kCall};
  if (work != nullptr && !work->queries.empty()) {
    args.first_query = 0;
    args.num_queries = static_cast<int64_t>(work->queries.size());
    args.rows = args.num_queries;
  }
  event_ = BeginTraceEvent(*trace_, trace_->caller(), name, args);
}

TraceCall::~TraceCall() {
  if (trace_ == nullptr) return;
  if (event_ != nullptr) EndTraceEvent(*event_);
  trace_->kind = outer_kind_;
  trace_->layer = outer_layer_;
  trace_->work = outer_work_;
}

TraceEvent* BeginTraceEvent(Trace::Impl& trace, Trace::Impl::Lane& lane, const char* name,
                            const TraceArgs& args) {
  if (lane.num_events == trace.max_events) {
    lane.num_dropped += 1;
    return nullptr;
  }
  void* const place = lane.memory.data() + lane.num_events * int64_t{sizeof(TraceEvent)};
  lane.num_events += 1;
  auto* const event = new (place) TraceEvent{};
  event->kind = trace.kind;
  event->layer = trace.layer;
  event->name = name;
  SetTraceArgs(trace, args, *event);
  event->begin_ns = NowNs();
  event->end_ns = event->begin_ns;
  return event;
}

void EndTraceEvent(TraceEvent& event) { event.end_ns = NowNs(); }

void SetTraceArgs(const Trace::Impl& trace, const TraceArgs& args, TraceEvent& event) {
  event.task = args.task;
  if (args.index >= 0) event.index = static_cast<int32_t>(args.index);
  int64_t request = args.request;
  if (args.first_query >= 0) {
    event.first_query = static_cast<int32_t>(args.first_query);
    event.num_queries = static_cast<int32_t>(args.num_queries);
    // A stage may be called with other tokens than those of the plan.
    const int64_t end = args.first_query + args.num_queries;
    if (request < 0 && args.num_queries > 0 && trace.work != nullptr &&
        end <= static_cast<int64_t>(trace.work->queries.size())) {
      request = RequestOf(*trace.work, args.first_query, args.num_queries);
    }
  }
  event.request = static_cast<int32_t>(request);
  event.rows = args.rows;
  event.bytes = args.bytes;
}

}  // namespace millipede
