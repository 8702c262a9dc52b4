// The golden's scores and selection against the indexer vector files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "fixtures/formula.h"
#include "fixtures/safetensors.h"
#include "reference/golden.h"
#include "reference/judge.h"
#include "reference/parallel.h"

namespace millipede::reference {
namespace {

using fixtures::IndexerValues;
using fixtures::SafetensorsFile;

class IndexerVectors : public testing::TestWithParam<const char*> {};

#define EXPECT_RULE(verdict_expression)                                       \
  do {                                                                        \
    const Verdict verdict_ = (verdict_expression);                            \
    EXPECT_TRUE(verdict_.ok) << #verdict_expression << "\n" << verdict_.text; \
  } while (false)

TEST_P(IndexerVectors, ScoresAndSelection) {
  const std::string path = std::string(MILLIPEDE_VECTORS_DIR) + "/" + GetParam() + ".safetensors";
  const auto file = SafetensorsFile::Load(path);
  ASSERT_TRUE(file) << file.error().message;
  const std::string kind = file->Metadata("kind").value();
  ASSERT_TRUE(kind == "indexer" || kind == "indexer_ties");
  const bool ties = kind == "indexer_ties";
  const auto seed = static_cast<uint64_t>(file->MetadataInt("seed").value());
  const auto candidates = file->MetadataInts("candidates").value();
  const ModelConfig config = ModelConfig::Flash();
  const int64_t k = config.index_topk;

  ParallelFor(static_cast<int64_t>(candidates.size()), [&](int64_t c) {
    const int64_t n = candidates[static_cast<size_t>(c)];
    SCOPED_TRACE(fmt::format("entry {}, {} candidates", c, n));
    const auto inputs = fixtures::MakeIndexerFixture(
        config, seed, c, n, ties ? IndexerValues::kTies : IndexerValues::kPlain);
    const Selection selection =
        TopK(Scores({inputs.q, inputs.q_scale}, inputs.weights, inputs.keys, inputs.key_scale), k);
    EXPECT_EQ(selection.count(), std::min(n, k));

    const auto idx = file->Values<int32_t>(fmt::format("c{}.topk_idx", c), {k}).value();
    const auto score = file->Values<float>(fmt::format("c{}.topk_score", c), {k}).value();
    float next = -FLT_MAX;
    if (n > k && !ties) {  // stored as the relative distance of the best two scores left and right
      const float gap = file->Values<float>(fmt::format("c{}.gap", c), {1}).value()[0];
      next = score.back() - gap * std::abs(score.back());
      EXPECT_RULE(JudgeNextScore(selection.next_score, next, ScoreBound(score)));
    }
    EXPECT_RULE(JudgeScores(selection.score, score));
    EXPECT_RULE(JudgeSelection(selection.idx, idx, score, next));
    if (ties) {
      EXPECT_RULE(JudgeExact(selection.idx, idx));
      EXPECT_RULE(JudgeExact(selection.score, score));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Files, IndexerVectors,
                         testing::Values("indexer_edges", "indexer_128_leaves", "indexer_ties"),
                         [](const auto& file) { return std::string(file.param); });

}  // namespace
}  // namespace millipede::reference
