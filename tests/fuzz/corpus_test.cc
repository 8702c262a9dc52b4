// The fuzzer's corpus, replayed: nothing in it may fail, and at least a third of it must be steps
// that can be planned, so that fuzzing reaches what lies behind the refusals.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "fuzz/plan_input.h"

namespace millipede {
namespace {

// One input per line, in hexadecimal.
std::vector<std::vector<uint8_t>> Corpus() {
  std::vector<std::vector<uint8_t>> inputs;
  std::ifstream file(MILLIPEDE_FUZZ_CORPUS);
  for (std::string line; std::getline(file, line);) {
    std::vector<uint8_t>& input = inputs.emplace_back();
    for (size_t i = 0; i + 2 <= line.size(); i += 2) {
      input.push_back(static_cast<uint8_t>(std::stoi(line.substr(i, 2), nullptr, 16)));
    }
  }
  return inputs;
}

TEST(PlanCorpusTest, AThirdIsPlanned) {
  int64_t num_inputs = 0;
  int64_t num_planned = 0;
  for (const std::vector<uint8_t>& input : Corpus()) {
    ++num_inputs;
    if (testing::PlanBytes(input.data(), input.size())) ++num_planned;
  }
  std::printf("%lld of %lld inputs are planned\n", static_cast<long long>(num_planned),
              static_cast<long long>(num_inputs));
  EXPECT_GE(num_inputs, 100);
  EXPECT_GE(3 * num_planned, num_inputs);
  EXPECT_LT(num_planned, num_inputs);
}

}  // namespace
}  // namespace millipede
