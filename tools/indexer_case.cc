#include "tools/indexer_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <set>
#include <utility>

#include "millipede/stages.h"
#include "reference/judge.h"
#include "reference/parallel.h"
#include "tools/activations.h"
#include "tools/batch.h"
#include "tools/caches.h"
#include "tools/errors.h"
#include "tools/vector_case.h"

namespace millipede::tools {
namespace {

using fixtures::DType;
using fixtures::IndexerValues;
using fixtures::SafetensorsFile;

constexpr AttentionKind kCsa = AttentionKind::kCsa;
constexpr std::array<PoolKind, 2> kIndexPools = {PoolKind::kCsaIndexRows,
                                                 PoolKind::kCsaIndexScales};

struct IndexerTensor {
  const char* name;
  DType dtype;
  int64_t size;
};

bool HasGap(const IndexerCase& indexer, size_t query) {
  return indexer.values == IndexerValues::kPlain &&
         indexer.candidates[query] > indexer.config.index_topk;
}

std::vector<IndexerTensor> TensorsOf(const IndexerCase& indexer, size_t query) {
  const int64_t topk = indexer.config.index_topk;
  std::vector<IndexerTensor> tensors = {{"topk_idx", DType::kI32, topk},
                                        {"topk_score", DType::kF32, topk}};
  if (HasGap(indexer, query)) tensors.push_back({"gap", DType::kF32, 1});
  return tensors;
}

// The gap between the last selected score and the best one left out, over the former.
float GapOf(const IndexerSelection& selection) {
  const float last = selection.score.back();
  return (last - selection.next) / std::abs(last);
}

// The keys of a query's candidates, in their places.
void FillKeys(const Batch& batch, const LayerCaches& caches, int64_t query,
              const fixtures::IndexerFixture& data) {
  const std::vector<int32_t> pages = batch.Pages(kCsa, PoolKind::kCsaIndexRows, query);
  for (size_t c = 0; c < data.key_scale.size(); ++c) {
    const int64_t row = PoolRowOf(PoolKind::kCsaIndexRows, pages, static_cast<int64_t>(c));
    std::copy_n(data.keys.begin() + static_cast<std::ptrdiff_t>(c * kIndexDim), kIndexDim,
                RowAs<int8_t>(caches.Row(PoolKind::kCsaIndexRows, row)).begin());
    RowAs<float>(caches.Row(PoolKind::kCsaIndexScales, row))[0] = data.key_scale[c];
  }
}

}  // namespace

std::string IndexerCase::TensorName(size_t query, const char* tensor) {
  return fmt::format("c{}.{}", query, tensor);
}

bool IsIndexerFile(const SafetensorsFile& file) {
  const auto kind = file.Metadata("kind");
  return kind && (*kind == "indexer" || *kind == "indexer_ties");
}

Result<IndexerCase> ReadIndexerCase(const SafetensorsFile& file, const ModelConfig& config,
                                    std::vector<std::string>& problems) {
  IndexerCase indexer;
  indexer.config = config;
  auto kind = file.Metadata("kind");
  if (!kind) return ErrorOf(kind);
  indexer.values = *kind == "indexer_ties" ? IndexerValues::kTies : IndexerValues::kPlain;
  auto seed = file.MetadataInt("seed");
  if (!seed) return ErrorOf(seed);
  indexer.seed = static_cast<uint64_t>(*seed);
  auto candidates = file.MetadataInts("candidates");
  if (!candidates) return ErrorOf(candidates);
  indexer.candidates = *std::move(candidates);

  std::set<std::string> known;
  for (size_t query = 0; query < indexer.candidates.size(); ++query) {
    const int64_t most = config.max_context_tokens / kCsaRatio;
    if (indexer.candidates[query] < 0 || indexer.candidates[query] > most) {
      return BadValue(fmt::format("candidates[{}]", query),
                      std::to_string(indexer.candidates[query]), fmt::format("0 to {}", most));
    }
    for (const IndexerTensor& tensor : TensorsOf(indexer, query)) {
      const std::string name = IndexerCase::TensorName(query, tensor.name);
      known.insert(name);
      std::string problem = TensorProblem(file, name, tensor.dtype, {tensor.size});
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  if (indexer.candidates.empty()) problems.emplace_back("nothing to check: no candidates");
  for (const auto& [name, entry] : file.tensors()) {
    if (!known.contains(name)) {
      problems.push_back(
          fmt::format("{}: unknown tensor; allowed: those of an {} file", name, *kind));
    }
  }
  return indexer;
}

Result<std::vector<IndexerSelection>> RunIndexerCase(const IndexerCase& indexer, Context& context) {
  const ModelConfig& config = indexer.config;
  const auto num_queries = static_cast<int64_t>(indexer.candidates.size());
  // A token that finishes its last candidate's block sees all of them and no more.
  std::vector<int64_t> start_pos;
  for (const int64_t n : indexer.candidates) {
    start_pos.push_back(std::max<int64_t>(0, n * kCsaRatio - 1));
  }
  const std::vector<int64_t> num_tokens(indexer.candidates.size(), 1);
  auto batch = Batch::Create({&kCsa, 1}, start_pos, num_tokens);
  if (!batch) return ErrorOf(batch);
  auto caches = LayerCaches::CreateEmpty(*batch, kIndexPools);
  if (!caches) return ErrorOf(caches);
  Activations values(config, kCsa, num_queries);
  reference::ParallelFor(num_queries, [&](int64_t query) {
    const auto i = static_cast<size_t>(query);
    const fixtures::IndexerFixture data = fixtures::MakeIndexerFixture(
        config, indexer.seed, query, indexer.candidates[i], indexer.values);
    FillKeys(*batch, *caches, query, data);
    const int64_t heads = config.num_index_heads;
    std::copy(data.q.begin(), data.q.end(), values.idx_q.begin() + query * heads * kIndexDim);
    std::copy(data.q_scale.begin(), data.q_scale.end(), values.idx_q_scale.begin() + query * heads);
    std::copy(data.weights.begin(), data.weights.end(), values.idx_weights.begin() + query * heads);
  });
  auto plan = Plan::Create(config, kCsa, /*num_layers=*/1, batch->spaces(kCsa),
                           batch->Step(kCsa, num_tokens));
  if (!plan) return ErrorOf(plan);
  auto status = SelectWide(context.executor(), *plan, caches->views(), values);
  if (!status) return ErrorOf(status);

  std::vector<IndexerSelection> selections;
  const int64_t topk = config.index_topk;
  for (int64_t query = 0; query < num_queries; ++query) {
    const auto idx = values.wide_idx.begin() + query * (topk + 1);
    const auto score = values.wide_score.begin() + query * (topk + 1);
    selections.push_back(
        {{idx, idx + topk}, {score, score + topk}, values.topk_next[static_cast<size_t>(query)]});
  }
  return selections;
}

FileReport JudgeIndexerCase(const IndexerCase& indexer, const SafetensorsFile& file,
                            const std::vector<IndexerSelection>& own) {
  FileReport report;
  report.path = file.name();
  if (auto kind = file.Metadata("kind")) report.kind = *kind;
  std::set<std::string> judged;
  const int64_t topk = indexer.config.index_topk;
  for (size_t query = 0; query < own.size(); ++query) {
    const std::string idx_name = IndexerCase::TensorName(query, "topk_idx");
    const std::string score_name = IndexerCase::TensorName(query, "topk_score");
    const auto idx = file.Values<int32_t>(idx_name);
    const auto score = file.Values<float>(score_name);
    judged.insert({idx_name, score_name});
    if (indexer.values == IndexerValues::kTies) {
      report.rules.Add("topk_idx", "exact", topk, reference::JudgeExact(own[query].idx, *idx),
                       idx_name);
      report.rules.Add("topk_score", "exact", topk, reference::JudgeExact(own[query].score, *score),
                       score_name);
      continue;
    }
    float next = -FLT_MAX;
    if (HasGap(indexer, query)) {
      const std::string gap_name = IndexerCase::TensorName(query, "gap");
      const float last = score->back();
      next = last - file.Values<float>(gap_name)->front() * std::abs(last);
      report.rules.Add(
          "gap", "scores", 1,
          reference::JudgeNextScore(own[query].next, next, reference::ScoreBound(*score)),
          gap_name);
      judged.insert(gap_name);
    }
    report.rules.Add("topk_score", "scores", topk, reference::JudgeScores(own[query].score, *score),
                     score_name);
    report.rules.Add("topk_idx", "selection", topk,
                     reference::JudgeSelection(own[query].idx, *idx, *score, next), idx_name);
  }
  report.AddUnchecked(file, judged);
  return report;
}

fixtures::SafetensorsWriter DumpIndexerCase(const IndexerCase& indexer, const SafetensorsFile& file,
                                            const std::vector<IndexerSelection>& own) {
  fixtures::SafetensorsWriter writer;
  for (const auto& [key, value] : file.metadata()) writer.SetMetadata(key, value);
  for (size_t query = 0; query < own.size(); ++query) {
    const int64_t topk = indexer.config.index_topk;
    const auto name = [query](const char* tensor) {
      return IndexerCase::TensorName(query, tensor);
    };
    writer.Add<int32_t>(name("topk_idx"), {topk}, own[query].idx);
    writer.Add<float>(name("topk_score"), {topk}, own[query].score);
    if (!HasGap(indexer, query)) continue;
    const float gap = GapOf(own[query]);
    writer.Add<float>(name("gap"), {1}, {&gap, 1});
  }
  return writer;
}

}  // namespace millipede::tools
