// Rearranges weights, once at load, into the layout that the matrix kernels read
// (geometry/tiles.h).
#ifndef MILLIPEDE_KERNELS_PACK_WEIGHTS_H_
#define MILLIPEDE_KERNELS_PACK_WEIGHTS_H_

#include <cstdint>

#include "millipede/tensor.h"

namespace millipede {

// Some panels of a weight matrix; calls for disjoint panels may run at the same time.
template <typename T>
struct PackWeightsArgs {
  const T* weights = nullptr;  // [num_outputs, num_inputs], row n at weights + n * stride
  int64_t stride = 0;          // elements
  int64_t num_outputs = 0;
  int64_t num_inputs = 0;
  int64_t panel_begin = 0;  // panels to pack, of NumPanels(num_outputs)
  int64_t panel_end = 0;
  T* packed = nullptr;  // the whole matrix, [PackedElements(num_outputs, num_inputs)]
};

// Every packed element of the panels is written, padding with zeros.
void PackBf16(const PackWeightsArgs<Bf16>& args);
void PackInt8(const PackWeightsArgs<int8_t>& args);

}  // namespace millipede

#endif  // MILLIPEDE_KERNELS_PACK_WEIGHTS_H_
