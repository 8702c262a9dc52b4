// verify at tiny shapes: what it accepts, and that nothing spoilt, missing or unknown passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "tools/command.h"
#include "tools/command_line.h"
#include "tools/vector_files.h"
#include "tools/vector_judge.h"
#include "tools/vector_run.h"

namespace millipede::testing {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr uint64_t kSeed = 3;

// One kind's weights and threads, made once for all files of one seed.
class Bench {
 public:
  explicit Bench(AttentionKind kind)
      : weights_(*tools::VectorWeights::Make(ModelConfig::Tiny(), kind, kSeed)),
        executor_(MakeSerialExecutor()),
        context_(*executor_),
        streams_{sink_, sink_},
        progress_(streams_) {}

  // What verify does with a file, at tiny shapes.
  tools::FileReport Verify(const VectorFile& contents) {
    const fixtures::SafetensorsFile file = contents.Parse();
    tools::FileReport report;
    auto vectors = tools::ReadVectorCase(file, ModelConfig::Tiny(), report.problems);
    if (!vectors) report.problems.push_back(vectors.error().message);
    if (!report.problems.empty()) return report;
    auto own = tools::RunVectorCase(weights_, *vectors, file, context_, progress_);
    if (!own) {
      report.problems.push_back(own.error().message);
      return report;
    }
    return tools::JudgeVectorCase(*vectors, file, *own);
  }

  // The file with the library's own values in place of the golden's, so that every rule holds at
  // any shape.
  VectorFile OwnFile(const VectorFile& contents) {
    const fixtures::SafetensorsFile file = contents.Parse();
    std::vector<std::string> problems;
    auto vectors = tools::ReadVectorCase(file, ModelConfig::Tiny(), problems);
    EXPECT_TRUE(vectors) << vectors.error().message;
    EXPECT_THAT(problems, IsEmpty());
    auto own = tools::RunVectorCase(weights_, *vectors, file, context_, progress_);
    EXPECT_TRUE(own) << own.error().message;
    auto bytes = tools::DumpVectorCase(*vectors, file, *own).Serialize();
    return VectorFile::Of(*fixtures::SafetensorsFile::Parse(*std::move(bytes), "own"));
  }

 private:
  tools::VectorWeights weights_;
  std::unique_ptr<Executor> executor_;
  Context context_;
  std::ostringstream sink_;
  tools::Streams streams_;
  tools::Progress progress_;
};

// Starts of a file of one step for each kind, with blocks that end in it; CSA: the first request
// has more candidates than it selects after its second token.
std::vector<int64_t> StartPositions(AttentionKind kind) {
  return {kind == AttentionKind::kCsa ? 2050 : 300, 7, 2, 126};
}
const std::vector<int64_t> kTokensPerStep = {4, 0, 1, 3};

VectorFile GoldenFile(AttentionKind kind) {
  return MakeLayerFile(ModelConfig::Tiny(), kind, kSeed, StartPositions(kind), kTokensPerStep, 1);
}

// Good files of one kind.
struct KindFiles {
  explicit KindFiles(AttentionKind kind)
      : bench(kind),
        one_step(bench.OwnFile(GoldenFile(kind))),
        grow(bench.OwnFile(MakeLayerFile(ModelConfig::Tiny(), kind, kSeed,
                                         {kind == AttentionKind::kHca ? 120 : 0}, {3}, 5))) {}

  std::vector<VectorFile*> files() { return {&one_step, &grow}; }

