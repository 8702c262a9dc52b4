// The steps of random histories: planned, run, compared with the model, committed.
#include <gtest/gtest-spi.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>

#include "life/life_rows.h"
#include "life/life_world.h"
#include "support/golden_check.h"

namespace millipede::testing {
namespace {

constexpr int64_t kGoldenEvery = 100;   // steps
constexpr int64_t kCheckAllEvery = 16;  // steps

std::span<std::byte> Aligned(std::vector<std::byte>& storage, int64_t num_bytes) {
  const size_t wanted = static_cast<size_t>(num_bytes) + 64;
  if (storage.size() < wanted) storage.resize(wanted, std::byte{0xFF});
  void* begin = storage.data();
  size_t space = storage.size();
  std::align(64, static_cast<size_t>(num_bytes), begin, space);
  return {static_cast<std::byte*>(begin), static_cast<size_t>(num_bytes)};
}

template <typename T>
std::vector<T> Part(const std::vector<T>& all, int64_t first, int64_t count) {
  if (all.empty()) return {};
  return {all.begin() + first, all.begin() + first + count};
}

// The rope rows of positions, and the memory behind them.
struct Rope {
  std::vector<float> cos;
  std::vector<float> sin;
  RopeRows rows;

  Rope(AttentionKind kind, const std::vector<int64_t>& positions)
      : cos(positions.size() * kRopePairs), sin(cos.size()) {
    const auto n = static_cast<int64_t>(positions.size());
    Must(ComputeRopeRows(kind, positions, MakeView(cos.data(), n, kRopePairs),
                         MakeView(sin.data(), n, kRopePairs)),
         "rope");
    rows = {MakeView<const float>(cos.data(), n, kRopePairs),
            MakeView<const float>(sin.data(), n, kRopePairs)};
  }
};

Rope TokenRope(const Plan& plan) {
  std::vector<int64_t> positions;
  for (const QueryToken& query : plan.work().queries) positions.push_back(query.position);
  return {plan.kind(), positions};
}

Rope EventRope(const Plan& plan) {
  std::vector<int64_t> positions;
  for (const CompressEvent& event : plan.work().events) positions.push_back(event.rope_position);
  return {plan.kind(), positions};
}

// The elements of tokens [first, first + count) of `all`, which holds `num_tokens`.
template <typename T>
std::vector<T> TokensOf(const std::vector<T>& all, int64_t num_tokens, int64_t first,
                        int64_t count) {
  const int64_t width = static_cast<int64_t>(all.size()) / num_tokens;
  return Part(all, first * width, count * width);
}

template <typename T>
void ExpectSame(const std::vector<T>& actual, int64_t token, const std::vector<T>& expected,
                const char* what, const std::string& where) {
  const auto width = static_cast<int64_t>(expected.size());
  if (std::memcmp(actual.data() + token * width, expected.data(), expected.size() * sizeof(T)) !=
      0) {
    throw Difference(fmt::format("{} of {}", what, where));
  }
}

// The x of every token in one layer, and where the layer leaves what it computes.
struct StepBuffers {
  std::vector<float> x;
  std::vector<float> x_out;
  std::vector<Bf16> heads;
  std::vector<Bf16> x_mixed, xn, q, attn_out;
  std::vector<float> post, comb, qr_scale, idx_q_scale, idx_weights, topk_score;
  std::vector<int8_t> qr, idx_q;
  std::vector<int32_t> topk_idx;

  // All of them, so that the golden can judge each stage; else the heads alone.
  StepActivations Views(const ModelConfig& config, int64_t n, bool all) {
    const auto view = [n](auto& values, auto... dims) {
      values.resize(static_cast<size_t>((n * ... * static_cast<int64_t>(dims))));
      return MakeView(values.data(), n, dims...);
    };
    StepActivations views;
    views.heads = view(heads, config.num_heads, kHeadDim);
    if (!all) return views;
    views.x_mixed = view(x_mixed, config.hidden);
    views.post = view(post, kHcStreams);
    views.comb = view(comb, kHcStreams, kHcStreams);
    views.xn = view(xn, config.hidden);
    views.qr = view(qr, config.q_rank);
    views.qr_scale = view(qr_scale);
    views.q = view(q, config.num_heads, kHeadDim);
    views.idx_q = view(idx_q, config.num_index_heads, kIndexDim);
    views.idx_q_scale = view(idx_q_scale, config.num_index_heads);
    views.idx_weights = view(idx_weights, config.num_index_heads);
    views.topk_idx = view(topk_idx, config.index_topk);
    views.topk_score = view(topk_score, config.index_topk);
    views.attn_out = view(attn_out, config.hidden);
    return views;
  }

