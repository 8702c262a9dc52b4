#include "life/plain_model.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>
#include <tuple>

namespace millipede::testing {
namespace {

constexpr int32_t kMaxPages = 4096;  // of a list

template <typename T>
T Must(Result<T> result) {
  if (!result) throw std::runtime_error("model: " + result.error().message);
  return std::move(result).value();
}
void Must(const Status& status) {
  if (!status) throw std::runtime_error("model: " + status.error().message);
}

Bf16 ToBf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return {static_cast<uint16_t>(bits >> 16)};
}

CompressorWeights PackCompressor(const std::vector<Bf16>& wkv, const std::vector<Bf16>& wgate,
                                 const std::vector<float>& ape, const std::vector<float>& norm,
                                 int64_t hidden) {
  const int64_t lanes = static_cast<int64_t>(wkv.size()) / hidden;
  return {Must(MatrixBf16::Pack(MakeView(wkv.data(), lanes, hidden))),
          Must(MatrixBf16::Pack(MakeView(wgate.data(), lanes, hidden))), ape, norm};
}

std::unique_ptr<PlainLayer> MakeLayer(const ModelConfig& config, AttentionKind kind, int index) {
  auto made = std::make_unique<PlainLayer>();
  made->fixture = fixtures::MakeLayerFixture(config, kind, 100 + static_cast<uint64_t>(index));
  const fixtures::LayerFixture& f = made->fixture;
  const LayerWeights views = f.views();
  made->layer = std::make_unique<Layer>(Must(Layer::Create(config, kind, views)));
  made->hc = Must(HcWeights::Pack(views.hc_fn, views.hc_scale, views.hc_base));
  made->wq_a = Must(MatrixBf16::Pack(views.wq_a));
  made->wkv = Must(MatrixBf16::Pack(views.wkv));
  made->wq_b = Must(MatrixInt8::Pack(views.wq_b, views.wq_b_scale));
  for (int64_t g = 0; g < config.o_groups; ++g) {
    const int64_t inputs = int64_t{config.heads_per_group()} * kHeadDim;
    made->output.wo_a.push_back(
        Must(MatrixBf16::Pack({views.wo_a.row(g), {config.o_rank, inputs}, inputs})));
    made->output.wo_b.push_back(Must(MatrixInt8::Pack(
        {views.wo_b.data + g * config.o_rank, {config.hidden, config.o_rank}, views.wo_b.stride0},
        views.wo_b_scale)));
  }
  if (kind == AttentionKind::kSwa) return made;
  made->compressor = PackCompressor(f.cmp_wkv, f.cmp_wgate, f.cmp_ape, f.cmp_norm, config.hidden);
  if (kind == AttentionKind::kHca) return made;
  made->indexer.wq_b = Must(MatrixInt8::Pack(views.idx_wq_b, views.idx_wq_b_scale));
  made->indexer.weights_proj = Must(MatrixBf16::Pack(views.idx_weights_proj));
  made->indexer.compressor =
      PackCompressor(f.idx_cmp_wkv, f.idx_cmp_wgate, f.idx_cmp_ape, f.idx_cmp_norm, config.hidden);
  return made;
}

// Bookkeeping of a space in which page i of every list is page i.
struct IdentitySpace {
  std::vector<uint64_t> epochs = std::vector<uint64_t>(kMaxPages, 1);
  std::vector<int32_t> ref_counts = std::vector<int32_t>(kMaxPages, 1);
  uint64_t generation = 0;
  std::vector<PageEntry> entries;

