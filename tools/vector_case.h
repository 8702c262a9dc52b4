// What a file of layer vectors describes, and which tensors it must hold.
#ifndef MILLIPEDE_TOOLS_VECTOR_CASE_H_
#define MILLIPEDE_TOOLS_VECTOR_CASE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fixtures/safetensors.h"
#include "millipede/config.h"
#include "millipede/status.h"
#include "reference/judge.h"

namespace millipede::tools {

// What the rows of a stored tensor stand for.
enum class TensorRows : uint8_t {
  kNew,     // every new token
  kStored,  // the entries of `tokens`
  kProbe,   // the entries of `probe_tokens`
  kLast,    // the last kStateTokens new tokens, or all of fewer
  kEvent,   // the compressed rows that the new tokens emit
};

// New tokens whose state rows are stored, the last ones. A file of one step has them all.
inline constexpr int64_t kStateTokens = 8;

// One tensor that every request with tokens has, and how it is judged. A file of one step is judged
// by stage (where there is a rule) and end to end (where there is one); a file of many steps end to
// end, and by stage at probe tokens only what has no end-to-end rule.
struct TensorRule {
  std::string_view name;
  fixtures::DType dtype;
  TensorRows rows;
  std::vector<int64_t> (*row_shape)(const ModelConfig& config);

  using StageRule = reference::Verdict (*)(reference::Values a, reference::Values e);
  StageRule stage = nullptr;
  TensorRows stage_rows = TensorRows::kProbe;  // the tokens whose stage inputs are stored
  std::string_view stage_name = {};
  std::optional<reference::EndToEndTensor> end_to_end = std::nullopt;
};

// All tensors of a kind; those without any rule here (token lists, RoPE rows, index rows and their
// scales, selections) have rules of their own.
std::span<const TensorRule> TensorRulesOf(AttentionKind kind);

// One request with tokens.
struct RequestCase {
  int64_t request = 0;  // batch index
  int64_t start_pos = 0;
  int64_t num_new = 0;    // tokens of all steps
  int64_t first_row = 0;  // the first compressed row that they emit, and how many
  int64_t num_events = 0;
  std::vector<int64_t> stored;  // new tokens whose xn and attn_out are stored, ascending
  std::vector<int64_t> probe;   // new tokens stored in full, ascending, each also in `stored`

  std::string TensorName(std::string_view tensor) const;  // "r<request>.<tensor>"
  int64_t NumRows(TensorRows rows) const;
  int64_t TokenOfRow(TensorRows rows, int64_t row) const;  // not of kEvent

  // The row, among those of every new token or of every event, that a stored row stands for.
  int64_t OwnRowOf(TensorRows rows, int64_t row) const;
  int64_t StoredRowOf(int64_t token) const;  // its row in tensors of kStored

  // "r0.kv token 3 (position 16387)", "r0.cmp_rows row 1 (compressed row 4097)".
  std::string Where(std::string_view tensor, TensorRows rows, int64_t row) const;
};

struct VectorCase {
  AttentionKind kind = AttentionKind::kSwa;
  ModelConfig config;
  uint64_t seed = 0;
  std::vector<int64_t> start_pos;        // [requests]
  std::vector<int64_t> tokens_per_step;  // [requests], 0 for inactive ones
  int64_t steps = 1;
  std::vector<RequestCase> requests;  // those with tokens

  bool one_step() const { return steps == 1; }
};

// A line for a stored tensor that is not of this dtype and shape; empty if it is.
std::string TensorProblem(const fixtures::SafetensorsFile& file, const std::string& name,
                          fixtures::DType dtype, const std::vector<int64_t>& shape);

// Reads the metadata and the token lists, and compares the file's tensors with those a file of its
// kind holds. kInvalidArgument if the metadata makes no sense or the kind is unknown.
// `problems` gets a line for each tensor that is missing, unknown, or of another dtype or shape,
// and for token lists and selections that make no sense; the file cannot be judged unless it stays
// empty.
Result<VectorCase> ReadVectorCase(const fixtures::SafetensorsFile& file, const ModelConfig& config,
                                  std::vector<std::string>& problems);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_VECTOR_CASE_H_
