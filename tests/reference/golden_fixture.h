// What tests of the golden share: a tiny layer of any kind with inputs and history by formula.
#ifndef MILLIPEDE_TESTS_REFERENCE_GOLDEN_FIXTURE_H_
#define MILLIPEDE_TESTS_REFERENCE_GOLDEN_FIXTURE_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "fixtures/formula.h"
#include "reference/golden.h"
#include "reference/judge.h"

namespace millipede::reference {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr AttentionKind kSwa = AttentionKind::kSwa;
inline constexpr AttentionKind kHca = AttentionKind::kHca;
inline constexpr AttentionKind kCsa = AttentionKind::kCsa;

inline float ToFloat(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

inline Bf16 Exact(float value) {  // of a value that bf16 holds
  return {static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)};
}

inline Bf16 Rounded(double value) {  // of a finite value
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  return {static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return JudgeExact(a, b).ok;
}

template <typename T>
std::vector<const T*> PointersOf(const std::vector<std::vector<T>>& rows) {
  std::vector<const T*> pointers;
  for (const auto& row : rows) pointers.push_back(row.data());
  return pointers;
}

struct TinyLayer {
  explicit TinyLayer(AttentionKind layer_kind)
      : kind(layer_kind), layer(fixtures::MakeLayerFixture(config, kind, 3)) {}

  Golden Make() const { return Golden(config, kind, layer.views()); }

  std::vector<float> X(int64_t token) const {
    std::vector<float> x(static_cast<size_t>(kHcStreams * config.hidden));
    request.X(token, x);
    return x;
  }
  std::vector<Bf16> Xn(int64_t token) const {
    const Golden golden = Make();
    return golden.AttnNorm(golden.HcPre(X(token)).x_mixed);
  }
  std::vector<Bf16> KvRow(int64_t position) const {
    std::vector<Bf16> row(kHeadDim);
    request.KvRow(position, row);
    return row;
  }
  std::vector<Bf16> CmpRow(int64_t index) const {
    std::vector<Bf16> row(kHeadDim);
    request.CmpRow(index, row);
    return row;
  }
  std::vector<Bf16> Heads(int64_t token) const {
    std::vector<Bf16> heads(static_cast<size_t>(config.num_heads) * kHeadDim);
    request.Heads(token, heads);
    return heads;
  }

  ModelConfig config = ModelConfig::Tiny();
  AttentionKind kind;
  fixtures::LayerFixture layer;
  fixtures::RequestFixture request{config, 3, 0};
  RopeRow no_turn = RopeRowAt(kSwa, 0);
};

}  // namespace millipede::reference

#endif  // MILLIPEDE_TESTS_REFERENCE_GOLDEN_FIXTURE_H_
