#include "life/random_life.h"

#include <algorithm>
#include <utility>

namespace millipede::testing {
namespace {

constexpr int64_t kLongEnough = 600;  // tokens, after which a request is soon released

// An index in [0, n) for which `holds`, or -1.
template <typename Predicate>
int Pick(Hash& random, int n, const Predicate& holds) {
  std::vector<int> found;
  for (int i = 0; i < n; ++i) {
    if (holds(i)) found.push_back(i);
  }
  if (found.empty()) return -1;
  return found[static_cast<size_t>(random.Below(static_cast<int64_t>(found.size())))];
}

int64_t RandomStart(Hash& random, const LifeSetup& setup) {
  if (setup.long_imports && random.OneIn(4)) return 2000 + random.Below(4000);
  if (random.OneIn(2)) return 0;
  // Near the boundaries of blocks and rings half of the time.
  constexpr int64_t kNear[] = {4, 8, 32, 127, 128, 129, 256, 384};
  if (random.OneIn(2)) return std::max<int64_t>(0, kNear[random.Below(8)] - random.Below(6));
  return random.Below(kLongEnough);
}

int64_t RandomWidth(Hash& random) {
  const int64_t dice = random.Below(120);
  if (dice == 0) return 120 + random.Below(20);
  if (dice < 5) return 9 + random.Below(25);
  return random.OneIn(3) ? 2 + random.Below(7) : 1;
}

Op RandomStep(Hash& random, const LifeWorld& world, Op op) {
  op.kind = OpKind::kStep;
  std::vector<int> live;
  for (int i = 0; i < kNumSlots; ++i) {
    if (!world.slot(i).empty()) live.push_back(i);
  }
  const int64_t num_parts = std::min<int64_t>(static_cast<int64_t>(live.size()),
                                              random.OneIn(2) ? 1 : 1 + random.Below(3));
  for (int64_t i = 0; i < num_parts; ++i) {
    const auto which = random.Below(static_cast<int64_t>(live.size()));
    StepPart part;
    part.slot = live[static_cast<size_t>(which)];
    live.erase(live.begin() + which);
    part.num_tokens = random.OneIn(12) ? 0 : RandomWidth(random);
    part.accepted = random.OneIn(3) ? random.Below(part.num_tokens + 1) : part.num_tokens;
    op.parts.push_back(part);
  }
  constexpr StepEnd kEnds[] = {StepEnd::kRerun, StepEnd::kDrop, StepEnd::kHalf};
  if (random.OneIn(10)) op.end = kEnds[random.Below(3)];
  return op;
}

Op RandomOp(Hash& random, const LifeWorld& world, uint64_t id) {
  Op op;
  op.id = id;
  const auto is_live = [&](int i) { return !world.slot(i).empty(); };
  const auto is_request = [&](int i) { return world.slot(i).request.has_value(); };
  const int live = Pick(random, kNumSlots, is_live);
  const int request = Pick(random, kNumSlots, is_request);
  const int empty = Pick(random, kNumSlots, [&](int i) { return world.slot(i).empty(); });
  const int mark = Pick(random, kNumMarks, [&](int i) { return !world.mark(i).empty(); });
  const int no_mark = Pick(random, kNumMarks, [&](int i) { return world.mark(i).empty(); });
  const int64_t dice = random.Below(100);
  const bool too_long = live >= 0 && world.slot(live).plain.position > kLongEnough &&
                        world.slot(live).plain.position % 1000 > kLongEnough;
  if (live < 0 || (dice < 6 && empty >= 0)) {
    op.kind = OpKind::kAdmit;
    op.slot = empty;
    op.value = RandomStart(random, world.setup());
    op.raw = random.OneIn(3);
    return op;
  }
  op.slot = live;
  if (dice < 9 || too_long) {
    op.kind = OpKind::kRelease;
    return op;
  }
  if (dice < 19) {
    op.kind = OpKind::kRewind;
    op.value = random.OneIn(3) ? random.Below(40) : random.Below(4);
    return op;
  }
  if (dice < 24 && request >= 0 && no_mark >= 0) {
    op.kind = OpKind::kMark;
    op.slot = request;
    op.other = no_mark;
    return op;
  }
  if (dice < 26 && mark >= 0) {
    op.kind = OpKind::kDropMark;
    op.other = mark;
    return op;
  }
  if (dice < 33 && request >= 0 && empty >= 0) {
    op.kind = OpKind::kFork;
    op.slot = request;
    op.other = empty;
    op.value = random.OneIn(6) ? 2 + random.Below(60) : random.Below(2);
    // At the length of a mark, of this request or of another.
    if (mark >= 0 && random.OneIn(3)) {
      op.value = world.slot(request).plain.position - world.mark(mark).plain.position;
    }
    return op;
  }
  if (dice < 36 && mark >= 0 && empty >= 0) {
    op.kind = OpKind::kForkMark;
    op.slot = empty;
    op.other = mark;
    return op;
  }
  if (dice < 43) {
    op.kind = OpKind::kMisuse;
    op.value = random.Below(kNumMisuses);
    return op;
  }
  return RandomStep(random, world, op);
}

// What a script runs into, if anything.
std::optional<std::string> Replay(const LifeSetup& setup, const std::vector<Op>& script) {
  LifeWorld world(setup);
  for (const Op& op : script) {
    if (auto difference = world.Apply(op)) return difference;
  }
  return world.Finish();
}

// Simpler forms of one call.
std::vector<Op> Simpler(const Op& op) {
  std::vector<Op> simpler;
  if (op.kind == OpKind::kAdmit && op.value > 0) {
    for (const int64_t value : {int64_t{0}, op.value / 2, op.value - 1}) {
      simpler.push_back(op);
      simpler.back().value = value;
    }
  }
  if (op.kind != OpKind::kStep) return simpler;
  for (size_t i = 0; i < op.parts.size() && op.parts.size() > 1; ++i) {
    simpler.push_back(op);
    simpler.back().parts.erase(simpler.back().parts.begin() + static_cast<int64_t>(i));
  }
  for (size_t i = 0; i < op.parts.size(); ++i) {
    const StepPart& part = op.parts[i];
    for (const int64_t n : {part.accepted, part.num_tokens / 2, part.num_tokens - 1}) {
      if (n < 1 || n >= part.num_tokens) continue;
      simpler.push_back(op);
      simpler.back().parts[i].num_tokens = n;
      simpler.back().parts[i].accepted = std::min(part.accepted, n);
    }
  }
  if (op.end != StepEnd::kCommit) {
    simpler.push_back(op);
    simpler.back().end = StepEnd::kCommit;
  }
  return simpler;
}

// Drops calls, many at once at first, then makes those left simpler, as long as it still fails.
LifeFailure Shrink(const LifeSetup& setup, std::vector<Op> script, std::string what) {
  const auto still_fails = [&](const std::vector<Op>& candidate) {
    auto difference = Replay(setup, candidate);
    if (!difference) return false;
    what = *std::move(difference);
    return true;
  };
  bool changed = true;
  while (changed) {
    changed = false;
    for (size_t chunk = std::max<size_t>(1, script.size() / 2); chunk > 0; chunk /= 2) {
      for (size_t first = 0; first < script.size();) {
        std::vector<Op> candidate = script;
        const size_t last = std::min(first + chunk, script.size());
        candidate.erase(candidate.begin() + static_cast<int64_t>(first),
                        candidate.begin() + static_cast<int64_t>(last));
        if (still_fails(candidate)) {
          script = std::move(candidate);
          changed = true;
        } else {
          first += chunk;
        }
      }
    }
    for (size_t i = 0; i < script.size(); ++i) {
      for (const Op& simpler : Simpler(script[i])) {
        std::vector<Op> candidate = script;
        candidate[i] = simpler;
        if (!still_fails(candidate)) continue;
        script = std::move(candidate);
        changed = true;
        break;
      }
    }
  }
  return {setup, std::move(script), std::move(what)};
}

}  // namespace

std::string LifeFailure::Text() const {
  std::string text = testing::Text(setup) + "\n";
  for (const Op& op : script) text += "  " + testing::Text(op) + "\n";
  return text + "fails: " + what + "\n";
}

LifeReport RunHistory(uint64_t seed, int64_t num_steps, const std::vector<AttentionKind>& kinds,
                      Plant plant) {
  LifeSetup setup = SetupOf(seed, kinds);
  setup.skip_copies = plant == Plant::kCopy;
  Hash random(Mix(seed, 0x5EED));
  LifeReport report;
  std::vector<Op> script;
  std::optional<std::string> difference;
  {
    LifeWorld world(setup);
    for (uint64_t id = 1; world.num_steps() < num_steps && !difference; ++id) {
      Op op = RandomOp(random, world, Mix(seed, id));
      if (plant == Plant::kByte && id % 30 == 0) op.kind = OpKind::kFlipByte;
      script.push_back(op);
      difference = world.Apply(op);
    }
    if (!difference) difference = world.Finish();
    report.num_steps = world.num_steps();
    report.num_golden_steps = world.num_golden_steps();
    report.num_refusals = world.num_refusals();
  }
  if (difference) report.failure = Shrink(setup, std::move(script), *std::move(difference));
  return report;
}

}  // namespace millipede::testing
