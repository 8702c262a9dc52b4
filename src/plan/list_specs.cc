#include "plan/list_specs.h"

#include <array>

#include "geometry/events.h"
#include "geometry/rings.h"
#include "geometry/visibility.h"

namespace millipede {
namespace {

constexpr ListSpec kRaw = {
    "raw", PoolKind::kRaw, &KindSpaces::raw, &RequestPages::raw, &RequestRanges::raw, nullptr};

constexpr ListSpec Main(PoolKind pool) {
  return {"main",
          pool,
          &KindSpaces::main,
          &RequestPages::main,
          &RequestRanges::main,
          &PackedWork::main_pages};
}

constexpr ListSpec State(PoolKind pool) {
  return {"state", pool, &KindSpaces::state, &RequestPages::state, &RequestRanges::state, nullptr};
}

constexpr std::array<ListSpec, 1> kSwaLists = {kRaw};

constexpr std::array<ListSpec, 3> kHcaLists = {kRaw, Main(PoolKind::kHcaMain),
                                               State(PoolKind::kHcaState)};

// Index keys and their scales share one list.
constexpr std::array<ListSpec, 5> kCsaLists = {
    kRaw, Main(PoolKind::kCsaMain),
    ListSpec{"index", PoolKind::kCsaIndexRows, &KindSpaces::index, &RequestPages::index,
             &RequestRanges::index, &PackedWork::index_pages},
    State(PoolKind::kCsaState),
    ListSpec{"inner_state", PoolKind::kCsaInnerState, &KindSpaces::inner_state,
             &RequestPages::inner_state, &RequestRanges::inner_state, nullptr}};

}  // namespace

std::span<const ListSpec> ListsOfKind(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kSwa:
      return kSwaLists;
    case AttentionKind::kHca:
      return kHcaLists;
    case AttentionKind::kCsa:
      return kCsaLists;
  }
  return {};
}

ListUse UseOf(const ListSpec& spec, AttentionKind kind, int64_t start, int64_t num_tokens) {
  const PoolFormat format = spec.format();
  ListUse use;
  if (spec.is_ring()) {
    use.num_pages = format.ring_pages;
    use.held = spec.pool == PoolKind::kRaw ? RawRowsRead(start) : StateRowsHeld(kind, start);
    use.written = {start, start + num_tokens};
  } else {
    use.num_pages = PagesForRows(CompressedRows(kind, start + num_tokens));
    use.held = {0, CompressedRows(kind, start)};
    use.written = EventRows(kind, start, num_tokens);
  }
  use.written_pages = PagesOf(format, use.written);
  return use;
}

}  // namespace millipede
