// What the ranks of a group compare before they exchange anything.
#ifndef MILLIPEDE_DISTRIBUTED_CARD_H_
#define MILLIPEDE_DISTRIBUTED_CARD_H_

#include <cstdint>
#include <vector>

#include "distributed/ranks.h"
#include "millipede/config.h"
#include "millipede/status.h"

namespace millipede {

enum class GroupCall : uint8_t { kCreate, kRun, kProjectOutput };

// One rank's part of a collective call: all of it but num_tokens is the same on every rank.
struct Card {
  GroupCall call = GroupCall::kCreate;
  int32_t degree = 0;
  AttentionKind kind = AttentionKind::kSwa;  // Run, as are those that follow; else as they are here
  int32_t num_layers = 0;
  int32_t layer_index = 0;
  int64_t num_tokens = 0;
};

// kPlanMismatch naming the first field of `config` that is not that of the group's.
Status CheckGroupConfig(const ModelConfig& config, const ModelConfig& group);

// Collective: tokens of every rank [ranks]. Where a rank's status is an error, what Ranks::Agree
// returns; else kRanksDisagree naming the first field in which two ranks differ.
Result<std::vector<int64_t>> CompareCards(Ranks& ranks, const Status& own,
                                          const ModelConfig& config, const Card& card);

}  // namespace millipede

#endif  // MILLIPEDE_DISTRIBUTED_CARD_H_
