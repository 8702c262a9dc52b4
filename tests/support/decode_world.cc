#include "support/decode_world.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>

namespace millipede::testing {
namespace {

constexpr int32_t kRaggedPages = 1 << 17;

// Unwraps a Result, or throws its message: a test that gets here with an error has failed.
template <typename T>
T Must(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(result).value();
}
void Must(const Status& status) {
  if (!status) throw std::runtime_error(status.error().message);
}

template <typename T>
std::vector<T> Part(const std::vector<T>& all, int64_t first, int64_t count, int64_t width) {
  const auto begin = all.begin() + first * width;
  return {begin, begin + count * width};
}

template <typename T>
void Append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void FillPattern(std::span<std::byte> bytes, uint32_t pattern) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(pattern)) {
    std::memcpy(bytes.data() + i, &pattern, std::min(sizeof(pattern), bytes.size() - i));
  }
}

AlignedBytes::AlignedBytes(int64_t num_bytes, uint32_t pattern)
    : storage_(static_cast<size_t>(num_bytes) + 64), num_bytes_(static_cast<size_t>(num_bytes)) {
  void* begin = storage_.data();
  size_t space = storage_.size();
  begin_ = static_cast<std::byte*>(std::align(64, num_bytes_, begin, space));
  FillPattern(span(), pattern);
}

const fixtures::LayerFixture& SharedFixture(const ModelConfig& config, AttentionKind kind,
                                            uint64_t seed) {
  using Key = std::tuple<int32_t, int32_t, AttentionKind, uint64_t>;
  static std::map<Key, std::unique_ptr<fixtures::LayerFixture>> cache;
  auto& entry = cache[{config.hidden, config.num_heads, kind, seed}];
  if (!entry) {
    entry =
        std::make_unique<fixtures::LayerFixture>(fixtures::MakeLayerFixture(config, kind, seed));
  }
  return *entry;
}

DecodeWorld::DecodeWorld(const ModelConfig& config, AttentionKind kind, int32_t num_pages,
                         int32_t page_shift, uint64_t seed)
    : config_(config),
      kind_(kind),
      fixture_(SharedFixture(config, kind, seed)),
      layer_(Must(Layer::Create(config, kind, fixture_.views()))) {
  std::vector<PoolKind> kinds = {PoolKind::kRaw};
  if (kind != AttentionKind::kSwa) kinds.insert(kinds.end(), {main_kind(), state_kind()});
  if (kind == AttentionKind::kCsa) {
    kinds.insert(kinds.end(), {PoolKind::kCsaIndexRows, PoolKind::kCsaInnerState});
  }
  for (const PoolKind pool : kinds) {
    const bool ring = FormatOf(pool).ring_pages > 0;
    const int32_t pool_pages = ring ? num_pages : kRaggedPages;
    PageSpace& space = spaces_.emplace(pool, Must(PageSpace::Create(pool_pages))).first->second;
    std::vector<PageEntry> skipped(static_cast<size_t>(page_shift));
    if (page_shift > 0) Must(space.Acquire(skipped));
    pools_.emplace(pool, Must(LayerPool::Create(pool, pool_pages)));
    if (ring) std::ranges::fill(Bytes(pool), std::byte{0xFF});
    if (pool == PoolKind::kCsaIndexRows) {
      pools_.emplace(PoolKind::kCsaIndexScales,
                     Must(LayerPool::Create(PoolKind::kCsaIndexScales, pool_pages)));
    }
  }
  request_spaces_.raw = &spaces_.at(PoolKind::kRaw);
  request_spaces_.swa = kind == AttentionKind::kSwa;
  if (kind == AttentionKind::kHca) {
    request_spaces_.hca_main = &spaces_.at(PoolKind::kHcaMain);
    request_spaces_.hca_state = &spaces_.at(PoolKind::kHcaState);
  }
  if (kind == AttentionKind::kCsa) {
    request_spaces_.csa_main = &spaces_.at(PoolKind::kCsaMain);
    request_spaces_.csa_index = &spaces_.at(PoolKind::kCsaIndexRows);
    request_spaces_.csa_state = &spaces_.at(PoolKind::kCsaState);
    request_spaces_.csa_inner_state = &spaces_.at(PoolKind::kCsaInnerState);
    // Index pages lie elsewhere than main pages of the same rows.
    std::vector<PageEntry> skipped(3);
    Must(request_spaces_.csa_index->Acquire(skipped));
  }
}

