// The calls of a random history, as values: they can be dropped, replayed and printed.
#ifndef MILLIPEDE_TESTS_LIFE_OP_H_
#define MILLIPEDE_TESTS_LIFE_OP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "millipede/config.h"

namespace millipede::testing {

inline constexpr int kNumSlots = 8;  // requests that may live at once
inline constexpr int kNumMarks = 4;

enum class OpKind : uint8_t {
  kAdmit,     // a request with `value` tokens of history into an empty `slot`, `raw` descriptors or
              // not
  kStep,      // the `parts` in one batch
  kRewind,    // `slot`, `value` tokens back
  kMark,      // of `slot`, kept as `other`
  kDropMark,  // `other`
  kFork,      // of `slot`, `value` tokens back, into the empty slot `other`
  kForkMark,  // of mark `other` into the empty `slot`
  kRelease,   // `slot`
  kMisuse,    // of `slot`: call number `value` of Misuse
  kFlipByte,  // a planted fault: a byte of a row that `slot` holds
};

enum class StepEnd : uint8_t {
  kCommit,  // every layer
  kRerun,   // each layer runs twice, then every layer is committed
  kDrop,    // the plans are dropped after the run
  kHalf,    // one layer of each kind is committed, then the plans are dropped
};

struct StepPart {
  int slot = 0;
  int64_t num_tokens = 0;  // 0: inactive
  int64_t accepted = 0;
};

enum class Misuse : uint8_t {
  kWrongStart,
  kUnderALivePlan,
  kCallOrder,
  kPrepare,
  kRewind,
  kStaleLists,
  kReleaseUnderALivePlan,
  kTwiceInABatch,
  kDoubleFree,
  kInactiveTokens,
  kWrongPools,
  kSharedRing,
};
inline constexpr int kNumMisuses = 12;

struct Op {
  OpKind kind = OpKind::kStep;
  uint64_t id = 0;  // names the op, whatever stands before it: its tokens are made of it
  int slot = 0;
  int other = 0;
  int64_t value = 0;
  bool raw = false;
  StepEnd end = StepEnd::kCommit;
  std::vector<StepPart> parts;
};

// One line.
std::string Text(const Op& op);

// What a history runs on.
struct LifeSetup {
  uint64_t seed = 0;
  std::vector<AttentionKind> kinds;
  int num_layers = 1;   // of each kind
  int num_holders = 8;  // rings that the spaces have room for
  bool long_imports = false;
  int32_t index_topk = 512;
  bool skip_copies = false;  // a planted fault: forks copy the last kind's rows to nowhere
};

// The setup of a seed, for the given kinds; without any, for kinds that follow from the seed.
LifeSetup SetupOf(uint64_t seed, std::vector<AttentionKind> kinds);

std::string Text(const LifeSetup& setup);

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_LIFE_OP_H_
