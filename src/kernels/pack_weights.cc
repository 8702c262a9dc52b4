#include "kernels/pack_weights.h"

#include <algorithm>
#include <cstdint>

#include "base/checked.h"
#include "geometry/tiles.h"

namespace millipede {
namespace {

// One panel's part of an input block: [input pair][16 outputs][2 inputs].
template <typename T>
void PackPanelBlock(const PackWeightsArgs<T>& args, int64_t panel, int64_t input_begin,
                    int64_t input_end, T* packed) {
  for (int64_t i = 0; i < kPanelOutputs; ++i) {
    const int64_t output = panel * kPanelOutputs + i;
    const T* row = args.weights + output * args.stride;
    const int64_t end = output < args.num_outputs ? input_end : input_begin;
    const int64_t padded_end = input_begin + RoundUp(input_end - input_begin, 2);
    for (int64_t k = input_begin; k < padded_end; ++k) {
      const int64_t pair = (k - input_begin) / 2;
      packed[(pair * kPanelOutputs + i) * 2 + (k - input_begin) % 2] = k < end ? row[k] : T{};
    }
  }
}

template <typename T>
void Pack(const PackWeightsArgs<T>& args) {
  const int64_t padded_outputs = NumPanels(args.num_outputs) * kPanelOutputs;
  for (int64_t panel = args.panel_begin; panel < args.panel_end; ++panel) {
    for (int64_t begin = 0; begin < args.num_inputs; begin += kInputBlock) {
      const int64_t end = std::min(begin + kInputBlock, args.num_inputs);
      const int64_t panel_elements = RoundUp(end - begin, 2) * kPanelOutputs;
      PackPanelBlock(args, panel, begin, end,
                     args.packed + begin * padded_outputs + panel * panel_elements);
    }
  }
}

}  // namespace

void PackBf16(const PackWeightsArgs<Bf16>& args) { Pack(args); }
void PackInt8(const PackWeightsArgs<int8_t>& args) { Pack(args); }

}  // namespace millipede
