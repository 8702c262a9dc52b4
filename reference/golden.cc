#include "reference/golden.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "reference/numbers.h"

namespace millipede::reference {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Sum of a vector as a balanced tree of neighbours; an odd node is carried up.
double TreeSum(std::vector<double> nodes) {
  while (nodes.size() > 1) {
    std::vector<double> level;
    for (size_t i = 0; i < nodes.size(); i += 2) {
      level.push_back(i + 1 < nodes.size() ? nodes[i] + nodes[i + 1] : nodes[i]);
    }
    nodes = std::move(level);
  }
  return nodes[0];
}

// --- The hyper-connection matrix -----------------------------------------------------------------

// Divides every row (or column) of the 4x4 matrix by its sum + eps.
void DivideByRowSums(std::array<double, 16>& m, double eps) {
  for (size_t i = 0; i < 4; ++i) {
    const double sum = m[4 * i] + m[4 * i + 1] + m[4 * i + 2] + m[4 * i + 3] + eps;
    for (size_t o = 0; o < 4; ++o) m[4 * i + o] /= sum;
  }
}

void DivideByColumnSums(std::array<double, 16>& m, double eps) {
  for (size_t o = 0; o < 4; ++o) {
    const double sum = m[o] + m[4 + o] + m[8 + o] + m[12 + o] + eps;
    for (size_t i = 0; i < 4; ++i) m[4 * i + o] /= sum;
  }
}

// Softmax of every row, then Sinkhorn rounds towards unit row and column sums.
std::array<double, 16> Sinkhorn(std::array<double, 16> m, int rounds, double eps) {
  for (size_t i = 0; i < 4; ++i) {
    double* row = &m[4 * i];
    const double max = *std::max_element(row, row + 4);
    for (size_t o = 0; o < 4; ++o) row[o] = std::exp(row[o] - max);
    const double sum = row[0] + row[1] + row[2] + row[3];
    for (size_t o = 0; o < 4; ++o) row[o] = row[o] / sum + eps;
  }
  DivideByColumnSums(m, eps);
  for (int round = 1; round < rounds; ++round) {
    DivideByRowSums(m, eps);
    DivideByColumnSums(m, eps);
  }
  return m;
}

}  // namespace

RopeRow RopeRowAt(AttentionKind kind, int64_t position) {
  const bool yarn = kind != AttentionKind::kSwa;
  const double theta = yarn ? 160000 : 10000;
  // The lane pair (as a real number) that turns `beta` times over the original 65536 positions.
  const auto turning_pair = [&](double beta) {
    return kRopeLanes * std::log(65536 / (2 * std::numbers::pi * beta)) / (2 * std::log(theta));
  };
  const double low = std::floor(turning_pair(32));
  const double high = std::ceil(turning_pair(1));
  RopeRow row;
  for (size_t i = 0; i < kRopePairs; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / kRopeLanes);
    if (yarn) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      frequency = frequency / 16 * ramp + frequency * (1 - ramp);
    }
    const float angle = static_cast<float>(position) * static_cast<float>(frequency);
    row.cos[i] = static_cast<float>(std::cos(double{angle}));
    row.sin[i] = static_cast<float>(std::sin(double{angle}));
  }
  return row;
}

RopeRow RopeRowOf(const RopeRows& rows, int64_t row) {
  RopeRow copy;
  std::copy_n(rows.cos.row(row), kRopePairs, copy.cos.begin());
  std::copy_n(rows.sin.row(row), kRopePairs, copy.sin.begin());
  return copy;
}

Quantized Quantize(std::span<const double> x) {
  float amax = 1e-4F;
  bool finite = true;
  for (const double value : x) {
    amax = std::max(amax, std::abs(static_cast<float>(value)));
    finite = finite && std::isfinite(static_cast<float>(value));
  }
  Quantized result{std::vector<int8_t>(x.size(), 0), std::numeric_limits<float>::quiet_NaN()};
  if (!finite) return result;
  const float inverse = 127.0F / amax;
  for (size_t i = 0; i < x.size(); ++i) {  // nearbyint rounds half to even
    result.codes[i] = static_cast<int8_t>(std::nearbyint(static_cast<float>(x[i]) * inverse));
  }
  result.scale = amax / 127.0F;
  return result;
}

Golden::Golden(const ModelConfig& config, AttentionKind kind, const LayerWeights& weights)
    : config_(config), kind_(kind), weights_(weights) {}

