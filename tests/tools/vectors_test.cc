// verify on the real vector files, and decode --check at the real shapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "tools/command.h"
#include "tools/command_line.h"
#include "tools/executor.h"
#include "tools/indexer_case.h"
#include "tools/vector_files.h"
#include "tools/vector_judge.h"
#include "tools/vector_run.h"

namespace millipede::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string VectorPath(const std::string& name) {
  return std::string(MILLIPEDE_VECTORS_DIR) + "/" + name + ".safetensors";
}

class FileTest : public ::testing::TestWithParam<const char*> {};

TEST_P(FileTest, Holds) {
  const CommandResult result = RunWords({"verify", VectorPath(GetParam())});
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("ok: 1 of 1 files hold"));
}

INSTANTIATE_TEST_SUITE_P(Vectors, FileTest,
                         ::testing::Values("swa_short", "swa_mixed", "swa_tail", "swa_ragged",
                                           "swa_grow", "hca_short", "hca_mixed", "hca_tail",
                                           "hca_ragged", "hca_grow", "csa_short", "csa_leaf",
                                           "csa_mixed", "csa_tail", "csa_ragged", "csa_grow",
                                           "indexer_edges", "indexer_128_leaves", "indexer_ties"),
                         [](const auto& step) { return std::string(step.param); });

TEST(VerifyFlashTest, TheDumpHoldsToo) {
  const TemporaryFolder folder;
  const std::string dump = folder.File("dump");
  const std::vector<std::string> names = {"swa_tail", "hca_ragged", "csa_leaf", "indexer_ties"};
  std::vector<std::string> words = {"verify", "--dump", dump};
  for (const std::string& name : names) words.push_back(VectorPath(name));
  EXPECT_EQ(RunWords(words).exit_code, tools::kExitOk);
  const CommandResult again = RunWords({"verify", dump});
  EXPECT_EQ(again.exit_code, tools::kExitOk) << again.out << again.err;
  for (const std::string& name : names) {
    EXPECT_THAT(again.out, HasSubstr(name + ".safetensors: ok"));
  }
}

// One file's weights and what runs it.
struct FlashBench {
  explicit FlashBench(const std::string& name)
      : file(*fixtures::SafetensorsFile::Load(VectorPath(name))),
        vectors(*tools::ReadVectorCase(file, ModelConfig::Flash(), problems)),
        weights(*tools::VectorWeights::Make(ModelConfig::Flash(), vectors.kind, vectors.seed)),
        executor(*tools::MakeExecutor(2)),
        context(*executor),
        streams{sink, sink},
        progress(streams) {}

  std::vector<std::string> problems;
  fixtures::SafetensorsFile file;
  tools::VectorCase vectors;
  tools::VectorWeights weights;
  std::unique_ptr<Executor> executor;
  Context context;
  std::ostringstream sink;
  tools::Streams streams;
  tools::Progress progress;
};

// The first problem or violation that speaks of the tensor, or nothing.
std::string Finding(const tools::FileReport& report, const std::string& tensor) {
  for (const std::string& problem : report.problems) {
    if (problem.find(tensor) != std::string::npos) return problem;
  }
  for (const tools::RuleRow& row : report.rules.rows()) {
    for (const tools::Violation& violation : row.violations) {
      if (violation.where.find(tensor) != std::string::npos) return violation.text;
    }
  }
  return "";
}

// A file of one step, and the request whose tensors are spoilt.
struct OneStepFile {
  const char* name;
  const char* request;
};
class OneStepFileTest : public ::testing::TestWithParam<OneStepFile> {};

