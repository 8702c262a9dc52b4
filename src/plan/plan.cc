#include "millipede/plan.h"

#include <algorithm>
#include <bit>
#include <new>
#include <stdexcept>

#include "base/error.h"
#include "geometry/rings.h"
#include "plan/fingerprint.h"
#include "plan/pack.h"
#include "plan/page_map.h"
#include "plan/plan_state.h"
#include "plan/step_layout.h"
#include "plan/validate.h"

namespace millipede {
namespace {

PlannedLists HoldLists(const StepRequest& request, AttentionKind kind) {
  if (!TakesPart(request)) return {};
  PlannedLists lists;
  if (request.request != nullptr) lists.owner = request.request->state();
  const RequestPages pages = ListsOf(request, kind);
  lists.ranges.raw = pages.raw.valid;
  std::copy(pages.raw.pages.begin(), pages.raw.pages.end(), lists.raw.begin());
  lists.raw_pages_read = RingPageMask(FormatOf(PoolKind::kRaw), RawRowsRead(request.start_pos));
  lists.raw_pages_written = RawPagesWritten(request.start_pos, request.num_tokens);
  return lists;
}

int64_t CountRawPages(std::span<const PlannedLists> all_lists) {
  PageMap seen(static_cast<int64_t>(all_lists.size()) * FormatOf(PoolKind::kRaw).ring_pages);
  int32_t num_pages = 0;
  for (const PlannedLists& lists : all_lists) {
    const uint32_t touched = lists.raw_pages_read | lists.raw_pages_written;
    for (size_t i = 0; i < lists.raw.size(); ++i) {
      if ((touched >> i & 1) == 0) continue;
      if (seen.FindOrInsert(lists.raw[i].page, num_pages) == num_pages) ++num_pages;
    }
  }
  return num_pages;
}

void AddConfig(const ModelConfig& config, Fingerprint& hash) {
  for (const int32_t value :
       {config.hidden, config.num_heads, config.head_dim, config.rope_lanes, config.q_rank,
        config.o_rank, config.o_groups, config.window_rows, config.num_index_heads,
        config.index_dim, config.index_topk, config.sinkhorn_rounds}) {
    hash.Add(static_cast<uint64_t>(value));
  }
  hash.Add(std::bit_cast<uint32_t>(config.rms_eps));
  hash.Add(std::bit_cast<uint32_t>(config.hc_eps));
  hash.Add(static_cast<uint64_t>(config.max_context_tokens));
  hash.Add(config.layer_ratios);
}

uint64_t HashPlan(const Plan::State& plan) {
  Fingerprint hash;
  AddConfig(plan.config, hash);
  hash.Add(static_cast<uint64_t>(plan.kind));
  hash.Add(static_cast<uint64_t>(plan.num_layers));
  hash.Add(static_cast<uint64_t>(plan.spaces.raw.num_pages));
  hash.Add(plan.lists.size());
  for (size_t r = 0; r < plan.lists.size(); ++r) {
    const PlannedRequest& request = plan.work.requests[r];
    hash.Add(static_cast<uint64_t>(request.num_tokens));
    if (request.num_tokens == 0) continue;
    hash.Add(static_cast<uint64_t>(request.start_pos));
    hash.Add(static_cast<uint64_t>(request.first_query));
    const PlannedLists& lists = plan.lists[r];
    hash.Add(static_cast<uint64_t>(lists.ranges.raw.begin));
    hash.Add(static_cast<uint64_t>(lists.ranges.raw.end));
    for (const PageEntry& entry : lists.raw) {
      hash.Add(static_cast<uint64_t>(entry.page));
      hash.Add(entry.epoch);
    }
  }
  for (const QueryToken& query : plan.work.queries) {
    hash.Add(static_cast<uint64_t>(query.request));
    hash.Add(static_cast<uint64_t>(query.window_rows));
    hash.Add(static_cast<uint64_t>(query.position));
    hash.Add(static_cast<uint64_t>(query.raw_write_row));
  }
  hash.Add(plan.work.window_sources);
  return hash.value();
}

}  // namespace

Result<Plan> Plan::Create(const ModelConfig& config, AttentionKind kind, int32_t num_layers,
                          const KindSpaces& spaces, std::span<const StepRequest> requests) {
  MILLIPEDE_RETURN_IF_ERROR(CheckStep(config, kind, num_layers, spaces, requests));
  try {
    auto state = std::make_shared<State>();
    state->config = config;
    state->kind = kind;
    state->num_layers = num_layers;
    state->spaces.raw = spaces.raw;
    state->lists.reserve(requests.size());
    for (const StepRequest& request : requests) state->lists.push_back(HoldLists(request, kind));
    state->work = PackSwa(requests);
    state->num_raw_pages = CountRawPages(state->lists);
    state->raw_generation = *spaces.raw.generation;
    state->progress.layers.assign(static_cast<size_t>(num_layers), LayerProgress::kPlanned);
    state->fingerprint = HashPlan(*state);
    return Plan(std::move(state));
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorCode::kOutOfMemory, "requests", "the packed work does not fit in memory");
  } catch (const std::length_error&) {
    return MakeError(ErrorCode::kOutOfMemory, "requests", "the packed work does not fit in memory");
  }
}

Plan::Plan(std::shared_ptr<State> state) : state_(std::move(state)) {}

AttentionKind Plan::kind() const { return state_->kind; }
int32_t Plan::num_layers() const { return state_->num_layers; }
int64_t Plan::num_tokens() const { return static_cast<int64_t>(state_->work.queries.size()); }
const PackedWork& Plan::work() const { return state_->work; }
uint64_t Plan::fingerprint() const { return state_->fingerprint; }

int64_t Plan::workspace_bytes(int num_threads) const {
  return LayOutWorkspace(state_->config, num_tokens(), std::max(1, num_threads)).total_bytes;
}

int64_t Plan::overlay_bytes() const {
  return LayOutOverlay(state_->kind, num_tokens()).total_bytes;
}

}  // namespace millipede