  void Take(int64_t num_tokens, int64_t first, int64_t count, EntryResult& to) const {
    const auto part = [&](const auto& all) { return TokensOf(all, num_tokens, first, count); };
    to.x = part(x);
    to.x_mixed = part(x_mixed);
    to.post = part(post);
    to.comb = part(comb);
    to.xn = part(xn);
    to.qr = part(qr);
    to.qr_scale = part(qr_scale);
    to.q = part(q);
    to.idx_q = part(idx_q);
    to.idx_q_scale = part(idx_q_scale);
    to.idx_weights = part(idx_weights);
    to.topk_idx = part(topk_idx);
    to.topk_score = part(topk_score);
    to.heads = part(heads);
    to.attn_out = part(attn_out);
    to.x_out = part(x_out);
  }
};

template <typename T>
std::vector<T> RowsFrom(const TensorView<const T, 2>& rows, int64_t first, int64_t count) {
  std::vector<T> values;
  for (int64_t i = first; i < first + count; ++i) {
    values.insert(values.end(), rows.row(i), rows.row(i) + rows.shape[1]);
  }
  return values;
}

}  // namespace

bool LifeWorld::WritesSharedPage(const Holder& holder, int64_t num_tokens) const {
  const int64_t start = holder.plain.position;
  for (const AttentionKind kind : setup_.kinds) {
    const RequestPages pages = PagesOf(holder, kind);
    for (const RowsSpec& rows : RowsOf(kind)) {
      if (rows.pool == PoolKind::kCsaIndexScales) continue;
      const PageListView& list = pages.*rows.list;
      const PageSpace& space =
          *(spaces_.*std::ranges::find(kSpaces, rows.pool, &SpaceSpec::pool)->space);
      const int64_t first = rows.is_ring() ? start : RowsAt(kind, start);
      const int64_t end = rows.is_ring() ? start + num_tokens : RowsAt(kind, start + num_tokens);
      for (int64_t i = first; i < end; ++i) {
        const int64_t slot = rows.is_ring() ? i % rows.format().ring_rows() : i;
        const auto page = static_cast<size_t>(slot / rows.format().rows_per_page);
        if (page < list.pages.size() && space.ref_count(list.pages[page].page) > 1) return true;
      }
    }
  }
  return false;
}

bool LifeWorld::Prepare(Holder& holder, int64_t num_tokens) {
  if (holder.raw) return AcquireLists(*holder.raw, num_tokens);
  const std::vector<int32_t> free = Free();
  if (WritesSharedPage(holder, num_tokens)) {
    const Status status = holder.request->Prepare(num_tokens);
    Refused(status.has_value(), ErrorOf(status), {ErrorCode::kSharedWritePage},
            "Prepare of a shared page without pools");
    Expect(Free() == free, "pages leaked by Prepare");
  }
  const Status status = holder.request->Prepare(num_tokens, pools());
  if (status) return true;
  Expect(!HasAmplePages(), "prepare: " + status.error().message);
  Refused(false, &status.error(), {ErrorCode::kOutOfPages}, "prepare");
  Expect(Free() == free, "pages leaked by Prepare");
  return false;
}

StepRequest LifeWorld::PartOf(const Holder& holder, size_t kind, int64_t num_tokens) const {
  StepRequest part;
  part.active = num_tokens > 0;
  part.start_pos = holder.plain.position;
  part.num_tokens = num_tokens;
  if (holder.raw) {
    part.pages = holder.raw->pages(setup_.kinds[kind]);
  } else {
    part.request = &*holder.request;
  }
  return part;
}

Result<Plan> LifeWorld::MakePlan(size_t kind, const std::vector<StepRequest>& step) const {
  return Plan::Create(config_, setup_.kinds[kind], setup_.num_layers,
                      spaces_.views(setup_.kinds[kind]), step);
}

Status LifeWorld::RunLayer(size_t kind, int layer, const Plan& plan, const std::vector<float>& x,
                           std::vector<float>& x_out, const StepActivations& activations) {
  const Rope rope = TokenRope(plan);
  const Rope event_rope = EventRope(plan);
  const int64_t num_tokens = plan.num_tokens();
  x_out.resize(x.size());
  StepTensors tensors;
  tensors.x = MakeView<const float>(x.data(), num_tokens, kHcStreams, config_.hidden);
  tensors.rope = rope.rows;
  tensors.event_rope = event_rope.rows;
  tensors.x_out = MakeView(x_out.data(), num_tokens, kHcStreams, config_.hidden);
  const auto l = static_cast<size_t>(layer);
  return SharedLayer(config_, setup_.kinds[kind], layer)
      .layer->Run(*context_, plan, layer, layers_[static_cast<size_t>(setup_.kinds[kind])][l],
                  tensors, Aligned(workspace_, plan.workspace_bytes(context_->num_threads())),
                  Aligned(overlays_[{kind, layer}], plan.overlay_bytes()), activations);
}

Result<std::vector<RequestRanges>> LifeWorld::CommitLayer(size_t kind, int layer, const Plan& plan,
                                                          const std::vector<int64_t>& accepted) {
  const auto l = static_cast<size_t>(layer);
  return Commit(*context_, plan, layer, layers_[static_cast<size_t>(setup_.kinds[kind])][l],
                Aligned(overlays_[{kind, layer}], plan.overlay_bytes()), accepted);
}

void LifeWorld::RunAndCompare(size_t kind, int layer, const Plan& plan,
                              const std::vector<PartRun>& parts, bool twice) {
  const bool golden = num_steps_ % kGoldenEvery == 0;
  const auto l = static_cast<size_t>(layer);
  StepBuffers buffers;
  for (const PartRun& part : parts) {
    for (const PlainModel::Input& x : part.x) {
      buffers.x.insert(buffers.x.end(), x[kind][l].begin(), x[kind][l].end());
    }
  }
  const int64_t num_tokens = plan.num_tokens();
  const StepActivations views = buffers.Views(config_, num_tokens, golden);
  for (int run = 0; run < (twice ? 2 : 1); ++run) {
    Must(RunLayer(kind, layer, plan, buffers.x, buffers.x_out, views), "run");
    for (const PartRun& part : parts) {
      for (int64_t i = 0; i < part.num_tokens; ++i) {
        const TokenOutputs& expected = part.outputs[static_cast<size_t>(i)][kind][l];
        const auto where = [&] {
          return fmt::format("token {} of {}, layer {}", part.start + i,
                             KindName(setup_.kinds[kind]), layer);
        };
        if (std::memcmp(buffers.heads.data() +
                            (part.first_query + i) * static_cast<int64_t>(expected.heads.size()),
                        expected.heads.data(), expected.heads.size() * sizeof(Bf16)) != 0) {
          throw Difference("heads of " + where());
        }
        if (std::memcmp(buffers.x_out.data() +
                            (part.first_query + i) * static_cast<int64_t>(expected.x_out.size()),
                        expected.x_out.data(), expected.x_out.size() * sizeof(float)) != 0) {
          throw Difference("x_out of " + where());
        }
      }
    }
  }
  if (!golden) return;
  for (const PartRun& part : parts) {
    if (part.num_tokens == 0) continue;
    EntryResult result;
    buffers.Take(num_tokens, part.first_query, part.num_tokens, result);
    Judge(kind, layer, plan, part, result);
  }
}

void LifeWorld::Judge(size_t kind, int layer, const Plan& plan, const PartRun& part,
                      EntryResult& result) {
  const AttentionKind k = setup_.kinds[kind];
  const auto l = static_cast<size_t>(layer);
  const int64_t first = part.first_query;
  const int64_t n = part.num_tokens;
  const PlainRequest& plain = part.holder->plain;
  const PlainRows& rows = plain.rows[kind][l];
  const auto overlay = Aligned(overlays_[{kind, layer}], plan.overlay_bytes());
  result.start_pos = part.start;
  result.num_tokens = n;
  const Rope rope = TokenRope(plan);
  result.cos = Part(rope.cos, first * kRopePairs, n * kRopePairs);
  result.sin = Part(rope.sin, first * kRopePairs, n * kRopePairs);
  result.history_begin = std::max<int64_t>(0, part.start - 127);
  result.history = Part(rows.raw, (result.history_begin - plain.begin) * kHeadDim,
                        (part.start - result.history_begin) * kHeadDim);
  result.kv = RowsFrom(OverlayKv(plan, overlay), first, n);
  CompressedRows compressed;
  if (k != AttentionKind::kSwa) {
    const RequestPages pages = PagesOf(*part.holder, k);
    const LayerPools& layer_pools = layers_[static_cast<size_t>(k)][l];
    const PoolKind main_pool = k == AttentionKind::kHca ? PoolKind::kHcaMain : PoolKind::kCsaMain;
    compressed.main = [=](int64_t row) {
      return std::span(
          reinterpret_cast<const Bf16*>(RowAt(layer_pools.main, main_pool, pages.main, row)),
          kHeadDim);
    };
    compressed.index = [=](int64_t row) {
      return std::span(reinterpret_cast<const int8_t*>(RowAt(
                           layer_pools.index_rows, PoolKind::kCsaIndexRows, pages.index, row)),
                       kIndexDim);
    };
    compressed.index_scale = [=](int64_t row) {
      return *reinterpret_cast<const float*>(
          RowAt(layer_pools.index_scales, PoolKind::kCsaIndexScales, pages.index, row));
    };
    const int64_t width = StateWidth(k);
    result.state_begin = FirstState(k, part.start);
    result.state_history = Part(rows.state, (result.state_begin - plain.begin) * width,
                                (part.start - result.state_begin) * width);
    result.state = RowsFrom(OverlayState(plan, overlay), first, n);
    if (k == AttentionKind::kCsa) {
      constexpr int64_t kInner = int64_t{4} * kIndexDim;
      result.inner_history = Part(rows.inner_state, (result.state_begin - plain.begin) * kInner,
                                  (part.start - result.state_begin) * kInner);
      result.inner_state = RowsFrom(OverlayInnerState(plan, overlay), first, n);
    }
    const Rope event_rope = EventRope(plan);
    const auto& events = plan.work().events;
    for (size_t e = 0; e < events.size(); ++e) {
      if (events[e].query < first || events[e].query >= first + n) continue;
      const auto index = static_cast<int64_t>(e) * kRopePairs;
      const int64_t row = events[e].row;
      result.event_rows.push_back(row);
      const auto append = [](auto& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(result.event_cos, Part(event_rope.cos, index, kRopePairs));
      append(result.event_sin, Part(event_rope.sin, index, kRopePairs));
      append(result.cmp_rows, compressed.main(row));
      if (k != AttentionKind::kCsa) continue;
      append(result.idx_rows, compressed.index(row));
      result.idx_scales.push_back(compressed.index_scale(row));
    }
  }
  const reference::Golden golden(config_, k, SharedLayer(config_, k, layer).fixture.views());
  ::testing::TestPartResultArray failures;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &failures);
    ExpectGoldenStages(golden, compressed, result, reference::RuleProfile::kTiny, {n - 1});
  }
  if (failures.size() > 0) {
    throw Difference(fmt::format("the golden's judgement of {}, layer {}: {}", KindName(k), layer,
                                 failures.GetTestPartResult(0).message()));
  }
  ++num_golden_steps_;
}