void DecodeWorld::Add(int64_t id, int64_t start_pos) {
  requests_.emplace(id, Must(Request::Create(request_spaces_, start_pos)));
  const fixtures::RequestFixture data(config_, seed(), id);
  for (int64_t p = std::max<int64_t>(0, start_pos - kWindowRows); p < start_pos; ++p) {
    data.KvRow(p, RawRow(id, p));
  }
  if (kind_ == AttentionKind::kSwa) return;
  PoisonNewPages(id, 0);
  const RequestPages pages = requests_.at(id).pages(kind_);
  for (int64_t row = 0; row < pages.main.valid.end; ++row) data.CmpRow(row, MainRow(id, row));
  for (int64_t p = pages.state.valid.begin; p < start_pos; ++p) data.StateRow(p, StateRow(id, p));
  if (kind_ != AttentionKind::kCsa) return;
  for (int64_t row = 0; row < pages.index.valid.end; ++row) {
    data.IdxRow(row, IndexRow(id, row));
    IndexScale(id, row) = data.IdxScale(row);
  }
  for (int64_t p = pages.inner_state.valid.begin; p < start_pos; ++p) {
    data.InnerStateRow(p, InnerStateRow(id, p));
  }
}

void DecodeWorld::Adopt(int64_t id, Request request, int64_t data_id) {
  requests_.emplace(id, std::move(request));
  data_ids_[id] = data_id;
}

void DecodeWorld::Remove(int64_t id) {
  requests_.erase(id);
  data_ids_.erase(id);
}

int64_t DecodeWorld::position(int64_t id) const { return requests_.at(id).position(kind_); }

void DecodeWorld::Prepare(int64_t id, int64_t num_tokens) {
  const size_t num_old_pages = request(id).pages(kind_).main.pages.size();
  Must(requests_.at(id).Prepare(num_tokens, request_pools()));
  PoisonNewPages(id, num_old_pages);
}

void DecodeWorld::PoisonNewPages(int64_t id, size_t num_old_pages) {
  const size_t num_pages = request(id).pages(kind_).main.pages.size();
  for (size_t i = num_old_pages; i < num_pages; ++i) {
    const std::span<Bf16> first = MainRow(id, static_cast<int64_t>(i) * kPageRows);
    std::fill_n(first.data(), kPageRows * kHeadDim, Bf16{0xFFFF});
    if (kind_ != AttentionKind::kCsa) continue;
    const int64_t row = static_cast<int64_t>(i) * kPageRows;
    std::fill_n(IndexRow(id, row).data(), kPageRows * kIndexDim, int8_t{-128});
    std::fill_n(&IndexScale(id, row), kPageRows, std::numeric_limits<float>::quiet_NaN());
  }
}

std::byte* DecodeWorld::RowAt(PoolKind kind, const PageListView& list, int64_t row) const {
  const PoolFormat format = FormatOf(kind);
  if (format.ring_pages > 0) row %= format.ring_rows();
  const PageEntry entry = list.pages[static_cast<size_t>(row / format.rows_per_page)];
  const PoolView view = pools_.at(kind).view();
  return view.base + entry.page * view.page_stride_bytes +
         row % format.rows_per_page * format.row_bytes;
}

std::span<Bf16> DecodeWorld::RawRow(int64_t id, int64_t position) {
  const PageListView list = requests_.at(id).pages(kind_).raw;
  return {reinterpret_cast<Bf16*>(RowAt(PoolKind::kRaw, list, position)), kHeadDim};
}

std::span<float> DecodeWorld::StateRow(int64_t id, int64_t position) {
  const PageListView list = requests_.at(id).pages(kind_).state;
  return {reinterpret_cast<float*>(RowAt(state_kind(), list, position)),
          static_cast<size_t>(FormatOf(state_kind()).row_bytes) / sizeof(float)};
}

std::span<Bf16> DecodeWorld::MainRow(int64_t id, int64_t row) {
  const PageListView list = requests_.at(id).pages(kind_).main;
  return {reinterpret_cast<Bf16*>(RowAt(main_kind(), list, row)), kHeadDim};
}

std::span<float> DecodeWorld::InnerStateRow(int64_t id, int64_t position) {
  const PageListView list = requests_.at(id).pages(kind_).inner_state;
  return {reinterpret_cast<float*>(RowAt(PoolKind::kCsaInnerState, list, position)),
          size_t{4} * kIndexDim};
}

std::span<int8_t> DecodeWorld::IndexRow(int64_t id, int64_t row) {
  const PageListView list = requests_.at(id).pages(kind_).index;
  return {reinterpret_cast<int8_t*>(RowAt(PoolKind::kCsaIndexRows, list, row)), kIndexDim};
}

