#include "millipede/plan.h"

#include <algorithm>
#include <bit>
#include <new>
#include <stdexcept>

#include "base/error.h"
#include "plan/fingerprint.h"
#include "plan/list_specs.h"
#include "plan/pack.h"
#include "plan/page_map.h"
#include "plan/plan_state.h"
#include "plan/raw_pages.h"
#include "plan/step_layout.h"
#include "plan/validate.h"

namespace millipede {
namespace {

PlannedOwner HoldOwner(const StepRequest& request, AttentionKind kind) {
  if (!TakesPart(request)) return {};
  PlannedOwner owner;
  if (request.request != nullptr) owner.state = request.request->state();
  const RequestPages lists = ListsOf(request, kind);
  for (const ListSpec& spec : ListsOfKind(kind))
    owner.ranges.*spec.range = (lists.*spec.list).valid;
  return owner;
}

PlannedList HoldList(const ListSpec& spec, AttentionKind kind, const PageSpaceView& space,
                     std::span<const StepRequest> requests) {
  PlannedList list;
  list.spec = &spec;
  list.generation = *space.generation;
  list.offsets.reserve(requests.size() + 1);
  size_t num_entries = 0;
  list.offsets.push_back(0);
  for (const StepRequest& request : requests) {
    if (TakesPart(request)) {
      const ListUse use = UseOf(spec, kind, request.start_pos, request.num_tokens);
      num_entries += static_cast<size_t>(use.num_pages);
    }
    list.offsets.push_back(num_entries);
  }
  list.epochs.reserve(num_entries);
  if (spec.is_ring()) list.ring_pages.reserve(num_entries);
  for (size_t r = 0; r < requests.size(); ++r) {
    if (!TakesPart(requests[r])) continue;
    const auto pages = (ListsOf(requests[r], kind).*spec.list).pages;
    for (const PageEntry& entry : pages.first(list.offsets[r + 1] - list.offsets[r])) {
      list.epochs.push_back(entry.epoch);
      if (spec.is_ring()) list.ring_pages.push_back(entry.page);
    }
  }
  return list;
}

int64_t CountRawPages(const Plan::State& plan) {
  const PlannedList& raw = plan.lists.front();
  PageMap seen(static_cast<int64_t>(raw.ring_pages.size()));
  int32_t num_pages = 0;
  for (size_t r = 0; r < plan.work.requests.size(); ++r) {
    const RawPages used = RawPagesOf(plan.work.requests[r]);
    for (size_t i = raw.offsets[r]; i < raw.offsets[r + 1]; ++i) {
      if (!used.Contains(static_cast<int64_t>(i - raw.offsets[r]))) continue;
      if (seen.FindOrInsert(raw.ring_pages[i], num_pages) == num_pages) ++num_pages;
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

// The pages of ragged lists are part of the packed work.
void AddList(const Plan::State& plan, const PlannedList& list, Fingerprint& hash) {
  const ListSpec& spec = *list.spec;
  hash.Add(static_cast<uint64_t>((plan.spaces.*spec.space).num_pages));
  for (const PlannedOwner& owner : plan.owners) {
    hash.Add(static_cast<uint64_t>((owner.ranges.*spec.range).begin));
    hash.Add(static_cast<uint64_t>((owner.ranges.*spec.range).end));
  }
  hash.Add(list.ring_pages);
  for (const uint64_t epoch : list.epochs) hash.Add(epoch);
}

void AddWork(const PackedWork& work, Fingerprint& hash) {
  hash.Add(work.requests.size());
  for (const PlannedRequest& request : work.requests) {
    hash.Add(static_cast<uint64_t>(request.start_pos));
    hash.Add(static_cast<uint64_t>(request.num_tokens));
    hash.Add(static_cast<uint64_t>(request.first_query));
  }
  hash.Add(work.queries.size());
  for (const QueryToken& query : work.queries) {
    hash.Add(static_cast<uint64_t>(query.request));
    hash.Add(static_cast<uint64_t>(query.window_rows));
    hash.Add(static_cast<uint64_t>(query.position));
    hash.Add(static_cast<uint64_t>(query.raw_write_row));
    hash.Add(static_cast<uint64_t>(query.state_write_row));
    hash.Add(static_cast<uint64_t>(query.inner_state_write_row));
  }
  hash.Add(work.window_sources);
  hash.AddRows<CompressEvent>(work.events);
  hash.Add(work.event_sources);
  hash.Add(work.inner_event_sources);
  hash.Add(work.main_page_offsets);
  hash.Add(work.main_pages);
  hash.Add(work.index_page_offsets);
  hash.Add(work.index_pages);
  hash.Add(work.shard_offsets);
  hash.AddRows<HcaShard>(work.shards);
  hash.Add(work.leaf_offsets);
  hash.AddRows<CsaLeaf>(work.leaves);
  hash.Add(work.merge_offsets);
  hash.AddRows<CsaMerge>(work.merges);
}

uint64_t HashPlan(const Plan::State& plan) {
  Fingerprint hash;
  AddConfig(plan.config, hash);
  hash.Add(static_cast<uint64_t>(plan.kind));
  hash.Add(static_cast<uint64_t>(plan.num_layers));
  for (const PlannedList& list : plan.lists) AddList(plan, list, hash);
  AddWork(plan.work, hash);
  return hash.value();
}

}  // namespace

Result<Plan> Plan::Create(const ModelConfig& config, AttentionKind kind, int32_t num_layers,
                          const KindSpaces& spaces, std::span<const StepRequest> requests) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckStep(config, kind, num_layers, spaces, requests));
  auto state = std::make_shared<State>();
  state->config = config;
  state->kind = kind;
  state->num_layers = num_layers;
  state->owners.reserve(requests.size());
  for (const StepRequest& request : requests) state->owners.push_back(HoldOwner(request, kind));
  for (const ListSpec& spec : ListsOfKind(kind)) {
    state->spaces.*spec.space = spaces.*spec.space;
    state->lists.push_back(HoldList(spec, kind, spaces.*spec.space, requests));
  }
  state->work = PackStep(kind, requests);
  state->num_raw_pages = CountRawPages(*state);
  state->progress.layers.assign(static_cast<size_t>(num_layers), LayerProgress::kPlanned);
  state->fingerprint = HashPlan(*state);
  // Nothing fails from here on, so a refused plan is not live.
  for (const PlannedOwner& owner : state->owners) {
    if (owner.state != nullptr) SetLivePlan(*owner.state, kind, state);
  }
  return Plan(std::move(state));
} catch (const std::bad_alloc&) {
  return OutOfMemory("requests", "the packed work");
} catch (const std::length_error&) {
  return OutOfMemory("requests", "the packed work");
}

Plan::Plan(std::shared_ptr<State> state) : state_(std::move(state)) {}

AttentionKind Plan::kind() const { return state_->kind; }
int32_t Plan::num_layers() const { return state_->num_layers; }
int64_t Plan::num_tokens() const { return static_cast<int64_t>(state_->work.queries.size()); }
const PackedWork& Plan::work() const { return state_->work; }
uint64_t Plan::fingerprint() const { return state_->fingerprint; }

int64_t Plan::workspace_bytes(int num_threads) const {
  return LayOutWorkspace(state_->config, state_->kind, num_tokens(), std::max(1, num_threads))
      .total_bytes;
}

int64_t Plan::overlay_bytes() const {
  return LayOutOverlay(state_->kind, num_tokens()).total_bytes;
}

}  // namespace millipede
