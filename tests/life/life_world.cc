#include "life/life_world.h"

#include <algorithm>
#include <cstring>

#include "life/life_rows.h"

namespace millipede::testing {
namespace {

constexpr int32_t kAmplePages = 40;

ModelConfig ConfigOf(const LifeSetup& setup) {
  ModelConfig config = ModelConfig::Tiny();
  config.index_topk = setup.index_topk;
  return config;
}

}  // namespace

RequestPages RawRequest::pages(AttentionKind kind) const {
  const RequestRanges& r = ranges[static_cast<size_t>(kind)];
  RequestPages pages;
  pages.raw = {lists[0], r.raw};
  if (kind == AttentionKind::kHca) {
    pages.main = {lists[1], r.main};
    pages.state = {lists[2], r.state};
  } else if (kind == AttentionKind::kCsa) {
    pages.main = {lists[3], r.main};
    pages.index = {lists[4], r.index};
    pages.state = {lists[5], r.state};
    pages.inner_state = {lists[6], r.inner_state};
  }
  return pages;
}

LifeWorld::LifeWorld(const LifeSetup& setup)
    : setup_(setup),
      config_(ConfigOf(setup)),
      model_(config_, setup.kinds, setup.num_layers),
      executor_(setup.seed % 8 == 0 ? *MakeThreadExecutor(2) : MakeSerialExecutor()),
      context_(std::make_unique<Context>(*executor_)) {
  spaces_.swa = std::ranges::count(setup.kinds, AttentionKind::kSwa) > 0;
  std::array<int32_t, 7> num_pages{};
  for (size_t i = 0; i < kSpaces.size(); ++i) {
    const SpaceSpec& spec = kSpaces[i];
    if (i > 0 && std::ranges::count(setup.kinds, spec.kind) == 0) continue;
    const int32_t ring_pages = FormatOf(spec.pool).ring_pages;
    const int32_t ragged_pages =
        (spec.kind == AttentionKind::kHca ? 2 : 6) + (setup.long_imports ? 12 : 0);
    num_pages[i] = setup.num_holders * (ring_pages > 0 ? ring_pages : ragged_pages) + 3;
    owned_spaces_.push_back(
        std::make_unique<PageSpace>(Must(PageSpace::Create(num_pages[i]), "space")));
    spaces_.*spec.space = owned_spaces_.back().get();
  }
  for (const AttentionKind kind : setup.kinds) {
    auto& layers = layers_[static_cast<size_t>(kind)];
    const auto make_layer = [&](std::vector<LayerPools>& to) {
      LayerPools& pools = to.emplace_back();
      for (const RowsSpec& rows : RowsOf(kind)) {
        // Scales lie in the pages of their index rows.
        const PoolKind space_pool =
            rows.pool == PoolKind::kCsaIndexScales ? PoolKind::kCsaIndexRows : rows.pool;
        const auto spec = std::ranges::find(kSpaces, space_pool, &SpaceSpec::pool);
        const int32_t pages = num_pages[static_cast<size_t>(spec - kSpaces.begin())];
        owned_pools_.push_back(Must(LayerPool::Create(rows.pool, pages), "pool"));
        pools.*rows.view = owned_pools_.back().view();
        // What nobody wrote reads as NaN.
        std::memset((pools.*rows.view).base, 0xFF,
                    static_cast<size_t>(rows.format().page_bytes() * pages));
      }
    };
    for (int layer = 0; layer < setup.num_layers; ++layer) make_layer(layers);
    if (setup.skip_copies && kind == setup.kinds.back()) {
      nowhere_.assign(layers.begin(), layers.end() - 1);
      make_layer(nowhere_);
    }
  }
}

std::optional<std::string> LifeWorld::Apply(const Op& op) {
  try {
    switch (op.kind) {
      case OpKind::kAdmit:
        Admit(op);
        break;
      case OpKind::kStep:
        Step(op);
        break;
      case OpKind::kRewind:
        Rewind(op);
        break;
      case OpKind::kMark:
        MakeMark(op);
        break;
      case OpKind::kDropMark:
        marks_[static_cast<size_t>(op.other)] = {};
        break;
      case OpKind::kFork:
        Fork(op);
        break;
      case OpKind::kForkMark:
        ForkMark(op);
        break;
      case OpKind::kRelease:
        if (!slots_[static_cast<size_t>(op.slot)].empty()) {
          Release(slots_[static_cast<size_t>(op.slot)]);
        }
        break;
      case OpKind::kMisuse:
        Misuses(op);
        break;
      case OpKind::kFlipByte:
        FlipByte(op);
        break;
    }
    return std::nullopt;
  } catch (const std::exception& error) {
    return Text(op) + ": " + error.what();
  }
}

std::optional<std::string> LifeWorld::Finish() {
  try {
    CheckAll();
    for (Holder& holder : slots_) {
      if (!holder.empty()) Release(holder);
    }
    for (Holder& mark : marks_) mark = {};
    for (const auto& space : owned_spaces_) {
      Expect(
          space->num_free() == space->num_pages(),
          fmt::format("{} of {} pages are free at the end", space->num_free(), space->num_pages()));
    }
    return std::nullopt;
  } catch (const std::exception& error) {
    return std::string("at the end: ") + error.what();
  }
}

// --- Small helpers -------------------------------------------------------------------------------

RequestPages LifeWorld::PagesOf(const Holder& holder, AttentionKind kind) const {
  return holder.raw ? holder.raw->pages(kind) : holder.request->pages(kind);
}

RequestPools LifeWorld::pools() const { return {layers_[0], layers_[1], layers_[2]}; }

RequestPools LifeWorld::ForkPools() const {
  RequestPools given = pools();
  if (!setup_.skip_copies) return given;
  const AttentionKind last = setup_.kinds.back();
  (last == AttentionKind::kSwa   ? given.swa
   : last == AttentionKind::kHca ? given.hca
                                 : given.csa) = nowhere_;
  return given;
}

std::vector<int32_t> LifeWorld::Free() const {
  std::vector<int32_t> free;
  for (const auto& space : owned_spaces_) free.push_back(space->num_free());
  return free;
}

bool LifeWorld::HasAmplePages() const {
  return std::ranges::all_of(Free(), [](int32_t free) { return free >= kAmplePages; });
}

// Counts an expected refusal, or says that there was none or another.
void LifeWorld::Refused(bool ok, const Error* error, std::initializer_list<ErrorCode> codes,
                        const char* what) {
  Expect(!ok, fmt::format("{} was not refused", what));
  Expect(std::ranges::count(codes, error->code) > 0,
         fmt::format("{} was refused as {}: {}", what, ErrorCodeName(error->code), error->message));
  ++num_refusals_;
}

bool LifeWorld::CanStart(const Holder& holder, size_t kind, int64_t position) const {
  const RingBegins& begins = holder.begins[kind];
  return begins.raw <= std::max<int64_t>(0, position - 127) &&
         begins.state <= FirstState(setup_.kinds[kind], position);
}

void LifeWorld::CheckHolder(const Holder& holder, int64_t position) const {
  const PlainRequest& plain = holder.plain;
  for (size_t k = 0; k < setup_.kinds.size(); ++k) {
    const AttentionKind kind = setup_.kinds[k];
    const RequestPages pages = PagesOf(holder, kind);
    const RingBegins& begins = holder.begins[k];
    const int64_t num_rows = RowsAt(kind, plain.position);
    for (const RowsSpec& rows : RowsOf(kind)) {
      const PageListView& list = pages.*rows.list;
      RowRange expected{0, num_rows};
      if (rows.is_ring()) {
        expected = {rows.pool == PoolKind::kRaw ? begins.raw : begins.state, plain.position};
      }
      Expect(list.valid.begin == expected.begin && list.valid.end == expected.end,
             fmt::format("range of {}.{}: [{}, {}), expected [{}, {})", KindName(kind), rows.name,
                         list.valid.begin, list.valid.end, expected.begin, expected.end));
      const int64_t first =
          std::max(expected.begin, rows.is_ring() ? position : RowsAt(kind, position));
      for (int layer = 0; layer < setup_.num_layers; ++layer) {
        const auto l = static_cast<size_t>(layer);
        const auto* data = static_cast<const std::byte*>(rows.plain(plain.rows[k][l]));
        const PoolView& pool = layers_[static_cast<size_t>(kind)][l].*rows.view;
        const int64_t row_bytes = rows.format().row_bytes;
        for (int64_t i = first; i < expected.end; ++i) {
          const int64_t index = rows.is_ring() ? i - plain.begin : i;
          if (std::memcmp(RowAt(pool, rows.pool, list, i), data + index * row_bytes,
                          static_cast<size_t>(row_bytes)) != 0) {
            throw Difference(fmt::format("row {} of {}.{}, layer {}, of a request at {}", i,
                                         KindName(kind), rows.name, layer, plain.position));
          }
        }
      }
    }
  }
}

void LifeWorld::CheckAll() const {
  for (const Holder& holder : slots_) {
    if (!holder.empty()) CheckHolder(holder, 0);
  }
}

// --- Joining and leaving -------------------------------------------------------------------------

bool LifeWorld::AcquireLists(RawRequest& raw, int64_t num_tokens) {
  const int64_t end = raw.ranges[static_cast<size_t>(setup_.kinds[0])].raw.end + num_tokens;
  for (size_t i = 0; i < kSpaces.size(); ++i) {
    PageSpace* space = spaces_.*kSpaces[i].space;
    if (space == nullptr) continue;
    const int32_t ring_pages = FormatOf(kSpaces[i].pool).ring_pages;
    const int64_t rows = RowsAt(kSpaces[i].kind, end);
    const auto wanted =
        static_cast<size_t>(ring_pages > 0 ? ring_pages : (rows + kPageRows - 1) / kPageRows);
    if (raw.lists[i].size() >= wanted) continue;
    std::vector<PageEntry> more(wanted - raw.lists[i].size());
    const Status status = space->Acquire(more);
    if (!status) {
      Expect(status.error().code == ErrorCode::kOutOfPages && !HasAmplePages(),
             "acquire: " + status.error().message);
      return false;
    }
    raw.lists[i].insert(raw.lists[i].end(), more.begin(), more.end());
  }
  return true;
}

void LifeWorld::Admit(const Op& op) {
  Holder& holder = slots_[static_cast<size_t>(op.slot)];
  if (!holder.empty()) return;
  const std::vector<int32_t> free = Free();
  if (op.raw) {
    holder.raw.emplace();
    for (const AttentionKind kind : setup_.kinds) {
      RequestRanges& ranges = holder.raw->ranges[static_cast<size_t>(kind)];
      ranges.raw = {std::max<int64_t>(0, op.value - 128), op.value};
      if (kind == AttentionKind::kSwa) continue;
      ranges.main = {0, RowsAt(kind, op.value)};
      ranges.state = {FirstState(kind, op.value), op.value};
      if (kind == AttentionKind::kHca) continue;
      ranges.index = ranges.main;
      ranges.inner_state = ranges.state;
    }
    if (!AcquireLists(*holder.raw, 0)) {
      Release(holder);
      Expect(Free() == free, "pages leaked by a request that ran out of pages");
      return;
    }
  } else {
    auto request = Request::Create(spaces_, op.value);
    if (!request) {
      Expect(!HasAmplePages(), "create: " + request.error().message);
      Refused(false, &request.error(), {ErrorCode::kOutOfPages}, "create");
      Expect(Free() == free, "pages leaked by Create");
      return;
    }
    holder.request.emplace(*std::move(request));
  }
  branches_[static_cast<size_t>(op.slot)] = next_branch_++;
  holder.plain = model_.Import(op.value, op.id);
  holder.begins.clear();
  for (const AttentionKind kind : setup_.kinds) {
    holder.begins.push_back({std::max<int64_t>(0, op.value - 128), FirstState(kind, op.value)});
  }
  // The imported rows.
  for (size_t k = 0; k < setup_.kinds.size(); ++k) {
    const AttentionKind kind = setup_.kinds[k];
    const RequestPages pages = PagesOf(holder, kind);
    for (const RowsSpec& rows : RowsOf(kind)) {
      const PageListView& list = pages.*rows.list;
      for (int layer = 0; layer < setup_.num_layers; ++layer) {
        const auto l = static_cast<size_t>(layer);
        const auto* data = static_cast<const std::byte*>(rows.plain(holder.plain.rows[k][l]));
        const PoolView& pool = layers_[static_cast<size_t>(kind)][l].*rows.view;
        for (int64_t i = list.valid.begin; i < list.valid.end; ++i) {
          const int64_t index = rows.is_ring() ? i - holder.plain.begin : i;
          std::memcpy(RowAt(pool, rows.pool, list, i), data + index * rows.format().row_bytes,
                      static_cast<size_t>(rows.format().row_bytes));
        }
      }
    }
  }
}

void LifeWorld::Release(Holder& holder) {
  if (holder.raw) {
    for (size_t i = 0; i < kSpaces.size(); ++i) {
      if (holder.raw->lists[i].empty()) continue;
      Must((spaces_.*kSpaces[i].space)->Release(holder.raw->lists[i]), "release of raw pages");
    }
    // One that ran out of pages has no lists to hand in.
    if (!holder.begins.empty()) stale_ = std::move(holder.raw);
  } else if (holder.plain.position % 2 == 0) {
    Must(holder.request->Release(), "release");
    Must(holder.request->Release(), "release once more");
  }  // or by its destructor
  for (Holder& mark : marks_) {
    if (mark.branch == branches_[static_cast<size_t>(&holder - slots_.data())]) mark.branch = 0;
  }
  holder = {};
}

}  // namespace millipede::testing
