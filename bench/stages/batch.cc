#include "bench/stages/batch.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <span>

#include "base/large_pages.h"
#include "bench/machine/random.h"

namespace millipede::bench {
namespace {

// 32 bits of a pool's rows: two bf16 of magnitude 1/2 to 2, four int8, or a float32.
uint32_t RandomWord(PoolKind pool, size_t index) {
  switch (pool) {
    case PoolKind::kRaw:
    case PoolKind::kHcaMain:
    case PoolKind::kCsaMain:
      return TwoBf16(index);
    case PoolKind::kCsaIndexRows:
      return Mix(index);
    case PoolKind::kCsaIndexScales:
      return (Mix(index) >> 9) + 0x3C000000U;  // 0.008 to 0.016
    case PoolKind::kHcaState:
    case PoolKind::kCsaState:
    case PoolKind::kCsaInnerState:
      return (Mix(index) & 0x807FFFFFU) + 0x3F000000U;
  }
  return 0;
}

// Pages of the space in use, from the first on, so that those acquired later come in random order.
void ShufflePages(PageSpace& space, int64_t num_pages) {
  std::vector<PageEntry> pages(static_cast<size_t>(num_pages));
  Check(space.Acquire(pages));
  std::mt19937_64 random(1);
  std::shuffle(pages.begin(), pages.end(), random);
  Check(space.Release(pages));
}

}  // namespace

void Check(const Status& status) {
  if (status) return;
  std::fprintf(stderr, "%s\n", status.error().message.c_str());
  std::exit(1);
}

struct Batch::Spaces {
  std::optional<PageSpace> raw;
  std::optional<PageSpace> main;
  std::optional<PageSpace> index;
  std::optional<PageSpace> state;
  std::optional<PageSpace> inner_state;
  RequestSpaces view;
};

Batch::Batch(AttentionKind kind, const std::vector<int64_t>& starts, int64_t num_tokens,
             PageOrder order)
    : kind_(kind), num_tokens_(num_tokens), spaces_(std::make_unique<Spaces>()) {
  const auto num_requests = static_cast<int32_t>(starts.size());
  const int64_t ratio = kind == AttentionKind::kHca ? kHcaRatio : kCsaRatio;
  int64_t ragged_pages = 0;
  for (const int64_t start : starts) ragged_pages += (start + num_tokens) / ratio / kPageRows + 1;
  Spaces& s = *spaces_;
  const auto make = [&](std::optional<PageSpace>& space, int64_t num_pages) {
    space.emplace(Get(PageSpace::Create(static_cast<int32_t>(num_pages))));
    if (order == PageOrder::kShuffled) ShufflePages(*space, num_pages);
    return &*space;
  };
  s.view.raw = make(s.raw, 4 * num_requests);
  if (kind == AttentionKind::kHca) {
    s.view.hca_main = make(s.main, ragged_pages);
    s.view.hca_state = make(s.state, 16 * num_requests);
  } else if (kind == AttentionKind::kCsa) {
    s.view.csa_main = make(s.main, ragged_pages);
    s.view.csa_index = make(s.index, ragged_pages);
    s.view.csa_state = make(s.state, 4 * num_requests);
    s.view.csa_inner_state = make(s.inner_state, 4 * num_requests);
  }
  for (const int64_t start : starts) {
    requests_.push_back(Get(Request::Create(s.view, start)));
    Check(requests_.back().Prepare(num_tokens));
  }
}

Batch::~Batch() = default;

Plan Batch::MakePlan() const {
  std::vector<StepRequest> steps(requests_.size());
  for (size_t r = 0; r < steps.size(); ++r) {
    steps[r].start_pos = requests_[r].position(kind_);
    steps[r].num_tokens = num_tokens_;
    steps[r].request = &requests_[r];
  }
  return Get(Plan::Create(config_, kind_, 1, spaces_->view.views(kind_), steps));
}

PoolView Batch::MakePool(PoolKind pool, int32_t num_pages) {
  const int64_t page_bytes = FormatOf(pool).page_bytes();
  MappedMemory& memory =
      memory_.emplace_back(Get(MappedMemory::Map(page_bytes * num_pages, "pool")));
  // As an engine does that fills its pools; of a small one, large pages would only take memory.
  if (memory.num_bytes() >= 16 * kLargePageBytes) {
    WishForLargePages(memory.data(), static_cast<size_t>(memory.num_bytes()));
  }
  for (size_t i = 0; i < static_cast<size_t>(page_bytes * num_pages) / sizeof(uint32_t); ++i) {
    const uint32_t word = RandomWord(pool, i);
    std::memcpy(memory.data() + i * sizeof(word), &word, sizeof(word));
  }
  return {memory.data(), page_bytes, num_pages};
}

const LayerPools& Batch::pools() {
  if (pools_.raw.base != nullptr) return pools_;
  const Spaces& s = *spaces_;
  pools_.raw = MakePool(PoolKind::kRaw, s.raw->num_pages());
  if (kind_ == AttentionKind::kHca) {
    pools_.main = MakePool(PoolKind::kHcaMain, s.main->num_pages());
    pools_.state = MakePool(PoolKind::kHcaState, s.state->num_pages());
  } else if (kind_ == AttentionKind::kCsa) {
    pools_.main = MakePool(PoolKind::kCsaMain, s.main->num_pages());
    pools_.index_rows = MakePool(PoolKind::kCsaIndexRows, s.index->num_pages());
    pools_.index_scales = MakePool(PoolKind::kCsaIndexScales, s.index->num_pages());
    pools_.state = MakePool(PoolKind::kCsaState, s.state->num_pages());
    pools_.inner_state = MakePool(PoolKind::kCsaInnerState, s.inner_state->num_pages());
  }
  return pools_;
}

}  // namespace millipede::bench
