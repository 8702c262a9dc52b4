#include "tools/vector_run.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "millipede/layer.h"
#include "tools/activations.h"
#include "tools/batch.h"
#include "tools/buffers.h"
#include "tools/caches.h"
#include "tools/check.h"
#include "tools/errors.h"

namespace millipede::tools {
namespace {

using fixtures::DType;
using fixtures::SafetensorsFile;
using reference::Values;

std::span<std::byte> RopeRowBytes(std::vector<float>& values, size_t row) {
  return std::as_writable_bytes(std::span(values).subspan(row * kRopePairs, kRopePairs));
}

void KeepRope(const std::vector<float>& values, size_t from, OwnTensor& tensor, int64_t row) {
  auto* out = reinterpret_cast<float*>(tensor.row(row));
  for (size_t pair = 0; pair < kRopePairs; ++pair) {
    out[pair] = ToFloat(RoundToBf16(values[from * kRopePairs + pair]));
  }
}

// Which of VectorCase::requests a batch index is; it is one of them.
size_t CaseOf(const VectorCase& vectors, int64_t request) {
  const auto found =
      std::find_if(vectors.requests.begin(), vectors.requests.end(),
                   [request](const RequestCase& one) { return one.request == request; });
  return static_cast<size_t>(found - vectors.requests.begin());
}

// The row of a step's token or event among all those of its request.
int64_t OwnRow(const RequestCase& request, const StepInputs& inputs, size_t token) {
  return inputs.position[token] - request.start_pos;
}
int64_t OwnRow(const RequestCase& request, const StepEvent& event) {
  return event.row - request.first_row;
}

// The helper's rows, rounded as stored ones are, and the boundary tokens.
void KeepHelperRope(const VectorCase& vectors, const StepInputs& inputs, OwnValues& own) {
  for (size_t t = 0; t < inputs.request.size(); ++t) {
    const size_t i = CaseOf(vectors, inputs.request[t]);
    OwnTensors& tensors = own.requests[i].end_to_end;
    const int64_t row = OwnRow(vectors.requests[i], inputs, t);
    KeepRope(inputs.rope_cos, t, tensors.at("rope_cos"), row);
    KeepRope(inputs.rope_sin, t, tensors.at("rope_sin"), row);
  }
  for (size_t e = 0; e < inputs.events.size(); ++e) {
    const StepEvent& event = inputs.events[e];
    const size_t i = CaseOf(vectors, event.request);
    OwnTensors& tensors = own.requests[i].end_to_end;
    const int64_t row = OwnRow(vectors.requests[i], event);
    KeepRope(inputs.event_rope_cos, e, tensors.at("event_rope_cos"), row);
    KeepRope(inputs.event_rope_sin, e, tensors.at("event_rope_sin"), row);
    *reinterpret_cast<int64_t*>(tensors.at("event_pos").row(row)) =
        inputs.position[static_cast<size_t>(event.query)];
  }
}

void KeepActivations(const VectorCase& vectors, const StepInputs& inputs, Activations& values,
                     OwnValues& own) {
  const auto keep = [](const NamedActivation& activation, size_t from, OwnTensors& tensors,
                       int64_t to) {
    const auto row = activation.row(static_cast<int64_t>(from));
    std::copy(row.begin(), row.end(), tensors.at(activation.name).row(to));
  };
  for (const NamedActivation& activation : values.named()) {
    for (size_t t = 0; t < inputs.request.size(); ++t) {
      const size_t i = CaseOf(vectors, inputs.request[t]);
      keep(activation, t, own.requests[i].end_to_end, OwnRow(vectors.requests[i], inputs, t));
    }
  }
  for (const NamedActivation& activation : values.named_events()) {
    for (size_t e = 0; e < inputs.events.size(); ++e) {
      const size_t i = CaseOf(vectors, inputs.events[e].request);
      keep(activation, e, own.requests[i].end_to_end,
           OwnRow(vectors.requests[i], inputs.events[e]));
    }
  }
}

OwnValues MakeOwnValues(const VectorCase& vectors) {
  OwnValues own;
  own.requests.resize(vectors.requests.size());
  Activations shapes(vectors.config, vectors.kind, 1, 1);
  for (size_t i = 0; i < own.requests.size(); ++i) {
    OwnTensors& tensors = own.requests[i].end_to_end;
    const auto make = [&](const std::vector<NamedActivation>& activations, int64_t num_rows) {
      for (const NamedActivation& activation : activations) {
        tensors.Make(activation.name, activation.dtype, activation.row_elements, num_rows);
      }
    };
    const RequestCase& request = vectors.requests[i];
    make(shapes.named(), request.num_new);
    make(shapes.named_events(), request.num_events);
    for (const char* name : {"rope_cos", "rope_sin"}) {
      tensors.Make(name, DType::kF32, kRopePairs, request.num_new);
    }
    if (vectors.kind == AttentionKind::kSwa) continue;
    for (const char* name : {"event_rope_cos", "event_rope_sin"}) {
      tensors.Make(name, DType::kF32, kRopePairs, request.num_events);
    }
    tensors.Make("event_pos", DType::kI64, 1, request.num_events);
  }
  return own;
}

Status RunStep(const VectorWeights& weights, const VectorCase& vectors, const SafetensorsFile& file,
               int64_t step, const Batch& batch, const LayerCaches& caches, Context& context,
               OwnValues& own) {
  auto inputs = MakeStepInputs(vectors.config, vectors.kind, vectors.seed, vectors.start_pos,
                               vectors.tokens_per_step, step);
  if (!inputs) return ErrorOf(inputs);
  KeepHelperRope(vectors, *inputs, own);
  TakeStoredRope(file, vectors, *inputs);

  auto plan =
      Plan::Create(vectors.config, vectors.kind, /*num_layers=*/1, batch.spaces(vectors.kind),
                   batch.Step(vectors.kind, vectors.tokens_per_step));
  if (!plan) return ErrorOf(plan);
  CacheRecord record = RecordBefore(batch, vectors.kind, caches, vectors.tokens_per_step);
  const AlignedBuffer workspace(plan->workspace_bytes(context.num_threads()));
  const AlignedBuffer overlay(plan->overlay_bytes());
  const LayerPools pools = caches.views();
  Activations values(vectors.config, vectors.kind, inputs->num_tokens(), inputs->num_events());
  const StepTensors tensors{.x = inputs->XView(vectors.config),
                            .rope = inputs->rope(),
                            .event_rope = inputs->event_rope(),
                            .x_out = MakeView(values.x_out.data(), inputs->num_tokens(), kHcStreams,
                                              vectors.config.hidden),
                            .selection = {}};
  auto status = weights.layer.Run(context, *plan, 0, pools, tensors, workspace.span(),
                                  overlay.span(), values.views());
  if (!status) return status;
  RecordAfterRun(caches, record);
  values.TakeOverlay(*plan, overlay.span());
  values.TakeEvents(batch, caches, inputs->events);
  if (vectors.kind == AttentionKind::kCsa) {
    status = SelectWide(context.executor(), *plan, pools, values);
    if (!status) return status;
    own.caches.Merge(CheckWide(values, *inputs));
  }
  auto ranges = Commit(context, *plan, 0, pools, overlay.span(), vectors.tokens_per_step);
  if (!ranges) return ErrorOf(ranges);
  RecordAfterCommit(batch, caches, record);
  own.caches.Merge(CheckCaches(record, values, *inputs));
  KeepActivations(vectors, *inputs, values, own);
  return {};
}

Status RunSteps(const VectorWeights& weights, const VectorCase& vectors,
                const SafetensorsFile& file, Context& context, Progress& progress, OwnValues& own) {
  std::vector<int64_t> num_new = vectors.tokens_per_step;
  for (int64_t& n : num_new) n *= vectors.steps;
  auto batch = Batch::Create({&vectors.kind, 1}, vectors.start_pos, num_new);
  if (!batch) return ErrorOf(batch);
  auto caches = LayerCaches::Create(vectors.config, *batch, vectors.kind, vectors.seed);
  if (!caches) return ErrorOf(caches);
  for (int64_t step = 0; step < vectors.steps; ++step) {
    auto status = RunStep(weights, vectors, file, step, *batch, *caches, context, own);
    if (!status) return status;
    progress.Tick();
  }
  return {};
}

}  // namespace

Values OwnTensor::Row(int64_t i) const {
  const std::byte* data = row(i);
  switch (dtype) {
    case DType::kF32:
      return {reinterpret_cast<const float*>(data), row_elements};
    case DType::kBf16:
      return {reinterpret_cast<const Bf16*>(data), row_elements};
    case DType::kI8:
      return {reinterpret_cast<const int8_t*>(data), row_elements};
    case DType::kI32:
      return {reinterpret_cast<const int32_t*>(data), row_elements};
    case DType::kI64:
      return {reinterpret_cast<const int64_t*>(data), row_elements};
  }
  return {static_cast<const float*>(nullptr), 0};
}

OwnTensor& OwnTensors::Make(std::string_view name, DType dtype, int64_t row_elements,
                            int64_t num_rows) {
  OwnTensor& tensor = tensors_[std::string(name)];
  tensor.dtype = dtype;
  tensor.row_elements = row_elements;
  tensor.bytes.assign(static_cast<size_t>(num_rows * tensor.row_bytes()), std::byte{0});
  return tensor;
}

void CopyStoredRow(const SafetensorsFile& file, const std::string& name, int64_t row,
                   std::span<std::byte> out) {
  const auto stored =
      file.tensors().at(name).bytes.subspan(static_cast<size_t>(row) * out.size(), out.size());
  std::copy(stored.begin(), stored.end(), out.begin());
}

void TakeStoredRope(const SafetensorsFile& file, const VectorCase& vectors, StepInputs& inputs) {
  for (size_t t = 0; t < inputs.request.size(); ++t) {
    const RequestCase& request = vectors.requests[CaseOf(vectors, inputs.request[t])];
    const int64_t row = OwnRow(request, inputs, t);
    CopyStoredRow(file, request.TensorName("rope_cos"), row, RopeRowBytes(inputs.rope_cos, t));
    CopyStoredRow(file, request.TensorName("rope_sin"), row, RopeRowBytes(inputs.rope_sin, t));
  }
  for (size_t e = 0; e < inputs.events.size(); ++e) {
    const RequestCase& request = vectors.requests[CaseOf(vectors, inputs.events[e].request)];
    const int64_t row = OwnRow(request, inputs.events[e]);
    CopyStoredRow(file, request.TensorName("event_rope_cos"), row,
                  RopeRowBytes(inputs.event_rope_cos, e));
    CopyStoredRow(file, request.TensorName("event_rope_sin"), row,
                  RopeRowBytes(inputs.event_rope_sin, e));
  }
}

Result<OwnValues> RunVectorCase(const VectorWeights& weights, const VectorCase& vectors,
                                const SafetensorsFile& file, Context& context, Progress& progress) {
  OwnValues own = MakeOwnValues(vectors);
  progress.Start("decoding steps", vectors.steps);
  auto status = RunSteps(weights, vectors, file, context, progress, own);
  if (!status) return ErrorOf(status);
  progress.Start("running stages");
  if (status = RunStages(weights, vectors, file, context, own); !status) return ErrorOf(status);
  progress.Finish();
  return own;
}

}  // namespace millipede::tools
