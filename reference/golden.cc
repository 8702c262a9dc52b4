#include "reference/golden.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

namespace millipede::reference {
namespace {

// --- Numbers -------------------------------------------------------------------------------------

double ToDouble(double value) { return value; }
double ToDouble(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }

// Through float32, the precision of the layer, then to nearest even.
Bf16 RoundBf16(double value) {
  const auto narrow = static_cast<float>(value);
  const auto bits = std::bit_cast<uint32_t>(narrow);
  if (std::isnan(narrow)) return {0x7FC0};
  return {static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}

template <typename T>
std::vector<double> ToDoubles(std::span<const T> values) {
  std::vector<double> doubles(values.size());
  std::transform(values.begin(), values.end(), doubles.begin(), [](T v) { return ToDouble(v); });
  return doubles;
}

std::vector<Bf16> RoundAll(std::span<const double> values) {
  std::vector<Bf16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), RoundBf16);
  return rounded;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Sum of a[i] * b[i]. Independent partial sums let the compiler use vectors.
template <typename A>
double Dot(const A* a, const double* b, int64_t n) {
  constexpr int64_t kLanes = 8;
  double sums[kLanes] = {};
  const int64_t whole = n - n % kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) sums[j] += ToDouble(a[i + j]) * b[i + j];
  }
  for (int64_t i = whole; i < n; ++i) sums[i - whole] += ToDouble(a[i]) * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

int32_t Dot(const int8_t* a, const int8_t* b, int64_t n) {
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += int32_t{a[i]} * int32_t{b[i]};
  return sum;
}

// 1 / sqrt(mean(x^2) + eps).
double InverseRms(std::span<const double> x, double eps) {
  const double sum = Dot(x.data(), x.data(), static_cast<int64_t>(x.size()));
  return 1 / std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

// x <- rms(x), times `norm` if there is one.
void Normalize(std::span<double> x, double eps, const float* norm = nullptr) {
  const double inverse = InverseRms(x, eps);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= norm != nullptr ? inverse * norm[i] : inverse;
}

// Rotates the pairs (2i, 2i+1) of the last 64 lanes of a head; direction -1 is the inverse.
void Rotate(std::span<double> head, const RopeRow& rope, double direction) {
  double* pair = head.data() + head.size() - kRopeLanes;
  for (size_t i = 0; i < kRopePairs; ++i, pair += 2) {
    const double cos = rope.cos[i];
    const double sin = direction * rope.sin[i];
    const double even = pair[0] * cos - pair[1] * sin;
    pair[1] = pair[0] * sin + pair[1] * cos;
    pair[0] = even;
  }
}

// x [inputs] times a matrix [outputs, inputs].
template <typename W>
std::vector<double> Project(TensorView<const W, 2> weights, std::span<const double> x) {
  std::vector<double> y(static_cast<size_t>(weights.shape[0]));
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] = Dot(weights.row(static_cast<int64_t>(o)), x.data(), weights.shape[1]);
  }
  return y;
}

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

// --- Attention of one head -----------------------------------------------------------------------

// What one tile of rows contributes: its maximum score m, l = sum p, o = sum bf16(p) * row, with
// p = exp(score - m).
struct Partial {
  double max = 0;
  double sum = 0;
  std::vector<double> out;  // [512]
};

// `rows` are one tile's rows [n, 512], `q` one head.
Partial AttendTile(std::span<const double> q, std::span<const double> rows) {
  const size_t n = rows.size() / kHeadDim;
  std::vector<double> scores(n);
  for (size_t r = 0; r < n; ++r) {
    scores[r] = Dot(q.data(), &rows[r * kHeadDim], kHeadDim) / std::sqrt(double{kHeadDim});
  }
  Partial tile{*std::max_element(scores.begin(), scores.end()), 0,
               std::vector<double>(kHeadDim, 0.0)};
  for (size_t r = 0; r < n; ++r) {
    const double p = std::exp(scores[r] - tile.max);
    const double rounded = ToDouble(RoundBf16(p));
    tile.sum += p;
    for (size_t d = 0; d < kHeadDim; ++d) tile.out[d] += rounded * rows[r * kHeadDim + d];
  }
  return tile;
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
  std::vector<double> q(static_cast<size_t>(weights_.wq_b.shape[0]));
  for (size_t o = 0; o < q.size(); ++o) {
    const int32_t sum =
        Dot(weights_.wq_b.row(static_cast<int64_t>(o)), qr.data(), weights_.wq_b.shape[1]);
    q[o] = sum * double{qr_scale} * weights_.wq_b_scale.data[o];
  }
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

AttendResult Golden::Attend(std::span<const Bf16> q, std::span<const Bf16* const> window,
                            const RopeRow& rope, bool inverse_rope) const {
  std::vector<double> rows;
  for (const Bf16* row : window) {
    for (size_t d = 0; d < kHeadDim; ++d) rows.push_back(ToDouble(row[d]));
  }
  AttendResult result;
  for (size_t h = 0; h < q.size() / kHeadDim; ++h) {
    const std::vector<double> head = ToDoubles(q.subspan(h * kHeadDim, kHeadDim));
    Partial partial = AttendTile(head, rows);
    // The sink joins the denominator once, after every tile.
    const double sink = weights_.attn_sink.data[h];
    const double denominator = partial.sum + std::exp(sink - partial.max);
    for (double& out : partial.out) out /= denominator;
    if (inverse_rope) Rotate(partial.out, rope, -1);
    const std::vector<Bf16> rounded = RoundAll(partial.out);
    result.heads.insert(result.heads.end(), rounded.begin(), rounded.end());
    result.log_sum_exp.push_back(static_cast<float>(partial.max + std::log(partial.sum)));
  }
  return result;
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
      sums[g] = Dot(codes, latents[g].codes.data(), o_rank) * double{latents[g].scale};
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

// --- End to end ----------------------------------------------------------------------------------

SwaDecoder::SwaDecoder(const Golden& golden, int64_t start_pos)
    : golden_(golden), next_position_(start_pos) {}

void SwaDecoder::SetHistory(int64_t position, std::span<const Bf16> row) {
  history_[position].assign(row.begin(), row.end());
}

std::span<const Bf16> SwaDecoder::KvAt(int64_t position) const { return history_.at(position); }

void SwaDecoder::Append(std::span<const float> x, const RopeRow& rope) {
  const std::vector<Bf16> xn = golden_.AttnNorm(golden_.HcPre(x).x_mixed);
  history_[next_position_++] = golden_.ProjectKv(xn, rope);
}

TokenResult SwaDecoder::DecodeAt(int64_t position, std::span<const float> x,
                                 const RopeRow& rope) const {
  TokenResult token;
  token.hc = golden_.HcPre(x);
  token.xn = golden_.AttnNorm(token.hc.x_mixed);
  token.qr = golden_.ProjectLatent(token.xn);
  token.q = golden_.ProjectQuery(token.qr.codes, token.qr.scale, rope);
  token.kv = history_.at(position);
  std::vector<const Bf16*> window;
  for (int64_t p = std::max<int64_t>(0, position - kWindowRows + 1); p <= position; ++p) {
    window.push_back(history_.at(p).data());
  }
  token.heads = golden_.Attend(token.q, window, rope).heads;
  token.attn_out = golden_.ProjectOutput(token.heads);
  token.x_out = golden_.HcPost(x, token.attn_out, token.hc.post, token.hc.comb);
  return token;
}

TokenResult SwaDecoder::Decode(std::span<const float> x, const RopeRow& rope) {
  Append(x, rope);
  return DecodeAt(next_position_ - 1, x, rope);
}

}  // namespace millipede::reference
