// The rules by which values are judged. Each function is one rule for one token (or row); `a` is
// the actual value, `e` the expected one. NaN or Inf on either side, or sizes that differ, fail.
//
// The stage rules judge each stage from given inputs; the end-to-end rules judge what a whole layer
// makes from its inputs. They were set on Flash. On the tiny preset, whose rows are short, only the
// stage rules apply, fractions always admit 8 values, and attn_out has a wider limit.
#ifndef MILLIPEDE_REFERENCE_JUDGE_H_
#define MILLIPEDE_REFERENCE_JUDGE_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>

#include "millipede/config.h"
#include "millipede/tensor.h"

namespace millipede::reference {

enum class RuleProfile : uint8_t { kStandard, kTiny };

struct Verdict {
  bool ok = true;
  double worst = 0;          // the largest error as a multiple of what is allowed there
  int64_t worst_index = -1;  // where it is; -1 if the rule is about a whole row
  int64_t num_out = 0;       // values (or rows) outside the rule's bound
  int64_t num_allowed = 0;   // how many may be
  std::string text;          // one line with all of it, and the two values at the worst index
};

// Values of float, Bf16, int8_t, int32_t or int64_t elements, from any contiguous container; seen
// as doubles. Borrows them.
class Values {
 public:
  template <typename Container>
  requires requires(const Container& c) { std::data(c), std::size(c); }
  Values(const Container& values)  // NOLINT: implicit by design
      : Values(std::data(values), static_cast<int64_t>(std::size(values))) {}

  Values(const float* data, int64_t size) : Values(data, size, Type::kFloat) {}
  Values(const Bf16* data, int64_t size) : Values(data, size, Type::kBf16) {}
  Values(const int8_t* data, int64_t size) : Values(data, size, Type::kInt8) {}
  Values(const int32_t* data, int64_t size) : Values(data, size, Type::kInt32) {}
  Values(const int64_t* data, int64_t size) : Values(data, size, Type::kInt64) {}

  int64_t size() const { return size_; }
  double operator[](int64_t i) const;
  Values Part(int64_t begin, int64_t size) const;
  bool SameBits(Values other, int64_t i) const;  // false if the types differ

 private:
  enum class Type : uint8_t { kFloat, kBf16, kInt8, kInt32, kInt64 };
  static size_t ElementBytes(Type type);
  Values(const void* data, int64_t size, Type type) : data_(data), size_(size), type_(type) {}

  const void* data_;
  int64_t size_;
  Type type_;
};

// --- Stage rules ---------------------------------------------------------------------------------

// The helper's rows, rounded to bf16, against stored ones; over one file or run. At most 0.1 % may
// differ, by one bf16 ulp.
Verdict JudgeRopeRows(Values a, Values e, RuleProfile profile = RuleProfile::kStandard);

// x_mixed, xn, q, kv, compressed rows: 1e-4 + |e|/128, none out.
Verdict JudgeRounded(Values a, Values e);

// post, comb, idx_weights: 1e-5 + 1e-4 |e|, none out.
Verdict JudgeGate(Values a, Values e);

// qr, idx_q: +-1 on at most 1 % of a token's values.
Verdict JudgeCodes(Values a, Values e, RuleProfile profile = RuleProfile::kStandard);

// qr_scale: 1e-4 relative. idx_q_scale: 2e-3 relative.
Verdict JudgeLatentScale(Values a, Values e);
Verdict JudgeIndexQueryScale(Values a, Values e);

// State and inner state rows: 1e-4 + 1e-4 |e|, none out.
Verdict JudgeState(Values a, Values e);

// Index rows [n,128] and their scales [n] of one file or run: +-1 on at most 10 % of a row and 1e-4
// relative, but `num_loose_rows` rows may have +-1 anywhere and 1e-2 relative (one per file;
// elsewhere one, or 1 % of the run's rows).
Verdict JudgeIndexRows(Values a, Values e, Values a_scale, Values e_scale, int64_t num_loose_rows,
                       RuleProfile profile = RuleProfile::kStandard);

// topk_score of one query: within ScoreBound(e), padding (-FLT_MAX) exact.
double ScoreBound(Values e_score);  // 1e-5 times the largest |score|, padding left out
Verdict JudgeScores(Values a_score, Values e_score);

// topk_next of one query, under the bound of that query's scores.
Verdict JudgeNextScore(float a_next, float e_next, double bound);

// topk_idx of one query: same count, no row twice, and at each place the same row or one whose
// expected score (`e_next` if the row is not expected at all) is within the bound of the expected
// score there.
Verdict JudgeSelection(std::span<const int32_t> a_idx, std::span<const int32_t> e_idx,
                       std::span<const float> e_score, float e_next);

// heads [H*512]: 8e-3 rms(e over the head) + |e|/128, none out.
Verdict JudgeHeads(Values a, Values e);

// attn_out [D]: 3e-3 rms(e over the token) + |e|/128, none out; 6e-3 on tiny.
Verdict JudgeAttnOut(Values a, Values e, RuleProfile profile = RuleProfile::kStandard);

// x_out: 1e-6 + 1e-5 |e|, none out.
Verdict JudgeXOut(Values a, Values e);

// The same type and bits, NaN included: tokens, positions, rows that nothing may write.
Verdict JudgeExact(Values a, Values e);

// --- End-to-end rules ----------------------------------------------------------------------------

enum class EndToEndTensor : uint8_t {
  kKv,             // 5e-3 relative rms of the difference
  kState,          // 2e-3, inner state too
  kQ,              // 1e-2
  kHeads,          // 1e-2
  kCompressedRow,  // 5e-3
  kIndexRow,       // 2e-2, of codes times scale
  kAttnOut,        // 2.5e-2
  kXOut,           // 5e-3; JudgeXOutPoints too
};

// `selection_differs`: the token's CSA selection is not the expected set; heads and attn_out are
// then 0.25, x_out 2e-2.
Verdict JudgeEndToEnd(EndToEndTensor tensor, Values a, Values e, bool selection_differs = false);

// One index row and its scale.
Verdict JudgeEndToEndIndexRow(Values a, float a_scale, Values e, float e_scale);

// At most 0.8 % (30 % where the selection differs) of a token's x_out points are bad: d > t and
// d / max(|a|, |e|, 2^-14 / t) > t; t = 3e-3 for SWA, 4e-3 for HCA and CSA.
Verdict JudgeXOutPoints(AttentionKind kind, Values a, Values e, bool selection_differs = false);

// The sets of one token's selection: same count and at least 97 % of the rows in both. A file's sum
// of num_common over its sum of num_rows must be at least 99 %.
struct SelectionAgreement {
  int64_t num_rows = 0;  // expected
  int64_t num_common = 0;
  Verdict verdict;
};
SelectionAgreement JudgeSelectionSet(std::span<const int32_t> a_idx,
                                     std::span<const int32_t> e_idx);
Verdict JudgeFileAgreement(int64_t num_common, int64_t num_rows);

}  // namespace millipede::reference

#endif  // MILLIPEDE_REFERENCE_JUDGE_H_
