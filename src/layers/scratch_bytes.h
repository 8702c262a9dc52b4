// What the sizes of scratch have in common: where there is none.
#ifndef MILLIPEDE_LAYERS_SCRATCH_BYTES_H_
#define MILLIPEDE_LAYERS_SCRATCH_BYTES_H_

#include <cstdint>
#include <limits>

#include "millipede/config.h"
#include "runtime/num_threads.h"

namespace millipede {

// The size for arguments that no call takes.
inline constexpr int64_t kNoScratch = std::numeric_limits<int64_t>::max();

// Whether there are calls with this config on that many threads. For these, and as many tokens as a
// step may have, no size of scratch comes near kNoScratch.
inline bool TakesScratch(const ModelConfig& config, int num_threads) {
  return Validate(config).has_value() && num_threads >= 1 && num_threads <= kMaxThreads;
}

}  // namespace millipede

#endif  // MILLIPEDE_LAYERS_SCRATCH_BYTES_H_
