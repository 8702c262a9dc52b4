#include "tools/vector_run.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "tools/activations.h"
#include "tools/batch.h"
#include "tools/buffers.h"
#include "tools/check.h"
#include "tools/errors.h"
#include "tools/output_weights.h"

namespace millipede::tools {
namespace {

using fixtures::DType;
using fixtures::SafetensorsFile;
using reference::Values;

// Row `row` of a stored tensor to `out`, which has its size; the shape was compared before.
void CopyStoredRow(const SafetensorsFile& file, const std::string& name, int64_t row,
                   std::span<std::byte> out) {
  const auto stored =
      file.tensors().at(name).bytes.subspan(static_cast<size_t>(row) * out.size(), out.size());
  std::copy(stored.begin(), stored.end(), out.begin());
}

OwnTensor& MakeRows(OwnTensors& tensors, std::string_view name, DType dtype, int64_t row_elements,
                    int64_t num_rows) {
  OwnTensor& tensor = tensors[std::string(name)];
  tensor.dtype = dtype;
  tensor.row_elements = row_elements;
  tensor.bytes.resize(static_cast<size_t>(num_rows * tensor.row_bytes()));
  return tensor;
}

// --- End to end ----------------------------------------------------------------------------------

// The RoPE rows of a step as the file gives them: row `new_token` of its request for each token.
void TakeStoredRope(const SafetensorsFile& file, const VectorCase& vectors, StepInputs& inputs) {
  for (int64_t t = 0; t < inputs.num_tokens(); ++t) {
    const auto token = static_cast<size_t>(t);
    const int64_t r = inputs.request[token];
    const int64_t row = inputs.position[token] - vectors.start_pos[static_cast<size_t>(r)];
    const auto part = [&](std::vector<float>& values) {
      return std::as_writable_bytes(std::span(values).subspan(token * kRopePairs, kRopePairs));
    };
    CopyStoredRow(file, fmt::format("r{}.rope_cos", r), row, part(inputs.rope_cos));
    CopyStoredRow(file, fmt::format("r{}.rope_sin", r), row, part(inputs.rope_sin));
  }
}

// The helper's rows, rounded as stored ones are.
void KeepHelperRope(const VectorCase& vectors, const StepInputs& inputs, OwnValues& own) {
  size_t t = 0;
  for (size_t i = 0; i < vectors.requests.size(); ++i) {
    const int64_t width = vectors.tokens_per_step[static_cast<size_t>(vectors.requests[i].request)];
    for (int64_t j = 0; j < width; ++j, ++t) {
      const int64_t row = inputs.position[t] - vectors.requests[i].start_pos;
      const auto keep = [&](std::string_view name, const std::vector<float>& values) {
        OwnTensor& tensor = own.requests[i].end_to_end.find(name)->second;
        auto* out = reinterpret_cast<float*>(tensor.row(row));
        for (size_t pair = 0; pair < kRopePairs; ++pair) {
          out[pair] = ToFloat(RoundToBf16(values[t * kRopePairs + pair]));
        }
      };
      keep("rope_cos", inputs.rope_cos);
      keep("rope_sin", inputs.rope_sin);
    }
  }
}

void KeepActivations(const VectorCase& vectors, int64_t step, Activations& values, OwnValues& own) {
  int64_t t = 0;
  for (size_t i = 0; i < vectors.requests.size(); ++i) {
    const int64_t width = vectors.tokens_per_step[static_cast<size_t>(vectors.requests[i].request)];
    for (int64_t j = 0; j < width; ++j, ++t) {
      for (const NamedActivation& activation : values.named()) {
        OwnTensor& tensor = own.requests[i].end_to_end.find(activation.name)->second;
        const auto row = activation.row(t);
        std::copy(row.begin(), row.end(), tensor.row(step * width + j));
      }
    }
  }
}

OwnValues MakeOwnValues(const VectorCase& vectors) {
  OwnValues own;
  own.requests.resize(vectors.requests.size());
  Activations shapes(vectors.config, 1);
  for (size_t i = 0; i < own.requests.size(); ++i) {
    const int64_t num_new = vectors.requests[i].num_new;
    OwnTensors& tensors = own.requests[i].end_to_end;
    for (const NamedActivation& activation : shapes.named()) {
      MakeRows(tensors, activation.name, activation.dtype, activation.row_elements, num_new);
    }
    MakeRows(tensors, "rope_cos", DType::kF32, kRopePairs, num_new);
    MakeRows(tensors, "rope_sin", DType::kF32, kRopePairs, num_new);
  }
  return own;
}

// One batch of requests with their pool, planned.
struct World {
  Batch batch;
  LayerPool pool;
  LayerPools pools;
};

Result<World> MakeWorld(const VectorCase& vectors) {
  auto batch = Batch::Create(vectors.start_pos);
  if (!batch) return ErrorOf(batch);
  auto pool = batch->MakeRawPool(vectors.config, vectors.kind, vectors.seed);
  if (!pool) return ErrorOf(pool);
  World world{*std::move(batch), *std::move(pool), {}};
  world.pools.raw = world.pool.view();
  return world;
}

Result<Plan> MakePlan(const VectorCase& vectors, const Batch& batch) {
  return Plan::Create(vectors.config, vectors.kind, /*num_layers=*/1, batch.spaces(vectors.kind),
                      batch.Step(vectors.kind, vectors.tokens_per_step));
}

RingRecord RecordRings(const VectorCase& vectors, const World& world) {
  RingRecord rings;
  for (int64_t r = 0; r < world.batch.size(); ++r) {
    rings.pages.push_back(world.batch.RingPages(vectors.kind, r));
    rings.start_pos.push_back(world.batch.request(r).position(vectors.kind));
  }
  rings.num_tokens = vectors.tokens_per_step;
  rings.pool_before = CopyPool(world.pools.raw);
  return rings;
}

Status RunStep(const VectorWeights& weights, const VectorCase& vectors, const SafetensorsFile& file,
               int64_t step, World& world, Context& context, OwnValues& own) {
  auto inputs = MakeStepInputs(vectors.config, vectors.kind, vectors.seed, vectors.start_pos,
                               vectors.tokens_per_step, step);
  if (!inputs) return ErrorOf(inputs);
  KeepHelperRope(vectors, *inputs, own);
  TakeStoredRope(file, vectors, *inputs);

  auto plan = MakePlan(vectors, world.batch);
  if (!plan) return ErrorOf(plan);
  RingRecord rings = RecordRings(vectors, world);
  const AlignedBuffer workspace(plan->workspace_bytes(context.num_threads()));
  const AlignedBuffer overlay(plan->overlay_bytes());
  Activations values(vectors.config, inputs->num_tokens());
  const StepTensors tensors{.x = inputs->XView(vectors.config),
                            .rope = inputs->rope(),
                            .x_out = MakeView(values.x_out.data(), inputs->num_tokens(), kHcStreams,
                                              vectors.config.hidden)};
  auto status = weights.layer.Run(context, *plan, 0, world.pools, tensors, workspace.span(),
                                  overlay.span(), values.views());
  if (!status) return status;
  const auto kv = OverlayKv(*plan, overlay.span());
  for (int64_t t = 0; t < inputs->num_tokens(); ++t) {
    std::copy_n(kv.row(t), kHeadDim, values.kv.begin() + t * kHeadDim);
  }
  rings.pool_after_run = CopyPool(world.pools.raw);
  auto ranges = Commit(context, *plan, 0, world.pools, overlay.span(), vectors.tokens_per_step);
  if (!ranges) return ErrorOf(ranges);
  rings.pool_after_commit = CopyPool(world.pools.raw);
  for (int64_t r = 0; r < world.batch.size(); ++r) {
    rings.end_pos.push_back(world.batch.request(r).position(vectors.kind));
  }
  own.rings.Merge(CheckRings(rings, values.kv));
  KeepActivations(vectors, step, values, own);
  return {};
}

// --- Stages --------------------------------------------------------------------------------------

// A probe token: which request's, and its place in the step that all requests' new tokens make.
struct Probe {
  size_t request;  // index in VectorCase::requests
  int64_t row;     // in tensors of kProbe
  int64_t token;   // of the request's new tokens
  int64_t query;   // of a one-step file's step
};

std::vector<Probe> ListProbes(const VectorCase& vectors) {
  std::vector<Probe> probes;
  int64_t first_query = 0;
  for (size_t i = 0; i < vectors.requests.size(); ++i) {
    const RequestCase& request = vectors.requests[i];
    for (size_t row = 0; row < request.probe.size(); ++row) {
      const int64_t token = request.probe[row];
      probes.push_back({i, static_cast<int64_t>(row), token, first_query + token});
    }
    first_query += request.num_new;
  }
  return probes;
}

// The stored values of the probe tokens, a row for each.
Activations ReadProbeValues(const VectorCase& vectors, const SafetensorsFile& file,
                            const std::vector<Probe>& probes) {
  Activations given(vectors.config, static_cast<int64_t>(probes.size()));
  for (const NamedActivation& activation : given.named()) {
    const auto rules = TensorRulesOf(vectors.kind);
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const TensorRule& candidate) {
      return candidate.name == activation.name;
    });
    for (size_t i = 0; i < probes.size(); ++i) {
      const RequestCase& request = vectors.requests[probes[i].request];
      int64_t row = probes[i].row;
      if (rule->rows == TensorRows::kStored) row = request.StoredRowOf(probes[i].token);
      if (rule->rows == TensorRows::kNew) row = probes[i].token;
      CopyStoredRow(file, request.TensorName(activation.name), row,
                    activation.row(static_cast<int64_t>(i)));
    }
  }
  return given;
}

