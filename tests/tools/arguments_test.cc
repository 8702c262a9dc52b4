// Bad arguments: one line on standard error that names the field, the value and what is allowed,
// nothing on standard output, exit code 2.
#include "tools/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <sstream>

#include "tools/command.h"
#include "tools/command_line.h"

namespace millipede::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

struct Refusal {
  const char* name;
  const char* line;
  std::vector<const char*> parts;  // of the message, in no order
};

class RefusalTest : public ::testing::TestWithParam<Refusal> {};

TEST_P(RefusalTest, IsOneClearLine) {
  const CommandResult result = RunLine(GetParam().line);
  EXPECT_EQ(result.exit_code, tools::kExitUsage) << result.err;
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, StartsWith("millipede"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.err.back(), '\n');
  for (const char* part : GetParam().parts) EXPECT_THAT(result.err, HasSubstr(part));
}

TEST(OutputTest, TextThatCannotBeWrittenIsNoSuccess) {
  for (const char* argument : {"--version", "--help"}) {
    std::ostringstream err;
    std::ostream nowhere(nullptr);
    EXPECT_EQ(tools::RunCommand({argument}, {nowhere, err, false}), tools::kExitUsage);
    EXPECT_EQ(err.str(), "millipede: standard output: cannot write\n");
  }
}

const Refusal kRefusals[] = {
    {"NoCommand", "", {"command", "missing", "decode, stack, plan or verify"}},
    {"UnknownCommand", "encode", {"command", "encode", "decode, stack, plan or verify"}},
    {"UnknownOption", "decode --start-pos 0 --fast", {"argument", "--fast", "--help"}},
    {"StrayWord", "decode --start-pos 0 now", {"argument", "now", "--help"}},
    {"NegativePosition", "decode --start-pos -5", {"--start-pos", "-5", "0 to 1048575"}},
    {"NegativeInList", "decode --start-pos 7,-5,9", {"--start-pos[1]", "-5", "0 to 1048575"}},
    {"NegativeWithEquals", "decode --start-pos=-1", {"--start-pos", "-1", "0 to 1048575"}},
    {"Word", "decode --start-pos many", {"--start-pos", "many", "0 to 1048575"}},
    {"Fraction", "decode --start-pos 1.5", {"--start-pos", "1.5", "0 to 1048575"}},
    {"Exponent", "decode --start-pos 1e3", {"--start-pos", "1e3", "0 to 1048575"}},
    {"Hexadecimal", "decode --start-pos 0x10", {"--start-pos", "0x10", "0 to 1048575"}},
    {"PlusSign", "decode --start-pos +1", {"--start-pos", "+1", "0 to 1048575"}},
    {"HoleInList", "decode --start-pos 1,,2", {"--start-pos[1]", "nothing", "0 to 1048575"}},
    {"ListEndsInComma", "decode --start-pos 1,2,", {"--start-pos[2]", "nothing"}},
    {"BeyondInt64",
     "decode --start-pos 99999999999999999999",
     {"--start-pos", "99999999999999999999", "0 to 1048575"}},
    {"PositionAtCeiling", "decode --start-pos 1048576", {"--start-pos", "1048576", "0 to 1048575"}},
    {"PositionAtLoweredCeiling",
     "decode --start-pos 5,100 --max-context 100",
     {"--start-pos[1]", "100", "0 to 99"}},
    {"StepCrossesCeiling",
     "decode --start-pos 3,1048575 --seq 2",
     {"--seq", "request 1", "1048575", "1048577", "1048576"}},
    {"StepCrossesLoweredCeiling",
     "decode --start-pos 96 --seq 5 --max-context 100",
     {"--seq", "96", "101", "100"}},
    {"NoPosition", "decode --seq 2", {"--start-pos", "missing", "a comma list"}},
    {"ListContradictsBatch", "decode --start-pos 1,2,3 --batch 2", {"--batch", "2", "3"}},
    {"BatchOfNone", "decode --start-pos 1 --batch 0", {"--batch", "0", "1 to"}},
    {"BatchTooLarge",
     "decode --start-pos 1 --batch 99999999999",
     {"--batch", "99999999999", "1 to 4194303"}},
    {"BatchNotANumber", "decode --start-pos 1 --batch two", {"--batch", "two", "1 to"}},
    {"SeqOfNone", "decode --start-pos 1 --seq 0", {"--seq", "0", "1 to 1048576"}},
    {"SeqNegative", "decode --start-pos 1 --seq -1", {"--seq", "-1", "1 to 1048576"}},
    {"SeqList", "decode --start-pos 1 --seq 1,2", {"--seq", "1,2", "1 to 1048576"}},
    {"SeqPastInt64",
     "plan --start-pos 0 --seq 1048576 --batch 4194303",
     {"--seq", "1048576", "4194303", "2147483647"}},
    {"StepBeyondMemory",
     "decode --start-pos 0 --seq 1000000 --batch 2000",
     {"--seq", "1000000", "2000", "memory"}},
    {"UnknownAttention",
     "decode --attention mla --start-pos 1",
     {"--attention", "mla", "swa, hca or csa"}},
    {"UnknownPreset",
     "decode --preset large --start-pos 1",
     {"--preset", "large", "flash, pro or tiny"}},
    {"SeedNegative",
     "decode --start-pos 1 --seed -1",
     {"--seed", "-1", "0 to 18446744073709551615"}},
    {"SeedWord", "decode --start-pos 1 --seed x", {"--seed", "x", "0 to"}},
    {"NoThreads", "decode --start-pos 1 --threads 0", {"--threads", "0", "1 to 1024"}},
    {"TooManyThreads", "decode --start-pos 1 --threads 1025", {"--threads", "1025", "1 to 1024"}},
    {"CeilingOfNone",
     "decode --start-pos 0 --max-context 0",
     {"--max-context", "0", "1 to 1048576"}},
    {"CeilingTooHigh",
     "decode --start-pos 0 --max-context 1048577",
     {"--max-context", "1048577", "1 to 1048576"}},
    {"OutputOnlyRefusesPosition",
     "decode --output-only --start-pos 16384",
     {"--start-pos", "16384", "--output-only"}},
    {"OptionWithoutValue", "decode --start-pos", {"--start-pos", "missing", "--help"}},
    {"OptionTwice", "decode --start-pos 1 --seq 1 --seq 2", {"--seq", "--help"}},
    {"JsonInNoFolder",
     "decode --start-pos 1 --preset tiny --json /nonexistent/x.json",
     {"--json", "/nonexistent/x.json", "a file that can be written"}},
    {"PlanRefusesPosition", "plan --start-pos -1", {"millipede plan", "--start-pos", "-1"}},
    {"PlanRunsNothing", "plan --start-pos 1 --check", {"argument", "--check", "--help"}},
    {"StackHasEveryKind", "stack --start-pos 1 --attention csa", {"argument", "--attention"}},
    {"StackWithoutPosition", "stack --seq 2", {"--start-pos", "missing"}},
    {"NoWeightSets", "stack --start-pos 1 --weight-sets 0", {"--weight-sets", "0", "1 to 43"}},
    {"MoreWeightSetsThanLayers",
     "stack --preset tiny --start-pos 1 --weight-sets 4",
     {"--weight-sets", "4", "1 to 3"}},
    {"StackBeyondMemory",
     "stack --start-pos 1048575 --batch 100000",
     {"--seq", "100000 requests", "memory"}},
    {"WeightSetsOfStackAlone", "decode --start-pos 1 --weight-sets 1", {"argument"}},
    {"VerifyWithoutPath", "verify", {"PATH", "missing"}},
    {"VerifyOfNothing",
     "verify /nonexistent/a.safetensors",
     {"PATH", "/nonexistent/a.safetensors", "can be read"}},
    {"VerifyThreads", "verify --threads -2 .", {"--threads", "-2", "1 to 1024"}},
};

