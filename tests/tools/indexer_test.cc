// verify of indexer files: exact selections hold, and nothing spoilt, missing or unknown passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tools/command.h"
#include "tools/command_line.h"
#include "tools/indexer_case.h"
#include "tools/vector_files.h"

namespace millipede::testing {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr uint64_t kSeed = 9;

// Tiny shapes, but with heads enough that no score is 0: a gap is relative to one.
ModelConfig SmallConfig() {
  ModelConfig config = ModelConfig::Tiny();
  config.num_index_heads = 48;
  return config;
}

// What verify does with a file, at small shapes.
tools::FileReport Verify(const VectorFile& contents) {
  const std::unique_ptr<Executor> executor = MakeSerialExecutor();
  Context context(*executor);
  const fixtures::SafetensorsFile file = contents.Parse();
  tools::FileReport report;
  auto indexer = tools::ReadIndexerCase(file, SmallConfig(), report.problems);
  if (!indexer) report.problems.push_back(indexer.error().message);
  if (!report.problems.empty()) return report;
  auto own = tools::RunIndexerCase(*indexer, context);
  EXPECT_TRUE(own) << own.error().message;
  return tools::JudgeIndexerCase(*indexer, file, *own);
}

bool Names(const tools::FileReport& report, const std::string& tensor) {
  const auto speaks = [&](const std::string& text) {
    return text.find(tensor) != std::string::npos;
  };
  if (std::any_of(report.problems.begin(), report.problems.end(), speaks)) return true;
  for (const tools::RuleRow& row : report.rules.rows()) {
    for (const tools::Violation& violation : row.violations) {
      if (speaks(violation.where)) return true;
    }
  }
  return false;
}

class IndexerFileTest : public ::testing::TestWithParam<fixtures::IndexerValues> {
 protected:
  void SetUp() override {
    // Ties are made with candidates that are left out.
    file_ = GetParam() == fixtures::IndexerValues::kTies
                ? MakeIndexerFile(SmallConfig(), GetParam(), kSeed, {600, 2049})
                : MakeIndexerFile(SmallConfig(), GetParam(), kSeed,
                                  {0, 1, 511, 512, 513, 2047, 2048, 2049, 4100});
  }

