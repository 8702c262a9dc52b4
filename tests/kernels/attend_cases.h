// Data, buffers and the plain double evaluation that the tests of the attention kernels share.
#ifndef MILLIPEDE_TESTS_KERNELS_ATTEND_CASES_H_
#define MILLIPEDE_TESTS_KERNELS_ATTEND_CASES_H_

#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/bf16.h"
#include "kernels/attend_layout.h"
#include "kernels/attend_load.h"
#include "kernels/attend_tile.h"

namespace millipede {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr auto kDim = static_cast<size_t>(kHeadDim);
inline constexpr auto kBlock = static_cast<size_t>(kHeadBlock);
inline constexpr int64_t kRowCounts[] = {1, 2, 3, 5, 6, 7, 31, 32, 33, 64, 65, 127, 128};
inline constexpr int64_t kHeadCounts[] = {1, 3, 8, 15, 16};

// An aligned array of floats that starts out as NaN.
class Floats {
 public:
  explicit Floats(size_t size) : size_(size), data_(hwy::AllocateAligned<float>(size)) {
    std::fill_n(data_.get(), size, kNan);
  }
  float* data() const { return data_.get(); }
  size_t size() const { return size_; }
  float& operator[](size_t i) const { return data_[i]; }

 private:
  size_t size_;
  hwy::AlignedFreeUniquePtr<float[]> data_;
};

struct Partial {
  Floats buffer{static_cast<size_t>(kAttendPartialFloats)};
  AttendPartial view = AttendPartialAt(buffer.data());
};

// Rows or heads [count][512] of bf16, normally distributed.
inline std::vector<Bf16> RandomBf16(size_t count, uint32_t seed, float std = 1.0F) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, std);
  std::vector<Bf16> values(count * kDim);
  for (Bf16& value : values) value = FloatToBf16(normal(random));
  return values;
}

// Widened rows with the room of `panel_rows`, NaN everywhere but in the rows given.
inline Floats Widened(const std::vector<Bf16>& rows, int64_t panel_rows, int64_t first_row) {
  Floats kv(static_cast<size_t>(panel_rows) * kDim);
  std::vector<const Bf16*> pointers;
  for (size_t r = 0; r * kDim < rows.size(); ++r) pointers.push_back(&rows[r * kDim]);
  AttendWiden({.rows = {.rows = pointers.data(), .num_rows = static_cast<int64_t>(pointers.size())},
               .kv = kv.data(),
               .panel_rows = panel_rows,
               .first_row = first_row});
  return kv;
}

inline Floats TransposedQ(const std::vector<Bf16>& q, int64_t num_heads) {
  Floats q_t(kDim * kBlock);
  AttendTransposeQ(
      {.q = q.data(), .head_stride = kHeadDim, .num_heads = num_heads, .q_t = q_t.data()});
  return q_t;
}

// The tile over rows [first_row, first_row + num_rows) of `kv`, with scratch full of NaN.
inline void RunTileInto(const Partial& partial, bool merge, const Floats& q_t, const Floats& kv,
                        int64_t first_row, int64_t num_rows, AttendRowList next = {}) {
  Floats scores(static_cast<size_t>(kAttendRows) * kBlock);
  AttendTile({.q_t = q_t.data(),
              .kv = kv.data(),
              .panel_rows = static_cast<int64_t>(kv.size() / kDim),
              .first_row = first_row,
              .num_rows = num_rows,
              .scores = scores.data(),
              .out = partial.view,
              .merge = merge,
              .next = next});
}

inline Partial RunTile(const Floats& q_t, const Floats& kv, int64_t first_row, int64_t num_rows) {
  Partial partial;
  RunTileInto(partial, false, q_t, kv, first_row, num_rows);
  return partial;
}

// One head's partial in double; `slack[d]` is what the roundings of probabilities to bf16 may move
// the output by, where a probability lies within its error of a tie.
struct ExpectedPartial {
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
  double score_error = 0;
  std::vector<double> out = std::vector<double>(kDim);
  std::vector<double> slack = std::vector<double>(kDim);
};

