// Two thousand steps of random batches on every executor: they end with the bits of one thread, and
// with the memory they began with.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <random>
#include <vector>

#include "support/decode_world.h"
#include "support/executors.h"

namespace millipede {
namespace {

using testing::AllExecutors;
using testing::DecodeWorld;
using testing::EntryResult;
using testing::NamedExecutor;
using testing::StepEntry;

constexpr int64_t kSteps = 2000;
constexpr int64_t kWarmUpSteps = 300;
constexpr int kMaxThreads = 8;
constexpr int64_t kMaxGrowthBytes = int64_t{4} << 20;

constexpr std::array kKinds = {AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa};

int64_t ResidentBytes() {
  malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

// A hash of eight bytes at a time.
class Checksum {
 public:
  void Add(std::span<const std::byte> bytes) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
      hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15;
      hash_ ^= hash_ >> 32;
    }
  }
  template <typename T>
  void Add(std::span<T> values) {
    Add(std::as_bytes(values));
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

// What a run leaves: a checksum of the outputs of each step, and one of the rows that each request
// had in its caches when it went.
struct Trail {
  std::vector<uint64_t> steps;
  std::vector<uint64_t> caches;
  int64_t growth_bytes = 0;
  int64_t longest = 0;  // most tokens that a request had
};

// The requests of one kind that take part: one that may be of any length, others short. Those that
// leave are followed by new ones in their places.
class Traffic {
 public:
  Traffic(AttentionKind kind, std::mt19937_64& random)
      : world_(ModelConfig::Tiny(), kind, /*num_pages=*/256), random_(random) {
    // First the longest of each, so that no later ones need more memory.
    for (size_t place = 0; place < ids_.size(); ++place) {
      Join(place, place == 0 ? kMaxContextTokens - kAhead : kShort);
    }
  }

  DecodeWorld& world() { return world_; }
  int64_t longest() const { return longest_; }

  std::vector<StepEntry> NextStep(Trail& trail) {
    std::vector<StepEntry> entries;
    for (size_t place = 0; place < ids_.size(); ++place) {
      const int64_t odds = place == 0 ? 60 : 25;
      if (Below(odds) == 0 || world_.position(ids_[place]) == kMaxContextTokens) {
        Leave(place, trail);
        Join(place, NextLength(place));
      }
      if (Below(3) == 0) continue;
      const int64_t id = ids_[place];
      const int64_t wanted = place > 0 && Below(50) == 0 ? 1 + Below(150) : 1 + Below(8);
      StepEntry entry{.id = id,
                      .num_tokens = std::min(wanted, kMaxContextTokens - world_.position(id))};
      if (Below(4) == 0) entry.accepted = Below(entry.num_tokens + 1);
      entry.active = Below(12) != 0;
      entries.push_back(entry);
    }
    std::shuffle(entries.begin(), entries.end(), random_);
    return entries;
  }

  void LeaveAll(Trail& trail) {
    for (size_t place = 0; place < ids_.size(); ++place) Leave(place, trail);
  }

 private:
  static constexpr int64_t kShort = 20'000;
  static constexpr int64_t kAhead = 40;  // tokens of a request before the ceiling

  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }

  // Evenly on a logarithmic scale.
  int64_t NextLength(size_t place) {
    const auto most = static_cast<double>(place == 0 ? kMaxContextTokens - kAhead : kShort / 2);
    return static_cast<int64_t>(std::pow(most, static_cast<double>(Below(1001)) / 1000)) - 1;
  }

  void Join(size_t place, int64_t length) {
    ids_[place] = next_id_++;
    world_.Add(ids_[place], length);
  }

  void Leave(size_t place, Trail& trail) {
    longest_ = std::max(longest_, world_.position(ids_[place]));
    trail.caches.push_back(CacheChecksum(ids_[place]));
    world_.Remove(ids_[place]);
  }

  uint64_t CacheChecksum(int64_t id) {
    Checksum sum;
    const RequestPages pages = world_.request(id).pages(world_.kind());
    const auto rows = [&](const PageListView& list, const auto& row_of) {
      for (int64_t row = list.valid.begin; row < list.valid.end; ++row) sum.Add(row_of(row));
    };
    rows(pages.raw, [&](int64_t row) { return world_.RawRow(id, row); });
    if (world_.kind() != AttentionKind::kSwa) {
      rows(pages.main, [&](int64_t row) { return world_.MainRow(id, row); });
      rows(pages.state, [&](int64_t row) { return world_.StateRow(id, row); });
    }
    if (world_.kind() == AttentionKind::kCsa) {
      rows(pages.inner_state, [&](int64_t row) { return world_.InnerStateRow(id, row); });
      rows(pages.index, [&](int64_t row) { return world_.IndexRow(id, row); });
      rows(pages.index, [&](int64_t row) { return std::span(&world_.IndexScale(id, row), 1); });
    }
    return sum.value();
  }

  DecodeWorld world_;
  std::mt19937_64& random_;
  std::array<int64_t, 6> ids_{};
  int64_t next_id_ = 0;
  int64_t longest_ = 0;
};

// `pick` chooses the executor of a step; the steps themselves depend on nothing but their number.
template <typename Pick>
Trail Soak(const Pick& pick) {
  std::mt19937_64 random(2026);
  std::vector<std::unique_ptr<Traffic>> traffic;
  for (const AttentionKind kind : kKinds) {
    traffic.push_back(std::make_unique<Traffic>(kind, random));
  }
  Trail trail;
  int64_t warm_bytes = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step == kWarmUpSteps) warm_bytes = ResidentBytes();
    Traffic& of_kind = *traffic[random() % kKinds.size()];
    const std::vector<StepEntry> entries = of_kind.NextStep(trail);
    Context context(pick(step));
    Checksum sum;
    for (const auto& [id, result] : of_kind.world().Step(context, entries)) {
      sum.Add(std::span(result.x_out));
    }
    trail.steps.push_back(sum.value());
  }
  trail.growth_bytes = ResidentBytes() - warm_bytes;
  for (const auto& of_kind : traffic) {
    of_kind->LeaveAll(trail);
    trail.longest = std::max(trail.longest, of_kind->longest());
  }
  return trail;
}

