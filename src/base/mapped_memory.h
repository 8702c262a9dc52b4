// Memory that costs address space until it is touched.
#ifndef MILLIPEDE_BASE_MAPPED_MEMORY_H_
#define MILLIPEDE_BASE_MAPPED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "millipede/status.h"

namespace millipede {

// Owner of an anonymous private mapping: zero-filled, page-aligned, resident only where touched.
class MappedMemory {
 public:
  // kOutOfMemory if the address space cannot be had; `what` names the thing mapped in the error.
  static Result<MappedMemory> Map(int64_t num_bytes, const char* what);

  MappedMemory() = default;
  MappedMemory(MappedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        num_bytes_(std::exchange(other.num_bytes_, 0)) {}
  MappedMemory& operator=(MappedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
  }
  ~MappedMemory();

  std::byte* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  MappedMemory(std::byte* data, int64_t num_bytes) : data_(data), num_bytes_(num_bytes) {}

  std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace millipede

#endif  // MILLIPEDE_BASE_MAPPED_MEMORY_H_
