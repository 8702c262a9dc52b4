// The calls of random histories beside steps: going back, sharing, and what has to be refused.
#include <algorithm>
#include <cstring>
#include <utility>

#include "life/life_rows.h"
#include "life/life_world.h"

namespace millipede::testing {

void LifeWorld::Rewind(const Op& op) {
  Holder& holder = slots_[static_cast<size_t>(op.slot)];
  const int64_t to = holder.plain.position - op.value;
  if (holder.empty() || to < 0) return;
  bool legal = true;
  for (size_t k = 0; k < setup_.kinds.size(); ++k) legal = legal && CanStart(holder, k, to);
  if (holder.raw) {
    RawRequest shorter = *holder.raw;
    for (const AttentionKind kind : setup_.kinds) {
      RequestRanges& ranges = shorter.ranges[static_cast<size_t>(kind)];
      ranges.raw.end = to;
      if (kind == AttentionKind::kSwa) continue;
      ranges.main.end = RowsAt(kind, to);
      ranges.state.end = to;
      if (kind == AttentionKind::kHca) continue;
      ranges.index.end = ranges.main.end;
      ranges.inner_state.end = to;
    }
    // Plan says whether it may be done; the lists cover the token that was there.
    for (size_t k = 0; k < setup_.kinds.size() && op.value > 0; ++k) {
      StepRequest step;
      step.start_pos = to;
      step.num_tokens = 1;
      step.pages = shorter.pages(setup_.kinds[k]);
      const auto plan = MakePlan(k, {step});
      if (CanStart(holder, k, to)) {
        Expect(plan.has_value(),
               "raw descriptors that go back were refused: " + (plan ? "" : plan.error().message));
      } else {
        Refused(plan.has_value(), ErrorOf(plan),
                {ErrorCode::kRangeMissingRows, ErrorCode::kRangeMismatch},
                "raw descriptors that go back too far");
      }
    }
    if (!legal) return;
    holder.raw = std::move(shorter);
  } else {
    // The lowest position that can be gone back to, by trying each.
    int64_t earliest = 0;
    const auto can_all = [&](int64_t position) {
      bool all = true;
      for (size_t k = 0; k < setup_.kinds.size(); ++k) all = all && CanStart(holder, k, position);
      return all;
    };
    while (!can_all(earliest)) ++earliest;
    Expect(
        holder.request->EarliestRewind() == earliest,
        fmt::format("EarliestRewind {}, expected {}", holder.request->EarliestRewind(), earliest));
    const Status status = holder.request->Rewind(to);
    if (!legal) {
      Refused(status.has_value(), ErrorOf(status), {ErrorCode::kRangeMissingRows},
              "a rewind too far");
      CheckHolder(holder, holder.plain.position);
      return;
    }
    Must(status, "rewind");
    for (Holder& mark : marks_) {
      const bool of_this = mark.branch == branches_[static_cast<size_t>(op.slot)];
      if (of_this && mark.plain.position > to) mark.branch = 0;
    }
  }
  model_.Truncate(holder.plain, to);
  CheckHolder(holder, to);
}

void LifeWorld::MakeMark(const Op& op) {
  Holder& holder = slots_[static_cast<size_t>(op.slot)];
  Holder& mark = marks_[static_cast<size_t>(op.other)];
  if (!holder.request || !mark.empty()) return;
  const std::vector<int32_t> free = Free();
  auto made = holder.request->Mark(pools());
  if (!made) {
    Expect(!HasAmplePages(), "mark: " + made.error().message);
    Refused(false, &made.error(), {ErrorCode::kOutOfPages}, "mark");
    Expect(Free() == free, "pages leaked by Mark");
    return;
  }
  mark.mark.emplace(*std::move(made));
  mark.plain = holder.plain;
  mark.begins = holder.begins;
  mark.branch = branches_[static_cast<size_t>(op.slot)];
  mark.made = num_marks_made_++;
  Expect(mark.mark->position() == mark.plain.position, "a mark's position");
  CheckHolder(holder, 0);
}

void LifeWorld::Fork(const Op& op) {
  Holder& parent = slots_[static_cast<size_t>(op.slot)];
  Holder& child = slots_[static_cast<size_t>(op.other)];
  if (!parent.request || !child.empty()) return;
  const int64_t position = parent.plain.position - op.value;
  const std::vector<int32_t> free = Free();
  auto made = parent.request->Fork(position, ForkPools());

  const Holder* source = op.value == 0 ? &parent : nullptr;
  for (const Holder& mark : marks_) {
    const bool of_this = mark.branch == branches_[static_cast<size_t>(op.slot)];
    if (op.value == 0 || !of_this || mark.plain.position != position) continue;
    if (source == nullptr || mark.made < source->made) source = &mark;
  }
  if (source == nullptr && op.value == 1 && position >= 0) {
    bool can_start = true;
    for (size_t k = 0; k < setup_.kinds.size(); ++k) {
      can_start = can_start && CanStart(parent, k, position);
    }
    if (!can_start) {
      Refused(made.has_value(), ErrorOf(made), {ErrorCode::kRangeMissingRows},
              "a fork that lacks rows");
      return;
    }
    source = &parent;
  }
  if (source == nullptr) {
    Refused(made.has_value(), ErrorOf(made), {ErrorCode::kInvalidArgument},
            "a fork at a length without a mark");
    return;
  }
  if (!made) {
    Expect(!HasAmplePages(), "fork: " + made.error().message);
    Refused(false, &made.error(), {ErrorCode::kOutOfPages}, "fork");
    Expect(Free() == free, "pages leaked by Fork");
    return;
  }
  child.request.emplace(*std::move(made));
  child.plain = source->plain;
  child.begins = source->begins;
  branches_[static_cast<size_t>(op.other)] = next_branch_++;
  model_.Truncate(child.plain, position);
  CheckHolder(child, 0);
  CheckHolder(parent, 0);
}

void LifeWorld::ForkMark(const Op& op) {
  const Holder& mark = marks_[static_cast<size_t>(op.other)];
  Holder& child = slots_[static_cast<size_t>(op.slot)];
  if (mark.empty() || !child.empty()) return;
  const std::vector<int32_t> free = Free();
  auto made = mark.mark->Fork(ForkPools());
  if (!made) {
    Expect(!HasAmplePages(), "fork: " + made.error().message);
    Refused(false, &made.error(), {ErrorCode::kOutOfPages}, "fork");
    Expect(Free() == free, "pages leaked by a mark's Fork");
    return;
  }
  child.request.emplace(*std::move(made));
  child.plain = mark.plain;
  child.begins = mark.begins;
  branches_[static_cast<size_t>(op.slot)] = next_branch_++;
  CheckHolder(child, 0);
}

void LifeWorld::FlipByte(const Op& op) {
  const Holder& holder = slots_[static_cast<size_t>(op.slot)];
  if (holder.empty() || holder.plain.position == 0) return;
  const AttentionKind kind = setup_.kinds.back();
  const LayerPools& layer = layers_[static_cast<size_t>(kind)].back();
  const RequestPages pages = PagesOf(holder, kind);
  std::byte* const row = RowAt(layer.raw, PoolKind::kRaw, pages.raw, holder.plain.position - 1);
  row[17] ^= std::byte{0x40};
}

void LifeWorld::Misuses(const Op& op) {
  Holder& holder = slots_[static_cast<size_t>(op.slot)];
  if (holder.empty()) return;
  const int64_t position = holder.plain.position;
  const size_t k = static_cast<size_t>(op.id % setup_.kinds.size());
  const auto which = static_cast<Misuse>(op.value);
  const bool needs_plan = which != Misuse::kPrepare && which != Misuse::kRewind &&
                          which != Misuse::kStaleLists && which != Misuse::kWrongPools;
  if (needs_plan && (!CanStart(holder, k, position) || !Prepare(holder, 1))) return;
  const auto refused = [&](const auto& result, std::initializer_list<ErrorCode> codes,
                           const char* what) {
    Refused(result.has_value(), ErrorOf(result), codes, what);
  };
  std::vector<StepRequest> step = {PartOf(holder, k, 1)};
  const std::vector<float> x(static_cast<size_t>(kHcStreams * config_.hidden), 0.5F);
  std::vector<float> x_out;
  const std::vector<int64_t> none = {0};
  switch (which) {
    case Misuse::kWrongStart:
      step[0].start_pos += 1;
      // One row more may be one page more than the lists have.
      refused(MakePlan(k, step), {ErrorCode::kRangeMismatch, ErrorCode::kShortList},
              "a wrong start");
      break;
    case Misuse::kUnderALivePlan: {
      if (!holder.request) return;
      const auto plan = Must(MakePlan(k, step), "plan");
      refused(MakePlan(k, step), {ErrorCode::kCallOrder}, "a second live plan");
      refused(holder.request->Rewind(position), {ErrorCode::kCallOrder}, "rewind under a plan");
      refused(holder.request->Mark(pools()), {ErrorCode::kCallOrder}, "mark under a plan");
      refused(holder.request->Fork(position, pools()), {ErrorCode::kCallOrder},
              "fork under a plan");
      break;
    }
    case Misuse::kCallOrder: {
      const auto plan = Must(MakePlan(k, step), "plan");
      refused(CommitLayer(k, 0, plan, none), {ErrorCode::kCallOrder}, "commit before run");
      for (int layer = 0; layer < setup_.num_layers; ++layer) {
        Must(RunLayer(k, layer, plan, x, x_out, {}), "run");
        refused(CommitLayer(k, layer, plan, {2}), {ErrorCode::kInvalidArgument},
                "more accepted than there are");
        Must(CommitLayer(k, layer, plan, none), "commit of nothing");
        refused(CommitLayer(k, layer, plan, none), {ErrorCode::kCallOrder}, "a second commit");
        refused(RunLayer(k, layer, plan, x, x_out, {}), {ErrorCode::kCallOrder},
                "a run after commit");
      }
      refused(RunLayer(k, 0, plan, x, x_out, {}), {ErrorCode::kCallOrder}, "a run after the end");
      break;
    }
    case Misuse::kPrepare:
      if (!holder.request) return;
      refused(holder.request->Prepare(-1), {ErrorCode::kInvalidArgument}, "a negative count");
      refused(holder.request->Prepare(INT64_MAX), {ErrorCode::kContextCeiling}, "an absurd count");
      break;
    case Misuse::kRewind:
      if (!holder.request) return;
      for (const int64_t to : {position + 1, int64_t{-1}, INT64_MIN, INT64_MAX}) {
        refused(holder.request->Rewind(to), {ErrorCode::kInvalidArgument}, "an absurd rewind");
        refused(holder.request->Fork(to, pools()), {ErrorCode::kInvalidArgument}, "an absurd fork");
      }
      break;
    case Misuse::kStaleLists: {
      if (!stale_) return;
      step[0] = {};
      step[0].num_tokens = 1;
      step[0].pages = stale_->pages(setup_.kinds[k]);
      step[0].start_pos = step[0].pages.raw.valid.end;
      refused(MakePlan(k, step),
              {ErrorCode::kStaleEpoch, ErrorCode::kPageNotAcquired, ErrorCode::kShortList},
              "released lists");
      break;
    }
    case Misuse::kReleaseUnderALivePlan: {
      if (!holder.request) return;
      const auto plan = Must(MakePlan(k, step), "plan");
      Release(holder);
      refused(RunLayer(k, 0, plan, x, x_out, {}),
              {ErrorCode::kStaleEpoch, ErrorCode::kPageNotAcquired, ErrorCode::kCallOrder},
              "a run after release");
      return;
    }
    case Misuse::kTwiceInABatch:
      step.push_back(step[0]);
      refused(MakePlan(k, step), {ErrorCode::kWriteConflict}, "a request twice in a batch");
      break;
    case Misuse::kDoubleFree: {
      const PageEntry entry = PagesOf(holder, setup_.kinds[k]).raw.pages[0];
      const PageEntry twice[] = {entry, entry};
      refused(spaces_.raw->Release(twice), {ErrorCode::kDoubleFree}, "a page released twice");
      const PageEntry older[] = {{entry.page, entry.epoch - 1}};
      refused(spaces_.raw->Release(older), {ErrorCode::kStaleEpoch}, "a page of an old epoch");
      break;
    }
    case Misuse::kInactiveTokens:
      step[0].active = false;
      refused(MakePlan(k, step), {ErrorCode::kInactiveTokens}, "an inactive request with tokens");
      break;
    case Misuse::kWrongPools: {
      if (!holder.request) return;
      RequestPools none_at_all = pools();
      const AttentionKind kind = setup_.kinds[k];
      (kind == AttentionKind::kSwa   ? none_at_all.swa
       : kind == AttentionKind::kHca ? none_at_all.hca
                                     : none_at_all.csa) = {};
      refused(holder.request->Mark(none_at_all), {ErrorCode::kInvalidArgument},
              "a mark without pools");
      auto wrong = layers_[static_cast<size_t>(kind)];
      ++wrong.back().raw.num_pages;
      RequestPools wrong_pools = pools();
      (kind == AttentionKind::kSwa   ? wrong_pools.swa
       : kind == AttentionKind::kHca ? wrong_pools.hca
                                     : wrong_pools.csa) = wrong;
      refused(holder.request->Fork(position, wrong_pools), {ErrorCode::kPlanMismatch},
              "a fork in other pools");
      break;
    }
    case Misuse::kSharedRing: {
      const auto pages = PagesOf(holder, setup_.kinds[k]).raw.pages;
      const PageEntry written[] = {pages[static_cast<size_t>(position % 128 / kPageRows)]};
      Must(spaces_.raw->Share(written), "share");
      refused(MakePlan(k, step), {ErrorCode::kSharedWritePage}, "a shared write page");
      Must(spaces_.raw->Release(written), "release of a share");
      break;
    }
  }
  CheckHolder(holder, 0);
}

}  // namespace millipede::testing
