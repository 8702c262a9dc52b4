#include "fuzz/plan_input.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "millipede/plan.h"
#include "plan/plan_state.h"
#include "support/plan_fixture.h"

namespace millipede::testing {
namespace {

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "plan: %s\n", what);
  std::abort();
}

// The input, byte by byte; zeros after its end.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data, size) {}

  uint64_t Take(size_t num_bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < num_bytes && !data_.empty(); ++i) {
      value = value << 8 | data_.front();
      data_ = data_.subspan(1);
    }
    return value;
  }
  int64_t Below(int64_t bound) { return static_cast<int64_t>(Take(1)) % bound; }
  bool OneIn(int64_t n) { return Below(n) == n - 1; }
  int64_t AnyInt64() { return static_cast<int64_t>(Take(8)); }

  // A number that is likely to lie near a limit.
  int64_t Odd() {
    constexpr std::array<int64_t, 10> kOdd = {0,    -1,      1,         127,       128,
                                              4096, 262'144, 1'048'576, INT32_MAX, INT64_MAX};
    if (OneIn(4)) return AnyInt64();
    const int64_t odd = kOdd[static_cast<size_t>(Below(kOdd.size()))];
    return odd == INT64_MAX ? odd : odd + Below(3) - 1;
  }

 private:
  std::span<const uint8_t> data_;
};

// Most tokens a damaged request may ask for: a step within the ceiling but this wide would only
// take long.
constexpr int64_t kManyTokens = 3000;

class PlanInput {
 public:
  PlanInput(const uint8_t* data, size_t size) : bytes_(data, size) {
    kind_ = static_cast<AttentionKind>(bytes_.Below(3));
    constexpr std::array<int32_t, 4> kCeilings = {1 << 20, 4096, 300, 128};
    config_.max_context_tokens = kCeilings[static_cast<size_t>(bytes_.Below(4))];
    num_layers_ = static_cast<int32_t>(1 + bytes_.Below(43));
    MakeRequests();
    if (bytes_.OneIn(3)) {
      for (int64_t left = 1 + bytes_.Below(3); left > 0; --left) Damage();
    }
  }

  // As PlanBytes.
  bool PlanStep();

 private:
  using Entries = std::vector<PageEntry>;

  void MakeRequests();
  int64_t Start();
  void Damage();
  void DamageList(EngineRequest& request);
  void DamageRange(StepRequest& step);
  void DamageSpace();
  void ViewLists();
  void CheckPlan(const Plan& plan) const;
  void CheckRows(const Plan& plan) const;
  void Live(Plan& plan);

  std::array<EngineSpace*, 5> Spaces() {
    return {&spaces_->raw, &spaces_->main, &spaces_->index, &spaces_->state, &spaces_->inner_state};
  }
  static std::array<Entries*, 5> Lists(EngineRequest& r) {
    return {&r.raw, &r.main, &r.index, &r.state, &r.inner_state};
  }

  Bytes bytes_;
  ModelConfig config_ = ModelConfig::Tiny();
  AttentionKind kind_ = AttentionKind::kSwa;
  int32_t num_layers_ = 1;
  std::optional<EngineSpaces> spaces_;
  std::vector<EngineRequest> requests_;
  std::vector<StepRequest> steps_;
};