float& DecodeWorld::IndexScale(int64_t id, int64_t row) {
  const PageListView list = requests_.at(id).pages(kind_).index;
  return *reinterpret_cast<float*>(RowAt(PoolKind::kCsaIndexScales, list, row));
}

std::span<std::byte> DecodeWorld::Bytes(PoolKind kind) {
  const PoolView view = pools_.at(kind).view();
  return {view.base, static_cast<size_t>(view.page_stride_bytes * view.num_pages)};
}

LayerPools DecodeWorld::pools() const {
  LayerPools pools;
  pools.raw = pools_.at(PoolKind::kRaw).view();
  if (kind_ != AttentionKind::kSwa) {
    pools.main = pools_.at(main_kind()).view();
    pools.state = pools_.at(state_kind()).view();
  }
  if (kind_ == AttentionKind::kCsa) {
    pools.index_rows = pools_.at(PoolKind::kCsaIndexRows).view();
    pools.index_scales = pools_.at(PoolKind::kCsaIndexScales).view();
    pools.inner_state = pools_.at(PoolKind::kCsaInnerState).view();
  }
  return pools;
}

RequestPools DecodeWorld::request_pools() {
  own_pools_ = pools();
  const std::span<const LayerPools> layer(&own_pools_, 1);
  switch (kind_) {
    case AttentionKind::kSwa:
      return {.swa = layer, .hca = {}, .csa = {}};
    case AttentionKind::kHca:
      return {.swa = {}, .hca = layer, .csa = {}};
    case AttentionKind::kCsa:
      return {.swa = {}, .hca = {}, .csa = layer};
  }
  return {};
}