  IdentitySpace() {
    for (int32_t page = 0; page < kMaxPages; ++page) entries.push_back({page, 1});
  }
  PageSpaceView view() const { return {epochs.data(), ref_counts.data(), &generation, kMaxPages}; }
  PageListView list(int64_t num_pages, RowRange valid) const {
    return {std::span(entries).first(static_cast<size_t>(num_pages)), valid};
  }
};

PoolKind StatePool(AttentionKind kind) {
  return kind == AttentionKind::kHca ? PoolKind::kHcaState : PoolKind::kCsaState;
}

// The first state row that the token at `position`, or one after it, pools.
int64_t FirstStateRow(AttentionKind kind, int64_t position) {
  const int64_t ratio = RatioOfKind(kind);
  const int64_t block = position / ratio * ratio;
  return kind == AttentionKind::kCsa ? std::max<int64_t>(0, block - ratio) : block;
}

Plan PlanToken(const ModelConfig& config, AttentionKind kind, int64_t position) {
  static const IdentitySpace space;
  const int64_t ratio = RatioOfKind(kind);
  KindSpaces spaces;
  StepRequest step;
  step.start_pos = position;
  step.num_tokens = 1;
  spaces.raw = space.view();
  step.pages.raw = space.list(4, {std::max<int64_t>(0, position - 127), position});
  if (kind != AttentionKind::kSwa) {
    const int64_t num_pages = (position + 1) / ratio / kPageRows + 1;
    const RowRange rows{0, position / ratio};
    const RowRange state{FirstStateRow(kind, position), position};
    spaces.main = spaces.state = space.view();
    step.pages.main = space.list(num_pages, rows);
    step.pages.state = space.list(FormatOf(StatePool(kind)).ring_pages, state);
    if (kind == AttentionKind::kCsa) {
      spaces.index = spaces.inner_state = space.view();
      step.pages.index = step.pages.main;
      step.pages.inner_state = step.pages.state;
    }
  }
  return Must(Plan::Create(config, kind, 1, spaces, {&step, 1}));
}

// Puts rows [first, end) of `history`, whose first row is that of position `begin`, in their places
// on a ring.
void FillRing(PoolKind pool, const void* history, int64_t begin, int64_t first, int64_t end,
              std::byte* ring) {
  const PoolFormat format = FormatOf(pool);
  for (int64_t p = first; p < end; ++p) {
    std::memcpy(ring + p % format.ring_rows() * format.row_bytes,
                static_cast<const std::byte*>(history) + (p - begin) * format.row_bytes,
                static_cast<size_t>(format.row_bytes));
  }
}

template <typename T>
void Append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

TensorView<const float, 1> ViewOf(const std::vector<float>& values) {
  return MakeView(values.data(), values.size());
}

// Room for `rows` rows of `width` elements, in whole pages.
template <typename T>
void Cover(std::vector<T>& values, int64_t rows, int64_t width) {
  const int64_t pages = (rows + kPageRows - 1) / kPageRows;
  const auto size = static_cast<size_t>(pages * kPageRows * width);
  if (values.size() < size) values.resize(size);
}

}  // namespace

int64_t RatioOfKind(AttentionKind kind) {
  if (kind == AttentionKind::kSwa) return 0;
  return kind == AttentionKind::kHca ? kHcaRatio : kCsaRatio;
}

int64_t StateWidth(AttentionKind kind) {
  if (kind == AttentionKind::kSwa) return 0;
  return (kind == AttentionKind::kCsa ? 4 : 2) * int64_t{kHeadDim};
}

const PlainLayer& SharedLayer(const ModelConfig& config, AttentionKind kind, int index) {
  static std::map<std::tuple<int32_t, AttentionKind, int>, std::unique_ptr<PlainLayer>> cache;
  auto& entry = cache[{config.index_topk, kind, index}];
  if (!entry) entry = MakeLayer(config, kind, index);
  return *entry;
}

PlainModel::PlainModel(const ModelConfig& config, std::vector<AttentionKind> kinds, int num_layers)
    : config_(config),
      kinds_(std::move(kinds)),
      num_layers_(num_layers),
      scratch_(std::max(StageScratchBytes(config, 1, 1),
                        SelectScratchBytes(config, config.index_topk, 1))),
      rings_(FormatOf(PoolKind::kRaw).page_bytes() * 4 +
             FormatOf(PoolKind::kHcaState).page_bytes() * 16 +
             FormatOf(PoolKind::kCsaInnerState).page_bytes() * 4) {}