void LifeWorld::Forget(Holder& holder, int64_t start, int64_t accepted) const {
  for (size_t k = 0; k < setup_.kinds.size(); ++k) {
    const AttentionKind kind = setup_.kinds[k];
    RingBegins& begins = holder.begins[k];
    begins.raw = std::max(begins.raw, start + accepted - 128);
    if (kind == AttentionKind::kSwa) continue;
    begins.state = std::max(begins.state, start + accepted - RingRows(kind));
  }
}

void LifeWorld::CommitLayers(const Op& op, const std::vector<Plan>& plans,
                             const std::vector<PartRun>& parts,
                             const std::vector<int64_t>& accepted) {
  std::vector<std::pair<size_t, int>> order;
  for (size_t k = 0; k < plans.size(); ++k) {
    for (int layer = 0; layer < setup_.num_layers; ++layer) order.emplace_back(k, layer);
  }
  Hash hash(op.id);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[static_cast<size_t>(hash.Below(static_cast<int64_t>(i)))]);
  }
  std::vector<int> committed(plans.size(), 0);
  for (const auto& [k, layer] : order) {
    if (op.end == StepEnd::kHalf && committed[k] == setup_.num_layers - 1) continue;
    const auto ranges = Must(CommitLayer(k, layer, plans[k], accepted), "commit");
    const bool last = ++committed[k] == setup_.num_layers;
    Expect(ranges.size() == (last ? accepted.size() : 0), "ranges of a commit");
    const AttentionKind kind = setup_.kinds[k];
    for (const PartRun& part : parts) {
      if (part.holder->request) {
        const int64_t position = part.holder->request->position(kind);
        const int64_t moved = last ? accepted[static_cast<size_t>(&part - parts.data())] : 0;
        Expect(position == part.start + moved, "a commit moved a request to the wrong place");
      } else if (last && part.num_tokens > 0) {
        part.holder->raw->ranges[static_cast<size_t>(kind)] =
            ranges[static_cast<size_t>(&part - parts.data())];
      }
    }
  }
}