HcPreResult Golden::HcPre(std::span<const float> x) const {
  const auto hidden = static_cast<size_t>(config_.hidden);
  const double eps = config_.hc_eps;
  const std::vector<double> flat = ToDoubles(x);
  std::vector<double> mix = Project(weights_.hc_fn, flat);
  const double inverse = InverseRms(flat, config_.rms_eps);
  const auto scaled = [&](size_t i, size_t group) {
    return mix[i] * inverse * weights_.hc_scale.data[group] + weights_.hc_base.data[i];
  };

  HcPreResult result;
  std::array<double, 4> pre{};
  std::array<double, 16> comb{};
  for (size_t i = 0; i < 4; ++i) {
    pre[i] = Sigmoid(scaled(i, 0)) + eps;
    result.post[i] = static_cast<float>(2 * Sigmoid(scaled(4 + i, 1)));
  }
  for (size_t i = 0; i < 16; ++i) comb[i] = scaled(8 + i, 2);
  comb = Sinkhorn(comb, config_.sinkhorn_rounds, eps);
  for (size_t i = 0; i < 16; ++i) result.comb[i] = static_cast<float>(comb[i]);

  result.x_mixed.resize(hidden);
  for (size_t d = 0; d < hidden; ++d) {
    result.x_mixed[d] = RoundBf16((pre[0] * flat[d] + pre[1] * flat[hidden + d]) +
                                  (pre[2] * flat[2 * hidden + d] + pre[3] * flat[3 * hidden + d]));
  }
  return result;
}

std::vector<Bf16> Golden::AttnNorm(std::span<const Bf16> x_mixed) const {
  std::vector<double> x = ToDoubles(x_mixed);
  Normalize(x, config_.rms_eps, weights_.attn_norm.data);
  return RoundAll(x);
}

Quantized Golden::ProjectLatent(std::span<const Bf16> xn) const {
  std::vector<double> latent = Project(weights_.wq_a, ToDoubles(xn));
  Normalize(latent, config_.rms_eps, weights_.q_norm.data);
  return Quantize(latent);
}

std::vector<Bf16> Golden::ProjectQuery(std::span<const int8_t> qr, float qr_scale,
                                       const RopeRow& rope) const {
  std::vector<double> q = ProjectCodes(weights_.wq_b, weights_.wq_b_scale.data, qr, qr_scale);
  for (size_t first = 0; first < q.size(); first += kHeadDim) {
    const auto head = std::span(q).subspan(first, kHeadDim);
    Normalize(head, config_.rms_eps);
    Rotate(head, rope, 1);
  }
  return RoundAll(q);
}

std::vector<Bf16> Golden::ProjectKv(std::span<const Bf16> xn, const RopeRow& rope) const {
  std::vector<double> kv = Project(weights_.wkv, ToDoubles(xn));
  Normalize(kv, config_.rms_eps, weights_.kv_norm.data);
  Rotate(kv, rope, 1);
  return RoundAll(kv);
}

std::vector<Bf16> Golden::ProjectOutput(std::span<const Bf16> heads) const {
  const auto groups = static_cast<size_t>(config_.o_groups);
  const int64_t group_lanes = weights_.wo_a.shape[2];
  const int64_t o_rank = weights_.wo_a.shape[1];
  const std::vector<double> input = ToDoubles(heads);
  std::vector<Quantized> latents;
  for (size_t g = 0; g < groups; ++g) {
    const TensorView<const Bf16, 2> matrix{
        weights_.wo_a.row(static_cast<int64_t>(g)), {o_rank, group_lanes}, group_lanes};
    latents.push_back(
        Quantize(Project(matrix, std::span(input).subspan(g * static_cast<size_t>(group_lanes)))));
  }
  std::vector<double> out(static_cast<size_t>(config_.hidden));
  for (size_t d = 0; d < out.size(); ++d) {
    std::vector<double> sums(groups);
    for (size_t g = 0; g < groups; ++g) {
      const int8_t* codes =
          weights_.wo_b.row(static_cast<int64_t>(d)) + static_cast<int64_t>(g) * o_rank;
      sums[g] = DotCodes(codes, latents[g].codes.data(), o_rank) * double{latents[g].scale};
    }
    out[d] = TreeSum(std::move(sums)) * weights_.wo_b_scale.data[d];
  }
  return RoundAll(out);
}

std::vector<float> Golden::HcPost(std::span<const float> x, std::span<const Bf16> attn_out,
                                  std::span<const float> post, std::span<const float> comb) const {
  const auto hidden = static_cast<size_t>(config_.hidden);
  std::vector<float> x_out(4 * hidden);
  for (size_t o = 0; o < 4; ++o) {
    for (size_t d = 0; d < hidden; ++d) {
      double sum = ToDouble(attn_out[d]) * post[o];
      for (size_t i = 0; i < 4; ++i) sum += double{x[i * hidden + d]} * comb[4 * i + o];
      x_out[o * hidden + d] = static_cast<float>(sum);
    }
  }
  return x_out;
}

}  // namespace millipede::reference
