#include "bench/stages/random_rows.h"

#include <algorithm>
#include <cstring>

#include "bench/machine/limits.h"
#include "millipede/config.h"

namespace millipede::bench {
namespace {

// Room for the largest pool: eight requests of a million tokens, a row for every 4 of them.
constexpr size_t kPoolBytes = size_t{8} * (kMaxContextTokens / 4 + 64) * kHeadDim * sizeof(Bf16);

// Two bf16 of magnitude 1/2 to 2, both signs, in every 32 bits.
uint32_t TwoValues(size_t index) {
  uint64_t z = index + 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return (static_cast<uint32_t>(z >> 32) & 0x80FF80FFU) + 0x3F003F00U;
}

}  // namespace

std::span<const std::byte> RandomMemory() {
  static const BigBuffer buffer(kPoolBytes, TwoValues);
  return buffer.bytes();
}

PoolView PoolOfRandomRows(int32_t num_pages) {
  const int64_t page_bytes = FormatOf(PoolKind::kRaw).page_bytes();
  // The views of pools are not const because layers write through them.
  return {const_cast<std::byte*>(RandomMemory().data()), page_bytes, num_pages};
}

std::vector<Bf16> RandomRows(int64_t num_rows) {
  std::vector<Bf16> rows(static_cast<size_t>(num_rows * kHeadDim));
  const std::span<const std::byte> memory = RandomMemory();
  std::memcpy(rows.data(), memory.data(), std::min(memory.size(), rows.size() * sizeof(Bf16)));
  return rows;
}

}  // namespace millipede::bench
