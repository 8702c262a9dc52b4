// Attention of one token: tiles of rows, merged in a fixed order.
#include <algorithm>
#include <cmath>

#include "reference/golden.h"
#include "reference/numbers.h"

namespace millipede::reference {
namespace {

constexpr size_t kTileRows = 128;
constexpr size_t kRunTiles = 8;

// What some tiles of rows contribute to one head: the maximum score m, l = sum p, and
// o = sum bf16(p) * row, with p = exp(score - m).
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

// One tile for every head; each has its own maximum.
std::vector<Partial> AttendTile(const std::vector<std::vector<double>>& heads,
                                std::span<const Bf16* const> tile) {
  std::vector<double> rows;
  rows.reserve(tile.size() * kHeadDim);
  for (const Bf16* row : tile) {
    for (size_t d = 0; d < kHeadDim; ++d) rows.push_back(ToDouble(row[d]));
  }
  std::vector<Partial> partials;
  partials.reserve(heads.size());
  for (const std::vector<double>& head : heads) partials.push_back(AttendTile(head, rows));
  return partials;
}

// a <- a and b.
void Merge(Partial& a, const Partial& b) {
  const double max = std::max(a.max, b.max);
  const double scale_a = std::exp(a.max - max);
  const double scale_b = std::exp(b.max - max);
  a.max = max;
  a.sum = a.sum * scale_a + b.sum * scale_b;
  for (size_t d = 0; d < kHeadDim; ++d) a.out[d] = a.out[d] * scale_a + b.out[d] * scale_b;
}

void Merge(std::vector<Partial>& a, const std::vector<Partial>& b) {
  for (size_t h = 0; h < a.size(); ++h) Merge(a[h], b[h]);
}

// Tiles of `rows`, merged in order into one partial of every head.
std::vector<Partial> AttendRun(const std::vector<std::vector<double>>& heads,
                               std::span<const Bf16* const> rows) {
  std::vector<Partial> run;
  for (size_t first = 0; first < rows.size(); first += kTileRows) {
    std::vector<Partial> tile =
        AttendTile(heads, rows.subspan(first, std::min(kTileRows, rows.size() - first)));
    if (first == 0) {
      run = std::move(tile);
    } else {
      Merge(run, tile);
    }
  }
  return run;
}

}  // namespace

AttendResult Golden::Attend(std::span<const Bf16> q, std::span<const Bf16* const> window,
                            std::span<const Bf16* const> compressed, const RopeRow& rope,
                            bool inverse_rope) const {
  std::vector<std::vector<double>> heads;
  for (size_t first = 0; first < q.size(); first += kHeadDim) {
    heads.push_back(ToDoubles(q.subspan(first, kHeadDim)));
  }

  std::vector<Partial> partials = AttendTile(heads, window);
  constexpr size_t kRunRows = kRunTiles * kTileRows;
  for (size_t first = 0; first < compressed.size(); first += kRunRows) {
    const size_t count = std::min(kRunRows, compressed.size() - first);
    Merge(partials, AttendRun(heads, compressed.subspan(first, count)));
  }

  AttendResult result;
  for (size_t h = 0; h < heads.size(); ++h) {
    Partial& partial = partials[h];
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

}  // namespace millipede::reference
