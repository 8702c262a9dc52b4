#include "base/mapped_memory.h"

#include <sys/mman.h>

#include "base/error.h"

namespace millipede {

Result<MappedMemory> MappedMemory::Map(int64_t num_bytes, const char* what) {
  if (num_bytes <= 0) {
    return MakeError(ErrorCode::kInvalidArgument, what, "{} bytes; allowed: at least 1", num_bytes);
  }
  void* address = mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) {
    return MakeError(ErrorCode::kOutOfMemory, what, "cannot map {} bytes of address space",
                     num_bytes);
  }
  return MappedMemory(static_cast<std::byte*>(address), num_bytes);
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(num_bytes_));
}

}  // namespace millipede
