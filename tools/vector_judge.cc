#include "tools/vector_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "millipede/rope.h"

namespace millipede::tools {
namespace {

using fixtures::DType;
using fixtures::SafetensorsFile;
using reference::Verdict;

// A stored tensor in memory of its own, where its elements are aligned.
OwnTensor ReadTensor(const SafetensorsFile& file, const std::string& name, int64_t num_rows) {
  const fixtures::TensorEntry& entry = file.tensors().at(name);
  OwnTensor tensor;
  tensor.dtype = entry.dtype;
  tensor.row_elements = entry.num_elements() / num_rows;
  tensor.bytes.assign(entry.bytes.begin(), entry.bytes.end());
  return tensor;
}

class Judge {
 public:
  Judge(const VectorCase& vectors, const SafetensorsFile& file, const OwnValues& own)
      : vectors_(vectors), file_(file), own_(own) {}

  RuleTable JudgeAll() {
    JudgeTokenLists();
    JudgeRope();
    for (const TensorRule& rule : TensorRulesOf(vectors_.kind)) {
      for (size_t i = 0; i < vectors_.requests.size(); ++i) {
        const bool by_stage =
            rule.stage != nullptr && (vectors_.one_step() || !rule.end_to_end.has_value());
        if (by_stage) JudgeStage(rule, i);
        if (rule.end_to_end) JudgeEndToEnd(rule, i);
      }
    }
    table_.Merge(own_.rings);
    return std::move(table_);
  }

  // The names of the tensors that some rule looked at.
  const std::set<std::string>& judged() const { return judged_; }

 private:
  // In a one-step file the stored tokens are all of them. Elsewhere which are stored is the file's
  // choice; that it makes sense was seen when it was read, and that the rows are those tokens' is
  // seen by the rules of the rows.
  void JudgeTokenLists() {
    for (const RequestCase& request : vectors_.requests) {
      std::vector<int64_t> expected = request.stored;
      if (vectors_.one_step()) {
        for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<int64_t>(i);
      }
      const std::string name = request.TensorName("tokens");
      table_.Add("tokens", "exact", static_cast<int64_t>(expected.size()),
                 reference::JudgeExact(expected, request.stored), name);
      judged_.insert(name);

      std::vector<int64_t> at_stored;
      for (const int64_t token : request.probe) {
        at_stored.push_back(request.stored[static_cast<size_t>(request.StoredRowOf(token))]);
      }
      const std::string probe_name = request.TensorName("probe_tokens");
      table_.Add("probe_tokens", "exact, entries of tokens", static_cast<int64_t>(at_stored.size()),
                 reference::JudgeExact(at_stored, request.probe), probe_name);
      judged_.insert(probe_name);
    }
  }

  // The rule is about all rows of a file together; the verdict names the tensor of its worst value.
  void JudgeRope() {
    std::vector<float> actual;
    std::vector<float> expected;
    std::vector<std::string> names;
    std::vector<int64_t> begins;
    for (size_t i = 0; i < vectors_.requests.size(); ++i) {
      for (const char* tensor : {"rope_cos", "rope_sin"}) {
        const std::string name = vectors_.requests[i].TensorName(tensor);
        const OwnTensor& own = own_.requests[i].end_to_end.find(tensor)->second;
        const auto stored = file_.Values<float>(name);
        names.push_back(name);
        begins.push_back(static_cast<int64_t>(expected.size()));
        const auto* values = reinterpret_cast<const float*>(own.bytes.data());
        actual.insert(actual.end(), values, values + stored->size());
        expected.insert(expected.end(), stored->begin(), stored->end());
        judged_.insert(name);
      }
    }
    const Verdict verdict = reference::JudgeRopeRows(actual, expected);
    std::string where = "all RoPE rows";
    if (verdict.worst_index >= 0) {
      const auto after = std::upper_bound(begins.begin(), begins.end(), verdict.worst_index);
      const auto tensor = static_cast<size_t>(after - begins.begin() - 1);
      const int64_t element = verdict.worst_index - begins[tensor];
      where = fmt::format("{} row {} pair {}", names[tensor], element / kRopePairs,
                          element % kRopePairs);
    }
    table_.Add("rope", "stage, from positions", static_cast<int64_t>(actual.size()), verdict,
               where);
  }

  void JudgeStage(const TensorRule& rule, size_t i) {
    const RequestCase& request = vectors_.requests[i];
    const std::string name = request.TensorName(rule.name);
    const OwnTensor stored = ReadTensor(file_, name, request.NumRows(rule.rows));
    const OwnTensor& own = own_.requests[i].stage.find(rule.name)->second;
    for (int64_t row = 0; row < request.NumRows(rule.stage_rows); ++row) {
      const int64_t token = request.TokenOfRow(rule.stage_rows, row);
      const int64_t stored_row = StoredRow(rule.rows, rule.stage_rows, request, row);
      table_.Add(rule.name, rule.stage_name, own.row_elements,
                 rule.stage(own.Row(row), stored.Row(stored_row)), Where(name, request, token));
    }
    judged_.insert(name);
  }