// x and the stored RoPE rows of the probe tokens.
StepInputs ProbeInputs(const VectorCase& vectors, const SafetensorsFile& file,
                       const std::vector<Probe>& probes) {
  StepInputs inputs;
  const auto width = static_cast<size_t>(kHcStreams) * static_cast<size_t>(vectors.config.hidden);
  inputs.x.resize(probes.size() * width);
  inputs.rope_cos.resize(probes.size() * kRopePairs);
  inputs.rope_sin.resize(probes.size() * kRopePairs);
  for (size_t i = 0; i < probes.size(); ++i) {
    const RequestCase& request = vectors.requests[probes[i].request];
    inputs.request.push_back(request.request);
    inputs.position.push_back(request.start_pos + probes[i].token);
    const fixtures::RequestFixture fixture(vectors.config, vectors.seed, request.request);
    fixture.X(probes[i].token, std::span(inputs.x).subspan(i * width, width));
  }
  TakeStoredRope(file, vectors, inputs);
  return inputs;
}

// All rows of a stored tensor of kNew or, in one-step files, kStored, in step order.
std::vector<Bf16> ReadStepRows(const VectorCase& vectors, const SafetensorsFile& file,
                               std::string_view name) {
  std::vector<Bf16> rows;
  for (const RequestCase& request : vectors.requests) {
    const auto bytes = file.tensors().at(request.TensorName(name)).bytes;
    const size_t begin = rows.size();
    rows.resize(begin + bytes.size() / sizeof(Bf16));
    std::memcpy(rows.data() + begin, bytes.data(), bytes.size());
  }
  return rows;
}