  VectorFile file_;
};

INSTANTIATE_TEST_SUITE_P(Values, IndexerFileTest,
                         ::testing::Values(fixtures::IndexerValues::kPlain,
                                           fixtures::IndexerValues::kTies),
                         [](const auto& step) {
                           return step.param == fixtures::IndexerValues::kTies ? "ties" : "plain";
                         });

TEST_P(IndexerFileTest, TheGoldensSelectionsHold) {
  const tools::FileReport report = Verify(file_);
  EXPECT_TRUE(report.ok()) << report.Text();
  EXPECT_EQ(report.kind, file_.metadata.at("kind"));
}

TEST_P(IndexerFileTest, EveryTensorIsChecked) {
  for (const auto& item : file_.tensors) {
    for (const bool last : {false, true}) {
      VectorFile spoilt = file_;
      Spoil(spoilt.tensors[item.first], last);
      const tools::FileReport report = Verify(spoilt);
      EXPECT_FALSE(report.ok()) << item.first;
      EXPECT_TRUE(Names(report, item.first)) << item.first << "\n" << report.Text();
    }
  }
}

TEST_P(IndexerFileTest, EveryTensorIsRequiredAndNoOther) {
  for (const auto& item : file_.tensors) {
    VectorFile lacking = file_;
    lacking.tensors.erase(item.first);
    EXPECT_THAT(Verify(lacking).problems, Contains(StartsWith(item.first + ": missing")));
    VectorFile longer = file_;
    StoredTensor& tensor = longer.tensors[item.first];
    tensor.shape[0] += 1;
    tensor.bytes.resize(tensor.bytes.size() + 4);
    EXPECT_TRUE(Names(Verify(longer), item.first));
  }
  for (const char* name : {"c0.gap", "c99.topk_idx", "topk_idx"}) {
    VectorFile more = file_;
    more.tensors[name] = file_.tensors.at("c0.topk_idx");
    EXPECT_THAT(Verify(more).problems, Contains(StartsWith(std::string(name) + ": unknown")));
  }
}

TEST_P(IndexerFileTest, MetadataMustMakeSense) {
  for (const char* candidates : {"[]", "[-1]", "[262145]", "7", "{]"}) {
    VectorFile spoilt = file_;
    spoilt.metadata["candidates"] = candidates;
    EXPECT_TRUE(Names(Verify(spoilt), "candidates")) << candidates;
  }
  for (const char* key : {"seed", "candidates"}) {
    VectorFile lacking = file_;
    lacking.metadata.erase(key);
    EXPECT_TRUE(Names(Verify(lacking), key)) << key;
  }
}

TEST_P(IndexerFileTest, TheDumpHoldsAndHasTheSameTensors) {
  const std::unique_ptr<Executor> executor = MakeSerialExecutor();
  Context context(*executor);
  const fixtures::SafetensorsFile file = file_.Parse();
  std::vector<std::string> problems;
  const auto indexer = tools::ReadIndexerCase(file, SmallConfig(), problems);
  ASSERT_TRUE(indexer);
  ASSERT_THAT(problems, IsEmpty());
  const auto own = tools::RunIndexerCase(*indexer, context);
  ASSERT_TRUE(own);
  auto bytes = tools::DumpIndexerCase(*indexer, file, *own).Serialize();
  ASSERT_TRUE(bytes);
  const VectorFile dump =
      VectorFile::Of(*fixtures::SafetensorsFile::Parse(*std::move(bytes), "dump"));
  EXPECT_EQ(dump.metadata, file_.metadata);
  ASSERT_EQ(dump.tensors.size(), file_.tensors.size());
  EXPECT_TRUE(Verify(dump).ok());
}

// The order of equal scores, the lower candidate first, is part of what is exact.
TEST(IndexerTiesTest, TheOrderOfEqualScoresMatters) {
  VectorFile file = MakeIndexerFile(SmallConfig(), fixtures::IndexerValues::kTies, kSeed, {600});
  StoredTensor& idx = file.tensors.at("c0.topk_idx");
  const auto& score = file.tensors.at("c0.topk_score");
  auto* rows = reinterpret_cast<int32_t*>(idx.bytes.data());
  const auto* scores = reinterpret_cast<const float*>(score.bytes.data());
  size_t equal = 0;
  while (equal < 511 && scores[equal] != scores[equal + 1]) ++equal;
  ASSERT_LT(equal, 511U) << "no two scores are equal";
  std::swap(rows[equal], rows[equal + 1]);
  EXPECT_TRUE(Names(Verify(file), "c0.topk_idx"));
}

TEST(IndexerCommandTest, FilesAreToldByTheirKind) {
  const TemporaryFolder folder;
  // Flash, which the command verifies for, has other queries than the tiny shapes.
  MakeIndexerFile(ModelConfig::Flash(), fixtures::IndexerValues::kPlain, kSeed, {0, 700})
      .Write(folder.File("good.safetensors"));
  const CommandResult good = RunWords({"verify", folder.path(), "--dump", folder.File("dump")});
  EXPECT_EQ(good.exit_code, tools::kExitOk) << good.out << good.err;
  EXPECT_EQ(RunWords({"verify", folder.File("dump")}).exit_code, tools::kExitOk);
  MakeIndexerFile(ModelConfig::Tiny(), fixtures::IndexerValues::kPlain, kSeed, {0, 700})
      .Write(folder.File("other.safetensors"));
  const CommandResult other = RunWords({"verify", folder.path()});
  EXPECT_EQ(other.exit_code, tools::kExitViolation);
  EXPECT_THAT(other.out, HasSubstr("1 of 2 files hold"));
}

}  // namespace
}  // namespace millipede::testing
