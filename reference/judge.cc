#include "reference/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

namespace millipede::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// How many of n values a rule admits.
int64_t Admitted(int64_t n, int64_t per_mille, RuleProfile profile = RuleProfile::kStandard) {
  const int64_t count = n * per_mille / 1000;
  return profile == RuleProfile::kTiny ? std::max<int64_t>(count, 8) : count;
}

// |a - e| as a multiple of what is allowed; infinite for values that never pass.
double Excess(double a, double e, double allowed) {
  if (!std::isfinite(a) || !std::isfinite(e)) return kInfinity;
  const double difference = std::abs(a - e);
  if (difference == 0) return 0;
  return allowed > 0 ? difference / allowed : kInfinity;
}

double Rms(Values v, int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += v[i] * v[i];
  return std::sqrt(sum / static_cast<double>(end - begin));
}

Verdict SizeMismatch(int64_t a, int64_t e) {
  Verdict verdict;
  verdict.ok = false;
  verdict.worst = kInfinity;
  verdict.num_out = std::max(a, e);
  verdict.text = fmt::format("{} values, expected {}", a, e);
  return verdict;
}

// Judges point by point: excess(i) is the error as a multiple of its bound; `num_allowed` points
// may be outside, but none may pass `hard` times its bound.
template <typename ExcessAt>
Verdict JudgePoints(Values a, Values e, ExcessAt excess, int64_t num_allowed = 0,
                    double hard = kInfinity) {
  if (a.size() != e.size()) return SizeMismatch(a.size(), e.size());
  Verdict verdict;
  verdict.num_allowed = num_allowed;
  bool beyond = false;
  for (int64_t i = 0; i < a.size(); ++i) {
    const double error = excess(i);
    if (error > 1) ++verdict.num_out;
    beyond = beyond || error > hard || error == kInfinity;
    if (verdict.worst_index < 0 || error > verdict.worst) {
      verdict.worst = error;
      verdict.worst_index = i;
    }
  }
  verdict.ok = !beyond && verdict.num_out <= num_allowed;
  verdict.text = fmt::format("{} of {} out, allowed {}", verdict.num_out, a.size(), num_allowed);
  if (verdict.worst_index >= 0) {
    verdict.text +=
        fmt::format("; worst {:.3g} of its bound at {}: {:.9g}, expected {:.9g}", verdict.worst,
                    verdict.worst_index, a[verdict.worst_index], e[verdict.worst_index]);
  }
  return verdict;
}

// |a - e| <= absolute + relative * |e|, none out.
Verdict JudgeBound(Values a, Values e, double absolute, double relative) {
  return JudgePoints(
      a, e, [&](int64_t i) { return Excess(a[i], e[i], absolute + relative * std::abs(e[i])); });
}

// Codes: exact but for a share of the values, which may be off by one.
Verdict JudgeCodeShare(Values a, Values e, int64_t per_mille, RuleProfile profile) {
  // Off by one is twice the bound: out, but admissible.
  return JudgePoints(
      a, e, [&](int64_t i) { return Excess(a[i], e[i], 0.5); },
      Admitted(a.size(), per_mille, profile), 2);
}

// The order number of a bf16 value: neighbours differ by one, and both zeros are 0.
int32_t Bf16Order(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  const auto magnitude = static_cast<int32_t>((bits & 0x7FFFFFFFU) >> 16);
  return (bits >> 31) != 0 ? -magnitude : magnitude;
}

double RoundToBf16(double value) {
  auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  bits += 0x7FFFU + ((bits >> 16) & 1U);
  return std::bit_cast<float>(bits & 0xFFFF0000U);
}

// sqrt(sum |a - e|^2 / sum |e|^2) against a limit.
Verdict JudgeRelativeRms(const std::vector<double>& a, const std::vector<double>& e, double limit) {
  if (a.size() != e.size()) {
    return SizeMismatch(static_cast<int64_t>(a.size()), static_cast<int64_t>(e.size()));
  }
  double difference = 0;
  double norm = 0;
  bool finite = true;
  for (size_t i = 0; i < a.size(); ++i) {
    finite = finite && std::isfinite(a[i]) && std::isfinite(e[i]);
    difference += (a[i] - e[i]) * (a[i] - e[i]);
    norm += e[i] * e[i];
  }
  double relative = 0;
  if (!finite) {
    relative = kInfinity;
  } else if (difference > 0) {
    relative = norm > 0 ? std::sqrt(difference / norm) : kInfinity;
  }
  Verdict verdict;
  verdict.worst = relative / limit;
  verdict.ok = relative <= limit;
  verdict.num_out = verdict.ok ? 0 : 1;
  verdict.text = fmt::format("relative rms {:.3g}, allowed {:.3g}{}", relative, limit,
                             finite ? "" : " (a value is not finite)");
  return verdict;
}

