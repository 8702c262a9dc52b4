#include "support/failing_new.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> num_allocations{0};
thread_local int64_t allocations_left = -1;  // up to the one that fails; negative: none does
thread_local bool all_fail = false;
thread_local bool has_failed = false;

void* Allocate(size_t num_bytes, size_t alignment) {
  num_allocations.fetch_add(1);
  if (allocations_left == 0) {
    has_failed = true;
    if (!all_fail) allocations_left = -1;
    throw std::bad_alloc();
  }
  if (allocations_left > 0) --allocations_left;
  const size_t rounded = (std::max<size_t>(num_bytes, 1) + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t num_bytes) { return Allocate(num_bytes, alignof(std::max_align_t)); }
void* operator new(size_t num_bytes, std::align_val_t alignment) {
  return Allocate(num_bytes, static_cast<size_t>(alignment));
}
// Who asks like this can do without, so it is let through.
void* operator new(size_t num_bytes, const std::nothrow_t& /*tag*/) noexcept {
  num_allocations.fetch_add(1);
  return std::malloc(std::max<size_t>(num_bytes, 1));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*num_bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*num_bytes*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { std::free(memory); }

namespace millipede::testing {

void FailAllocations(int64_t num_allocations, bool all) {
  has_failed = false;
  all_fail = all;
  allocations_left = num_allocations;
}

bool StopFailing() {
  allocations_left = -1;
  return has_failed;
}

int64_t NumAllocations() { return num_allocations.load(); }

}  // namespace millipede::testing