  Bench bench;
  VectorFile one_step;
  VectorFile grow;
};

constexpr AttentionKind kKinds[] = {AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa};

// Made when a test first needs them, and kept for all others of this process.
KindFiles& FilesOf(AttentionKind kind) {
  static std::map<AttentionKind, std::unique_ptr<KindFiles>> files;
  auto& entry = files[kind];
  if (!entry) entry = std::make_unique<KindFiles>(kind);
  return *entry;
}

class VerifyTest : public ::testing::TestWithParam<AttentionKind> {
 protected:
  Bench& bench() { return FilesOf(GetParam()).bench; }
  const VectorFile& one_step() { return FilesOf(GetParam()).one_step; }
};

INSTANTIATE_TEST_SUITE_P(Kinds, VerifyTest, ::testing::ValuesIn(kKinds),
                         [](const auto& step) { return std::string(KindName(step.param)); });

// Tests of what does not depend on the kind.
class SwaVerifyTest : public ::testing::Test {
 protected:
  static Bench& bench() { return FilesOf(AttentionKind::kSwa).bench; }
  static const VectorFile& one_step() { return FilesOf(AttentionKind::kSwa).one_step; }
};

// True if a problem or a violation speaks of the tensor.
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

TEST_P(VerifyTest, OwnValuesHold) {
  for (const VectorFile* file : FilesOf(GetParam()).files()) {
    const tools::FileReport report = bench().Verify(*file);
    EXPECT_TRUE(report.ok()) << report.Text();
    EXPECT_GT(report.rules.num_values(), 0);
  }
}

TEST_P(VerifyTest, TheDumpHasTheSameTensors) {
  const VectorFile golden = GoldenFile(GetParam());
  ASSERT_EQ(golden.tensors.size(), one_step().tensors.size());
  EXPECT_EQ(golden.metadata, one_step().metadata);
  for (const auto& [name, tensor] : golden.tensors) {
    ASSERT_TRUE(one_step().tensors.contains(name)) << name;
    EXPECT_EQ(tensor.shape, one_step().tensors.at(name).shape) << name;
    EXPECT_EQ(tensor.dtype, one_step().tensors.at(name).dtype) << name;
  }
}

// One spoilt value in any tensor fails the file, and the report says which tensor it was.
TEST_P(VerifyTest, EveryTensorIsChecked) {
  for (const VectorFile* good : FilesOf(GetParam()).files()) {
    for (const auto& item : good->tensors) {
      if (item.second.bytes.empty()) continue;
      for (const bool last : {false, true}) {
        VectorFile spoilt = *good;
        Spoil(spoilt.tensors[item.first], last);
        const tools::FileReport report = bench().Verify(spoilt);
        EXPECT_FALSE(report.ok()) << item.first;
        EXPECT_TRUE(Names(report, item.first)) << item.first << "\n" << report.Text();
      }
    }
  }
}

TEST_P(VerifyTest, NanFailsWhereverItStands) {
  for (const auto& item : one_step().tensors) {
    VectorFile spoilt = one_step();
    StoredTensor& tensor = spoilt.tensors[item.first];
    if (tensor.dtype != fixtures::DType::kF32 && tensor.dtype != fixtures::DType::kBf16) continue;
    if (tensor.bytes.empty()) continue;
    tensor.bytes[tensor.bytes.size() - 1] = std::byte{0x7F};
    tensor.bytes[tensor.bytes.size() - 2] = std::byte{0xC0};
    EXPECT_FALSE(bench().Verify(spoilt).ok()) << item.first;
  }
}

TEST_P(VerifyTest, EveryTensorIsRequired) {
  for (const auto& item : one_step().tensors) {
    VectorFile lacking = one_step();
    lacking.tensors.erase(item.first);
    const tools::FileReport report = bench().Verify(lacking);
    EXPECT_FALSE(report.ok());
    EXPECT_THAT(report.problems, Contains(StartsWith(item.first + ": missing")));
  }
}

TEST_P(VerifyTest, ShapesAndTypesAreCompared) {
  for (const auto& item : one_step().tensors) {
    if (item.second.bytes.empty()) continue;
    VectorFile longer = one_step();
    StoredTensor& tensor = longer.tensors[item.first];
    const size_t row_bytes = tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]);
    tensor.shape[0] += 1;
    tensor.bytes.resize(tensor.bytes.size() + row_bytes);
    EXPECT_FALSE(bench().Verify(longer).ok()) << item.first;

    VectorFile other = one_step();
    StoredTensor& typed = other.tensors[item.first];
    typed.dtype = fixtures::DType::kI8;
    typed.shape = {static_cast<int64_t>(typed.bytes.size())};
    EXPECT_TRUE(Names(bench().Verify(other), item.first)) << item.first;
  }
}

