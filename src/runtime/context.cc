#include "runtime/context.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "base/error.h"

namespace millipede {

Context::Context(Executor& executor) : impl_(std::make_unique<Impl>()) {
  impl_->executor = &executor;
  impl_->num_threads = executor.num_threads();
  if (CheckContext(*this)) impl_->threads.resize(static_cast<size_t>(impl_->num_threads));
}

Context::~Context() = default;

Executor& Context::executor() const { return *impl_->executor; }

int Context::num_threads() const { return impl_->num_threads; }

WorkCounters Context::counters() const {
  size_t num_requests = 0;
  for (const Impl::Thread& thread : impl_->threads) {
    num_requests = std::max(num_requests, thread.requests.size());
  }
  WorkCounters sum;
  for (size_t request = 0; request < num_requests; ++request) {
    const WorkCounters one = counters(static_cast<int64_t>(request));
    sum.query_tokens += one.query_tokens;
    sum.window_rows += one.window_rows;
    sum.raw_rows_written += one.raw_rows_written;
    sum.raw_pages_touched += one.raw_pages_touched;
    sum.shards += one.shards;
    sum.leaves += one.leaves;
    sum.candidates += one.candidates;
    sum.merges += one.merges;
    sum.compressed_rows += one.compressed_rows;
    sum.events += one.events;
    sum.state_rows_written += one.state_rows_written;
  }
  return sum;
}

WorkCounters Context::counters(int64_t request) const {
  WorkCounters sum;
  uint32_t ring_pages = 0;
  for (const Impl::Thread& thread : impl_->threads) {
    if (request < 0 || request >= static_cast<int64_t>(thread.requests.size())) continue;
    const RequestCounts& counts = thread.requests[static_cast<size_t>(request)];
    sum.query_tokens += counts.query_tokens;
    sum.window_rows += counts.window_rows;
    sum.raw_rows_written += counts.raw_rows_written;
    sum.shards += counts.shards;
    sum.leaves += counts.leaves;
    sum.candidates += counts.candidates;
    sum.merges += counts.merges;
    sum.compressed_rows += counts.compressed_rows;
    sum.events += counts.events;
    sum.state_rows_written += counts.state_rows_written;
    ring_pages |= counts.raw_ring_pages;
  }
  sum.raw_pages_touched = std::popcount(ring_pages);
  return sum;
}

std::vector<RegionStats> Context::regions() const { return impl_->regions; }

void Context::Reset() {
  for (Impl::Thread& thread : impl_->threads) thread = {};
  impl_->regions.clear();
}

Status Context::StartTrace(Trace& trace) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckContext(*this));
  if (trace.num_threads() < num_threads()) {
    return MakeError(ErrorCode::kInvalidArgument, "trace", "{} threads; allowed: at least {}",
                     trace.num_threads(), num_threads());
  }
  impl_->trace = &trace.impl();
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("trace", "an error message");
}

void Context::StopTrace() { impl_->trace = nullptr; }

void ReserveRequestCounts(Context& context, int64_t num_requests) {
  for (Context::Impl::Thread& thread : context.impl().threads) {
    if (static_cast<int64_t>(thread.requests.size()) < num_requests) {
      thread.requests.resize(static_cast<size_t>(num_requests));
    }
  }
}

namespace {

int64_t NumItemsRun(const Context::Impl& impl) {
  int64_t sum = 0;
  for (const Context::Impl::Thread& thread : impl.threads) sum += thread.num_items;
  return sum;
}

// The place of a region among the context's, which is kept.
size_t RegionOf(Context::Impl& impl, const char* name) {
  const auto region = std::find_if(impl.regions.begin(), impl.regions.end(),
                                   [name](const RegionStats& stats) { return stats.name == name; });
  const auto index = static_cast<size_t>(region - impl.regions.begin());
  if (region == impl.regions.end()) impl.regions.push_back(RegionStats{.name = name});
  return index;
}

void RecordRegion(RegionStats& region, int64_t num_items, double seconds) {
  region.num_calls += 1;
  region.num_items += num_items;
  region.seconds += seconds;
}

}  // namespace

void RunRegion(Context& context, const char* name, int64_t num_items, const Task& task) {
  using Clock = std::chrono::steady_clock;
  Context::Impl& impl = context.impl();
  const size_t region = RegionOf(impl, name);
  const int64_t items_before = NumItemsRun(impl);
  const TraceSpan traced(impl.trace, name, {.task = TraceTask::kRegion, .index = num_items});
  const Clock::time_point begin = Clock::now();
  if (num_items > 0) impl.executor->Run(num_items, task);
  const std::chrono::duration<double> elapsed = Clock::now() - begin;
  RecordRegion(impl.regions[region], NumItemsRun(impl) - items_before, elapsed.count());
}

CallerRegion::CallerRegion(Context& context, const char* name)
    : context_(context.impl()),
      region_(RegionOf(context_, name)),
      traced_(context_.trace, name, {.task = TraceTask::kRegion, .index = 0}),
      begin_(std::chrono::steady_clock::now()) {}

CallerRegion::~CallerRegion() {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin_;
  RecordRegion(context_.regions[region_], 0, elapsed.count());
}

}  // namespace millipede