std::map<int64_t, EntryResult> DecodeWorld::Step(Context& context,
                                                 const std::vector<StepEntry>& entries) {
  const int64_t hidden = config_.hidden;
  const int64_t head_width = int64_t{config_.num_heads} * kHeadDim;
  std::vector<StepRequest> step(entries.size());
  std::vector<int64_t> positions;
  std::vector<int64_t> accepted(entries.size(), 0);
  std::vector<float> x;
  for (size_t i = 0; i < entries.size(); ++i) {
    const StepEntry& entry = entries[i];
    step[i].active = entry.active;
    if (!entry.active) continue;
    Prepare(entry.id, entry.num_tokens);
    step[i].request = &requests_.at(entry.id);
    step[i].start_pos = position(entry.id);
    step[i].num_tokens = entry.num_tokens;
    accepted[i] = entry.accepted < 0 ? entry.num_tokens : entry.accepted;
    const auto data_id = data_ids_.find(entry.id);
    const fixtures::RequestFixture data(config_, seed(),
                                        data_id == data_ids_.end() ? entry.id : data_id->second);
    for (int64_t j = 0; j < entry.num_tokens; ++j) {
      positions.push_back(step[i].start_pos + j);
      x.resize(x.size() + static_cast<size_t>(4 * hidden));
      const std::span<float> row(x.data() + x.size() - 4 * hidden, static_cast<size_t>(4 * hidden));
      data.X(positions.back(), row);
      if (edit_x) edit_x(entry.id, positions.back(), row);
    }
  }
  const auto num_tokens = static_cast<int64_t>(positions.size());
  std::vector<float> cos(static_cast<size_t>(num_tokens * kRopePairs));
  std::vector<float> sin(cos.size());
  Must(ComputeRopeRows(kind_, positions, MakeView(cos.data(), num_tokens, kRopePairs),
                       MakeView(sin.data(), num_tokens, kRopePairs)));
  if (edit_rope) {
    int64_t token = 0;
    for (const StepEntry& entry : entries) {
      for (int64_t j = 0; entry.active && j < entry.num_tokens; ++j, ++token) {
        const auto offset = static_cast<size_t>(token * kRopePairs);
        edit_rope(entry.id, positions[static_cast<size_t>(token)],
                  std::span(cos).subspan(offset, kRopePairs),
                  std::span(sin).subspan(offset, kRopePairs));
      }
    }
  }

  const Plan plan = Must(Plan::Create(config_, kind_, 1, spaces(), step));
  const std::vector<CompressEvent>& events = plan.work().events;
  std::vector<int64_t> event_positions;
  for (const CompressEvent& event : events) event_positions.push_back(event.rope_position);
  const auto num_events = static_cast<int64_t>(events.size());
  std::vector<float> event_cos(events.size() * kRopePairs);
  std::vector<float> event_sin(events.size() * kRopePairs);
  Must(ComputeRopeRows(kind_, event_positions, MakeView(event_cos.data(), num_events, kRopePairs),
                       MakeView(event_sin.data(), num_events, kRopePairs)));
  AlignedBytes workspace(plan.workspace_bytes(context.num_threads()), buffer_pattern);
  AlignedBytes overlay(plan.overlay_bytes(), buffer_pattern);
  const auto elements = [num_tokens](int64_t width) {
    return static_cast<size_t>(num_tokens * width);
  };
  std::vector<Bf16> x_mixed(elements(hidden));
  std::vector<float> post(elements(kHcStreams));
  std::vector<float> comb(elements(kHcStreams * kHcStreams));
  std::vector<Bf16> xn(elements(hidden));
  std::vector<int8_t> qr(elements(config_.q_rank));
  std::vector<float> qr_scale(elements(1));
  std::vector<Bf16> q(elements(head_width));
  std::vector<Bf16> heads(elements(head_width));
  std::vector<Bf16> attn_out(elements(hidden));
  std::vector<float> x_out(elements(4 * hidden));
  StepTensors tensors;
  tensors.x = MakeView<const float>(x.data(), num_tokens, kHcStreams, hidden);
  tensors.rope = {MakeView<const float>(cos.data(), num_tokens, kRopePairs),
                  MakeView<const float>(sin.data(), num_tokens, kRopePairs)};
  tensors.event_rope = {MakeView<const float>(event_cos.data(), num_events, kRopePairs),
                        MakeView<const float>(event_sin.data(), num_events, kRopePairs)};
  tensors.x_out = MakeView(x_out.data(), num_tokens, kHcStreams, hidden);
  const int64_t index_heads = config_.num_index_heads;
  const int64_t topk = config_.index_topk;
  std::vector<int8_t> idx_q(elements(index_heads * kIndexDim));
  std::vector<float> idx_q_scale(elements(index_heads));
  std::vector<float> idx_weights(elements(index_heads));
  std::vector<int32_t> topk_idx(elements(topk));
  std::vector<float> topk_score(elements(topk));
  if (!selections.empty()) {
    topk_idx.clear();
    for (const StepEntry& entry : entries) Append(topk_idx, selections.at(entry.id));
    tensors.selection = MakeView<const int32_t>(topk_idx.data(), num_tokens, topk);
  }
  const StepActivations activations = {
      .x_mixed = MakeView(x_mixed.data(), num_tokens, hidden),
      .post = MakeView(post.data(), num_tokens, kHcStreams),
      .comb = MakeView(comb.data(), num_tokens, kHcStreams, kHcStreams),
      .xn = MakeView(xn.data(), num_tokens, hidden),
      .qr = MakeView(qr.data(), num_tokens, config_.q_rank),
      .qr_scale = MakeView(qr_scale.data(), num_tokens),
      .q = MakeView(q.data(), num_tokens, config_.num_heads, kHeadDim),
      .idx_q = MakeView(idx_q.data(), num_tokens, index_heads, kIndexDim),
      .idx_q_scale = MakeView(idx_q_scale.data(), num_tokens, index_heads),
      .idx_weights = MakeView(idx_weights.data(), num_tokens, index_heads),
      .topk_idx = MakeView(topk_idx.data(), num_tokens, topk),
      .topk_score = MakeView(topk_score.data(), num_tokens, topk),
      .heads = MakeView(heads.data(), num_tokens, config_.num_heads, kHeadDim),
      .attn_out = MakeView(attn_out.data(), num_tokens, hidden)};
  Must(run_layer ? run_layer(context, plan, pools(), tensors, workspace.span(), overlay.span(),
                             activations)
                 : layer_.Run(context, plan, 0, pools(), tensors, workspace.span(), overlay.span(),
                              activations));
  const TensorView<const Bf16, 2> new_kv = OverlayKv(plan, overlay.span());
  std::vector<Bf16> kv(elements(kHeadDim));
  for (int64_t t = 0; t < num_tokens; ++t) {
    std::copy_n(new_kv.row(t), kHeadDim, kv.begin() + t * kHeadDim);
  }

  std::map<int64_t, EntryResult> results;
  int64_t first = 0;
  for (const StepEntry& entry : entries) {
    if (!entry.active) continue;
    const int64_t n = entry.num_tokens;
    EntryResult& result = results[entry.id];
    result.id = entry.id;
    result.start_pos = position(entry.id);
    result.num_tokens = n;
    result.history_begin = std::max<int64_t>(0, result.start_pos - (kWindowRows - 1));
    for (int64_t p = result.history_begin; p < result.start_pos; ++p) {
      const std::span<Bf16> row = RawRow(entry.id, p);
      result.history.insert(result.history.end(), row.begin(), row.end());
    }
    if (kind_ != AttentionKind::kSwa) {
      result.state_begin = requests_.at(entry.id).pages(kind_).state.valid.begin;
      for (int64_t p = result.state_begin; p < result.start_pos; ++p) {
        const std::span<float> row = StateRow(entry.id, p);
        result.state_history.insert(result.state_history.end(), row.begin(), row.end());
      }
      const TensorView<const float, 2> state = OverlayState(plan, overlay.span());
      result.state.assign(state.row(first), state.row(first + n));
      for (size_t e = 0; e < events.size(); ++e) {
        if (events[e].query < first || events[e].query >= first + n) continue;
        result.event_rows.push_back(events[e].row);
        const auto index = static_cast<int64_t>(e);
        Append(result.event_cos, Part(event_cos, index, 1, kRopePairs));
        Append(result.event_sin, Part(event_sin, index, 1, kRopePairs));
        const std::span<Bf16> row = MainRow(entry.id, events[e].row);
        result.cmp_rows.insert(result.cmp_rows.end(), row.begin(), row.end());
        if (kind_ != AttentionKind::kCsa) continue;
        const std::span<int8_t> key = IndexRow(entry.id, events[e].row);
        result.idx_rows.insert(result.idx_rows.end(), key.begin(), key.end());
        result.idx_scales.push_back(IndexScale(entry.id, events[e].row));
      }
    }
    if (kind_ == AttentionKind::kCsa) {
      for (int64_t p = result.state_begin; p < result.start_pos; ++p) {
        const std::span<float> row = InnerStateRow(entry.id, p);
        result.inner_history.insert(result.inner_history.end(), row.begin(), row.end());
      }
      const TensorView<const float, 2> inner = OverlayInnerState(plan, overlay.span());
      result.inner_state.assign(inner.row(first), inner.row(first + n));
      result.idx_q = Part(idx_q, first, n, index_heads * kIndexDim);
      result.idx_q_scale = Part(idx_q_scale, first, n, index_heads);
      result.idx_weights = Part(idx_weights, first, n, index_heads);
      result.topk_idx = Part(topk_idx, first, n, topk);
      result.topk_score = Part(topk_score, first, n, topk);
    }
    result.x = Part(x, first, n, 4 * hidden);
    result.cos = Part(cos, first, n, kRopePairs);
    result.sin = Part(sin, first, n, kRopePairs);
    result.x_mixed = Part(x_mixed, first, n, hidden);
    result.post = Part(post, first, n, kHcStreams);
    result.comb = Part(comb, first, n, kHcStreams * kHcStreams);
    result.xn = Part(xn, first, n, hidden);
    result.qr = Part(qr, first, n, config_.q_rank);
    result.qr_scale = Part(qr_scale, first, n, 1);
    result.kv = Part(kv, first, n, kHeadDim);
    result.q = Part(q, first, n, head_width);
    result.heads = Part(heads, first, n, head_width);
    result.attn_out = Part(attn_out, first, n, hidden);
    result.x_out = Part(x_out, first, n, 4 * hidden);
    first += n;
  }
  Must(Commit(context, plan, 0, pools(), overlay.span(), accepted));
  return results;
}