std::vector<double> ToDoubles(Values v, double scale = 1) {
  std::vector<double> doubles(static_cast<size_t>(v.size()));
  for (int64_t i = 0; i < v.size(); ++i) doubles[static_cast<size_t>(i)] = v[i] * scale;
  return doubles;
}

double EndToEndLimit(EndToEndTensor tensor, bool selection_differs) {
  switch (tensor) {
    case EndToEndTensor::kKv:
      return 5e-3;
    case EndToEndTensor::kState:
      return 2e-3;
    case EndToEndTensor::kQ:
      return 1e-2;
    case EndToEndTensor::kHeads:
      return selection_differs ? 0.25 : 1e-2;
    case EndToEndTensor::kCompressedRow:
      return 5e-3;
    case EndToEndTensor::kIndexRow:
      return 2e-2;
    case EndToEndTensor::kAttnOut:
      return selection_differs ? 0.25 : 2.5e-2;
    case EndToEndTensor::kXOut:
      return selection_differs ? 2e-2 : 5e-3;
  }
  return 0;
}

// Entries in front of the -1 padding; -1 if something stands behind it or below it.
int64_t CountSelected(std::span<const int32_t> idx) {
  const auto end = std::find(idx.begin(), idx.end(), -1);
  const bool clean = std::all_of(idx.begin(), end, [](int32_t row) { return row >= 0; }) &&
                     std::all_of(end, idx.end(), [](int32_t row) { return row == -1; });
  return clean ? end - idx.begin() : -1;
}

Verdict Failure(std::string text) {
  Verdict verdict;
  verdict.ok = false;
  verdict.worst = kInfinity;
  verdict.num_out = 1;
  verdict.text = std::move(text);
  return verdict;
}

// What is wrong with a selection on its own and in number; empty if nothing.
std::string SelectionFault(std::span<const int32_t> a_idx, std::span<const int32_t> e_idx) {
  const int64_t count = CountSelected(a_idx);
  const int64_t expected = CountSelected(e_idx);
  if (a_idx.size() != e_idx.size()) {
    return fmt::format("{} places, expected {}", a_idx.size(), e_idx.size());
  }
  if (count < 0) return "a row below 0, or a row behind the padding";
  if (expected < 0) return "the expected selection is malformed";
  if (count != expected) return fmt::format("{} rows, expected {}", count, expected);
  std::set<int32_t> seen;
  for (const int32_t row : a_idx.first(static_cast<size_t>(count))) {
    if (!seen.insert(row).second) return fmt::format("row {} twice", row);
  }
  return "";
}

}  // namespace

double Values::operator[](int64_t i) const {
  switch (type_) {
    case Type::kFloat:
      return static_cast<const float*>(data_)[i];
    case Type::kBf16:
      return std::bit_cast<float>(uint32_t{static_cast<const Bf16*>(data_)[i].bits} << 16);
    case Type::kInt8:
      return static_cast<const int8_t*>(data_)[i];
    case Type::kInt32:
      return static_cast<const int32_t*>(data_)[i];
    case Type::kInt64:
      return static_cast<double>(static_cast<const int64_t*>(data_)[i]);
  }
  return 0;
}

size_t Values::ElementBytes(Type type) {
  switch (type) {
    case Type::kInt8:
      return 1;
    case Type::kBf16:
      return 2;
    case Type::kInt64:
      return 8;
    case Type::kFloat:
    case Type::kInt32:
      break;
  }
  return 4;
}

bool Values::SameBits(Values other, int64_t i) const {
  if (type_ != other.type_) return false;
  return std::memcmp(Part(i, 1).data_, other.Part(i, 1).data_, ElementBytes(type_)) == 0;
}

Values Values::Part(int64_t begin, int64_t size) const {
  return {static_cast<const std::byte*>(data_) + static_cast<size_t>(begin) * ElementBytes(type_),
          size, type_};
}

Verdict JudgeRopeRows(Values a, Values e, RuleProfile profile) {
  const auto excess = [&](int64_t i) {
    if (!std::isfinite(a[i]) || !std::isfinite(e[i])) return kInfinity;
    return 2.0 * std::abs(Bf16Order(RoundToBf16(a[i])) - Bf16Order(e[i]));
  };
  return JudgePoints(a, e, excess, Admitted(a.size(), 1, profile), 2);
}

