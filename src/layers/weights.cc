#include <cstdlib>
#include <memory>

#include "base/large_pages.h"
#include "geometry/tiles.h"
#include "kernels/hc_pre.h"
#include "kernels/pack_weights.h"
#include "layers/checks.h"
#include "millipede/stages.h"

namespace millipede {
namespace {

// `num_elements` of T from a multiple of kBufferAlignment; null if memory is short.
template <typename T>
std::shared_ptr<T[]> AllocateAligned(int64_t num_elements) {
  const int64_t element_bytes = num_elements * static_cast<int64_t>(sizeof(T));
  // A step reads every weight once: large pages save the address translations.
  const bool large = element_bytes >= kLargePageBytes / 2;
  const int64_t alignment = large ? kLargePageBytes : kBufferAlignment;
  const auto num_bytes = static_cast<size_t>(RoundUp(element_bytes, alignment));
  void* memory = std::aligned_alloc(static_cast<size_t>(alignment), num_bytes);
  if (memory == nullptr) return nullptr;
  if (large) WishForLargePages(memory, num_bytes);
  return {static_cast<T*>(memory), [](T* to_free) { std::free(to_free); }};
}

tl::unexpected<Error> OutOfMemory(const char* field, int64_t num_elements, size_t element_bytes) {
  return MakeError(ErrorCode::kOutOfMemory, field, "cannot allocate {} bytes",
                   num_elements * static_cast<int64_t>(element_bytes));
}

template <typename T>
Status CheckWeights(const TensorView<const T, 2>& weights) {
  const int64_t num_outputs = weights.shape[0];
  const int64_t num_inputs = weights.shape[1];
  constexpr int64_t kMaxSide = int64_t{1} << 31;
  constexpr int64_t kMaxElements = int64_t{1} << 48;
  if (num_outputs < 1 || num_outputs > kMaxSide || num_inputs < 1 || num_inputs > kMaxSide ||
      num_outputs > kMaxElements / num_inputs) {
    return MakeError(ErrorCode::kShapeMismatch, "weights",
                     "shape {}; allowed: 1 to 2^31 each, 2^48 in all", ShapeText(weights.shape));
  }
  return CheckView("weights", weights, weights.shape);
}

}  // namespace

Result<MatrixBf16> MatrixBf16::Pack(TensorView<const Bf16, 2> weights) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckWeights(weights));
  MatrixBf16 matrix;
  matrix.num_outputs_ = weights.shape[0];
  matrix.num_inputs_ = weights.shape[1];
  const int64_t num_elements = PackedElements(matrix.num_outputs_, matrix.num_inputs_);
  matrix.data_ = AllocateAligned<Bf16>(num_elements);
  if (!matrix.data_) return OutOfMemory("weights", num_elements, sizeof(Bf16));
  PackBf16({.weights = weights.data,
            .stride = weights.stride0,
            .num_outputs = matrix.num_outputs_,
            .num_inputs = matrix.num_inputs_,
            .panel_begin = 0,
            .panel_end = NumPanels(matrix.num_outputs_),
            .packed = matrix.data_.get()});
  return matrix;
} catch (const std::bad_alloc&) {
  return OutOfMemory("weights", "what is packed of them");
}

Result<MatrixInt8> MatrixInt8::Pack(TensorView<const int8_t, 2> weights,
                                    TensorView<const float, 1> scale) try {
  MILLIPEDE_RETURN_IF_ERROR(CheckWeights(weights));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("scale", scale, {weights.shape[0]}));
  constexpr int64_t kMaxInputs = 131071;  // times 128 * 128 is the last below 2^31
  if (weights.shape[1] > kMaxInputs) {
    return MakeError(ErrorCode::kInvalidArgument, "weights", "{} inputs; allowed: 1 to {}",
                     weights.shape[1], kMaxInputs);
  }
  MatrixInt8 matrix;
  matrix.num_outputs_ = weights.shape[0];
  matrix.num_inputs_ = weights.shape[1];
  const int64_t num_elements = PackedElements(matrix.num_outputs_, matrix.num_inputs_);
  matrix.data_ = AllocateAligned<int8_t>(num_elements);
  matrix.scale_ = AllocateAligned<float>(matrix.num_outputs_);
  if (!matrix.data_ || !matrix.scale_) return OutOfMemory("weights", num_elements, sizeof(int8_t));
  PackInt8({.weights = weights.data,
            .stride = weights.stride0,
            .num_outputs = matrix.num_outputs_,
            .num_inputs = matrix.num_inputs_,
            .panel_begin = 0,
            .panel_end = NumPanels(matrix.num_outputs_),
            .packed = matrix.data_.get()});
  for (int64_t i = 0; i < matrix.num_outputs_; ++i) matrix.scale_[i] = *scale.row(i);
  return matrix;
} catch (const std::bad_alloc&) {
  return OutOfMemory("weights", "what is packed of them");
}

Result<HcWeights> HcWeights::Pack(TensorView<const float, 2> fn, TensorView<const float, 1> scale,
                                  TensorView<const float, 1> base) try {
  const int64_t num_inputs = fn.shape[1];
  if (num_inputs < kHcStreams || num_inputs % kHcStreams != 0) {
    return MakeError(ErrorCode::kShapeMismatch, "fn", "{} inputs; allowed: multiples of {}",
                     num_inputs, kHcStreams);
  }
  MILLIPEDE_RETURN_IF_ERROR(CheckView("fn", fn, {kHcMixes, num_inputs}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("scale", scale, {3}));
  MILLIPEDE_RETURN_IF_ERROR(CheckView("base", base, {kHcMixes}));
  HcWeights weights;
  weights.num_inputs_ = num_inputs;
  weights.fn_ = AllocateAligned<float>(PackedHcFnFloats(num_inputs));
  if (!weights.fn_) return OutOfMemory("fn", PackedHcFnFloats(num_inputs), sizeof(float));
  PackHcFn({.fn = fn.data,
            .fn_stride = fn.stride0,
            .num_inputs = num_inputs,
            .packed = weights.fn_.get()});
  for (size_t i = 0; i < weights.scale_.size(); ++i) {
    weights.scale_[i] = *scale.row(static_cast<int64_t>(i));
  }
  for (size_t i = 0; i < weights.base_.size(); ++i) {
    weights.base_[i] = *base.row(static_cast<int64_t>(i));
  }
  return weights;
} catch (const std::bad_alloc&) {
  return OutOfMemory("fn", "what is packed of them");
}

}  // namespace millipede