INSTANTIATE_TEST_SUITE_P(Command, RefusalTest, ::testing::ValuesIn(kRefusals),
                         [](const ::testing::TestParamInfo<Refusal>& step) {
                           return std::string(step.param.name);
                         });

TEST(RefusalTest, KeepsToOneLineWhateverTheValue) {
  const CommandResult result = RunWords({"decode", "--start-pos", "1\n2\r\x1b[31m"});
  EXPECT_EQ(result.exit_code, tools::kExitUsage);
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  EXPECT_EQ(result.err.find('\x1b'), std::string::npos);
}

TEST(RefusalTest, AnEmptyValueIsNoValue) {
  for (const char* option : {"--start-pos", "--seq", "--seed", "--json"}) {
    const CommandResult result = RunWords({"decode", "--preset", "tiny", option, ""});
    EXPECT_EQ(result.exit_code, tools::kExitUsage) << option;
    EXPECT_THAT(result.err, HasSubstr(option));
    EXPECT_THAT(result.out, IsEmpty());
  }
}

TEST(ArgumentsTest, OnePositionStandsForTheWholeBatch) {
  tools::StepWords words;
  words.start_pos = "77";
  words.batch = "3";
  const auto arguments = tools::ParseStepArguments(words);
  ASSERT_TRUE(arguments);
  EXPECT_EQ(arguments->start_pos, (std::vector<int64_t>{77, 77, 77}));
  EXPECT_EQ(arguments->batch, 3);
  EXPECT_EQ(arguments->seq, 1);
}

TEST(ArgumentsTest, AListIsTheBatch) {
  tools::StepWords words;
  words.start_pos = "0,1048575";
  const auto arguments = tools::ParseStepArguments(words);
  ASSERT_TRUE(arguments);
  EXPECT_EQ(arguments->start_pos, (std::vector<int64_t>{0, 1048575}));
  EXPECT_EQ(arguments->batch, 2);
  words.batch = "2";
  EXPECT_TRUE(tools::ParseStepArguments(words));
}

TEST(ArgumentsTest, OutputOnlyTakesItsTokensFromBatchAndSeq) {
  tools::StepWords words;
  words.output_only = true;
  words.batch = "4";
  words.seq = "300";
  const auto arguments = tools::ParseStepArguments(words);
  ASSERT_TRUE(arguments);
  EXPECT_EQ(arguments->num_tokens(), 1200);
  EXPECT_THAT(arguments->start_pos, IsEmpty());
}

TEST(HelpTest, IsEverywhere) {
  for (const char* line :
       {"--help", "decode --help", "stack --help", "plan --help", "verify --help"}) {
    const CommandResult result = RunLine(line);
    EXPECT_EQ(result.exit_code, tools::kExitOk) << line;
    EXPECT_THAT(result.out, HasSubstr("Usage: millipede")) << line;
    EXPECT_THAT(result.err, IsEmpty()) << line;
  }
  EXPECT_THAT(RunLine("decode --help").out, HasSubstr("Exit codes"));
}

TEST(HelpTest, VersionIsALine) {
  const CommandResult result = RunLine("--version");
  EXPECT_EQ(result.exit_code, tools::kExitOk);
  EXPECT_THAT(result.out, ::testing::MatchesRegex("millipede [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

}  // namespace
}  // namespace millipede::testing
