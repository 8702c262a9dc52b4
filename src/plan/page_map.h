// Small hash tables of page ids, for comparing page lists. Their memory follows the number of pages
// listed, not the size of the pool they come from.
#ifndef MILLIPEDE_PLAN_PAGE_MAP_H_
#define MILLIPEDE_PLAN_PAGE_MAP_H_

#include <bit>
#include <cstdint>
#include <vector>

namespace millipede {

// Spreads page ids over tables of up to 2^32 slots.
inline uint64_t HashPage(int32_t page) {
  return (static_cast<uint64_t>(page) * 0x9E3779B97F4A7C15ULL) >> 32;
}

// From page id to a small number. Sparse, as most pages looked up are not in it.
class PageMap {
 public:
  // Room for `max_pages` different pages.
  explicit PageMap(int64_t max_pages)
      : slots_(std::bit_ceil(static_cast<uint64_t>(8 * max_pages + 1))), mask_(slots_.size() - 1) {}

  // The value stored for `page` >= 0, or -1.
  int32_t Find(int32_t page) const { return slots_[SlotOf(page)].value; }

  // Stores `value` >= 0 for `page` unless one is stored already; returns the stored one.
  int32_t FindOrInsert(int32_t page, int32_t value) {
    Slot& slot = slots_[SlotOf(page)];
    if (slot.page < 0) slot = {page, value};
    return slot.value;
  }

 private:
  struct Slot {
    int32_t page = -1;
    int32_t value = -1;
  };

  // The slot that holds `page`, or the empty one where it would go.
  uint64_t SlotOf(int32_t page) const {
    uint64_t i = HashPage(page) & mask_;
    while (slots_[i].page >= 0 && slots_[i].page != page) i = (i + 1) & mask_;
    return i;
  }

  std::vector<Slot> slots_;
  uint64_t mask_;
};

// The pages of one list. Reused from list to list, so that only the longest one allocates.
class PageSet {
 public:
  // Empties the set and makes room for `max_pages` different pages.
  void Reset(int64_t max_pages) {
    slots_.assign(std::bit_ceil(static_cast<uint64_t>(4 * max_pages)), -1);
    mask_ = slots_.size() - 1;
  }

  // Adds `page` >= 0; false if it is there already.
  bool Insert(int32_t page) {
    uint64_t i = HashPage(page) & mask_;
    for (; slots_[i] >= 0; i = (i + 1) & mask_) {
      if (slots_[i] == page) return false;
    }
    slots_[i] = page;
    return true;
  }

 private:
  std::vector<int32_t> slots_;
  uint64_t mask_ = 0;
};

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_PAGE_MAP_H_