// Attention over the whole step with stored KV rows and the stored queries of the probe tokens;
// the others' queries are zero and their heads are dropped.
Status AttendStage(const VectorWeights& weights, const VectorCase& vectors,
                   const std::vector<Probe>& probes, const Activations& given,
                   const StepInputs& step, const std::vector<Bf16>& kv, Context& context,
                   std::span<std::byte> scratch, Activations& made) {
  auto world = MakeWorld(vectors);
  if (!world) return ErrorOf(world);
  auto plan = MakePlan(vectors, world->batch);
  if (!plan) return ErrorOf(plan);
  const int64_t num_tokens = step.num_tokens();
  const int64_t head_lanes = int64_t{vectors.config.num_heads} * kHeadDim;
  std::vector<Bf16> q(static_cast<size_t>(num_tokens * head_lanes));
  std::vector<Bf16> heads(q.size());
  const auto num_probes = static_cast<int64_t>(probes.size());
  for (int64_t i = 0; i < num_probes; ++i) {
    std::copy_n(given.q.begin() + i * head_lanes, head_lanes,
                q.begin() + probes[static_cast<size_t>(i)].query * head_lanes);
  }
  AttendInputs inputs;
  inputs.q = MakeView(std::as_const(q).data(), num_tokens, vectors.config.num_heads, kHeadDim);
  inputs.sink = weights.fixture.views().attn_sink;
  inputs.rope = step.rope();
  inputs.raw = world->pools.raw;
  inputs.new_kv = MakeView(kv.data(), num_tokens, kHeadDim);
  AttendOutputs outputs;
  outputs.heads = MakeView(heads.data(), num_tokens, vectors.config.num_heads, kHeadDim);
  auto status = Attend(context, vectors.config, *plan, inputs, outputs, scratch);
  if (!status) return status;
  for (int64_t i = 0; i < num_probes; ++i) {
    std::copy_n(heads.begin() + probes[static_cast<size_t>(i)].query * head_lanes, head_lanes,
                made.heads.begin() + i * head_lanes);
  }
  return {};
}