inline ExpectedPartial ExpectTile(const Bf16* q, const Bf16* rows, size_t num_rows) {
  ExpectedPartial expected;
  std::vector<double> scores(num_rows);
  for (size_t r = 0; r < num_rows; ++r) {
    double dot = 0;
    double magnitude = 0;
    for (size_t i = 0; i < kDim; ++i) {
      const double product = double{Bf16ToFloat(q[i])} * double{Bf16ToFloat(rows[r * kDim + i])};
      dot += product;
      magnitude += std::abs(product);
    }
    scores[r] = dot / std::sqrt(512.0);
    expected.max = std::max(expected.max, scores[r]);
    // Errors of a sum of 512 terms walk at random: far below 512 roundings of its magnitude.
    expected.score_error =
        std::max(expected.score_error, std::ldexp(8.0 * magnitude / std::sqrt(512.0), -24));
  }
  const double error = 2 * expected.score_error + std::ldexp(1.0, -22);
  for (size_t r = 0; r < num_rows; ++r) {
    const double p = std::exp(scores[r] - expected.max);
    expected.sum += p;
    const double rounded = Bf16ToFloat(FloatToBf16(static_cast<float>(p)));
    const double low = Bf16ToFloat(FloatToBf16(static_cast<float>(p * (1 - error))));
    const double high = Bf16ToFloat(FloatToBf16(static_cast<float>(p * (1 + error))));
    for (size_t i = 0; i < kDim; ++i) {
      const double value = Bf16ToFloat(rows[r * kDim + i]);
      expected.out[i] += rounded * value;
      expected.slack[i] += (high - low + std::ldexp(rounded, -20)) * std::abs(value);
    }
  }
  return expected;
}

inline std::string Difference(const char* what, size_t head, double actual, double expected) {
  return std::string(what) + " of head " + std::to_string(head) + ": " + std::to_string(actual) +
         ", expected " + std::to_string(expected);
}

// The first thing wrong with lane `head` of the partial, or an empty string.
inline std::string Compare(const AttendPartial& actual, size_t head,
                           const ExpectedPartial& expected) {
  if (!(std::abs(double{actual.max[head]} - expected.max) <= expected.score_error)) {
    return Difference("max", head, actual.max[head], expected.max);
  }
  const double sum_error = expected.sum * (2 * expected.score_error + std::ldexp(1.0, -20));
  if (!(std::abs(double{actual.sum[head]} - expected.sum) <= sum_error)) {
    return Difference("sum", head, actual.sum[head], expected.sum);
  }
  for (size_t i = 0; i < kDim; ++i) {
    const double out = actual.out_t[i * kBlock + head];
    if (!(std::abs(out - expected.out[i]) <= expected.slack[i])) {
      return Difference("out", head, out, expected.out[i]) + " at " + std::to_string(i);
    }
  }
  return "";
}

// Whether lane `lane_a` of a and lane `lane_b` of b hold the same bits.
inline bool SameLane(const AttendPartial& a, size_t lane_a, const AttendPartial& b, size_t lane_b) {
  const auto same = [&](const float* x, const float* y) {
    return std::memcmp(x + lane_a, y + lane_b, sizeof(float)) == 0;
  };
  bool all = same(a.max, b.max) && same(a.sum, b.sum);
  for (size_t i = 0; i < kDim; ++i) all &= same(a.out_t + i * kBlock, b.out_t + i * kBlock);
  return all;
}

inline bool AllNan(const AttendPartial& partial, size_t lane) {
  bool all = std::isnan(partial.sum[lane]);
  for (size_t i = 0; i < kDim; ++i) all &= std::isnan(partial.out_t[i * kBlock + lane]);
  return all;
}

}  // namespace millipede

#endif  // MILLIPEDE_TESTS_KERNELS_ATTEND_CASES_H_
