// The floating-point mode of worker threads. Results are promised for round-to-nearest with
// subnormals kept, whatever mode the caller's threads are in.
#ifndef MILLIPEDE_RUNTIME_FLOAT_MODE_H_
#define MILLIPEDE_RUNTIME_FLOAT_MODE_H_

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace millipede {

// Sets the default mode for its lifetime and gives the thread its own mode back.
class FloatModeGuard {
 public:
  FloatModeGuard() : saved_(Get()) {
    if (saved_ != kDefault) Set(kDefault);
  }
  ~FloatModeGuard() {
    if (saved_ != kDefault) Set(saved_);
  }
  FloatModeGuard(const FloatModeGuard&) = delete;
  FloatModeGuard& operator=(const FloatModeGuard&) = delete;

 private:
#if defined(__x86_64__)
  // All exceptions masked, round to nearest, neither flush-to-zero nor denormals-are-zero. The six
  // low bits are sticky status flags and no part of the mode.
  static constexpr uint32_t kDefault = 0x1F80;
  static uint32_t Get() { return _mm_getcsr() & ~uint32_t{0x3F}; }
  static void Set(uint32_t mode) { _mm_setcsr(mode); }
  uint32_t saved_;
#elif defined(__aarch64__)
  static constexpr uint64_t kDefault = 0;
  static uint64_t Get() {
    uint64_t mode = 0;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void Set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
  uint64_t saved_;
#else
#error "no floating-point mode control for this architecture"
#endif
};

}  // namespace millipede

#endif  // MILLIPEDE_RUNTIME_FLOAT_MODE_H_