Verdict JudgeRounded(Values a, Values e) { return JudgeBound(a, e, 1e-4, 1.0 / 128); }
Verdict JudgeGate(Values a, Values e) { return JudgeBound(a, e, 1e-5, 1e-4); }
Verdict JudgeCodes(Values a, Values e, RuleProfile profile) {
  return JudgeCodeShare(a, e, 10, profile);
}
Verdict JudgeLatentScale(Values a, Values e) { return JudgeBound(a, e, 0, 1e-4); }
Verdict JudgeIndexQueryScale(Values a, Values e) { return JudgeBound(a, e, 0, 2e-3); }
Verdict JudgeState(Values a, Values e) { return JudgeBound(a, e, 1e-4, 1e-4); }

Verdict JudgeIndexRows(Values a, Values e, Values a_scale, Values e_scale, int64_t num_loose_rows,
                       RuleProfile profile) {
  if (a.size() != e.size()) return SizeMismatch(a.size(), e.size());
  if (a_scale.size() != e_scale.size()) return SizeMismatch(a_scale.size(), e_scale.size());
  if (a.size() != a_scale.size() * kIndexDim) return SizeMismatch(a.size(), a_scale.size());
  Verdict verdict;
  verdict.num_allowed = num_loose_rows;
  bool beyond = false;
  std::string worst_text;
  for (int64_t r = 0; r < a_scale.size(); ++r) {
    const Verdict codes = JudgeCodeShare(a.Part(r * kIndexDim, kIndexDim),
                                         e.Part(r * kIndexDim, kIndexDim), 100, profile);
    const double scale = Excess(a_scale[r], e_scale[r], 1e-4 * std::abs(e_scale[r]));
    const double share = static_cast<double>(codes.num_out) /
                         static_cast<double>(std::max<int64_t>(1, codes.num_allowed));
    const double error = std::max(scale, codes.worst > 2 ? kInfinity : share);
    if (error > 1) ++verdict.num_out;
    beyond = beyond || scale > 100 || codes.worst > 2;
    if (verdict.worst_index < 0 || error > verdict.worst) {
      verdict.worst = error;
      verdict.worst_index = r;
      worst_text =
          fmt::format("{}; scale {:.9g}, expected {:.9g}", codes.text, a_scale[r], e_scale[r]);
    }
  }
  verdict.ok = !beyond && verdict.num_out <= num_loose_rows;
  verdict.text = fmt::format("{} of {} rows out, allowed {}; worst row {}: {}", verdict.num_out,
                             a_scale.size(), num_loose_rows, verdict.worst_index, worst_text);
  return verdict;
}

double ScoreBound(Values e_score) {
  double largest = 0;
  for (int64_t i = 0; i < e_score.size(); ++i) {
    if (e_score[i] != -double{FLT_MAX}) largest = std::max(largest, std::abs(e_score[i]));
  }
  return 1e-5 * largest;
}

Verdict JudgeScores(Values a_score, Values e_score) {
  const double bound = ScoreBound(e_score);
  return JudgePoints(a_score, e_score, [&](int64_t i) {
    return Excess(a_score[i], e_score[i], e_score[i] == -double{FLT_MAX} ? 0 : bound);
  });
}

Verdict JudgeNextScore(float a_next, float e_next, double bound) {
  const Values a(&a_next, 1);
  const Values e(&e_next, 1);
  return JudgePoints(a, e,
                     [&](int64_t i) { return Excess(a[i], e[i], e_next == -FLT_MAX ? 0 : bound); });
}

Verdict JudgeSelection(std::span<const int32_t> a_idx, std::span<const int32_t> e_idx,
                       std::span<const float> e_score, float e_next) {
  if (const std::string fault = SelectionFault(a_idx, e_idx); !fault.empty()) return Failure(fault);
  if (e_score.size() != e_idx.size()) return Failure("as many scores as rows are expected");
  const double bound = ScoreBound(Values(e_score));
  const auto expected_score = [&](int32_t row) -> double {
    const auto place = std::find(e_idx.begin(), e_idx.end(), row);
    return place == e_idx.end() ? e_next : e_score[static_cast<size_t>(place - e_idx.begin())];
  };
  return JudgePoints(Values(a_idx), Values(e_idx), [&](int64_t i) {
    const auto place = static_cast<size_t>(i);
    if (a_idx[place] == e_idx[place]) return 0.0;
    return Excess(expected_score(a_idx[place]), e_score[place], bound);
  });
}

