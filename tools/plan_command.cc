// millipede plan: what a step would do, without doing it.
#include "fixtures/formula.h"
#include "millipede/plan.h"
#include "tools/batch.h"
#include "tools/commands.h"
#include "tools/errors.h"
#include "tools/report.h"

namespace millipede::tools {

Result<int> ShowPlan(const StepArguments& arguments, const Streams& streams) {
  // What a plan, and the requests it is made for, take at least.
  constexpr int64_t kBytesPerToken = int64_t{kWindowRows} * 4;
  constexpr int64_t kBytesPerRequest = 512;
  auto enough = CheckMemory(
      arguments, arguments.num_tokens() * kBytesPerToken + arguments.batch * kBytesPerRequest);
  if (!enough) return ErrorOf(enough);
  auto json = JsonOutput::Open(arguments.json);
  if (!json) return ErrorOf(json);
  auto batch = Batch::Create(arguments.start_pos);
  if (!batch) return ErrorOf(batch);
  const std::vector<int64_t> num_tokens(static_cast<size_t>(arguments.batch), arguments.seq);
  auto plan = Plan::Create(arguments.config, arguments.kind, /*num_layers=*/1,
                           batch->spaces(arguments.kind), batch->Step(arguments.kind, num_tokens));
  if (!plan) return ErrorOf(plan);
  if (!json->to_stdout()) streams.out << plan->explain(arguments.threads);
  auto status = json->Write(plan->explain_json(arguments.threads), streams);
  if (!status) return ErrorOf(status);
  return kExitOk;
}

}  // namespace millipede::tools
