// The indexer of CSA layers: queries, scores of candidates, and the exact top k.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/golden.h"
#include "reference/numbers.h"

namespace millipede::reference {

int64_t Selection::count() const {
  return std::ranges::count_if(idx, [](int32_t row) { return row >= 0; });
}

IndexQueryResult Golden::IndexQuery(std::span<const int8_t> qr, float qr_scale,
                                    const RopeRow& rope) const {
  std::vector<double> q =
      ProjectCodes(weights_.idx_wq_b, weights_.idx_wq_b_scale.data, qr, qr_scale);
  IndexQueryResult result;
  for (size_t first = 0; first < q.size(); first += kIndexDim) {
    const auto head = std::span(q).subspan(first, kIndexDim);
    Rotate(head, rope, 1);
    const std::vector<Bf16> rounded = RoundAll(head);
    // Not rounded to bf16 before it is quantized, unlike an index row.
    const Quantized quantized = Quantize(Hadamard(ToDoubles(std::span(rounded))));
    result.codes.insert(result.codes.end(), quantized.codes.begin(), quantized.codes.end());
    result.scales.push_back(quantized.scale);
  }
  return result;
}

std::vector<float> Golden::IndexWeights(std::span<const Bf16> xn) const {
  const double factor = 1 / std::sqrt(double{kIndexDim} * config_.num_index_heads);
  std::vector<float> weights;
  for (const double w : Project(weights_.idx_weights_proj, ToDoubles(xn))) {
    weights.push_back(static_cast<float>(w * factor));
  }
  return weights;
}

std::vector<float> Scores(const IndexQueryResult& query, std::span<const float> weights,
                          std::span<const int8_t> keys, std::span<const float> key_scales) {
  // Products of 16-bit codes summed in pairs are what compilers have vectors for.
  const std::vector<int16_t> codes(query.codes.begin(), query.codes.end());
  std::vector<int16_t> key(kIndexDim);
  std::vector<float> scores;
  scores.reserve(key_scales.size());
  for (size_t c = 0; c < key_scales.size(); ++c) {
    std::copy_n(keys.begin() + static_cast<std::ptrdiff_t>(c * kIndexDim), kIndexDim, key.begin());
    double sum = 0;
    for (size_t h = 0; h < weights.size(); ++h) {
      const int32_t dot = DotCodes(&codes[h * kIndexDim], key.data(), kIndexDim);
      const double product = dot * double{query.scales[h]};
      sum += (product < 0 ? 0.0 : product) * weights[h];  // a NaN stays
    }
    scores.push_back(static_cast<float>(key_scales[c] * sum));
  }
  return scores;
}

Selection TopK(std::span<const float> scores, int64_t k) {
  const auto before = [&](int32_t a, int32_t b) {
    const float score_a = scores[static_cast<size_t>(a)];
    const float score_b = scores[static_cast<size_t>(b)];
    if (std::isnan(score_a) != std::isnan(score_b)) return std::isnan(score_b);
    if (score_a > score_b || score_a < score_b) return score_a > score_b;
    return a < b;
  };
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t places = static_cast<size_t>(k);
  const size_t count = std::min(places, order.size());
  // The best one left out is sorted too.
  const size_t sorted = std::min(places + 1, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(sorted), order.end(),
                    before);
  Selection selection{std::vector<int32_t>(places, -1), std::vector<float>(places, -FLT_MAX)};
  for (size_t i = 0; i < count; ++i) {
    selection.idx[i] = order[i];
    selection.score[i] = scores[static_cast<size_t>(order[i])];
  }
  if (sorted > places) selection.next_score = scores[static_cast<size_t>(order[places])];
  return selection;
}

}  // namespace millipede::reference
