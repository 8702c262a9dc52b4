#include <algorithm>
#include <atomic>
#include <limits>

#include "base/error.h"
#include "base/mapped_memory.h"
#include "millipede/pages.h"

namespace millipede {

namespace {

// Generations of two spaces never meet, so that what was found of one space's pages is not taken
// for those of another that has come in its place.
uint64_t FirstGeneration() {
  static std::atomic<uint64_t> num_spaces{0};
  return num_spaces.fetch_add(1, std::memory_order_relaxed) << 40;
}

}  // namespace

// Free pages are those at or above `high_water`, which nobody ever owned, and those on the stack of
// released ones. So a page that was never acquired has no memory touched on its behalf.
struct PageSpace::State {
  int32_t num_pages = 0;
  int32_t high_water = 0;
  int32_t num_stacked = 0;
  uint64_t next_epoch = 1;  // 0 is the epoch of an entry nobody filled
  uint64_t generation = FirstGeneration();
  MappedMemory epoch_memory;      // u64 [num_pages]
  MappedMemory ref_count_memory;  // i32 [num_pages]
  MappedMemory stack_memory;      // i32 [num_pages]

  uint64_t* epochs() const { return reinterpret_cast<uint64_t*>(epoch_memory.data()); }
  int32_t* ref_counts() const { return reinterpret_cast<int32_t*>(ref_count_memory.data()); }
  int32_t* stack() const { return reinterpret_cast<int32_t*>(stack_memory.data()); }
  int32_t num_free() const { return num_pages - high_water + num_stacked; }

  // Checks a list of owned pages, each at most once.
  Status CheckOwned(std::span<const PageEntry> pages, ErrorCode not_owned, ErrorCode twice);
};

Status PageSpace::State::CheckOwned(std::span<const PageEntry> pages, ErrorCode not_owned,
                                    ErrorCode twice) {
  // A page already seen is marked by the sign of its reference count, so that finding duplicates
  // takes no memory and one pass. The marks are gone before anything else can fail.
  size_t num_good = 0;
  bool stands_twice = false;
  for (; num_good < pages.size(); ++num_good) {
    const auto& [page, epoch] = pages[num_good];
    if (page < 0 || page >= num_pages) break;
    int32_t& ref_count = ref_counts()[page];
    stands_twice = ref_count < 0;
    if (ref_count <= 0 || epochs()[page] != epoch) break;
    ref_count = -ref_count;
  }
  for (const PageEntry& entry : pages.first(num_good)) {
    ref_counts()[entry.page] = -ref_counts()[entry.page];
  }
  if (num_good == pages.size()) return {};

  const auto& [page, epoch] = pages[num_good];
  const auto field = [&](const char* member) {
    return fmt::format("pages[{}].{}", num_good, member);
  };
  if (page < 0 || page >= num_pages) {
    return MakeError(ErrorCode::kPageOutOfRange, field("page"), "{}; allowed: 0 to {}", page,
                     num_pages - 1);
  }
  if (stands_twice) {
    return MakeError(twice, field("page"), "page {} stands twice in the list; allowed: once", page);
  }
  if (ref_counts()[page] == 0) {
    return MakeError(not_owned, field("page"), "page {} has no owner; allowed: an acquired page",
                     page);
  }
  return MakeError(ErrorCode::kStaleEpoch, field("epoch"), "{}; allowed: {}, that of page {}",
                   epoch, epochs()[page], page);
}

Result<PageSpace> PageSpace::Create(int32_t num_pages) try {
  if (num_pages < 1 || num_pages > kMaxPagesPerSpace) {
    return MakeError(ErrorCode::kInvalidArgument, "num_pages", "{}; allowed: 1 to {}", num_pages,
                     kMaxPagesPerSpace);
  }
  auto state = std::make_unique<State>();
  state->num_pages = num_pages;
  const auto map = [num_pages](MappedMemory& memory, size_t element_bytes) -> Status {
    auto mapped = MappedMemory::Map(num_pages * static_cast<int64_t>(element_bytes), "num_pages");
    if (!mapped) return tl::make_unexpected(std::move(mapped).error());
    memory = std::move(*mapped);
    return {};
  };
  MILLIPEDE_RETURN_IF_ERROR(map(state->epoch_memory, sizeof(uint64_t)));
  MILLIPEDE_RETURN_IF_ERROR(map(state->ref_count_memory, sizeof(int32_t)));
  MILLIPEDE_RETURN_IF_ERROR(map(state->stack_memory, sizeof(int32_t)));
  return PageSpace(std::move(state));
} catch (const std::bad_alloc&) {
  return OutOfMemory("num_pages", "a page space");
}

PageSpace::PageSpace(std::unique_ptr<State> state) : state_(std::move(state)) {}
PageSpace::PageSpace(PageSpace&&) noexcept = default;
PageSpace& PageSpace::operator=(PageSpace&&) noexcept = default;
PageSpace::~PageSpace() = default;

Status PageSpace::Acquire(std::span<PageEntry> out) try {
  State& s = *state_;
  if (static_cast<int64_t>(out.size()) > s.num_free()) {
    return MakeError(ErrorCode::kOutOfPages, "out", "{} pages asked for; allowed: at most {} free",
                     out.size(), s.num_free());
  }
  for (PageEntry& entry : out) {
    const int32_t page = s.num_stacked > 0 ? s.stack()[--s.num_stacked] : s.high_water++;
    entry = {page, s.next_epoch++};
    s.epochs()[page] = entry.epoch;
    s.ref_counts()[page] = 1;
  }
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("out", "an error message");
}

Status PageSpace::Share(std::span<const PageEntry> pages) try {
  State& s = *state_;
  MILLIPEDE_RETURN_IF_ERROR(
      s.CheckOwned(pages, ErrorCode::kPageNotAcquired, ErrorCode::kDuplicatePage));
  for (size_t i = 0; i < pages.size(); ++i) {
    if (s.ref_counts()[pages[i].page] == std::numeric_limits<int32_t>::max()) {
      return MakeError(ErrorCode::kInvalidArgument, fmt::format("pages[{}]", i),
                       "page {} has {} references; allowed: fewer", pages[i].page,
                       std::numeric_limits<int32_t>::max());
    }
  }
  for (const PageEntry& entry : pages) ++s.ref_counts()[entry.page];
  if (!pages.empty()) ++s.generation;
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("pages", "an error message");
}

Status PageSpace::Release(std::span<const PageEntry> pages) try {
  State& s = *state_;
  MILLIPEDE_RETURN_IF_ERROR(s.CheckOwned(pages, ErrorCode::kDoubleFree, ErrorCode::kDoubleFree));
  for (const PageEntry& entry : pages) {
    if (--s.ref_counts()[entry.page] == 0) s.stack()[s.num_stacked++] = entry.page;
  }
  if (!pages.empty()) ++s.generation;
  return {};
} catch (const std::bad_alloc&) {
  return OutOfMemory("pages", "an error message");
}

int32_t PageSpace::num_pages() const { return state_->num_pages; }
int32_t PageSpace::num_free() const { return state_->num_free(); }
uint64_t PageSpace::generation() const { return state_->generation; }

int32_t PageSpace::ref_count(int32_t page) const {
  return page < 0 || page >= state_->num_pages ? 0 : state_->ref_counts()[page];
}

PageSpaceView PageSpace::view() const {
  return {state_->epochs(), state_->ref_counts(), &state_->generation, state_->num_pages};
}

}  // namespace millipede
