// An engine that keeps its own page bookkeeping, for tests of plans made from raw descriptors.
#ifndef MILLIPEDE_TESTS_SUPPORT_PLAN_FIXTURE_H_
#define MILLIPEDE_TESTS_SUPPORT_PLAN_FIXTURE_H_

#include <algorithm>
#include <cstdint>
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

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_SUPPORT_PLAN_FIXTURE_H_