// Each tensor name spoilt once, and the whole verification done again with it.
TEST_P(OneStepFileTest, EveryTensorIsChecked) {
  FlashBench bench(GetParam().name);
  const VectorFile good = VectorFile::Of(bench.file);
  for (const auto& item : good.tensors) {
    if (item.first.rfind(GetParam().request, 0) != 0) continue;
    VectorFile contents = good;
    Spoil(contents.tensors[item.first]);
    const fixtures::SafetensorsFile spoilt = contents.Parse();
    tools::FileReport report;
    const auto vectors = tools::ReadVectorCase(spoilt, ModelConfig::Flash(), report.problems);
    ASSERT_TRUE(vectors);
    if (report.problems.empty()) {
      const auto own =
          tools::RunVectorCase(bench.weights, *vectors, spoilt, bench.context, bench.progress);
      ASSERT_TRUE(own) << own.error().message;
      report = tools::JudgeVectorCase(*vectors, spoilt, *own);
    }
    EXPECT_FALSE(report.ok()) << item.first;
    EXPECT_NE(Finding(report, item.first), "") << item.first << "\n" << report.Text();
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, OneStepFileTest,
                         ::testing::Values(OneStepFile{"swa_tail", "r"},
                                           OneStepFile{"hca_ragged", "r3."},
                                           OneStepFile{"csa_leaf", "r0."}),
                         [](const auto& step) { return std::string(step.param.name); });

class GrowFileTest : public ::testing::TestWithParam<const char*> {};

// Each tensor spoilt once, and the values of one run judged by it.
TEST_P(GrowFileTest, EveryTensorIsChecked) {
  FlashBench bench(GetParam());
  const auto own =
      tools::RunVectorCase(bench.weights, bench.vectors, bench.file, bench.context, bench.progress);
  ASSERT_TRUE(own) << own.error().message;
  const VectorFile good = VectorFile::Of(bench.file);
  for (const auto& item : good.tensors) {
    for (const bool last : {false, true}) {
      VectorFile contents = good;
      Spoil(contents.tensors[item.first], last);
      const fixtures::SafetensorsFile spoilt = contents.Parse();
      tools::FileReport report;
      const auto vectors = tools::ReadVectorCase(spoilt, ModelConfig::Flash(), report.problems);
      ASSERT_TRUE(vectors);
      if (report.problems.empty()) report = tools::JudgeVectorCase(*vectors, spoilt, *own);
      EXPECT_FALSE(report.ok()) << item.first;
      EXPECT_NE(Finding(report, item.first), "") << item.first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, GrowFileTest,
                         ::testing::Values("swa_grow", "hca_grow", "csa_grow"),
                         [](const auto& step) { return std::string(step.param); });

TEST(VerifyFlashTest, EveryTensorOfAnIndexerFileIsChecked) {
  const auto file = fixtures::SafetensorsFile::Load(VectorPath("indexer_edges"));
  ASSERT_TRUE(file);
  std::vector<std::string> problems;
  const auto indexer = tools::ReadIndexerCase(*file, ModelConfig::Flash(), problems);
  ASSERT_TRUE(indexer);
  const auto executor = *tools::MakeExecutor(2);
  Context context(*executor);
  const auto own = tools::RunIndexerCase(*indexer, context);
  ASSERT_TRUE(own) << own.error().message;
  const VectorFile good = VectorFile::Of(*file);
  for (const auto& item : good.tensors) {
    for (const bool last : {false, true}) {
      VectorFile contents = good;
      Spoil(contents.tensors[item.first], last);
      const tools::FileReport report = tools::JudgeIndexerCase(*indexer, contents.Parse(), *own);
      EXPECT_FALSE(report.ok()) << item.first;
      EXPECT_NE(Finding(report, item.first), "") << item.first;
    }
  }
}

class DecodeFlashTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DecodeFlashTest, TheMixedStepHolds) {
  const CommandResult result =
      RunLine(std::string("decode --start-pos 16384,16384,131072,524288 --seq 8 --check ") +
              "--attention " + GetParam());
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.out << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(result.out, HasSubstr("end to end"));
}

TEST_P(DecodeFlashTest, TheLastTokensHold) {
  const CommandResult result =
      RunLine(std::string("decode --start-pos 1048568 --seq 8 --check --attention ") + GetParam());
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("end to end"));
}

TEST_P(DecodeFlashTest, AProStepHolds) {
  const CommandResult result =
      RunLine(std::string("decode --preset pro --start-pos 3,4220 --seq 5 --check --attention ") +
              GetParam());
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.out << result.err;
}

INSTANTIATE_TEST_SUITE_P(Kinds, DecodeFlashTest, ::testing::Values("swa", "hca", "csa"),
                         [](const auto& step) { return std::string(step.param); });

TEST(OutputFlashTest, TheOutputHalfHolds) {
  const CommandResult result = RunLine("decode --output-only --batch 3 --seq 2 --check");
  EXPECT_EQ(result.exit_code, tools::kExitOk) << result.out << result.err;
}

}  // namespace
}  // namespace millipede::testing
