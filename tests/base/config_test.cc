#include "millipede/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace millipede {
namespace {

TEST(Config, PresetsAreValid) {
  for (const char* name : {"flash", "pro", "tiny"}) {
    const auto config = PresetByName(name);
    ASSERT_TRUE(config) << name;
    EXPECT_TRUE(Validate(*config)) << name;
    EXPECT_EQ(config->max_context_tokens, 1'048'576) << name;
  }
  for (const char* name : {"", "Flash", "flash ", "huge"}) EXPECT_FALSE(PresetByName(name));
}

TEST(Config, FlashShapes) {
  const ModelConfig config = ModelConfig::Flash();
  EXPECT_EQ(config.hidden, 4096);
  EXPECT_EQ(config.num_heads, 64);
  EXPECT_EQ(config.q_rank, 1024);
  EXPECT_EQ(config.o_rank, 1024);
  EXPECT_EQ(config.o_groups, 8);
  EXPECT_EQ(config.heads_per_group(), 8);
  EXPECT_EQ(config.num_index_heads, 64);
  EXPECT_EQ(config.index_topk, 512);
  std::vector<int32_t> ratios = {0, 0};
  for (int i = 0; i < 20; ++i) {
    ratios.push_back(4);
    ratios.push_back(128);
  }
  ratios.push_back(4);
  EXPECT_EQ(ratios.size(), 43U);
  EXPECT_EQ(config.layer_ratios, ratios);
}

TEST(Config, ProShapes) {
  const ModelConfig config = ModelConfig::Pro();
  EXPECT_EQ(config.hidden, 7168);
  EXPECT_EQ(config.num_heads, 128);
  EXPECT_EQ(config.q_rank, 1536);
  EXPECT_EQ(config.o_rank, 1024);
  EXPECT_EQ(config.o_groups, 16);
  EXPECT_EQ(config.index_topk, 1024);
  std::vector<int32_t> ratios = {128, 128};
  for (int i = 0; i < 29; ++i) {
    ratios.push_back(4);
    ratios.push_back(128);
  }
  ratios.push_back(4);
  EXPECT_EQ(ratios.size(), 61U);
  EXPECT_EQ(config.layer_ratios, ratios);
}

TEST(Config, TinyShapes) {
  const ModelConfig config = ModelConfig::Tiny();
  EXPECT_EQ(config.hidden, 256);
  EXPECT_EQ(config.num_heads, 8);
  EXPECT_EQ(config.q_rank, 64);
  EXPECT_EQ(config.o_rank, 32);
  EXPECT_EQ(config.o_groups, 4);
  EXPECT_EQ(config.num_index_heads, 4);
  EXPECT_EQ(config.index_topk, 512);
}

TEST(Config, LayerKindsComeFromTheRatios) {
  const ModelConfig config = ModelConfig::Flash();
  EXPECT_EQ(KindOfLayer(config, 0).value(), AttentionKind::kSwa);
  EXPECT_EQ(KindOfLayer(config, 1).value(), AttentionKind::kSwa);
  EXPECT_EQ(KindOfLayer(config, 2).value(), AttentionKind::kCsa);
  EXPECT_EQ(KindOfLayer(config, 3).value(), AttentionKind::kHca);
  EXPECT_EQ(KindOfLayer(config, 42).value(), AttentionKind::kCsa);
  for (const int32_t layer : {-1, 43}) {
    const auto kind = KindOfLayer(config, layer);
    ASSERT_FALSE(kind);
    EXPECT_EQ(kind.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(kind.error().field, "layer");
  }
  for (const int32_t ratio : {-4, 1, 8, 127}) EXPECT_FALSE(KindOfRatio(ratio)) << ratio;
  EXPECT_EQ(KindName(AttentionKind::kSwa), "swa");
  EXPECT_EQ(KindName(AttentionKind::kHca), "hca");
  EXPECT_EQ(KindName(AttentionKind::kCsa), "csa");
}

struct BadField {
  std::string field;
  std::function<void(ModelConfig&)> change;
};

TEST(Config, EachFieldOutOfRangeIsRefusedByName) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<BadField> bad_fields = {
      {"head_dim", [](ModelConfig& c) { c.head_dim = 256; }},
      {"rope_lanes", [](ModelConfig& c) { c.rope_lanes = 128; }},
      {"window_rows", [](ModelConfig& c) { c.window_rows = 64; }},
      {"index_dim", [](ModelConfig& c) { c.index_dim = 64; }},
      {"hidden", [](ModelConfig& c) { c.hidden = 0; }},
      {"hidden", [](ModelConfig& c) { c.hidden = std::numeric_limits<int32_t>::max(); }},
      {"num_heads", [](ModelConfig& c) { c.num_heads = -8; }},
      {"q_rank", [](ModelConfig& c) { c.q_rank = 131'072; }},  // int8 sums could pass int32
      {"o_rank", [](ModelConfig& c) { c.o_rank = 0; }},
      {"o_groups", [](ModelConfig& c) { c.o_groups = 0; }},
      {"o_groups", [](ModelConfig& c) { c.o_groups = 3; }},   // does not divide 8
      {"o_groups", [](ModelConfig& c) { c.o_groups = 16; }},  // more than heads
      {"num_index_heads", [](ModelConfig& c) { c.num_index_heads = 0; }},
      {"index_topk", [](ModelConfig& c) { c.index_topk = 0; }},
      {"rms_eps", [](ModelConfig& c) { c.rms_eps = 0; }},
      {"rms_eps", [nan](ModelConfig& c) { c.rms_eps = nan; }},
      {"hc_eps", [](ModelConfig& c) { c.hc_eps = -1e-6F; }},
      {"hc_eps", [](ModelConfig& c) { c.hc_eps = std::numeric_limits<float>::infinity(); }},
      {"sinkhorn_rounds", [](ModelConfig& c) { c.sinkhorn_rounds = 0; }},
      {"layer_ratios[1]", [](ModelConfig& c) { c.layer_ratios[1] = 5; }},
      {"max_context_tokens", [](ModelConfig& c) { c.max_context_tokens = 0; }},
      {"max_context_tokens", [](ModelConfig& c) { c.max_context_tokens = kMaxContextTokens + 1; }},
  };
  for (const BadField& bad : bad_fields) {
    ModelConfig config = ModelConfig::Tiny();
    bad.change(config);
    const Status status = Validate(config);
    ASSERT_FALSE(status) << bad.field;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidConfig) << bad.field;
    EXPECT_EQ(status.error().field, bad.field);
    EXPECT_EQ(status.error().message.rfind(bad.field + ": ", 0), 0U) << status.error().message;
  }
}

}  // namespace
}  // namespace millipede
