// The CSA selection alone, for tests of it.
#ifndef MILLIPEDE_TESTS_SUPPORT_SELECT_CASE_H_
#define MILLIPEDE_TESTS_SUPPORT_SELECT_CASE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "millipede/stages.h"
#include "reference/golden.h"
#include "support/decode_world.h"

namespace millipede::testing {

inline constexpr AttentionKind kSelectKind = AttentionKind::kCsa;

// The indexer's choice alone, over keys, scales and queries of the test's making: one query with
// `num_candidates` visible rows.
class SelectCase {
 public:
  SelectCase(const ModelConfig& config, int64_t num_candidates)
      : world_(config, kSelectKind), num_candidates_(num_candidates) {
    // The token that finishes the last candidate's block sees exactly num_candidates rows.
    world_.Add(0, start_pos());
    world_.Prepare(0, 1);
    const auto heads = static_cast<size_t>(config.num_index_heads);
    idx_q.assign(heads * kIndexDim, 0);
    scales.assign(heads, 1.0F);
    weights.assign(heads, 1.0F);
  }

  DecodeWorld& world() { return world_; }

  // Key `row` scores exactly `score` with the query of UnitQuery().
  void SetScore(int64_t row, float score) {
    std::ranges::fill(world_.IndexRow(0, row), int8_t{0});
    world_.IndexRow(0, row)[0] = 1;
    world_.IndexScale(0, row) = score;
  }
  void UnitQuery() {
    std::ranges::fill(idx_q, int8_t{0});
    std::ranges::fill(weights, 0.0F);
    idx_q[0] = 1;
    weights[0] = 1.0F;
  }

  void Plan() {
    const StepRequest step[] = {
        {.start_pos = start_pos(), .num_tokens = 1, .request = &world_.request(0)}};
    auto made = Plan::Create(world_.config(), kSelectKind, 1, world_.spaces(), step);
    if (!made) throw std::runtime_error(made.error().message);
    plan.emplace(std::move(made).value());
  }

  void Run(Context& context, int64_t k) {
    if (!plan) Plan();
    topk_idx.assign(static_cast<size_t>(k), -7);
    topk_score.assign(static_cast<size_t>(k), NAN);
    AlignedBytes scratch(SelectScratchBytes(world_.config(), k, context.num_threads()));
    const int64_t heads = world_.config().num_index_heads;
    const SelectInputs inputs = {.idx_q = MakeView<const int8_t>(idx_q.data(), 1, heads, kIndexDim),
                                 .idx_q_scale = MakeView<const float>(scales.data(), 1, heads),
                                 .idx_weights = MakeView<const float>(weights.data(), 1, heads),
                                 .index_rows = world_.pools().index_rows,
                                 .index_scales = world_.pools().index_scales};
    const Status status =
        Select(context, world_.config(), *plan, inputs, MakeView(topk_idx.data(), 1, k),
               MakeView(topk_score.data(), 1, k), scratch.span());
    ASSERT_TRUE(status) << status.error().message;
  }

  // What a full sort of the golden's scores gives.
  reference::Selection Expected(int64_t k) {
    std::vector<int8_t> keys;
    std::vector<float> key_scales;
    for (int64_t row = 0; row < num_candidates_; ++row) {
      const auto key = world_.IndexRow(0, row);
      keys.insert(keys.end(), key.begin(), key.end());
      key_scales.push_back(world_.IndexScale(0, row));
    }
    return reference::TopK(reference::Scores({idx_q, scales}, weights, keys, key_scales), k);
  }

  std::vector<int8_t> idx_q;
  std::vector<float> scales;
  std::vector<float> weights;
  std::vector<int32_t> topk_idx;
  std::vector<float> topk_score;
  std::optional<millipede::Plan> plan;

 private:
  int64_t start_pos() const { return std::max<int64_t>(0, num_candidates_ * kCsaRatio - 1); }

  DecodeWorld world_;
  int64_t num_candidates_;
};

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_SUPPORT_SELECT_CASE_H_