// Attention is given stored selections: none that it would refuse gets that far.
TEST(CsaVerifyTest, SelectionsMustMakeSense) {
  KindFiles& files = FilesOf(AttentionKind::kCsa);
  const auto spoil = [&](const char* tensor, size_t place, int32_t row) {
    VectorFile spoilt = files.one_step;
    std::memcpy(spoilt.tensors[tensor].bytes.data() + place * sizeof(row), &row, sizeof(row));
    const tools::FileReport report = files.bench.Verify(spoilt);
    EXPECT_THAT(report.problems, Contains(AllOf(StartsWith(tensor), HasSubstr("not a selection"))))
        << place << " " << row;
  };
  // r0 selects 512 rows of 512 and 513 visible ones; r2 sees none; r3 sees 31 and 32.
  for (const int32_t row : {-1, -2, 513, 1 << 30}) spoil("r0.topk_idx", 100, row);
  int32_t first = 0;
  std::memcpy(&first, files.one_step.tensors.at("r0.topk_idx").bytes.data(), sizeof(first));
  spoil("r0.topk_idx", 100, first);  // twice
  spoil("r2.topk_idx", 0, 0);
  spoil("r3.topk_idx", 31, 31);  // its first token sees rows 0 to 30
  spoil("r3.topk_idx", 40, 5);   // behind the padding
}

TEST(CsaVerifyTest, StateRowsOfAFileOfOneStepAreAllStored) {
  for (const AttentionKind kind : {AttentionKind::kHca, AttentionKind::kCsa}) {
    KindFiles& files = FilesOf(kind);
    VectorFile wide = files.one_step;
    wide.metadata["tokens_per_step"] = "[9,0,1,3]";
    EXPECT_TRUE(Names(files.bench.Verify(wide), "tokens_per_step[0]: 9"));
    VectorFile other = files.one_step;
    other.metadata["ratio"] = "32";
    EXPECT_TRUE(Names(files.bench.Verify(other), "ratio: 32"));
  }
}

TEST_F(SwaVerifyTest, UnknownTensorsFail) {
  for (const char* name : {"r0.extra", "r1.kv", "r4.kv", "kv", "r0.kv2"}) {
    VectorFile more = one_step();
    more.tensors[name] = more.tensors.at("r0.kv");
    const tools::FileReport report = bench().Verify(more);
    EXPECT_THAT(report.problems, Contains(StartsWith(std::string(name) + ": unknown tensor")));
  }
}

TEST_F(SwaVerifyTest, TokenListsMustMakeSense) {
  const auto set = [](StoredTensor& tensor, std::vector<int32_t> tokens) {
    tensor.shape = {static_cast<int64_t>(tokens.size())};
    const auto bytes = std::as_bytes(std::span(tokens));
    tensor.bytes.assign(bytes.begin(), bytes.end());
  };
  for (const std::vector<int32_t>& tokens : {std::vector<int32_t>{},
                                             {-1, 1, 2, 3},
                                             {0, 1, 1, 3},
                                             {0, 2, 1, 3},
                                             {0, 1, 2, 4},
                                             {0, 1, 2}}) {
    VectorFile spoilt = one_step();
    set(spoilt.tensors["r0.tokens"], tokens);
    EXPECT_TRUE(Names(bench().Verify(spoilt), "r0.tokens"));
  }
  VectorFile moved = one_step();
  set(moved.tensors["r0.probe_tokens"], {0, 1, 3});  // 2 is what is stored
  const tools::FileReport report = bench().Verify(moved);
  EXPECT_FALSE(report.ok());
  EXPECT_TRUE(Names(report, "r0.x_mixed token 1")) << report.Text();
}

TEST_F(SwaVerifyTest, MetadataMustMakeSense) {
  const auto expect_problem = [](const char* key, std::optional<std::string> value) {
    VectorFile spoilt = one_step();
    if (value) {
      spoilt.metadata[key] = *value;
    } else {
      spoilt.metadata.erase(key);
    }
    const tools::FileReport report = bench().Verify(spoilt);
    EXPECT_FALSE(report.ok()) << key;
    EXPECT_TRUE(Names(report, key)) << key << "\n" << report.Text();
  };
  for (const char* key : {"kind", "ratio", "seed", "start_pos", "tokens_per_step", "steps"}) {
    expect_problem(key, std::nullopt);
    expect_problem(key, "{]");
  }
  expect_problem("kind", "mla");
  expect_problem("ratio", "4");
  expect_problem("steps", "0");
  expect_problem("start_pos", "[300,7,2]");
  expect_problem("start_pos", "[-300,7,2,126]");
  expect_problem("start_pos", "[1048577,7,2,126]");
  expect_problem("tokens_per_step", "[4,0,1,-3]");
  expect_problem("tokens_per_step", "[4611686018427387904,0,1,3]");
}