void LifeWorld::Step(const Op& op) {
  // The parts that take part; inactive ones stand for themselves in the plan.
  std::vector<PartRun> parts;
  std::vector<int64_t> accepted;
  for (const StepPart& wanted : op.parts) {
    Holder& holder = slots_[static_cast<size_t>(wanted.slot)];
    if (holder.empty()) continue;
    const auto same = [&](const PartRun& part) { return part.holder == &holder; };
    if (std::ranges::any_of(parts, same)) continue;
    PartRun& part = parts.emplace_back();
    part.holder = &holder;
    part.start = holder.plain.position;
    part.num_tokens = wanted.num_tokens;
    accepted.push_back(wanted.accepted);
  }
  const int64_t num_tokens =
      std::transform_reduce(parts.begin(), parts.end(), int64_t{0}, std::plus<>(),
                            [](const PartRun& part) { return part.num_tokens; });
  if (num_tokens == 0) return;
  for (const PartRun& part : parts) {
    if (!Prepare(*part.holder, part.num_tokens)) return;
  }

  std::vector<Plan> plans;
  for (size_t k = 0; k < setup_.kinds.size(); ++k) {
    std::vector<StepRequest> step;
    bool can_start = true;
    for (const PartRun& part : parts) {
      step.push_back(PartOf(*part.holder, k, part.num_tokens));
      can_start = can_start && (part.num_tokens == 0 || CanStart(*part.holder, k, part.start));
    }
    auto plan = MakePlan(k, step);
    if (!can_start) {
      Refused(plan.has_value(), ErrorOf(plan), {ErrorCode::kRangeMissingRows},
              "a step that reads rows the rings lack");
      return;
    }
    plans.push_back(Must(std::move(plan), "plan"));
  }

  int64_t first_query = 0;
  const auto width = static_cast<size_t>(kHcStreams * config_.hidden);
  for (PartRun& part : parts) {
    part.first_query = first_query;
    first_query += part.num_tokens;
    const auto slot = static_cast<uint64_t>(part.holder - slots_.data());
    for (int64_t i = 0; i < part.num_tokens; ++i) {
      PlainModel::Input& x = part.x.emplace_back(setup_.kinds.size());
      for (size_t k = 0; k < x.size(); ++k) {
        for (int layer = 0; layer < setup_.num_layers; ++layer) {
          Hash hash(Mix(op.id, (slot << 40) + (static_cast<uint64_t>(i) << 16) + (k << 8) +
                                   static_cast<uint64_t>(layer)));
          std::vector<float>& row = x[k].emplace_back(width);
          for (float& value : row) value = hash.Symmetric();
        }
      }
      part.outputs.push_back(model_.Decode(part.holder->plain, x));
    }
  }

  ++num_steps_;
  for (size_t k = 0; k < plans.size(); ++k) {
    for (int layer = 0; layer < setup_.num_layers; ++layer) {
      RunAndCompare(k, layer, plans[k], parts, op.end == StepEnd::kRerun);
    }
  }
  const bool commits = op.end == StepEnd::kCommit || op.end == StepEnd::kRerun;
  if (op.end != StepEnd::kDrop) CommitLayers(op, plans, parts, accepted);
  plans.clear();
  for (size_t r = 0; r < parts.size(); ++r) {
    Holder& holder = *parts[r].holder;
    if (parts[r].num_tokens == 0) continue;
    const int64_t start = parts[r].start;
    const bool one_layer = setup_.num_layers == 1;
    model_.Truncate(holder.plain, start + (commits ? accepted[r] : 0));
    if (commits) {
      Forget(holder, start, accepted[r]);
    } else if (op.end == StepEnd::kHalf && !one_layer) {
      Forget(holder, start, accepted[r]);
      for (size_t k = 0; k < holder.begins.size(); ++k) {
        holder.begins[k].raw = std::min(holder.begins[k].raw, start);
        holder.begins[k].state = std::min(holder.begins[k].state, start);
        if (!holder.raw) continue;
        // An engine has to do for its ranges what a Request does.
        RequestRanges& ranges = holder.raw->ranges[static_cast<size_t>(setup_.kinds[k])];
        ranges.raw.begin = holder.begins[k].raw;
        ranges.state.begin = holder.begins[k].state;
        if (setup_.kinds[k] == AttentionKind::kCsa) {
          ranges.inner_state.begin = holder.begins[k].state;
        }
      }
    }
    CheckHolder(holder, start);
  }
  if (num_steps_ % kCheckAllEvery == 0) CheckAll();
}

}  // namespace millipede::testing