TEST(SoakTest, RandomStepsOnAllExecutorsEndAsThoseOfOneThread) {
  const auto serial = MakeSerialExecutor();
  const Trail expected = Soak([&](int64_t) -> Executor& { return *serial; });
  EXPECT_EQ(expected.longest, kMaxContextTokens);
  EXPECT_GT(expected.caches.size(), 100U);

  const std::vector<NamedExecutor> executors = AllExecutors(kMaxThreads);
  std::mt19937_64 random(7);
  std::vector<size_t> picked;
  const Trail actual = Soak([&](int64_t) -> Executor& {
    picked.push_back(random() % executors.size());
    return *executors[picked.back()].executor;
  });
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto i = static_cast<size_t>(step);
    ASSERT_EQ(actual.steps[i], expected.steps[i]) << step << ", " << executors[picked[i]].name;
  }
  EXPECT_EQ(actual.caches, expected.caches);
  EXPECT_LT(actual.growth_bytes, kMaxGrowthBytes);
  EXPECT_LT(expected.growth_bytes, kMaxGrowthBytes);
  RecordProperty("growth_bytes", std::to_string(actual.growth_bytes));
}

// A page a step.
TEST(SoakTest, GrowthWouldBeSeen) {
  const int64_t before = ResidentBytes();
  std::vector<std::vector<char>> leaked;
  for (int64_t step = 0; step < kSteps; ++step) leaked.emplace_back(4096, 'x');
  EXPECT_GT(ResidentBytes() - before, kMaxGrowthBytes);
}

}  // namespace
}  // namespace millipede
