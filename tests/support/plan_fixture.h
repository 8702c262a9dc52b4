// An engine that keeps its own page bookkeeping, for tests of plans made from raw descriptors.
#ifndef MILLIPEDE_TESTS_SUPPORT_PLAN_FIXTURE_H_
#define MILLIPEDE_TESTS_SUPPORT_PLAN_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <vector>

#include "millipede/pages.h"
#include "millipede/plan.h"

namespace millipede::testing {

// Epochs, reference counts and generation of one space. All pages are free at first.
struct EngineSpace {
  std::vector<uint64_t> epochs;
  std::vector<int32_t> ref_counts;
  uint64_t generation = 0;
  uint64_t next_epoch = 1000;

  explicit EngineSpace(int32_t num_pages)
      : epochs(static_cast<size_t>(num_pages)), ref_counts(static_cast<size_t>(num_pages)) {}

  PageEntry Own(int32_t page) {
    epochs[static_cast<size_t>(page)] = next_epoch;
    ref_counts[static_cast<size_t>(page)] = 1;
    return {page, next_epoch++};
  }

  void Free(int32_t page) {
    ref_counts[static_cast<size_t>(page)] = 0;
    ++generation;
  }

  PageSpaceView view() const {
    return {epochs.data(), ref_counts.data(), &generation, static_cast<int32_t>(epochs.size())};
  }

  KindSpaces spaces() const {
    KindSpaces kind_spaces;
    kind_spaces.raw = view();
    return kind_spaces;
  }

  bool operator==(const EngineSpace&) const = default;
};

// One request's raw ring, held by the engine. Steps view `entries`, so keep it in place.
struct EngineRing {
  std::vector<PageEntry> entries;

  EngineRing() = default;
  EngineRing(EngineSpace& space, const std::vector<int32_t>& pages) {
    for (const int32_t page : pages) entries.push_back(space.Own(page));
  }

  // A step at `start`, the ring as full as it can be.
  StepRequest Step(int64_t start, int64_t num_tokens) const {
    StepRequest step;
    step.start_pos = start;
    step.num_tokens = num_tokens;
    step.pages.raw = {entries, {std::max<int64_t>(0, start - kWindowRows), start}};
    return step;
  }
};

// A space for each list of a kind.
struct EngineSpaces {
  EngineSpace raw;
  EngineSpace main;
  EngineSpace index;
  EngineSpace state;
  EngineSpace inner_state;

  // Rings for `num_requests`, and `ragged_pages` pages for each ragged list together.
  explicit EngineSpaces(int32_t num_requests, int32_t ragged_pages)
      : raw(4 * num_requests + 3),
        main(ragged_pages),
        index(ragged_pages + 5),
        state(16 * num_requests + 7),
        inner_state(4 * num_requests + 9) {}

  KindSpaces views(AttentionKind kind) const {
    KindSpaces spaces;
    spaces.raw = raw.view();
    if (kind == AttentionKind::kSwa) return spaces;
    spaces.main = main.view();
    spaces.state = state.view();
    if (kind == AttentionKind::kHca) return spaces;
    spaces.index = index.view();
    spaces.inner_state = inner_state.view();
    return spaces;
  }

  bool operator==(const EngineSpaces&) const = default;
};

// One request's lists of one kind, on pages drawn at random. Steps view them, so keep it in place.
struct EngineRequest {
  AttentionKind kind;
  std::vector<PageEntry> raw;
  std::vector<PageEntry> main;
  std::vector<PageEntry> index;
  std::vector<PageEntry> state;
  std::vector<PageEntry> inner_state;

  // Ragged lists cover the compressed rows of `num_tokens` tokens.
  EngineRequest(AttentionKind attention_kind, EngineSpaces& spaces, int64_t num_tokens,
                std::mt19937_64& random)
      : kind(attention_kind) {
    const auto draw = [&](EngineSpace& space, int64_t num_pages) {
      std::vector<PageEntry> pages;
      if (std::ranges::count(space.ref_counts, 0) < num_pages) {
        throw std::runtime_error("the engine has too few pages for this test");
      }
      while (static_cast<int64_t>(pages.size()) < num_pages) {
        const auto page = static_cast<int32_t>(random() % space.epochs.size());
        if (space.ref_counts[static_cast<size_t>(page)] == 0) pages.push_back(space.Own(page));
      }
      return pages;
    };
    raw = draw(spaces.raw, 4);
    if (kind == AttentionKind::kSwa) return;
    const int64_t rows = num_tokens / Ratio();
    main = draw(spaces.main, (rows + 31) / 32);
    state = draw(spaces.state, kind == AttentionKind::kHca ? 16 : 4);
    if (kind == AttentionKind::kHca) return;
    index = draw(spaces.index, (rows + 31) / 32);
    inner_state = draw(spaces.inner_state, 4);
  }

  int64_t Ratio() const { return kind == AttentionKind::kHca ? 128 : 4; }

  // A step at `start`, the rings as full as they can be.
  StepRequest Step(int64_t start, int64_t num_tokens) const {
    StepRequest step;
    step.start_pos = start;
    step.num_tokens = num_tokens;
    const auto last = [start](int64_t rows) {
      return RowRange{std::max<int64_t>(0, start - rows), start};
    };
    step.pages.raw = {raw, last(128)};
    if (kind == AttentionKind::kSwa) return step;
    step.pages.main = {main, {0, start / Ratio()}};
    step.pages.state = {state, last(kind == AttentionKind::kHca ? 128 : 8)};
    if (kind == AttentionKind::kHca) return step;
    step.pages.index = {index, {0, start / Ratio()}};
    step.pages.inner_state = {inner_state, last(8)};
    return step;
  }
};

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_SUPPORT_PLAN_FIXTURE_H_
