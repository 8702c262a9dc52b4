// stack at tiny shapes: its streams are the golden's, its bits do not depend on threads, and what
// it reports is true.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "fixtures/formula.h"
#include "reference/golden.h"
#include "tools/batch.h"
#include "tools/command.h"
#include "tools/command_line.h"
#include "tools/stack_step.h"

namespace millipede::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::set<std::string> KeysOf(const nlohmann::json& object) {
  std::set<std::string> keys;
  for (const auto& item : object.items()) keys.insert(item.key());
  return keys;
}

// Six layers of three kinds, whatever the preset has.
tools::StepArguments SixLayers() {
  tools::StepWords words;
  words.preset = "tiny";
  words.seed = "11";
  words.start_pos = "300,2060,2,126";
  words.seq = "3";
  words.threads = "2";
  tools::StepArguments arguments = *tools::ParseStepArguments(words);
  arguments.config.layer_ratios = {0, kCsaRatio, kHcaRatio, kCsaRatio, kHcaRatio, kCsaRatio};
  return arguments;
}

tools::StackStep Execute(const tools::StepArguments& arguments) {
  std::ostringstream sink;
  const tools::Streams streams{sink, sink};
  tools::Progress progress(streams);
  auto step = tools::ExecuteStackStep(arguments, progress);
  EXPECT_TRUE(step) << step.error().message;
  return *std::move(step);
}

// The golden's streams behind the last layer: each layer decodes what the one before made.
std::vector<float> GoldenStreams(const tools::StepArguments& arguments) {
  const ModelConfig& config = arguments.config;
  const auto width = static_cast<size_t>(kHcStreams) * static_cast<size_t>(config.hidden);
  std::vector<std::vector<float>> streams;  // of each token in batch order
  for (size_t r = 0; r < arguments.start_pos.size(); ++r) {
    const fixtures::RequestFixture fixture(config, arguments.seed, static_cast<int64_t>(r));
    for (int64_t i = 0; i < arguments.seq; ++i) fixture.X(i, streams.emplace_back(width));
  }
  std::map<AttentionKind, uint64_t> counts;
  for (size_t layer = 0; layer < config.layer_ratios.size(); ++layer) {
    const AttentionKind kind = *KindOfRatio(config.layer_ratios[layer]);
    const uint64_t sets = static_cast<uint64_t>(arguments.weight_sets);
    const auto weights =
        fixtures::MakeLayerFixture(config, kind, arguments.seed + counts[kind]++ % sets);
    const reference::Golden golden(config, kind, weights.views());
    const int64_t ratio = tools::RatioOf(kind);
    size_t token = 0;
    for (size_t r = 0; r < arguments.start_pos.size(); ++r) {
      const fixtures::RequestFixture history(config, arguments.seed + layer,
                                             static_cast<int64_t>(r));
      reference::Decoder decoder(golden, arguments.start_pos[r], reference::HistoryOf(history));
      for (int64_t i = 0; i < arguments.seq; ++i, ++token) {
        const int64_t position = arguments.start_pos[r] + i;
        const reference::RopeRow rope = reference::RopeRowAt(kind, position);
        reference::RopeRow event_rope;
        if (ratio > 0) event_rope = reference::RopeRowAt(kind, position / ratio * ratio);
        streams[token] =
            decoder.Decode(streams[token], rope, ratio > 0 ? &event_rope : nullptr).x_out;
      }
    }
  }
  std::vector<float> all;
  for (const auto& row : streams) all.insert(all.end(), row.begin(), row.end());
  return all;
}

double RelativeRms(const std::vector<float>& a, const std::vector<float>& e) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < e.size(); ++i) {
    difference += (double{a[i]} - e[i]) * (double{a[i]} - e[i]);
    norm += double{e[i]} * e[i];
  }
  return std::sqrt(difference / norm);
}

TEST(StackTest, StreamsAreTheGoldens) {
  for (const int64_t sets : {1, 2}) {
    tools::StepArguments arguments = SixLayers();
    arguments.weight_sets = sets;
    const tools::StackStep step = Execute(arguments);
    const std::vector<float> expected = GoldenStreams(arguments);
    ASSERT_EQ(step.x_out.size(), expected.size());
    EXPECT_LT(RelativeRms(step.x_out, expected), 1e-2);
    // It is these weights and histories that make them.
    tools::StepArguments other = arguments;
    other.weight_sets = 3 - sets;
    EXPECT_GT(RelativeRms(step.x_out, GoldenStreams(other)), 5e-2);
  }
}

TEST(StackTest, BitsDependOnTheModelAlone) {
  tools::StepArguments arguments = SixLayers();
  const tools::StackStep step = Execute(arguments);
  for (const int threads : {1, 3}) {
    arguments.threads = threads;
    EXPECT_EQ(Execute(arguments).x_out, step.x_out);
  }
  arguments.check = true;  // commits each layer at once
  EXPECT_EQ(Execute(arguments).x_out, step.x_out);
  EXPECT_EQ(Execute(arguments).report.checksum, step.report.checksum);

  std::set<uint64_t> checksums{step.report.checksum};
  for (const int64_t sets : {2, 3}) {
    tools::StepArguments other = SixLayers();
    other.weight_sets = sets;
    EXPECT_TRUE(checksums.insert(Execute(other).report.checksum).second) << sets;
  }
  tools::StepArguments other = SixLayers();
  std::swap(other.config.layer_ratios[1], other.config.layer_ratios[2]);
  EXPECT_TRUE(checksums.insert(Execute(other).report.checksum).second);
}

