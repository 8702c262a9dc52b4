// Compressors: state rows of tokens, and the pooling of a block's state rows into one row.
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/golden.h"
#include "reference/numbers.h"

namespace millipede::reference {
namespace {

// [kv | score + ape of the token's place in its block], float32.
std::vector<float> MakeStateRow(TensorView<const Bf16, 2> wkv, TensorView<const Bf16, 2> wgate,
                                TensorView<const float, 2> ape, std::span<const Bf16> xn,
                                int64_t position) {
  const std::vector<double> x = ToDoubles(xn);
  const std::vector<double> kv = Project(wkv, x);
  const std::vector<double> score = Project(wgate, x);
  const float* place = ape.row(position % ape.shape[0]);
  const size_t lanes = kv.size();
  std::vector<float> row(2 * lanes);
  for (size_t i = 0; i < lanes; ++i) {
    row[i] = static_cast<float>(kv[i]);
    row[lanes + i] = static_cast<float>(score[i] + place[i]);
  }
  return row;
}

// One row that is pooled: `width` lanes of kv and of score.
struct PooledRow {
  const float* kv;
  const float* score;
};

// The lanes that each state row gives to the pool. HCA: all of them. CSA: a row holds a front and a
// back half of kv, then of score; the block before gives its front halves, the block itself its
// back halves. A block that does not exist (null rows) would count as kv 0 and score -infinity, so
// it is left out.
std::vector<PooledRow> PooledRows(AttentionKind kind, std::span<const float* const> rows,
                                  size_t width) {
  std::vector<PooledRow> pooled;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == nullptr) continue;
    if (kind == AttentionKind::kHca) {
      pooled.push_back({rows[i], rows[i] + width});
    } else {
      const size_t half = i < kCsaRatio ? 0 : width;
      pooled.push_back({rows[i] + half, rows[i] + 2 * width + half});
    }
  }
  return pooled;
}

// Per lane the mean of kv, weighted by the softmax of the scores over the rows; then norm and RoPE.
std::vector<double> Pool(const std::vector<PooledRow>& rows, size_t width, double eps,
                         const float* norm, const RopeRow& rope) {
  std::vector<double> c(width);
  for (size_t lane = 0; lane < width; ++lane) {
    double max = -std::numeric_limits<double>::infinity();
    for (const PooledRow& row : rows) max = std::max(max, double{row.score[lane]});
    double denominator = 0;
    for (const PooledRow& row : rows) {
      const double weight = std::exp(row.score[lane] - max);
      denominator += weight;
      c[lane] += weight * row.kv[lane];
    }
    c[lane] /= denominator;
  }
  Normalize(c, eps, norm);
  Rotate(c, rope, 1);
  return c;
}

}  // namespace

std::vector<float> Golden::StateRow(std::span<const Bf16> xn, int64_t position) const {
  return MakeStateRow(weights_.cmp_wkv, weights_.cmp_wgate, weights_.cmp_ape, xn, position);
}

std::vector<Bf16> Golden::CompressRow(std::span<const float* const> rows,
                                      const RopeRow& rope) const {
  return RoundAll(Pool(PooledRows(kind_, rows, kHeadDim), kHeadDim, config_.rms_eps,
                       weights_.cmp_norm.data, rope));
}

std::vector<float> Golden::InnerStateRow(std::span<const Bf16> xn, int64_t position) const {
  return MakeStateRow(weights_.idx_cmp_wkv, weights_.idx_cmp_wgate, weights_.idx_cmp_ape, xn,
                      position);
}

Quantized Golden::IndexRow(std::span<const float* const> rows, const RopeRow& rope) const {
  const std::vector<double> pooled = Pool(PooledRows(kind_, rows, kIndexDim), kIndexDim,
                                          config_.rms_eps, weights_.idx_cmp_norm.data, rope);
  const std::vector<Bf16> c = RoundAll(pooled);
  const std::vector<Bf16> y = RoundAll(Hadamard(ToDoubles(std::span(c))));
  return Quantize(ToDoubles(std::span(y)));
}

}  // namespace millipede::reference