// The stages that only one-step files are judged by.
Status RunLaterStages(const VectorWeights& weights, const VectorCase& vectors,
                      const SafetensorsFile& file, const std::vector<Probe>& probes,
                      Activations& given, const StepInputs& inputs, Context& context,
                      Activations& made, std::vector<Bf16>& made_kv) {
  const ModelConfig& config = vectors.config;
  auto step = MakeStepInputs(config, vectors.kind, vectors.seed, vectors.start_pos,
                             vectors.tokens_per_step);
  if (!step) return ErrorOf(step);
  TakeStoredRope(file, vectors, *step);
  const int64_t num_tokens = step->num_tokens();
  const AlignedBuffer buffer(StageScratchBytes(config, num_tokens, context.num_threads()));
  const Scratch scratch = buffer.span();
  const StepActivations from = given.views();
  const StepActivations to = made.views();

  auto status = ProjectQuery(context, config, weights.wq_b, from.qr, from.qr_scale, inputs.rope(),
                             to.q, scratch);
  if (!status) return status;
  const std::vector<Bf16> xn = ReadStepRows(vectors, file, "xn");
  made_kv.resize(static_cast<size_t>(num_tokens) * kHeadDim);
  status = ProjectKv(context, config, weights.wkv, weights.fixture.views().kv_norm,
                     MakeView(xn.data(), num_tokens, config.hidden), step->rope(),
                     MakeView(made_kv.data(), num_tokens, kHeadDim), scratch);
  if (!status) return status;
  status = AttendStage(weights, vectors, probes, given, *step, ReadStepRows(vectors, file, "kv"),
                       context, scratch, made);
  if (!status) return status;
  status = ProjectOutput(context, config, weights.output, from.heads, to.attn_out, scratch);
  if (!status) return status;
  return HcPost(context, config, inputs.XView(config), from.attn_out, from.post, from.comb,
                MakeView(made.x_out.data(), made.num_tokens, kHcStreams, config.hidden));
}

