#include "life/op.h"

#include <fmt/format.h>

#include "life/plain_model.h"

namespace millipede::testing {
namespace {

constexpr const char* kMisuseTexts[kNumMisuses] = {
    "plan at a wrong start",
    "plan, rewind, mark and fork under a live plan",
    "run and commit out of order",
    "prepare absurd numbers",
    "rewind to absurd positions",
    "plan from released raw descriptors",
    "release under a live plan",
    "plan one request twice",
    "release pages twice",
    "plan an inactive request with tokens",
    "fork with pools of another space",
    "plan with a shared ring page",
};

std::string StepText(const Op& op) {
  std::string text = "step";
  for (const StepPart& part : op.parts) {
    text += fmt::format(" [slot {}: {} tokens, {} accepted]", part.slot, part.num_tokens,
                        part.accepted);
  }
  switch (op.end) {
    case StepEnd::kCommit:
      return text;
    case StepEnd::kRerun:
      return text + ", run twice";
    case StepEnd::kDrop:
      return text + ", dropped after the run";
    case StepEnd::kHalf:
      return text + ", dropped after the first layer's commit";
  }
  return text;
}

}  // namespace

std::string Text(const Op& op) {
  switch (op.kind) {
    case OpKind::kAdmit:
      return fmt::format("admit slot {} with {} tokens{}", op.slot, op.value,
                         op.raw ? ", raw descriptors" : "");
    case OpKind::kStep:
      return StepText(op);
    case OpKind::kRewind:
      return fmt::format("rewind slot {} by {}", op.slot, op.value);
    case OpKind::kMark:
      return fmt::format("mark slot {} as mark {}", op.slot, op.other);
    case OpKind::kDropMark:
      return fmt::format("drop mark {}", op.other);
    case OpKind::kFork:
      return fmt::format("fork slot {}, {} tokens back, into slot {}", op.slot, op.value, op.other);
    case OpKind::kForkMark:
      return fmt::format("fork mark {} into slot {}", op.other, op.slot);
    case OpKind::kRelease:
      return fmt::format("release slot {}", op.slot);
    case OpKind::kMisuse:
      return fmt::format("misuse slot {}: {}", op.slot, kMisuseTexts[op.value]);
    case OpKind::kFlipByte:
      return fmt::format("flip a byte of slot {}", op.slot);
  }
  return "?";
}

LifeSetup SetupOf(uint64_t seed, std::vector<AttentionKind> kinds) {
  Hash hash(Mix(seed, 0x11FE));
  LifeSetup setup;
  setup.seed = seed;
  if (kinds.empty()) {
    constexpr AttentionKind kAll[] = {AttentionKind::kSwa, AttentionKind::kHca,
                                      AttentionKind::kCsa};
    const int64_t which = hash.Below(4);
    for (int64_t i = 0; i < 3; ++i) {
      if (which == 3 || which == i) kinds.push_back(kAll[i]);
    }
  }
  setup.kinds = std::move(kinds);
  setup.num_layers = hash.OneIn(3) ? 2 : 1;
  setup.num_holders = static_cast<int>(4 + hash.Below(8));
  setup.long_imports = hash.OneIn(12);
  setup.index_topk = hash.OneIn(2) ? 48 : 512;
  return setup;
}

std::string Text(const LifeSetup& setup) {
  std::vector<std::string_view> kinds;
  for (const AttentionKind kind : setup.kinds) kinds.push_back(KindName(kind));
  return fmt::format("seed {}: {}, {} layers a kind, rings for {} requests, index top-k {}{}",
                     setup.seed, fmt::join(kinds, ","), setup.num_layers, setup.num_holders,
                     setup.index_topk, setup.skip_copies ? ", a planted fault in copies" : "");
}

}  // namespace millipede::testing
