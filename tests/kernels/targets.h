// Runs a kernel's tests on every SIMD target that was compiled and that this CPU has.
#ifndef MILLIPEDE_TESTS_KERNELS_TARGETS_H_
#define MILLIPEDE_TESTS_KERNELS_TARGETS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace millipede {

// Forces the target GetParam() for one test. Each suite should also prove that its kernel ran
// there.
class OnEveryTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

inline auto AllTargets() { return testing::ValuesIn(hwy::SupportedAndGeneratedTargets()); }

inline std::string TargetTestName(const testing::TestParamInfo<int64_t>& info) {
  return hwy::TargetName(info.param);
}

// Whether MulAdd rounds once.
inline bool IsFused(int64_t target) {
#if HWY_ARCH_X86
  return target <= HWY_AVX2;
#else
  return target < HWY_EMU128;
#endif
}

}  // namespace millipede

#endif  // MILLIPEDE_TESTS_KERNELS_TARGETS_H_