TEST_F(SwaVerifyTest, NothingToCheckFails) {
  VectorFile idle = one_step();
  idle.metadata["tokens_per_step"] = "[0,0,0,0]";
  idle.tensors.clear();
  const tools::FileReport report = bench().Verify(idle);
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(report.problems, Contains(HasSubstr("nothing to check")));
}

TEST_F(SwaVerifyTest, OtherHistoryFails) {
  for (const char* start : {"[301,7,2,126]", "[300,7,3,126]"}) {
    VectorFile moved = one_step();
    moved.metadata["start_pos"] = start;
    EXPECT_FALSE(bench().Verify(moved).ok()) << start;
  }
}

// --- The command ---------------------------------------------------------------------------------

TEST(VerifyCommandTest, AnEmptyFolderFails) {
  const TemporaryFolder folder;
  const CommandResult result = RunWords({"verify", folder.path()});
  EXPECT_EQ(result.exit_code, tools::kExitViolation);
  EXPECT_THAT(result.out, HasSubstr("nothing was checked"));
}

TEST(VerifyCommandTest, FoldersAreReadForVectorFilesOnly) {
  const TemporaryFolder folder;
  std::ofstream(folder.File("notes.txt")) << "no vectors";
  EXPECT_THAT(RunWords({"verify", folder.path()}).out, HasSubstr("nothing was checked"));
}

TEST(VerifyCommandTest, UnknownKindsFailTheirFile) {
  const TemporaryFolder folder;
  for (const char* kind : {"mla", "indexers", "CSA"}) {
    VectorFile file;
    file.metadata = {{"kind", kind}};
    file.tensors["r0.tokens"] = {fixtures::DType::kI32, {1}, std::vector<std::byte>(4)};
    file.Write(folder.File(std::string(kind) + ".safetensors"));
  }
  const CommandResult result = RunWords({"verify", folder.path()});
  EXPECT_EQ(result.exit_code, tools::kExitViolation);
  for (const char* kind : {"mla", "indexers", "CSA"}) {
    EXPECT_THAT(result.out, HasSubstr(std::string("kind: ") + kind + "; allowed: swa, hca, csa"));
  }
  EXPECT_THAT(result.out, HasSubstr("0 of 3 files hold"));
}

TEST(VerifyCommandTest, MalformedFilesFailWithTheReason) {
  const TemporaryFolder folder;
  VectorFile file;
  file.metadata = {{"kind", "swa"}};
  file.tensors["r0.tokens"] = {fixtures::DType::kI32, {1}, std::vector<std::byte>(4)};
  const std::vector<std::byte> bytes = file.Serialize();
  const std::string path = folder.File("cut.safetensors");
  for (const size_t size : {size_t{0}, size_t{5}, size_t{20}, bytes.size() - 1}) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(size));
    const CommandResult result = RunWords({"verify", path});
    EXPECT_EQ(result.exit_code, tools::kExitViolation) << size;
    EXPECT_THAT(result.out, HasSubstr(path + ": FAILED"));
  }
}

TEST(VerifyCommandTest, TheDumpDoesNotOverwriteWhatIsVerified) {
  const TemporaryFolder folder;
  VectorFile file;
  file.metadata = {{"kind", "swa"}};
  file.Write(folder.File("a.safetensors"));
  const CommandResult result = RunWords({"verify", folder.path(), "--dump", folder.path() + "/."});
  EXPECT_EQ(result.exit_code, tools::kExitUsage);
  EXPECT_THAT(result.err, HasSubstr("--dump"));
  EXPECT_THAT(result.out, IsEmpty());
}

TEST(VerifyCommandTest, JsonHasTheDocumentedKeys) {
  const TemporaryFolder folder;
  VectorFile file;
  file.metadata = {{"kind", "hca"}};
  file.Write(folder.File("a.safetensors"));
  const CommandResult result = RunWords({"verify", folder.path(), "--json", "-"});
  const nlohmann::json json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["command"], "verify");
  EXPECT_EQ(json["ok"], false);
  ASSERT_EQ(json["files"].size(), 1U);
  for (const char* key : {"path", "kind", "ok", "values", "problems", "rules"}) {
    EXPECT_TRUE(json["files"][0].contains(key)) << key;
  }
}

}  // namespace
}  // namespace millipede::testing
