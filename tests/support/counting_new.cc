// The program's operator new. In a file of its own: where the compiler sees both sides, it takes
// free for a mismatch.
#include "support/counting_new.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> num_allocations{0};

void* Allocate(size_t num_bytes, size_t alignment) {
  num_allocations.fetch_add(1);
  const size_t whole = (num_bytes + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, whole);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

int64_t millipede::testing::NumAllocations() { return num_allocations.load(); }

void* operator new(size_t num_bytes) { return Allocate(num_bytes, alignof(std::max_align_t)); }
void* operator new(size_t num_bytes, std::align_val_t alignment) {
  return Allocate(num_bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*num_bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { std::free(memory); }
void operator delete(void* memory, size_t /*num_bytes*/, std::align_val_t /*alignment*/) noexcept {
  std::free(memory);
}
