// Checks of caller-owned buffers, done before a stage writes anything.
#ifndef MILLIPEDE_LAYERS_CHECKS_H_
#define MILLIPEDE_LAYERS_CHECKS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "base/error.h"
#include "geometry/tiles.h"
#include "millipede/config.h"
#include "millipede/rope.h"
#include "millipede/tensor.h"

namespace millipede {

// "[2, 4, 4096]"
template <size_t kRank>
std::string ShapeText(const std::array<int64_t, kRank>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// kShapeMismatch unless `view` has exactly `shape`, a stride that does not make rows overlap, and
// data aligned for its type. Where no rows are wanted, a view that was never set will do.
template <typename T, int kRank>
Status CheckView(
    const char* name, const TensorView<T, kRank>& view,
    const std::type_identity_t<std::array<int64_t, static_cast<size_t>(kRank)>>& shape) {
  if (shape[0] == 0 && view.data == nullptr) return {};
  if (view.shape != shape || shape[0] < 0) {
    return MakeError(ErrorCode::kShapeMismatch, name, "shape {}; allowed: {}",
                     ShapeText(view.shape), ShapeText(shape));
  }
  if (shape[0] == 0) return {};
  if (view.data == nullptr) {
    return MakeError(ErrorCode::kShapeMismatch, name, "null data; allowed: {} elements of {}",
                     ShapeText(shape), "caller memory");
  }
  if (reinterpret_cast<uintptr_t>(view.data) % alignof(T) != 0) {
    return MakeError(ErrorCode::kShapeMismatch, name, "misaligned data; allowed: multiples of {}",
                     alignof(T));
  }
  int64_t row_elements = 1;
  for (size_t i = 1; i < shape.size(); ++i) row_elements *= shape[i];
  constexpr auto kMostElements =
      std::numeric_limits<int64_t>::max() / static_cast<int64_t>(sizeof(T));
  const int64_t most = shape[0] > 1 ? (kMostElements - row_elements) / (shape[0] - 1) : 0;
  if (shape[0] > 1 && (view.stride0 < row_elements || view.stride0 > most)) {
    return MakeError(ErrorCode::kShapeMismatch, name, "stride0 {}; allowed: {} to {}", view.stride0,
                     row_elements, most);
  }
  return {};
}

inline Status CheckKind(AttentionKind kind) {
  if (kind == AttentionKind::kSwa || kind == AttentionKind::kHca || kind == AttentionKind::kCsa) {
    return {};
  }
  return MakeError(ErrorCode::kInvalidArgument, "kind", "{}; allowed: swa, hca, csa",
                   static_cast<int>(kind));
}

inline Status CheckRope(const char* name, const RopeRows& rope, int64_t num_rows) {
  const std::string prefix = name;
  MILLIPEDE_RETURN_IF_ERROR(CheckView((prefix + ".cos").c_str(), rope.cos, {num_rows, kRopePairs}));
  return CheckView((prefix + ".sin").c_str(), rope.sin, {num_rows, kRopePairs});
}

// kBufferTooSmall unless `buffer` has `required_bytes` and starts at a multiple of 64.
inline Status CheckBuffer(const char* name, std::span<const std::byte> buffer,
                          int64_t required_bytes) {
  if (static_cast<int64_t>(buffer.size()) < required_bytes) {
    return MakeError(ErrorCode::kBufferTooSmall, name, "{} bytes; allowed: at least {}",
                     buffer.size(), required_bytes);
  }
  if (required_bytes > 0 &&
      reinterpret_cast<uintptr_t>(buffer.data()) % static_cast<uintptr_t>(kBufferAlignment) != 0) {
    return MakeError(ErrorCode::kBufferTooSmall, name,
                     "misaligned address; allowed: multiples of {} bytes", kBufferAlignment);
  }
  return {};
}

// The typed start of a part of a checked buffer.
template <typename T>
T* PartOf(std::span<std::byte> buffer, int64_t offset) {
  return reinterpret_cast<T*>(buffer.data() + offset);
}

}  // namespace millipede

#endif  // MILLIPEDE_LAYERS_CHECKS_H_