Verdict JudgeHeads(Values a, Values e) {
  if (a.size() != e.size()) return SizeMismatch(a.size(), e.size());
  std::vector<double> rms;
  for (int64_t begin = 0; begin < e.size(); begin += kHeadDim) {
    rms.push_back(Rms(e, begin, std::min(begin + kHeadDim, e.size())));
  }
  return JudgePoints(a, e, [&](int64_t i) {
    const double head_rms = rms[static_cast<size_t>(i / kHeadDim)];
    return Excess(a[i], e[i], 8e-3 * head_rms + std::abs(e[i]) / 128);
  });
}

Verdict JudgeAttnOut(Values a, Values e, RuleProfile profile) {
  const double rms = Rms(e, 0, e.size());
  const double share = profile == RuleProfile::kTiny ? 6e-3 : 3e-3;
  return JudgePoints(
      a, e, [&](int64_t i) { return Excess(a[i], e[i], share * rms + std::abs(e[i]) / 128); });
}

Verdict JudgeXOut(Values a, Values e) { return JudgeBound(a, e, 1e-6, 1e-5); }
Verdict JudgeExact(Values a, Values e) {
  return JudgePoints(a, e, [&](int64_t i) { return a.SameBits(e, i) ? 0.0 : kInfinity; });
}

Verdict JudgeEndToEnd(EndToEndTensor tensor, Values a, Values e, bool selection_differs) {
  return JudgeRelativeRms(ToDoubles(a), ToDoubles(e), EndToEndLimit(tensor, selection_differs));
}

Verdict JudgeEndToEndIndexRow(Values a, float a_scale, Values e, float e_scale) {
  return JudgeRelativeRms(ToDoubles(a, a_scale), ToDoubles(e, e_scale),
                          EndToEndLimit(EndToEndTensor::kIndexRow, false));
}

Verdict JudgeXOutPoints(AttentionKind kind, Values a, Values e, bool selection_differs) {
  const double t = kind == AttentionKind::kSwa ? 3e-3 : 4e-3;
  const int64_t per_mille = selection_differs ? 300 : 8;
  const auto excess = [&](int64_t i) {  // above 1 only if both measures are
    if (!std::isfinite(a[i]) || !std::isfinite(e[i])) return kInfinity;
    const double difference = std::abs(a[i] - e[i]);
    const double size = std::max({std::abs(a[i]), std::abs(e[i]), 0x1p-14 / t});
    return std::min(difference, difference / size) / t;
  };
  return JudgePoints(a, e, excess, Admitted(a.size(), per_mille));
}

SelectionAgreement JudgeSelectionSet(std::span<const int32_t> a_idx,
                                     std::span<const int32_t> e_idx) {
  SelectionAgreement agreement;
  if (const std::string fault = SelectionFault(a_idx, e_idx); !fault.empty()) {
    agreement.num_rows = std::max<int64_t>(0, CountSelected(e_idx));
    agreement.verdict = Failure(fault);
    return agreement;
  }
  agreement.num_rows = CountSelected(e_idx);
  const auto expected = e_idx.first(static_cast<size_t>(agreement.num_rows));
  const std::set<int32_t> expected_rows(expected.begin(), expected.end());
  for (const int32_t row : a_idx.first(expected.size())) {
    agreement.num_common += expected_rows.contains(row) ? 1 : 0;
  }
  Verdict& verdict = agreement.verdict;
  verdict.num_out = agreement.num_rows - agreement.num_common;
  verdict.num_allowed = Admitted(agreement.num_rows, 30);
  verdict.ok = verdict.num_out <= verdict.num_allowed;
  verdict.text = fmt::format("{} of {} rows differ, allowed {}", verdict.num_out,
                             agreement.num_rows, verdict.num_allowed);
  return agreement;
}

Verdict JudgeFileAgreement(int64_t num_common, int64_t num_rows) {
  Verdict verdict;
  verdict.num_out = num_rows - num_common;
  verdict.num_allowed = Admitted(num_rows, 10);
  verdict.ok = verdict.num_out <= verdict.num_allowed;
  verdict.text = fmt::format("{} of {} selected rows of the file differ, allowed {}",
                             verdict.num_out, num_rows, verdict.num_allowed);
  return verdict;
}

}  // namespace millipede::reference
