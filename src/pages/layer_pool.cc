#include "base/error.h"
#include "base/mapped_memory.h"
#include "millipede/pages.h"

namespace millipede {

struct LayerPool::State {
  PoolKind kind = PoolKind::kRaw;
  int32_t num_pages = 0;
  MappedMemory memory;  // [num_pages] pages, one after another
};

Result<LayerPool> LayerPool::Create(PoolKind kind, int32_t num_pages) try {
  const int64_t page_bytes = FormatOf(kind).page_bytes();
  if (page_bytes == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "kind", "{}; allowed: 0 to {}",
                     static_cast<int>(kind), kNumPoolKinds - 1);
  }
  if (num_pages < 1 || num_pages > kMaxPagesPerSpace) {
    return MakeError(ErrorCode::kInvalidArgument, "num_pages", "{}; allowed: 1 to {}", num_pages,
                     kMaxPagesPerSpace);
  }
  auto memory = MappedMemory::Map(page_bytes * num_pages, "num_pages");
  if (!memory) return tl::make_unexpected(std::move(memory).error());
  auto state = std::make_unique<State>();
  state->kind = kind;
  state->num_pages = num_pages;
  state->memory = std::move(*memory);
  return LayerPool(std::move(state));
} catch (const std::bad_alloc&) {
  return OutOfMemory("num_pages", "a layer pool");
}

LayerPool::LayerPool(std::unique_ptr<State> state) : state_(std::move(state)) {}
LayerPool::LayerPool(LayerPool&&) noexcept = default;
LayerPool& LayerPool::operator=(LayerPool&&) noexcept = default;
LayerPool::~LayerPool() = default;

PoolKind LayerPool::kind() const { return state_->kind; }

PoolView LayerPool::view() const {
  return {state_->memory.data(), FormatOf(state_->kind).page_bytes(), state_->num_pages};
}

}  // namespace millipede