int64_t PlanInput::Start() {
  const int64_t ceiling = config_.max_context_tokens;
  int64_t start = 0;
  switch (bytes_.Below(6)) {
    case 0:
      break;
    case 1:
      start = bytes_.Below(256);
      break;
    case 2:
      start = static_cast<int64_t>(bytes_.Take(2));
      break;
    case 3:  // around a block of 128
      start = 128 * bytes_.Below(64) + bytes_.Below(9) - 4;
      break;
    case 4:  // around a leaf of 2,048 candidates
      start = 8192 * bytes_.Below(4) + bytes_.Below(9) - 4;
      break;
    default:  // CSA lists of a million tokens would only take long
      start = (kind_ == AttentionKind::kCsa ? std::min<int64_t>(ceiling, 40'000) : ceiling) - 1 -
              bytes_.Below(40);
  }
  return std::clamp<int64_t>(start, 0, ceiling - 1);
}

void PlanInput::MakeRequests() {
  const int64_t num_requests = bytes_.Below(5);
  std::vector<std::pair<int64_t, int64_t>> lengths;  // start, tokens
  int64_t ragged_pages = 8;
  for (int64_t r = 0; r < num_requests; ++r) {
    const int64_t start = Start();
    const int64_t tokens = bytes_.OneIn(8) ? bytes_.Below(256) : bytes_.Below(12);
    lengths.emplace_back(start, std::min(tokens, config_.max_context_tokens - start));
    ragged_pages += 2 + (start + tokens) / (kind_ == AttentionKind::kHca ? 4096 : 128);
  }
  spaces_.emplace(static_cast<int32_t>(num_requests), static_cast<int32_t>(2 * ragged_pages));
  std::mt19937_64 random(bytes_.Take(1));
  for (const auto& [start, tokens] : lengths) {
    requests_.emplace_back(kind_, *spaces_, start + tokens, random);
    steps_.push_back(requests_.back().Step(start, tokens));
    steps_.back().active = tokens > 0 || !bytes_.OneIn(2);
  }
  ViewLists();
}

// The lists may have moved or changed in length.
void PlanInput::ViewLists() {
  for (size_t r = 0; r < steps_.size(); ++r) {
    RequestPages& pages = steps_[r].pages;
    pages.raw.pages = requests_[r].raw;
    pages.main.pages = requests_[r].main;
    pages.index.pages = requests_[r].index;
    pages.state.pages = requests_[r].state;
    pages.inner_state.pages = requests_[r].inner_state;
  }
}

void PlanInput::DamageList(EngineRequest& request) {
  Entries& list = *Lists(request)[static_cast<size_t>(bytes_.Below(5))];
  const auto any = [&]() -> PageEntry& {
    return list[static_cast<size_t>(bytes_.Take(2)) % list.size()];
  };
  switch (bytes_.Below(6)) {
    case 0:
      if (!list.empty()) any().page = static_cast<int32_t>(bytes_.Odd());
      break;
    case 1:
      if (!list.empty()) any().epoch = static_cast<uint64_t>(bytes_.Odd());
      break;
    case 2:
      if (!list.empty()) list.pop_back();
      break;
    case 3:
      if (!list.empty()) list.push_back(any());
      break;
    case 4:
      if (!list.empty()) any() = any();
      break;
    default: {  // another request's page
      EngineRequest& other = requests_[static_cast<size_t>(bytes_.Take(1)) % requests_.size()];
      const Entries& from = *Lists(other)[static_cast<size_t>(bytes_.Below(5))];
      if (!list.empty() && !from.empty()) {
        any() = from[static_cast<size_t>(bytes_.Take(2)) % from.size()];
      }
    }
  }
}

void PlanInput::DamageRange(StepRequest& step) {
  const std::array<PageListView*, 5> lists = {&step.pages.raw, &step.pages.main, &step.pages.index,
                                              &step.pages.state, &step.pages.inner_state};
  RowRange& range = lists[static_cast<size_t>(bytes_.Below(5))]->valid;
  int64_t& end = bytes_.OneIn(2) ? range.begin : range.end;
  if (bytes_.OneIn(3)) {
    end = bytes_.Odd();
  } else {
    // Wraps around at the ends.
    end = static_cast<int64_t>(static_cast<uint64_t>(end) + static_cast<uint64_t>(bytes_.Below(9)) -
                               4);
  }
}

void PlanInput::DamageSpace() {
  EngineSpace& space = *Spaces()[static_cast<size_t>(bytes_.Below(5))];
  const auto page = static_cast<size_t>(bytes_.Take(2)) % space.epochs.size();
  switch (bytes_.Below(3)) {
    case 0:
      space.ref_counts[page] = static_cast<int32_t>(bytes_.Odd());
      break;
    case 1:
      space.epochs[page] = static_cast<uint64_t>(bytes_.Odd());
      break;
    default:
      space.epochs.resize(1 + page);
      space.ref_counts.resize(1 + page);
  }
}

void PlanInput::Damage() {
  const int64_t what = bytes_.Below(8);
  if (what == 6) {
    num_layers_ = static_cast<int32_t>(bytes_.Odd());
    return;
  }
  if (what == 7) {
    constexpr std::array kFields = {&ModelConfig::hidden, &ModelConfig::num_heads,
                                    &ModelConfig::o_groups, &ModelConfig::index_topk};
    config_.*kFields[static_cast<size_t>(bytes_.Below(4))] = static_cast<int32_t>(bytes_.Odd());
    return;
  }
  if (steps_.empty()) return;
  const auto r = static_cast<size_t>(bytes_.Take(1)) % steps_.size();
  switch (what) {
    case 0:
      steps_[r].start_pos = bytes_.OneIn(2) ? bytes_.Odd() : Start();
      break;
    case 1:
      steps_[r].num_tokens = bytes_.Odd();
      if (steps_[r].num_tokens < config_.max_context_tokens) {
        steps_[r].num_tokens = std::min(steps_[r].num_tokens, kManyTokens);
      }
      break;
    case 2:
      steps_[r].active = !steps_[r].active;
      break;
    case 3:
      DamageList(requests_[r]);
      ViewLists();
      break;
    case 4:
      DamageRange(steps_[r]);
      break;
    default:
      DamageSpace();
  }
}

bool PlanInput::PlanStep() {
  const EngineSpaces before = *spaces_;
  auto plan = Plan::Create(config_, kind_, num_layers_, spaces_->views(kind_), steps_);
  Require(*spaces_ == before, "planning wrote to the spaces");
  if (!plan) {
    const Error& error = plan.error();
    Require(!error.field.empty() && !error.message.empty(), "an error without field or message");
    Require(error.request >= -1 && error.request < static_cast<int64_t>(steps_.size()),
            "an error of a request that is not in the batch");
    return false;
  }
  CheckPlan(*plan);
  CheckRows(*plan);
  Require(!plan->explain(2).empty() && !plan->explain_json(2).empty(), "nothing to explain");
  Require(plan->workspace_bytes(3) >= plan->workspace_bytes(1), "workspace shrinks");
  const auto again = Plan::Create(config_, kind_, num_layers_, spaces_->views(kind_), steps_);
  Require(again && again->fingerprint() == plan->fingerprint(), "a second plan differs");
  Live(*plan);
  return true;
}

// Offsets of work per query or request: ascending from 0 to the number of all.
void CheckOffsets(const std::vector<int32_t>& offsets, size_t num_owners, size_t num_all) {
  Require(offsets.size() == num_owners + 1 && offsets.front() == 0 &&
              static_cast<size_t>(offsets.back()) == num_all &&
              std::is_sorted(offsets.begin(), offsets.end()),
          "offsets are not those of the work");
}

void PlanInput::CheckPlan(const Plan& plan) const {
  const PackedWork& work = plan.work();
  const auto num_tokens = static_cast<size_t>(plan.num_tokens());
  Require(work.requests.size() == steps_.size(), "a request got lost");
  int64_t tokens = 0;
  for (size_t r = 0; r < steps_.size(); ++r) {
    const int64_t expected = steps_[r].active ? steps_[r].num_tokens : 0;
    Require(work.requests[r].num_tokens == expected, "a token got lost");
    Require(expected == 0 || work.requests[r].first_query == tokens, "tokens are not in order");
    tokens += expected;
  }
  Require(tokens == plan.num_tokens() && work.queries.size() == num_tokens &&
              work.window_sources.size() == num_tokens * kWindowRows,
          "the tokens are not those of the batch");
  if (kind_ == AttentionKind::kSwa) return;
  CheckOffsets(work.main_page_offsets, steps_.size(), work.main_pages.size());
  if (kind_ == AttentionKind::kHca) {
    CheckOffsets(work.shard_offsets, num_tokens, work.shards.size());
    for (const HcaShard& shard : work.shards) {
      Require(shard.num_rows >= 1 && shard.num_rows <= 128 && shard.first_page >= 0 &&
                  static_cast<size_t>(shard.first_page) +
                          static_cast<size_t>((shard.num_rows + 31) / 32) <=
                      work.main_pages.size(),
              "a shard has rows without a page");
    }
    return;
  }
  CheckOffsets(work.index_page_offsets, steps_.size(), work.index_pages.size());
  CheckOffsets(work.leaf_offsets, num_tokens, work.leaves.size());
  CheckOffsets(work.merge_offsets, num_tokens, work.merges.size());
  for (size_t t = 0; t < num_tokens; ++t) {
    const int32_t leaves = work.leaf_offsets[t + 1] - work.leaf_offsets[t];
    const int32_t merges = work.merge_offsets[t + 1] - work.merge_offsets[t];
    Require(merges == std::max(0, leaves - 1), "merges do not fit the leaves");
    for (int32_t m = work.merge_offsets[t]; m < work.merge_offsets[t + 1]; ++m) {
      const CsaMerge& merge = work.merges[static_cast<size_t>(m)];
      Require(merge.left >= 0 && merge.left < merge.right && merge.right < leaves,
              "a merge names no leaf");
    }
  }
  for (const CsaLeaf& leaf : work.leaves) {
    Require(leaf.num_candidates >= 1 && leaf.num_candidates <= 2048 && leaf.first_page >= 0 &&
                static_cast<size_t>(leaf.first_page) +
                        static_cast<size_t>((leaf.num_candidates + 31) / 32) <=
                    work.index_pages.size(),
            "a leaf has candidates without a page");
  }
}

// Every row that is read or written lies in a page that somebody owns.
void PlanInput::CheckRows(const Plan& plan) const {
  const PackedWork& work = plan.work();
  const auto owned = [](const EngineSpace& space, int64_t page) {
    return page >= 0 && page < static_cast<int64_t>(space.ref_counts.size()) &&
           space.ref_counts[static_cast<size_t>(page)] > 0;
  };
  const auto source = [&](int32_t row, const EngineSpace& space, int32_t page_rows,
                          int64_t reader) {
    if (row >= 0) return owned(space, row / page_rows);
    return row == -1 || (-2 - row >= 0 && -2 - row <= reader);
  };
  const int32_t state_rows = kind_ == AttentionKind::kHca ? 8 : 2;
  for (size_t t = 0; t < work.queries.size(); ++t) {
    const QueryToken& query = work.queries[t];
    for (int64_t i = 0; i < kWindowRows; ++i) {
      const int32_t row = work.window_sources[t * kWindowRows + static_cast<size_t>(i)];
      Require(source(row, spaces_->raw, kPageRows, static_cast<int64_t>(t)) &&
                  (row == -1) == (i >= query.window_rows),
              "a window row is outside the pool");
    }
    Require(owned(spaces_->raw, query.raw_write_row / kPageRows), "a raw row is outside the pool");
    if (kind_ == AttentionKind::kSwa) continue;
    Require(owned(spaces_->state, query.state_write_row / state_rows),
            "a state row is outside the pool");
    if (kind_ == AttentionKind::kHca) continue;
    Require(owned(spaces_->inner_state, query.inner_state_write_row / state_rows),
            "an inner state row is outside the pool");
  }
  for (const int32_t page : work.main_pages) {
    Require(owned(spaces_->main, page), "a main page is outside the pool");
  }
  for (const int32_t page : work.index_pages) {
    Require(owned(spaces_->index, page), "an index page is outside the pool");
  }
  const size_t pooled = kind_ == AttentionKind::kHca ? 128 : 8;
  Require(kind_ == AttentionKind::kSwa || work.event_sources.size() == work.events.size() * pooled,
          "an event lacks sources");
  for (size_t e = 0; e < work.events.size(); ++e) {
    const CompressEvent& event = work.events[e];
    Require(event.query >= 0 && event.query < plan.num_tokens() &&
                owned(spaces_->main, event.main_write_row / kPageRows),
            "a compressed row is outside the pool");
    for (size_t i = 0; i < pooled; ++i) {
      Require(source(work.event_sources[e * pooled + i], spaces_->state, state_rows, event.query),
              "an event's source is outside the pool");
      if (kind_ != AttentionKind::kCsa) continue;
      Require(source(work.inner_event_sources[e * pooled + i], spaces_->inner_state, state_rows,
                     event.query),
              "an event's inner source is outside the pool");
    }
    if (kind_ == AttentionKind::kCsa) {
      Require(owned(spaces_->index, event.index_write_row / kPageRows),
              "an index key is outside the pool");
    }
  }
}

// Calls in any order: the state of a plan allows some of them, and says why not of the others.
void PlanInput::Live(Plan& plan) {
  Plan::State& state = *plan.state();
  std::vector<int64_t> accepted;
  for (const PlannedRequest& request : state.work.requests) accepted.push_back(request.num_tokens);
  for (int64_t left = bytes_.Below(8); left > 0; --left) {
    const auto layer = static_cast<int32_t>(bytes_.OneIn(8) ? bytes_.Odd() : bytes_.Below(2));
    switch (bytes_.Below(4)) {
      case 0:
        if (BeginRun(state, layer)) MarkRun(state, layer);
        break;
      case 1: {
        if (!accepted.empty() && bytes_.OneIn(3)) {
          accepted[static_cast<size_t>(bytes_.Take(1)) % accepted.size()] = bytes_.Below(4) - 1;
        }
        if (!BeginCommit(state, layer, accepted)) break;
        const std::vector<RequestRanges> ranges = FinishCommit(state, layer, accepted);
        Require(ranges.empty() || ranges.size() == steps_.size(), "ranges of other requests");
        break;
      }
      case 2: {
        EngineSpace& space = *Spaces()[static_cast<size_t>(bytes_.Below(5))];
        space.Free(static_cast<int32_t>(bytes_.Take(2) % space.epochs.size()));
        break;
      }
      default:
        accepted.push_back(0);
    }
  }
}

}  // namespace

bool PlanBytes(const uint8_t* data, size_t size) { return PlanInput(data, size).PlanStep(); }

}  // namespace millipede::testing
