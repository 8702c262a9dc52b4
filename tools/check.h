// Judging a step against the golden. Values are judged stage by stage, each stage given the
// library's own inputs to it, and end to end from x and the history alone.
#ifndef MILLIPEDE_TOOLS_CHECK_H_
#define MILLIPEDE_TOOLS_CHECK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fixtures/formula.h"
#include "millipede/config.h"
#include "reference/judge.h"
#include "tools/activations.h"
#include "tools/batch.h"
#include "tools/progress.h"
#include "tools/rule_table.h"

namespace millipede::tools {

// The raw rings around one step.
struct RingRecord {
  std::vector<std::array<int32_t, kRingPages>> pages;  // [requests] of each ring, in order
  std::vector<int64_t> start_pos;                      // [requests] positions before the step
  std::vector<int64_t> num_tokens;                     // [requests] new tokens, all accepted
  std::vector<int64_t> end_pos;                        // [requests] positions after commit
  std::vector<std::byte> pool_before;                  // CopyPool before run
  std::vector<std::byte> pool_after_run;
  std::vector<std::byte> pool_after_commit;
};

// One step of an SWA layer: what it was given, made, and left behind.
struct StepRecord {
  ModelConfig config;
  reference::RuleProfile profile = reference::RuleProfile::kStandard;
  AttentionKind kind = AttentionKind::kSwa;
  uint64_t seed = 0;
  StepInputs inputs;
  Activations values;
  RingRecord rings;
};

// ProjectOutput and HcPost alone, on given heads.
struct OutputRecord {
  ModelConfig config;
  reference::RuleProfile profile = reference::RuleProfile::kStandard;
  StepInputs inputs;
  Activations values;  // post, comb, heads, attn_out and x_out; the rest is not looked at
};

// The rules of the rings: run wrote nothing; after commit the rows of the accepted positions (the
// last 128 of them) hold `kv` [T,512] bit for bit, every other row of every page of the pool is
// bit-unchanged, and every request stands at its new position.
RuleTable CheckRings(const RingRecord& rings, std::span<const Bf16> kv);

// Every rule of a step, on up to `num_threads` threads; one tick of `progress` per token and pass.
RuleTable CheckStep(const StepRecord& record, const fixtures::LayerFixture& weights,
                    int num_threads, Progress& progress);

// Every rule of the output half.
RuleTable CheckOutput(const OutputRecord& record, const fixtures::LayerFixture& weights,
                      int num_threads, Progress& progress);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_CHECK_H_
