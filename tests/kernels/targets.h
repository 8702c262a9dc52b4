// Runs a test body once on every SIMD target of this machine.
#ifndef MILLIPEDE_TESTS_KERNELS_TARGETS_H_
#define MILLIPEDE_TESTS_KERNELS_TARGETS_H_

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <cstdint>
#include <string>
#include <vector>

namespace millipede {

// Forces each target in turn and calls `body()`. `ran()` says which target a dynamic dispatch of
// the code under test reaches, so that a target that was asked for but not run fails.
template <typename Ran, typename Body>
void ForEachTarget(Ran ran, Body body) {
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    const std::string name = hwy::TargetName(target);
    SCOPED_TRACE("target " + name);
    EXPECT_EQ(ran(), name);
    body();
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Whether MulAdd rounds once on the target that is forced.
inline bool IsFused() {
  const int64_t target = hwy::SupportedTargets();
#if HWY_ARCH_X86
  return target <= HWY_AVX2;
#else
  return target < HWY_EMU128;
#endif
}

}  // namespace millipede

#endif  // MILLIPEDE_TESTS_KERNELS_TARGETS_H_
