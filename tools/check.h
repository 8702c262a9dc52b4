// Judging a step against the golden. Values are judged stage by stage, each stage given the
// library's own inputs to it, and end to end from x and the history alone.
#ifndef MILLIPEDE_TOOLS_CHECK_H_
#define MILLIPEDE_TOOLS_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fixtures/formula.h"
#include "millipede/config.h"
#include "reference/judge.h"
#include "tools/activations.h"
#include "tools/batch.h"
#include "tools/caches.h"
#include "tools/progress.h"
#include "tools/rule_table.h"

namespace millipede::tools {

// One step of a layer: what it was given, made, and left behind.
struct StepRecord {
  ModelConfig config;
  reference::RuleProfile profile = reference::RuleProfile::kStandard;
  AttentionKind kind = AttentionKind::kSwa;
  uint64_t history_seed = 0;
  StepInputs inputs;
  Activations values;
  CacheRecord caches;
};

// ProjectOutput and HcPost alone, on given heads.
struct OutputRecord {
  ModelConfig config;
  reference::RuleProfile profile = reference::RuleProfile::kStandard;
  StepInputs inputs;
  Activations values;  // post, comb, heads, attn_out and x_out; the rest is not looked at
};

// The tokens whose scores, selections and heads are judged, and whose layer is judged end to end:
// all of them, or the first, the middle and the last one of each request where the golden would
// take minutes. Everything else is judged for every token.
std::vector<int64_t> DeeplyJudgedTokens(const StepRecord& record);

// One line that says which those are.
std::string CoverageOf(const StepRecord& record);

// The rules of the caches: run writes the rows of its events and nothing else; commit writes the
// rows of the accepted positions (of more than a ring holds, the last), bit for bit those of the
// overlay, and nothing else; every request and every list ends at its new place, which is the old
// one until the plan's last layer commits. All rows of all pools are compared, nobody's included.
RuleTable CheckCaches(const CacheRecord& caches, const Activations& values,
                      const StepInputs& inputs);

// CSA: what Select finds for one place more begins with what the layer selected.
RuleTable CheckWide(const Activations& values, const StepInputs& inputs);

// The rules of the values, on up to `num_threads` threads; one tick of `progress` per token and
// pass. What compressed rows and keys the run wrote is judged here.
RuleTable CheckValues(const StepRecord& record, const fixtures::LayerFixture& weights,
                      int num_threads, Progress& progress);

// Both.
RuleTable CheckStep(const StepRecord& record, const fixtures::LayerFixture& weights,
                    int num_threads, Progress& progress);

// One step, or output half, run in two ways: every tensor of a token or event, and every row of all
// pools after run and after commit, are bit for bit the same.
RuleTable CheckSameBits(StepRecord& record, StepRecord& other);
RuleTable CheckSameBits(OutputRecord& record, OutputRecord& other);

// Every rule of the output half.
RuleTable CheckOutput(const OutputRecord& record, const fixtures::LayerFixture& weights,
                      int num_threads, Progress& progress);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_CHECK_H_
