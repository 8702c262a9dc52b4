// Large pages for memory that is touched all over.
#ifndef MILLIPEDE_BASE_LARGE_PAGES_H_
#define MILLIPEDE_BASE_LARGE_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace millipede {

inline constexpr int64_t kLargePageBytes = int64_t{2} << 20;

// Asks for large pages behind [memory, memory + num_bytes), page-aligned memory, which save
// translations of addresses. A wish: without them the same is slower. Not for memory that is to be
// resident only where touched.
inline void WishForLargePages([[maybe_unused]] void* memory, [[maybe_unused]] size_t num_bytes) {
#ifdef MADV_HUGEPAGE
  madvise(memory, num_bytes, MADV_HUGEPAGE);
#endif
}

}  // namespace millipede

#endif  // MILLIPEDE_BASE_LARGE_PAGES_H_