TEST(StackTest, EveryLayerIsChecked) {
  tools::StepArguments arguments = SixLayers();
  arguments.check = true;
  arguments.weight_sets = 2;
  const tools::StackReport report = Execute(arguments).report;
  ASSERT_TRUE(report.check);
  EXPECT_TRUE(report.check->ok()) << report.check->Text();
  EXPECT_THAT(report.differences, IsEmpty());
  EXPECT_EQ(report.check->Find("x_out", "stage, from attn_out, post and comb")->num_judged, 6 * 12);
  EXPECT_EQ(report.check->Find("topk_idx", "stage, from idx_q and the keys")->num_judged, 3 * 12);
  EXPECT_EQ(report.check->Find("positions", "after commit, exact")->num_values, 6 * 4);
}

TEST(StackTest, CountsAllLayersOfAKind) {
  const tools::StackReport report = Execute(SixLayers()).report;
  EXPECT_THAT(report.differences, IsEmpty());
  ASSERT_EQ(report.kinds.size(), 3U);
  EXPECT_EQ(report.kinds[0].kind, AttentionKind::kSwa);
  EXPECT_EQ(report.kinds[0].total.tokens, 12);
  EXPECT_EQ(report.kinds[1].kind, AttentionKind::kCsa);
  EXPECT_EQ(report.kinds[1].num_layers, 3);
  EXPECT_EQ(report.kinds[1].total.tokens, 3 * 12);
  EXPECT_EQ(report.kinds[1].total.events, 3 * 2);  // positions 3 and 127
  EXPECT_EQ(report.kinds[2].total.events, 2 * 1);
  EXPECT_EQ(report.kinds[2].total.raw_pages_touched, 4 + 4 + 1 + 4);
}

TEST(StackTest, CacheBytesAreThoseOfEveryLayer) {
  const nlohmann::json json =
      nlohmann::json::parse(RunLine("stack --preset tiny --start-pos 4090,1 --seq 7 --json -").out);
  const int64_t raw = 4 * 32 * 1024;
  const int64_t hca_state = 16 * 8 * 4096;
  const int64_t csa_rings = 4 * 2 * (8192 + 2048);
  // 4,097 tokens: 32 HCA rows, one page; 1,024 CSA rows, 32 pages.
  EXPECT_EQ(json["requests"][0]["cache_bytes"],
            3 * raw + hca_state + 32 * 1024 + csa_rings + 32 * 32 * (1024 + 128 + 4));
  // 8 tokens: no HCA row; two CSA rows, one page.
  EXPECT_EQ(json["requests"][1]["cache_bytes"],
            3 * raw + hca_state + csa_rings + 32 * (1024 + 128 + 4));
  EXPECT_EQ(json["cache_bytes"], json["requests"][0]["cache_bytes"].get<int64_t>() +
                                     json["requests"][1]["cache_bytes"].get<int64_t>());
}

TEST(StackCommandTest, PrintsItsReport) {
  const CommandResult result = RunLine("stack --preset tiny --start-pos 300,2060 --seq 3 --check");
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.err << result.out;
  for (const char* part : {"stack of 3 layers (1 swa, 1 hca, 1 csa)", "cache bytes", "tokens/s",
                           "ms per layer", "tokens per second of attention",
                           "checksum of the streams", "check of 3 layers", "every rule holds"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST(StackCommandTest, JsonHasTheDocumentedKeys) {
  const CommandResult result =
      RunLine("stack --preset tiny --start-pos 300,2060 --seq 3 --check --json -");
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(KeysOf(json),
            (std::set<std::string>{"command", "preset", "seed", "threads", "max_context", "batch",
                                   "seq", "weight_sets", "num_layers", "requests", "kinds",
                                   "phases", "weight_bytes", "cache_bytes", "tokens_per_second",
                                   "checksum", "check", "peak_memory_bytes"}));
  ASSERT_EQ(json["kinds"].size(), 3U);
  for (const auto& kind : json["kinds"]) {
    EXPECT_EQ(KeysOf(kind),
              (std::set<std::string>{"kind", "num_layers", "run_ms", "commit_ms", "total",
                                     "regions", "workspace_bytes", "overlay_bytes"}));
  }
  EXPECT_EQ(json["check"]["ok"], true);
  EXPECT_EQ(json["checksum"].get<std::string>().size(), 16U);
}

TEST(StackCommandTest, RunsAMillionTokens) {
  const std::string line = "stack --preset tiny --start-pos 1048570 --seq 6 --json - --threads ";
  const nlohmann::json one = nlohmann::json::parse(RunLine(line + "1").out);
  const nlohmann::json two = nlohmann::json::parse(RunLine(line + "2").out);
  EXPECT_EQ(one["checksum"], two["checksum"]);
  EXPECT_EQ(one["kinds"][1]["total"]["shards"], 5 * 64 + 64);
  EXPECT_EQ(one["kinds"][2]["total"]["leaves"], 6 * 128);
}

}  // namespace
}  // namespace millipede::testing