  // The row of a tensor with `rows` for the token at row `row` of a tensor with `from`.
  static int64_t StoredRow(TensorRows rows, TensorRows from, const RequestCase& request,
                           int64_t row) {
    if (rows == from) return row;
    const int64_t token = request.TokenOfRow(from, row);
    return rows == TensorRows::kNew ? token : request.StoredRowOf(token);
  }

  void JudgeEndToEnd(const TensorRule& rule, size_t i) {
    const RequestCase& request = vectors_.requests[i];
    const std::string name = request.TensorName(rule.name);
    const OwnTensor stored = ReadTensor(file_, name, request.NumRows(rule.rows));
    const OwnTensor& own = own_.requests[i].end_to_end.find(rule.name)->second;
    for (int64_t row = 0; row < request.NumRows(rule.rows); ++row) {
      const int64_t token = request.TokenOfRow(rule.rows, row);
      const std::string where = Where(name, request, token);
      table_.Add(rule.name, "end to end, rms", own.row_elements,
                 reference::JudgeEndToEnd(*rule.end_to_end, own.Row(token), stored.Row(row)),
                 where);
      if (*rule.end_to_end == reference::EndToEndTensor::kXOut) {
        table_.Add(rule.name, "end to end, points", own.row_elements,
                   reference::JudgeXOutPoints(vectors_.kind, own.Row(token), stored.Row(row)),
                   where);
      }
    }
    judged_.insert(name);
  }

  static std::string Where(const std::string& name, const RequestCase& request, int64_t token) {
    return fmt::format("{} token {} (position {})", name, token, request.start_pos + token);
  }

  const VectorCase& vectors_;
  const SafetensorsFile& file_;
  const OwnValues& own_;
  RuleTable table_;
  std::set<std::string> judged_;
};

}  // namespace

FileReport JudgeVectorCase(const VectorCase& vectors, const SafetensorsFile& file,
                           const OwnValues& own) {
  FileReport report;
  report.path = file.name();
  report.kind = KindName(vectors.kind);
  Judge judge(vectors, file, own);
  report.rules = judge.JudgeAll();
  for (const auto& [name, entry] : file.tensors()) {
    if (!judge.judged().contains(name)) report.problems.push_back(name + ": no rule checked it");
  }
  return report;
}

fixtures::SafetensorsWriter DumpVectorCase(const VectorCase& vectors, const SafetensorsFile& file,
                                           const OwnValues& own) {
  fixtures::SafetensorsWriter writer;
  for (const auto& [key, value] : file.metadata()) writer.SetMetadata(key, value);
  const auto add = [&](const std::string& name, DType dtype, const std::vector<int64_t>& shape,
                       std::span<const std::byte> bytes) {
    const auto elements = bytes.size() / static_cast<size_t>(fixtures::DTypeBytes(dtype));
    switch (dtype) {
      case DType::kF32:
        return writer.Add<float>(name, shape,
                                 {reinterpret_cast<const float*>(bytes.data()), elements});
      case DType::kBf16:
        return writer.Add<Bf16>(name, shape,
                                {reinterpret_cast<const Bf16*>(bytes.data()), elements});
      case DType::kI8:
        return writer.Add<int8_t>(name, shape,
                                  {reinterpret_cast<const int8_t*>(bytes.data()), elements});
      case DType::kI32:
        return writer.Add<int32_t>(name, shape,
                                   {reinterpret_cast<const int32_t*>(bytes.data()), elements});
      case DType::kI64:
        return writer.Add<int64_t>(name, shape,
                                   {reinterpret_cast<const int64_t*>(bytes.data()), elements});
    }
  };
  for (size_t i = 0; i < vectors.requests.size(); ++i) {
    const RequestCase& request = vectors.requests[i];
    for (const TensorRule& rule : TensorRulesOf(vectors.kind)) {
      const std::string name = request.TensorName(rule.name);
      const OwnTensor stored = ReadTensor(file, name, request.NumRows(rule.rows));
      const auto found = own.requests[i].end_to_end.find(rule.name);
      std::vector<std::byte> bytes = stored.bytes;  // of token lists, which nothing computes
      if (found != own.requests[i].end_to_end.end()) {
        for (int64_t row = 0; row < request.NumRows(rule.rows); ++row) {
          const std::byte* value = found->second.row(request.TokenOfRow(rule.rows, row));
          std::copy_n(value, stored.row_bytes(), bytes.begin() + row * stored.row_bytes());
        }
      }
      add(name, rule.dtype, file.tensors().at(name).shape, bytes);
    }
  }
  return writer;
}

std::string FileReport::Text() const {
  std::string text = fmt::format("{}: {}", path, ok() ? "ok" : "FAILED");
  if (!kind.empty()) text += fmt::format(", {}", kind);
  text += fmt::format(", {} values by {} rules\n", rules.num_values(), rules.rows().size());
  for (const std::string& problem : problems) text += fmt::format("  {}\n", problem);
  if (!rules.rows().empty()) text += rules.Text("  ");
  return text;
}

nlohmann::json FileReport::Json() const {
  return {{"path", path},         {"kind", kind},
          {"ok", ok()},           {"values", rules.num_values()},
          {"problems", problems}, {"rules", rules.Json()}};
}

}  // namespace millipede::tools