EntryResult DecodeWorld::Decode(Context& context, int64_t id, int64_t total, int64_t width) {
  EntryResult joined;
  for (int64_t done = 0; done < total; done += width) {
    const int64_t n = std::min(width, total - done);
    const EntryResult part = Step(context, {{.id = id, .num_tokens = n}}).at(id);
    Append(joined.kv, part.kv);
    Append(joined.state, part.state);
    Append(joined.cmp_rows, part.cmp_rows);
    Append(joined.inner_state, part.inner_state);
    Append(joined.idx_rows, part.idx_rows);
    Append(joined.idx_scales, part.idx_scales);
    Append(joined.topk_idx, part.topk_idx);
    Append(joined.topk_score, part.topk_score);
    Append(joined.q, part.q);
    Append(joined.heads, part.heads);
    Append(joined.attn_out, part.attn_out);
    Append(joined.x_out, part.x_out);
  }
  return joined;
}

bool SameBits(const EntryResult& a, const EntryResult& b) {
  return SameBits(a.kv, b.kv) && SameBits(a.state, b.state) && SameBits(a.cmp_rows, b.cmp_rows) &&
         SameBits(a.inner_state, b.inner_state) && SameBits(a.idx_rows, b.idx_rows) &&
         SameBits(a.idx_scales, b.idx_scales) && SameBits(a.topk_idx, b.topk_idx) &&
         SameBits(a.q, b.q) && SameBits(a.heads, b.heads) && SameBits(a.attn_out, b.attn_out) &&
         SameBits(a.x_out, b.x_out);
}

}  // namespace millipede::testing
