#ifndef MILLIPEDE_BENCH_MACHINE_RANDOM_H_
#define MILLIPEDE_BENCH_MACHINE_RANDOM_H_

#include <cstdint>

namespace millipede::bench {

// 32 random bits, the same for the same index.
inline uint32_t Mix(uint64_t index) {
  uint64_t z = index + 0x9E3779B97F4A7C15U;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return static_cast<uint32_t>(z >> 32);
}

// Two bf16 of magnitude 1/2 to 2, both signs, in 32 bits.
inline uint32_t TwoBf16(uint64_t index) { return (Mix(index) & 0x80FF80FFU) + 0x3F003F00U; }

}  // namespace millipede::bench

#endif  // MILLIPEDE_BENCH_MACHINE_RANDOM_H_
