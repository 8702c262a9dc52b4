#include "support/soak.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>
#include <set>

namespace millipede::testing {
namespace {

constexpr int64_t kShort = 20'000;
constexpr int64_t kAhead = 40;  // tokens of the longest request before the ceiling

// The requests of one kind, by place; the first place's may be of any length.
class Traffic {
 public:
  Traffic(AttentionKind kind, std::mt19937_64& random) : kind_(kind), random_(random) {}

  SoakStep Next() {
    SoakStep step{.kind = kind_, .leaves = {}, .joins = {}, .entries = {}};
    for (size_t i = 0; i < places_.size(); ++i) {
      Place& place = places_[i];
      if (place.id < 0) {
        Join(place, i == 0 ? kMaxContextTokens - kAhead : kShort, step);
      } else if (place.position == kMaxContextTokens || Below(i == 0 ? 60 : 25) == 0) {
        step.leaves.push_back(place.id);
        Join(place, NextLength(i), step);
      }
      if (Below(3) > 0) step.entries.push_back(NextEntry(place, i));
    }
    std::shuffle(step.entries.begin(), step.entries.end(), random_);
    return step;
  }

 private:
  struct Place {
    int64_t id = -1;
    int64_t position = 0;
  };

  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }

  // Evenly on a logarithmic scale.
  int64_t NextLength(size_t place) {
    const auto most = static_cast<double>(place == 0 ? kMaxContextTokens - kAhead : kShort / 2);
    return static_cast<int64_t>(std::pow(most, static_cast<double>(Below(1001)) / 1000)) - 1;
  }

  void Join(Place& place, int64_t length, SoakStep& step) {
    place = {next_id_++, length};
    step.joins.push_back({place.id, length});
  }

  StepEntry NextEntry(Place& place, size_t i) {
    const int64_t wanted = i > 0 && Below(50) == 0 ? 1 + Below(150) : 1 + Below(8);
    StepEntry entry{.id = place.id,
                    .num_tokens = std::min(wanted, kMaxContextTokens - place.position)};
    if (Below(4) == 0) entry.accepted = Below(entry.num_tokens + 1);
    entry.active = Below(12) > 0;
    if (entry.active) place.position += entry.accepted < 0 ? entry.num_tokens : entry.accepted;
    return entry;
  }

  AttentionKind kind_;
  std::mt19937_64& random_;
  std::array<Place, 6> places_;
  int64_t next_id_ = 0;
};

// A hash of eight bytes at a time.
class Checksum {
 public:
  template <typename T>
  void Add(std::span<T> values) {
    const std::span<const std::byte> bytes = std::as_bytes(values);
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, std::min(sizeof(word), bytes.size() - i));
      hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15;
      hash_ ^= hash_ >> 32;
    }
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325;
};

uint64_t CacheChecksum(DecodeWorld& world, int64_t id) {
  Checksum sum;
  const RequestPages pages = world.request(id).pages(world.kind());
  const auto add = [&](const PageListView& list, const auto& row_of) {
    for (int64_t row = list.valid.begin; row < list.valid.end; ++row) sum.Add(row_of(row));
  };
  add(pages.raw, [&](int64_t row) { return world.RawRow(id, row); });
  if (world.kind() != AttentionKind::kSwa) {
    add(pages.main, [&](int64_t row) { return world.MainRow(id, row); });
    add(pages.state, [&](int64_t row) { return world.StateRow(id, row); });
  }
  if (world.kind() == AttentionKind::kCsa) {
    add(pages.inner_state, [&](int64_t row) { return world.InnerStateRow(id, row); });
    add(pages.index, [&](int64_t row) { return world.IndexRow(id, row); });
    add(pages.index, [&](int64_t row) { return std::span(&world.IndexScale(id, row), 1); });
  }
  return sum.value();
}

}  // namespace

std::vector<SoakStep> MakeSoakScript(int64_t num_steps, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Traffic> traffic;
  for (const AttentionKind kind : kSoakKinds) traffic.emplace_back(kind, random);
  std::vector<SoakStep> script;
  for (size_t step = 0; step < static_cast<size_t>(num_steps); ++step) {
    // Every kind has its requests from the beginning.
    script.push_back(traffic[step < traffic.size() ? step : random() % traffic.size()].Next());
  }
  return script;
}

SoakTrail RunSoak(const std::vector<SoakStep>& script, const SoakRun& run) {
  SoakTrail trail;
  std::array<std::set<int64_t>, 3> there;
  int64_t warm_bytes = 0;
  const auto leave = [&](size_t kind, int64_t id) {
    DecodeWorld& world = *run.worlds[kind];
    trail.longest = std::max(trail.longest, world.position(id));
    trail.caches.push_back(CacheChecksum(world, id));
    world.Remove(id);
    there[kind].erase(id);
  };
  for (size_t i = 0; i < script.size(); ++i) {
    if (static_cast<int64_t>(i) == run.warm_up_steps) warm_bytes = ResidentBytes();
    const SoakStep& step = script[i];
    const auto kind = static_cast<size_t>(step.kind);
    DecodeWorld& world = *run.worlds[kind];
    for (const int64_t id : step.leaves) {
      if (run.owns(id)) leave(kind, id);
    }
    for (const SoakJoin& join : step.joins) {
      if (!run.owns(join.id)) continue;
      world.Add(join.id, join.start_pos);
      there[kind].insert(join.id);
    }
    std::vector<StepEntry> entries;
    for (const StepEntry& entry : step.entries) {
      if (run.owns(entry.id)) entries.push_back(entry);
    }
    Context context(run.executor(static_cast<int64_t>(i)));
    Checksum sum;
    for (const auto& [id, result] : world.Step(context, entries)) {
      sum.Add(std::span(result.x_out));
    }
    trail.steps.push_back(sum.value());
  }
  trail.growth_bytes = ResidentBytes() - warm_bytes;
  for (size_t kind = 0; kind < there.size(); ++kind) {
    while (!there[kind].empty()) leave(kind, *there[kind].begin());
  }
  return trail;
}

int64_t ResidentBytes() {
  malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGE_SIZE);
}

}  // namespace millipede::testing
