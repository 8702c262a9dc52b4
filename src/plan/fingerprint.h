// A 64-bit hash of integers, in order.
#ifndef MILLIPEDE_PLAN_FINGERPRINT_H_
#define MILLIPEDE_PLAN_FINGERPRINT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace millipede {

// FNV-1a over 64-bit words, with the high half folded back after each product so that a difference
// in high bits reaches the low ones. Words go to four sums in turn, as one product has to wait for
// the one before it in its sum.
class Fingerprint {
 public:
  void Add(uint64_t word) {
    uint64_t& sum = sums_[num_words_++ % sums_.size()];
    sum = Mix(sum, word);
  }
  void Add(std::span<const int32_t> values) {
    Add(values.size());
    size_t i = 0;
    for (; i + 1 < values.size(); i += 2) {
      Add(static_cast<uint32_t>(values[i]) | uint64_t{static_cast<uint32_t>(values[i + 1])} << 32);
    }
    if (i < values.size()) Add(static_cast<uint32_t>(values[i]));
  }

  // Rows made of int32 members alone.
  template <typename Row>
  void AddRows(std::span<const Row> rows) {
    static_assert(std::has_unique_object_representations_v<Row> && sizeof(Row) % 8 == 0);
    Add(rows.size());
    for (const Row& row : rows) {
      uint64_t words[sizeof(Row) / 8];
      std::memcpy(words, &row, sizeof(Row));
      for (const uint64_t word : words) Add(word);
    }
  }

  uint64_t value() const {
    uint64_t hash = Mix(kSeed, num_words_);
    for (const uint64_t sum : sums_) hash = Mix(hash, sum);
    return hash;
  }

 private:
  static constexpr uint64_t kSeed = 0xCBF29CE484222325ULL;

  static uint64_t Mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x100000001B3ULL;
    return hash ^ hash >> 32;
  }

  std::array<uint64_t, 4> sums_ = {kSeed, kSeed, kSeed, kSeed};
  uint64_t num_words_ = 0;
};

}  // namespace millipede

#endif  // MILLIPEDE_PLAN_FINGERPRINT_H_
