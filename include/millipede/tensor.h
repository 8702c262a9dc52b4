// Views of caller-owned memory. A view never owns; every public tensor is one, of rank at most 5.
#ifndef MILLIPEDE_TENSOR_H_
#define MILLIPEDE_TENSOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace millipede {

// Storage of one bfloat16 value: the upper 16 bits of a float32.
struct Bf16 {
  uint16_t bits = 0;
};

inline constexpr int kMaxTensorRank = 5;

// A row-major tensor. All dimensions but the first are dense; `stride0` is the number of elements
// between consecutive entries of dimension 0, at least the product of the other dimensions.
template <typename T, int kRank>
struct TensorView {
  static_assert(kRank >= 1 && kRank <= kMaxTensorRank, "public tensors have rank 1 to 5");

  T* data = nullptr;
  std::array<int64_t, kRank> shape{};
  int64_t stride0 = 0;

  bool empty() const { return data == nullptr; }
  T* row(int64_t i) const { return data + i * stride0; }

  // A view of mutable elements converts to one of const elements.
  // NOLINTNEXTLINE(google-explicit-constructor): as T* does.
  operator TensorView<const T, kRank>() const requires(!std::is_const_v<T>) {
    return {data, shape, stride0};
  }
};

// A dense view of `data` with the given dimensions.
template <typename T, typename... Dims>
TensorView<T, sizeof...(Dims)> MakeView(T* data, Dims... dims) {
  TensorView<T, sizeof...(Dims)> view{data, {static_cast<int64_t>(dims)...}, 1};
  for (size_t i = 1; i < sizeof...(Dims); ++i) view.stride0 *= view.shape[i];
  return view;
}

}  // namespace millipede

#endif  // MILLIPEDE_TENSOR_H_