Status RunStages(const VectorWeights& weights, const VectorCase& vectors,
                 const SafetensorsFile& file, Context& context, OwnValues& own) {
  const ModelConfig& config = vectors.config;
  const std::vector<Probe> probes = ListProbes(vectors);
  const auto num_probes = static_cast<int64_t>(probes.size());
  Activations given = ReadProbeValues(vectors, file, probes);
  Activations made(config, num_probes);
  const StepInputs inputs = ProbeInputs(vectors, file, probes);
  const AlignedBuffer scratch(StageScratchBytes(config, num_probes, context.num_threads()));
  const StepActivations from = given.views();
  const StepActivations to = made.views();
  const LayerWeights plain = weights.fixture.views();

  auto status = HcPre(context, config, weights.hc, inputs.XView(config), to.x_mixed, to.post,
                      to.comb, scratch.span());
  if (!status) return status;
  status = AttnNorm(context, config, plain.attn_norm, from.x_mixed, to.xn);
  if (!status) return status;
  status = ProjectLatent(context, config, weights.wq_a, plain.q_norm, from.xn, to.qr, to.qr_scale,
                         scratch.span());
  if (!status) return status;
  std::vector<Bf16> made_kv;
  if (vectors.one_step()) {
    status = RunLaterStages(weights, vectors, file, probes, given, inputs, context, made, made_kv);
    if (!status) return status;
  }

  for (size_t i = 0; i < probes.size(); ++i) {
    RequestValues& values = own.requests[probes[i].request];
    const int64_t num_rows = vectors.requests[probes[i].request].NumRows(TensorRows::kProbe);
    for (const NamedActivation& activation : made.named()) {
      if (activation.name == "kv") continue;  // a row for every token, below
      OwnTensor& tensor = MakeRows(values.stage, activation.name, activation.dtype,
                                   activation.row_elements, num_rows);
      const auto row = activation.row(static_cast<int64_t>(i));
      std::copy(row.begin(), row.end(), tensor.row(probes[i].row));
    }
  }
  if (!vectors.one_step()) return {};
  auto kv = std::as_bytes(std::span(made_kv));
  for (size_t i = 0; i < own.requests.size(); ++i) {
    OwnTensor& tensor =
        MakeRows(own.requests[i].stage, "kv", DType::kBf16, kHeadDim, vectors.requests[i].num_new);
    std::copy_n(kv.begin(), tensor.bytes.size(), tensor.bytes.begin());
    kv = kv.subspan(tensor.bytes.size());
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

Result<VectorWeights> VectorWeights::Make(const ModelConfig& config, AttentionKind kind,
                                          uint64_t seed) {
  fixtures::LayerFixture fixture = fixtures::MakeLayerFixture(config, kind, seed);
  const LayerWeights plain = fixture.views();
  auto layer = Layer::Create(config, kind, plain);
  if (!layer) return ErrorOf(layer);
  auto hc = HcWeights::Pack(plain.hc_fn, plain.hc_scale, plain.hc_base);
  if (!hc) return ErrorOf(hc);
  auto wq_a = MatrixBf16::Pack(plain.wq_a);
  if (!wq_a) return ErrorOf(wq_a);
  auto wkv = MatrixBf16::Pack(plain.wkv);
  if (!wkv) return ErrorOf(wkv);
  auto wq_b = MatrixInt8::Pack(plain.wq_b, plain.wq_b_scale);
  if (!wq_b) return ErrorOf(wq_b);
  auto output = PackOutputWeights(config, plain);
  if (!output) return ErrorOf(output);
  return VectorWeights{std::move(fixture), *std::move(layer), *std::move(hc),    *std::move(wq_a),
                       *std::move(wkv),    *std::move(wq_b),  *std::move(output)};
}

Result<OwnValues> RunVectorCase(const VectorWeights& weights, const VectorCase& vectors,
                                const SafetensorsFile& file, Context& context, Progress& progress) {
  OwnValues own = MakeOwnValues(vectors);
  auto world = MakeWorld(vectors);
  if (!world) return ErrorOf(world);
  progress.Start("decoding steps", vectors.steps);
  for (int64_t step = 0; step < vectors.steps; ++step) {
    auto status = RunStep(weights, vectors, file, step, *world, context, own);
    if (!status) return ErrorOf(status);
    progress.Tick();
  }
  progress.Start("running stages");
  if (auto status = RunStages(weights, vectors, file, context, own); !status) {
    return ErrorOf(status);
  }
  progress.Finish();
  return own;
}

}  // namespace millipede::tools
