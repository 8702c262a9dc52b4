// Owned memory of the command: aligned bytes, and the two bf16 conversions it needs.
#ifndef MILLIPEDE_TOOLS_BUFFERS_H_
#define MILLIPEDE_TOOLS_BUFFERS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>

#include "millipede/tensor.h"

namespace millipede::tools {

// Uninitialised bytes at a 64-byte boundary, as the library wants workspace, overlay and scratch.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t num_bytes)
      : size_(static_cast<size_t>(num_bytes)),
        data_(static_cast<std::byte*>(
            ::operator new[](std::max<size_t>(size_, 1), std::align_val_t{kAlignment}))) {}

  std::span<std::byte> span() const { return {data_.get(), size_}; }

 private:
  static constexpr size_t kAlignment = 64;
  struct Delete {
    void operator()(std::byte* data) const {
      ::operator delete[](data, std::align_val_t{kAlignment});
    }
  };

  size_t size_;
  std::unique_ptr<std::byte, Delete> data_;
};

inline float ToFloat(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// To nearest, ties to even; for finite values.
inline Bf16 RoundToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return {static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_BUFFERS_H_
