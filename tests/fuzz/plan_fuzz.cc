// libFuzzer's entry: plan never crashes and never plans an address outside a pool.
#include <cstddef>
#include <cstdint>

#include "fuzz/plan_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millipede::testing::PlanBytes(data, size);
  return 0;
}
