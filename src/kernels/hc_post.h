// Hyper-connection mixing after the attention.
#ifndef MILLIPEDE_KERNELS_HC_POST_H_
#define MILLIPEDE_KERNELS_HC_POST_H_

#include <cstdint>

#include "millipede/tensor.h"

namespace millipede {

struct HcPostArgs {
  const float* x = nullptr;        // [4, hidden] one token's streams
  const Bf16* attn_out = nullptr;  // [hidden]
  const float* post = nullptr;     // [4]
  const float* comb = nullptr;     // [4, 4] from stream, to stream
  float* x_out = nullptr;  // [4, hidden], written in [begin, end) of each stream; may be x itself
  int64_t hidden = 0;
  int64_t begin = 0;  // hidden lanes [begin, end)
  int64_t end = 0;
};

// x_out[o] = attn_out * post[o] + sum over i of x[i] * comb[i][o].
void HcPost(const HcPostArgs& args);

// The SIMD target that HcPost runs on.
const char* HcPostTargetName();

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_HC_POST_H_