PlainRequest PlainModel::Import(int64_t position, uint64_t key) const {
  PlainRequest request;
  request.position = position;
  request.begin = std::max<int64_t>(0, position - kWindowRows);
  const auto num_positions = static_cast<size_t>(position - request.begin);
  for (const AttentionKind kind : kinds_) {
    request.rows.emplace_back();
    for (int layer = 0; layer < num_layers_; ++layer) {
      PlainRows& rows = request.rows.back().emplace_back();
      Hash hash(Mix(key, static_cast<uint64_t>(kind) * 16 + static_cast<uint64_t>(layer)));
      rows.raw.resize(num_positions * kHeadDim);
      for (Bf16& value : rows.raw) value = ToBf16(hash.Symmetric());
      if (kind == AttentionKind::kSwa) continue;
      const int64_t num_rows = position / RatioOfKind(kind);
      rows.state.resize(num_positions * static_cast<size_t>(StateWidth(kind)));
      for (float& value : rows.state) value = hash.Symmetric();
      Cover(rows.main, num_rows, kHeadDim);
      for (Bf16& value : rows.main) value = ToBf16(hash.Symmetric());
      if (kind == AttentionKind::kHca) continue;
      rows.inner_state.resize(num_positions * 4 * kIndexDim);
      for (float& value : rows.inner_state) value = hash.Symmetric();
      Cover(rows.index_rows, num_rows, kIndexDim);
      for (int8_t& value : rows.index_rows) value = static_cast<int8_t>(hash.Below(255) - 127);
      Cover(rows.index_scales, num_rows, 1);
      for (float& value : rows.index_scales) value = 0.01F * (2.0F + hash.Symmetric());
    }
  }
  return request;
}

std::vector<std::vector<TokenOutputs>> PlainModel::Decode(PlainRequest& request, const Input& x) {
  std::vector<std::vector<TokenOutputs>> outputs(kinds_.size());
  const int64_t position = request.position;
  for (size_t k = 0; k < kinds_.size(); ++k) {
    const AttentionKind kind = kinds_[k];
    const int64_t ratio = RatioOfKind(kind);
    const bool boundary = ratio > 0 && (position + 1) % ratio == 0;
    std::vector<float> rope(size_t{4} * kRopePairs);
    float* const row = rope.data();
    const RopeRows token_rope{MakeView<const float>(row, 1, kRopePairs),
                              MakeView<const float>(row + kRopePairs, 1, kRopePairs)};
    Must(ComputeRopeRows(kind, {&position, 1}, MakeView(row, 1, kRopePairs),
                         MakeView(row + kRopePairs, 1, kRopePairs)));
    RopeRows event_rope{MakeView<const float>(row + 2 * kRopePairs, 0, kRopePairs),
                        MakeView<const float>(row + 3 * kRopePairs, 0, kRopePairs)};
    if (boundary) {
      const int64_t first = position + 1 - ratio;
      event_rope.cos.shape[0] = event_rope.sin.shape[0] = 1;
      Must(ComputeRopeRows(kind, {&first, 1}, MakeView(row + 2 * kRopePairs, 1, kRopePairs),
                           MakeView(row + 3 * kRopePairs, 1, kRopePairs)));
    }
    const Plan plan = PlanToken(config_, kind, position);
    for (int layer = 0; layer < num_layers_; ++layer) {
      const auto l = static_cast<size_t>(layer);
      outputs[k].push_back(DecodeLayer(kind, SharedLayer(config_, kind, layer), plan, request,
                                       request.rows[k][l], x[k][l], token_rope, event_rope));
    }
  }
  ++request.position;
  return outputs;
}

