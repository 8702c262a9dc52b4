#include "tools/vector_judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "millipede/rope.h"

namespace millipede::tools {
namespace {

using fixtures::SafetensorsFile;
using reference::Verdict;

// A stored tensor in memory of its own, where its elements are aligned.
OwnTensor ReadTensor(const SafetensorsFile& file, const std::string& name) {
  const fixtures::TensorEntry& entry = file.tensors().at(name);
  OwnTensor tensor;
  tensor.dtype = entry.dtype;
  tensor.row_elements = 1;
  for (size_t i = 1; i < entry.shape.size(); ++i) tensor.row_elements *= entry.shape[i];
  tensor.bytes.assign(entry.bytes.begin(), entry.bytes.end());
  return tensor;
}

constexpr TensorRows kStored = TensorRows::kStored;
constexpr TensorRows kProbe = TensorRows::kProbe;
constexpr TensorRows kEvent = TensorRows::kEvent;

class Judge {
 public:
  Judge(const VectorCase& vectors, const SafetensorsFile& file, const OwnValues& own)
      : vectors_(vectors), file_(file), own_(own), differing_(vectors.requests.size()) {}

  RuleTable JudgeAll() {
    JudgeTokenLists();
    JudgeRope();
    if (vectors_.kind != AttentionKind::kSwa) JudgeEventPositions();
    if (vectors_.kind == AttentionKind::kCsa) {
      JudgeIndexRows();
      JudgeSelections();
    }
    for (const TensorRule& rule : TensorRulesOf(vectors_.kind)) {
      for (size_t i = 0; i < vectors_.requests.size(); ++i) {
        const bool by_stage =
            rule.stage != nullptr && (vectors_.one_step() || !rule.end_to_end.has_value());
        if (by_stage) JudgeStage(rule, i);
        if (rule.end_to_end) JudgeEndToEnd(rule, i);
      }
    }
    table_.Merge(own_.caches);
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
    const auto add = [&](size_t i, const char* tensor) {
      const std::string name = vectors_.requests[i].TensorName(tensor);
      const OwnTensor& own = own_.requests[i].end_to_end.at(tensor);
      const auto stored = file_.Values<float>(name);
      judged_.insert(name);
      if (stored->empty()) return;
      names.push_back(name);
      begins.push_back(static_cast<int64_t>(expected.size()));
      const auto* values = reinterpret_cast<const float*>(own.bytes.data());
      actual.insert(actual.end(), values, values + stored->size());
      expected.insert(expected.end(), stored->begin(), stored->end());
    };
    for (size_t i = 0; i < vectors_.requests.size(); ++i) {
      add(i, "rope_cos");
      add(i, "rope_sin");
      if (vectors_.kind == AttentionKind::kSwa) continue;
      add(i, "event_rope_cos");
      add(i, "event_rope_sin");
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

  void JudgeEventPositions() {
    for (size_t i = 0; i < vectors_.requests.size(); ++i) {
      const std::string name = vectors_.requests[i].TensorName("event_pos");
      const OwnTensor& own = own_.requests[i].end_to_end.at("event_pos");
      const auto stored = file_.Values<int64_t>(name);
      const reference::Values actual(reinterpret_cast<const int64_t*>(own.bytes.data()),
                                     vectors_.requests[i].num_events);
      table_.Add("event_pos", "exact", actual.size(), reference::JudgeExact(actual, *stored), name);
      judged_.insert(name);
    }
  }

  // The stage rule is about all index rows of a file together; the verdict names the worst row.
  void JudgeIndexRows() {
    std::vector<int8_t> codes;
    std::vector<int8_t> stored_codes;
    std::vector<float> scales;
    std::vector<float> stored_scales;
    std::vector<std::string> rows;
    for (size_t i = 0; i < vectors_.requests.size(); ++i) {
      const RequestCase& request = vectors_.requests[i];
      const std::string name = request.TensorName("idx_rows");
      const std::string scale_name = request.TensorName("idx_scales");
      judged_.insert({name, scale_name});
      const OwnTensor stored = ReadTensor(file_, name);
      const auto stored_scale = file_.Values<float>(scale_name);
      for (int64_t row = 0; row < request.num_events; ++row) {
        const std::string where = fmt::format("{} and {} row {} (compressed row {})", name,
                                              scale_name, row, request.first_row + row);
        const float scale = (*stored_scale)[static_cast<size_t>(row)];
        const OwnTensors& whole = own_.requests[i].end_to_end;
        table_.Add("idx_rows", "end to end, rms", kIndexDim,
                   reference::JudgeEndToEndIndexRow(whole.at("idx_rows").Row(row),
                                                    whole.at("idx_scales").RowOf<float>(row)[0],
                                                    stored.Row(row), scale),
                   where);
        if (!vectors_.one_step()) continue;
        const OwnTensors& stage = own_.requests[i].stage;
        const auto own_row = stage.at("idx_rows").RowOf<int8_t>(row);
        const auto stored_row = stored.RowOf<int8_t>(row);
        codes.insert(codes.end(), own_row.begin(), own_row.end());
        stored_codes.insert(stored_codes.end(), stored_row.begin(), stored_row.end());
        scales.push_back(stage.at("idx_scales").RowOf<float>(row)[0]);
        stored_scales.push_back(scale);
        rows.push_back(where);
      }
    }
    if (rows.empty()) return;
    const Verdict verdict =
        reference::JudgeIndexRows(codes, stored_codes, scales, stored_scales, /*num_loose_rows=*/1);
    table_.Add("idx_rows", "stage, from inner state rows", static_cast<int64_t>(codes.size()),
               verdict, rows[static_cast<size_t>(std::max<int64_t>(0, verdict.worst_index))]);
  }

  // Probe tokens by stage, and all stored ones end to end, as sets.
  void JudgeSelections() {
    int64_t num_common = 0;
    int64_t num_rows = 0;
    for (size_t i = 0; i < vectors_.requests.size(); ++i) {
      const RequestCase& request = vectors_.requests[i];
      const OwnTensor stored_idx = ReadTensor(file_, request.TensorName("topk_idx"));
      const OwnTensor stored_score = ReadTensor(file_, request.TensorName("topk_score"));
      const OwnTensor stored_next = ReadTensor(file_, request.TensorName("topk_next"));
      for (const char* name : {"topk_idx", "topk_score", "topk_next"}) {
        judged_.insert(request.TensorName(name));
      }
      const OwnTensors& stage = own_.requests[i].stage;
      for (int64_t row = 0; row < request.NumRows(kProbe); ++row) {
        const int64_t stored_row = request.StoredRowOf(request.TokenOfRow(kProbe, row));
        const auto score = stored_score.RowOf<float>(stored_row);
        const float next = stored_next.RowOf<float>(stored_row)[0];
        const auto add = [&](const char* tensor, int64_t num_values, const Verdict& verdict) {
          table_.Add(tensor, "stage, from idx_q and the keys", num_values, verdict,
                     request.Where(tensor, kProbe, row));
        };
        add("topk_score", stored_score.row_elements,
            reference::JudgeScores(stage.at("topk_score").Row(row), score));
        add("topk_idx", stored_idx.row_elements,
            reference::JudgeSelection(stage.at("topk_idx").RowOf<int32_t>(row),
                                      stored_idx.RowOf<int32_t>(stored_row), score, next));
        add("topk_next", 1,
            reference::JudgeNextScore(stage.at("topk_next").RowOf<float>(row)[0], next,
                                      reference::ScoreBound(score)));
      }
      const OwnTensor& own = own_.requests[i].end_to_end.at("topk_idx");
      for (int64_t row = 0; row < request.NumRows(kStored); ++row) {
        const int64_t token = request.TokenOfRow(kStored, row);
        const reference::SelectionAgreement agreement =
            reference::JudgeSelectionSet(own.RowOf<int32_t>(token), stored_idx.RowOf<int32_t>(row));
        table_.Add("topk_idx", "end to end, sets", agreement.num_rows, agreement.verdict,
                   request.Where("topk_idx", kStored, row));
        num_common += agreement.num_common;
        num_rows += agreement.num_rows;
        if (agreement.num_common != agreement.num_rows) differing_[i].insert(token);
      }
    }
    table_.Add("topk_idx", "end to end, all sets together", num_rows,
               reference::JudgeFileAgreement(num_common, num_rows), "all stored tokens");
  }

  void JudgeStage(const TensorRule& rule, size_t i) {
    const RequestCase& request = vectors_.requests[i];
    const std::string name = request.TensorName(rule.name);
    const OwnTensor stored = ReadTensor(file_, name);
    const OwnTensor& own = own_.requests[i].stage.at(rule.name);
    for (int64_t row = 0; row < request.NumRows(rule.stage_rows); ++row) {
      const int64_t stored_row = StoredRow(rule.rows, rule.stage_rows, request, row);
      table_.Add(rule.name, rule.stage_name, own.row_elements,
                 rule.stage(own.Row(row), stored.Row(stored_row)),
                 request.Where(rule.name, rule.stage_rows, row));
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
    const OwnTensor stored = ReadTensor(file_, name);
    const OwnTensor& own = own_.requests[i].end_to_end.at(rule.name);
    for (int64_t row = 0; row < request.NumRows(rule.rows); ++row) {
      const int64_t own_row = request.OwnRowOf(rule.rows, row);
      const bool differs = rule.rows != kEvent && differing_[i].contains(own_row);
      const std::string where = request.Where(rule.name, rule.rows, row);
      table_.Add(
          rule.name, "end to end, rms", own.row_elements,
          reference::JudgeEndToEnd(*rule.end_to_end, own.Row(own_row), stored.Row(row), differs),
          where);
      if (*rule.end_to_end == reference::EndToEndTensor::kXOut) {
        table_.Add(
            rule.name, "end to end, points", own.row_elements,
            reference::JudgeXOutPoints(vectors_.kind, own.Row(own_row), stored.Row(row), differs),
            where);
      }
    }
    judged_.insert(name);
  }

  const VectorCase& vectors_;
  const SafetensorsFile& file_;
  const OwnValues& own_;
  RuleTable table_;
  std::set<std::string> judged_;
  std::vector<std::set<int64_t>> differing_;  // tokens of each request with another selection
};

}  // namespace

FileReport JudgeVectorCase(const VectorCase& vectors, const SafetensorsFile& file,
                           const OwnValues& own) {
  FileReport report;
  report.path = file.name();
  report.kind = KindName(vectors.kind);
  Judge judge(vectors, file, own);
  report.rules = judge.JudgeAll();
  report.AddUnchecked(file, judge.judged());
  return report;
}

fixtures::SafetensorsWriter DumpVectorCase(const VectorCase& vectors, const SafetensorsFile& file,
                                           const OwnValues& own) {
  fixtures::SafetensorsWriter writer;
  for (const auto& [key, value] : file.metadata()) writer.SetMetadata(key, value);
  for (size_t i = 0; i < vectors.requests.size(); ++i) {
    const RequestCase& request = vectors.requests[i];
    const OwnTensors& whole = own.requests[i].end_to_end;
    for (const TensorRule& rule : TensorRulesOf(vectors.kind)) {
      const std::string name = request.TensorName(rule.name);
      OwnTensor tensor =
          ReadTensor(file, name);  // of token lists, which nothing computes, as it is
      if (whole.Has(rule.name)) {
        for (int64_t row = 0; row < request.NumRows(rule.rows); ++row) {
          std::copy_n(whole.at(rule.name).row(request.OwnRowOf(rule.rows, row)), tensor.row_bytes(),
                      tensor.row(row));
        }
      }
      AddTensor(writer, name, rule.dtype, file.tensors().at(name).shape, tensor.bytes);
    }
  }
  return writer;
}

}  // namespace millipede::tools
