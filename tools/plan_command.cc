// millipede plan: what a step would do, without doing it.
#include "fixtures/formula.h"
#include "millipede/plan.h"
#include "tools/batch.h"
#include "tools/commands.h"
#include "tools/errors.h"
#include "tools/report.h"

namespace millipede::tools {
namespace {

// What a plan, and the requests it is made for, take at least.
int64_t PlanBytes(const StepArguments& arguments) {
  constexpr int64_t kBytesPerToken = int64_t{kWindowRows} * 4;
  constexpr int64_t kBytesPerRequest = 512;
  int64_t bytes = arguments.num_tokens() * kBytesPerToken + arguments.batch * kBytesPerRequest;
  if (arguments.kind == AttentionKind::kSwa) return bytes;
  const bool csa = arguments.kind == AttentionKind::kCsa;
  const int64_t piece_rows = csa ? 2048 : 128;  // of a leaf or a shard
  const int64_t piece_bytes = csa ? sizeof(CsaLeaf) + sizeof(CsaMerge) : sizeof(HcaShard);
  for (const int64_t start : arguments.start_pos) {
    const int64_t rows = start / RatioOf(arguments.kind);
    bytes += arguments.seq * (rows / piece_rows) * piece_bytes;
    bytes += rows / kPageRows * int64_t{sizeof(PageEntry)} * (csa ? 2 : 1);
  }
  return bytes;
}

}  // namespace

Result<int> ShowPlan(const StepArguments& arguments, const Streams& streams) {
  auto enough = CheckMemory(arguments, PlanBytes(arguments));
  if (!enough) return ErrorOf(enough);
  auto json = JsonOutput::Open(arguments.json);
  if (!json) return ErrorOf(json);
  const std::vector<int64_t> num_tokens(static_cast<size_t>(arguments.batch), arguments.seq);
  auto batch = Batch::Create({&arguments.kind, 1}, arguments.start_pos, num_tokens);
  if (!batch) return ErrorOf(batch);
  auto plan = Plan::Create(arguments.config, arguments.kind, /*num_layers=*/1,
                           batch->spaces(arguments.kind), batch->Step(arguments.kind, num_tokens));
  if (!plan) return ErrorOf(plan);
  if (!json->to_stdout()) streams.out << plan->explain(arguments.threads);
  auto status = json->Write(plan->explain_json(arguments.threads), streams);
  if (!status) return ErrorOf(status);
  return kExitOk;
}

}  // namespace millipede::tools