TokenOutputs PlainModel::DecodeLayer(AttentionKind kind, const PlainLayer& weights,
                                     const Plan& plan, const PlainRequest& request, PlainRows& rows,
                                     const std::vector<float>& x, const RopeRows& rope,
                                     const RopeRows& event_rope) {
  const ModelConfig& c = config_;
  const fixtures::LayerFixture& f = weights.fixture;
  const int64_t hidden = c.hidden;
  const int64_t position = request.position;
  const Scratch scratch = scratch_.span();
  std::byte* const raw_ring = rings_.span().data();
  std::byte* const state_ring = raw_ring + 4 * FormatOf(PoolKind::kRaw).page_bytes();
  std::byte* const inner_ring = state_ring + 16 * FormatOf(PoolKind::kHcaState).page_bytes();
  const auto pool = [](std::byte* base, PoolKind pool_kind) {
    return PoolView{base, FormatOf(pool_kind).page_bytes(), kMaxPages};
  };

  std::vector<Bf16> x_mixed(static_cast<size_t>(hidden));
  std::vector<float> post(kHcStreams);
  std::vector<float> comb(size_t{kHcStreams} * kHcStreams);
  std::vector<Bf16> xn(static_cast<size_t>(hidden));
  std::vector<int8_t> qr(static_cast<size_t>(c.q_rank));
  float qr_scale = 0;
  std::vector<Bf16> q(static_cast<size_t>(c.num_heads) * kHeadDim);
  std::vector<Bf16> kv(kHeadDim);
  std::vector<Bf16> attn_out(static_cast<size_t>(hidden));
  TokenOutputs out;
  out.heads.resize(q.size());
  out.x_out.resize(static_cast<size_t>(kHcStreams * hidden));
  const auto x_view = MakeView(x.data(), 1, kHcStreams, hidden);
  const auto x_mixed_view = MakeView(x_mixed.data(), 1, hidden);
  const auto post_view = MakeView(post.data(), 1, kHcStreams);
  const auto comb_view = MakeView(comb.data(), 1, kHcStreams, kHcStreams);
  const auto xn_view = MakeView(xn.data(), 1, hidden);
  const auto qr_view = MakeView(qr.data(), 1, c.q_rank);
  const auto qr_scale_view = MakeView(&qr_scale, 1);
  const auto q_view = MakeView(q.data(), 1, c.num_heads, kHeadDim);
  const auto kv_view = MakeView(kv.data(), 1, kHeadDim);
  const auto heads_view = MakeView(out.heads.data(), 1, c.num_heads, kHeadDim);
  const auto attn_view = MakeView(attn_out.data(), 1, hidden);

  Must(HcPre(context_, c, weights.hc, x_view, x_mixed_view, post_view, comb_view, scratch));
  Must(AttnNorm(context_, c, ViewOf(f.attn_norm), x_mixed_view, xn_view));
  Must(ProjectLatent(context_, c, weights.wq_a, ViewOf(f.q_norm), xn_view, qr_view, qr_scale_view,
                     scratch));
  Must(ProjectQuery(context_, c, weights.wq_b, qr_view, qr_scale_view, rope, q_view, scratch));
  Must(ProjectKv(context_, c, weights.wkv, ViewOf(f.kv_norm), xn_view, rope, kv_view, scratch));

  FillRing(PoolKind::kRaw, rows.raw.data(), request.begin, std::max<int64_t>(0, position - 127),
           position, raw_ring);
  AttendInputs attend{.q = q_view,
                      .sink = ViewOf(f.attn_sink),
                      .rope = rope,
                      .raw = pool(raw_ring, PoolKind::kRaw),
                      .new_kv = kv_view,
                      .main = {},
                      .selection = {}};
  std::vector<float> state(static_cast<size_t>(StateWidth(kind)));
  std::vector<float> inner;
  std::vector<int32_t> selection;
  if (kind != AttentionKind::kSwa) {
    const PoolKind state_pool = StatePool(kind);
    const int64_t first = FirstStateRow(kind, position);
    FillRing(state_pool, rows.state.data(), request.begin, first, position, state_ring);
    const auto state_view = MakeView(state.data(), 1, StateWidth(kind));
    Must(ProjectState(context_, c, plan, weights.compressor, xn_view, state_view, scratch));
    Cover(rows.main, position / RatioOfKind(kind) + 1, kHeadDim);
    const PoolKind main_pool =
        kind == AttentionKind::kHca ? PoolKind::kHcaMain : PoolKind::kCsaMain;
    attend.main = pool(reinterpret_cast<std::byte*>(rows.main.data()), main_pool);
    Must(Compress(context_, c, plan,
                  {.state = pool(state_ring, state_pool),
                   .new_state = state_view,
                   .norm = ViewOf(f.cmp_norm),
                   .rope = event_rope},
                  attend.main));
    if (kind == AttentionKind::kCsa) {
      inner.resize(size_t{4} * kIndexDim);
      FillRing(PoolKind::kCsaInnerState, rows.inner_state.data(), request.begin, first, position,
               inner_ring);
      const auto inner_view = MakeView(inner.data(), 1, int64_t{4} * kIndexDim);
      Must(ProjectState(context_, c, plan, weights.indexer.compressor, xn_view, inner_view,
                        scratch));
      Cover(rows.index_rows, position / kCsaRatio + 1, kIndexDim);
      Cover(rows.index_scales, position / kCsaRatio + 1, 1);
      const PoolView index_rows =
          pool(reinterpret_cast<std::byte*>(rows.index_rows.data()), PoolKind::kCsaIndexRows);
      const PoolView index_scales =
          pool(reinterpret_cast<std::byte*>(rows.index_scales.data()), PoolKind::kCsaIndexScales);
      Must(CompressIndex(context_, c, plan,
                         {.state = pool(inner_ring, PoolKind::kCsaInnerState),
                          .new_state = inner_view,
                          .norm = ViewOf(f.idx_cmp_norm),
                          .rope = event_rope},
                         index_rows, index_scales));
      std::vector<int8_t> idx_q(static_cast<size_t>(c.num_index_heads) * kIndexDim);
      std::vector<float> idx_q_scale(static_cast<size_t>(c.num_index_heads));
      std::vector<float> idx_weights(static_cast<size_t>(c.num_index_heads));
      selection.resize(static_cast<size_t>(c.index_topk));
      const auto idx_q_view = MakeView(idx_q.data(), 1, c.num_index_heads, kIndexDim);
      const auto idx_scale_view = MakeView(idx_q_scale.data(), 1, c.num_index_heads);
      const auto idx_weights_view = MakeView(idx_weights.data(), 1, c.num_index_heads);
      Must(ProjectIndexQuery(context_, c, weights.indexer, qr_view, qr_scale_view, xn_view, rope,
                             {idx_q_view, idx_scale_view, idx_weights_view}, scratch));
      Must(Select(context_, c, plan,
                  {.idx_q = idx_q_view,
                   .idx_q_scale = idx_scale_view,
                   .idx_weights = idx_weights_view,
                   .index_rows = index_rows,
                   .index_scales = index_scales},
                  MakeView(selection.data(), 1, c.index_topk), {}, scratch));
      attend.selection = MakeView<const int32_t>(selection.data(), 1, c.index_topk);
    }
  }
  Must(Attend(context_, c, plan, attend, {.heads = heads_view, .log_sum_exp = {}}, scratch));
  Must(ProjectOutput(context_, c, weights.output, heads_view, attn_view, scratch));
  Must(HcPost(context_, c, x_view, attn_view, post_view, comb_view,
              MakeView(out.x_out.data(), 1, kHcStreams, hidden)));
  Append(rows.raw, kv);
  Append(rows.state, state);
  Append(rows.inner_state, inner);
  return out;
}

void PlainModel::Truncate(PlainRequest& request, int64_t position) const {
  const auto num_positions = static_cast<size_t>(position - request.begin);
  for (size_t k = 0; k < kinds_.size(); ++k) {
    for (PlainRows& rows : request.rows[k]) {
      rows.raw.resize(num_positions * kHeadDim);
      rows.state.resize(num_positions * static_cast<size_t>(StateWidth(kinds_[k])));
      if (kinds_[k] == AttentionKind::kCsa) rows.inner_state.resize(num_positions * 4 * kIndexDim);
    }
  }
  request.position = position;
}

}  // namespace millipede::testing
