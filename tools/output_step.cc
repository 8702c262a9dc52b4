// The output half alone: ProjectOutput and HcPost on given heads.
#include <utility>

#include "millipede/stages.h"
#include "reference/parallel.h"
#include "tools/batch.h"
#include "tools/buffers.h"
#include "tools/decode_step.h"
#include "tools/errors.h"
#include "tools/executor.h"
#include "tools/output_weights.h"
#include "tools/stopwatch.h"

namespace millipede::tools {
namespace {

void MakeHeads(const ModelConfig& config, uint64_t seed, const StepInputs& inputs,
               Activations& values) {
  const size_t width = static_cast<size_t>(config.num_heads) * kHeadDim;
  reference::ParallelFor(inputs.num_tokens(), [&](int64_t t) {
    const auto token = static_cast<size_t>(t);
    const int64_t id = inputs.ids[static_cast<size_t>(inputs.request[token])];
    const fixtures::RequestFixture fixture(config, seed, id);
    fixture.Heads(inputs.position[token], std::span(values.heads).subspan(token * width, width));
  });
}

}  // namespace

Result<OutputStep> ExecuteOutputStep(const StepArguments& arguments, Progress& progress,
                                     Trace* trace, const RankPart* part) {
  const ModelConfig& config = arguments.config;
  const int64_t num_tokens = arguments.num_tokens();
  auto executor = MakeExecutor(arguments.threads);
  if (!executor) return ErrorOf(executor);
  Context context(**executor);
  DecodeReport report;
  report.arguments = arguments;
  Stopwatch watch;
  const auto add_phase = [&](const char* name) {
    report.phases.push_back({name, watch.Restart()});
  };

  progress.Start("making weights");
  auto weights = fixtures::MakeLayerFixture(config, arguments.kind, arguments.seed);
  add_phase("weights");
  const LayerWeights plain = weights.views();
  auto hc = HcWeights::Pack(plain.hc_fn, plain.hc_scale, plain.hc_base);
  if (!hc) return ErrorOf(hc);
  auto own = WeightsOfShard(config, plain, part == nullptr ? OutputShard{} : part->shard);
  if (!own) return ErrorOf(own);
  auto output = PackOutputWeights(config, *own);
  if (!output) return ErrorOf(output);
  report.weight_bytes = OutputWeightBytes(*output);
  add_phase("packing");

  progress.Start("making inputs");
  const std::vector<int64_t> start_pos(static_cast<size_t>(arguments.batch), 0);
  const std::vector<int64_t> tokens(static_cast<size_t>(arguments.batch), arguments.seq);
  auto inputs = MakeStepInputs(config, arguments.kind, arguments.seed, start_pos, tokens,
                               /*step=*/0, arguments.requests);
  if (!inputs) return ErrorOf(inputs);
  OutputRecord record{config, ProfileOf(arguments), *std::move(inputs),
                      Activations(config, arguments.kind, num_tokens)};
  const StepActivations views = record.values.views();
  MakeHeads(config, arguments.seed, record.inputs, record.values);
  report.workspace_bytes = StageScratchBytes(config, num_tokens, arguments.threads);
  const AlignedBuffer scratch(report.workspace_bytes);
  auto status = HcPre(context, config, *hc, record.inputs.XView(config), views.x_mixed, views.post,
                      views.comb, scratch.span());
  if (!status) return ErrorOf(status);
  context.Reset();
  add_phase("inputs");

  progress.Start("running");
  if (trace != nullptr) {
    if (status = context.StartTrace(*trace); !status) return ErrorOf(status);
  }
  watch.Restart();
  {
    const TraceCall traced(context, "run output half of", arguments.kind, 0);
    status = part == nullptr ? ProjectOutput(context, config, *output, views.heads, views.attn_out,
                                             scratch.span())
                             : part->project_output(context, *output, views.heads, views.attn_out);
    if (!status) return ErrorOf(status);
    status =
        HcPost(context, config, record.inputs.XView(config), views.attn_out, views.post, views.comb,
               MakeView(record.values.x_out.data(), num_tokens, kHcStreams, config.hidden));
    if (!status) return ErrorOf(status);
  }
  add_phase("run");
  report.regions = context.regions();
  report.peak_memory_bytes = PeakMemoryBytes();
  progress.Finish();
  return OutputStep{std::move(report), std::move(record), std::move(weights)};
}

}  // namespace millipede::tools
