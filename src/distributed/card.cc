#include "distributed/card.h"

#include <bit>
#include <string>

#include "base/error.h"

namespace millipede {
namespace {

std::string IntegerText(int64_t value) { return std::to_string(value); }

std::string FloatText(int64_t value) {
  return fmt::format("{}", std::bit_cast<float>(static_cast<int32_t>(value)));
}

std::string HashText(int64_t value) { return fmt::format("hash {:x}", value); }

std::string KindText(int64_t value) {
  return std::string(KindName(static_cast<AttentionKind>(value)));
}

std::string CallText(int64_t value) {
  switch (static_cast<GroupCall>(value)) {
    case GroupCall::kRun:
      return "Run";
    case GroupCall::kProjectOutput:
      return "ProjectOutput";
    case GroupCall::kCreate:
      break;
  }
  return "Create";
}

// A value that ranks compare.
struct Field {
  const char* name;
  int64_t value;
  std::string (*text)(int64_t);
};

int64_t BitsOf(float value) { return std::bit_cast<int32_t>(value); }

// FNV-1a over the ratios.
int64_t HashOf(const std::vector<int32_t>& ratios) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const int32_t ratio : ratios) {
    hash = (hash ^ static_cast<uint32_t>(ratio)) * 0x100000001B3;
  }
  return static_cast<int64_t>(hash);
}

std::vector<Field> FieldsOf(const ModelConfig& config) {
  return {
      {"config.hidden", config.hidden, IntegerText},
      {"config.num_heads", config.num_heads, IntegerText},
      {"config.head_dim", config.head_dim, IntegerText},
      {"config.rope_lanes", config.rope_lanes, IntegerText},
      {"config.q_rank", config.q_rank, IntegerText},
      {"config.o_rank", config.o_rank, IntegerText},
      {"config.o_groups", config.o_groups, IntegerText},
      {"config.window_rows", config.window_rows, IntegerText},
      {"config.num_index_heads", config.num_index_heads, IntegerText},
      {"config.index_dim", config.index_dim, IntegerText},
      {"config.index_topk", config.index_topk, IntegerText},
      {"config.rms_eps", BitsOf(config.rms_eps), FloatText},
      {"config.sinkhorn_rounds", config.sinkhorn_rounds, IntegerText},
      {"config.hc_eps", BitsOf(config.hc_eps), FloatText},
      {"config.layer_ratios.size", static_cast<int64_t>(config.layer_ratios.size()), IntegerText},
      {"config.layer_ratios", HashOf(config.layer_ratios), HashText},
      {"config.max_context_tokens", config.max_context_tokens, IntegerText}};
}

std::vector<Field> FieldsOf(const ModelConfig& config, const Card& card) {
  std::vector<Field> fields = {{"call", static_cast<int64_t>(card.call), CallText},
                               {"degree", card.degree, IntegerText}};
  for (const Field& field : FieldsOf(config)) fields.push_back(field);
  fields.push_back({"plan.kind", static_cast<int64_t>(card.kind), KindText});
  fields.push_back({"plan.num_layers", card.num_layers, IntegerText});
  fields.push_back({"layer_index", card.layer_index, IntegerText});
  return fields;
}

}  // namespace

Status CheckGroupConfig(const ModelConfig& config, const ModelConfig& group) {
  const std::vector<Field> actual = FieldsOf(config);
  const std::vector<Field> allowed = FieldsOf(group);
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i].value == allowed[i].value) continue;
    return MakeError(ErrorCode::kPlanMismatch, actual[i].name, "{}; allowed: {}, the group's",
                     actual[i].text(actual[i].value), allowed[i].text(allowed[i].value));
  }
  return {};
}

Result<std::vector<int64_t>> CompareCards(Ranks& ranks, const Status& own,
                                          const ModelConfig& config, const Card& card) {
  MILLIPEDE_RETURN_IF_ERROR(ranks.Agree(own));
  const std::vector<Field> fields = FieldsOf(config, card);
  std::vector<int64_t> values = {card.num_tokens};
  for (const Field& field : fields) values.push_back(field.value);
  std::vector<int64_t> all;
  MILLIPEDE_RETURN_IF_ERROR(ranks.Gather(values, all));

  const auto value_of = [&](int32_t rank, size_t i) {
    return all[static_cast<size_t>(rank) * values.size() + i];
  };
  for (size_t i = 0; i < fields.size(); ++i) {
    for (int32_t rank = 1; rank < ranks.size(); ++rank) {
      const int64_t first = value_of(0, i + 1);
      const int64_t other = value_of(rank, i + 1);
      if (other == first) continue;
      return MakeError(ErrorCode::kRanksDisagree, fields[i].name,
                       "{} on rank 0, {} on rank {}; allowed: the same on every rank",
                       fields[i].text(first), fields[i].text(other), rank);
    }
  }
  std::vector<int64_t> num_tokens(static_cast<size_t>(ranks.size()));
  for (int32_t rank = 0; rank < ranks.size(); ++rank) {
    num_tokens[static_cast<size_t>(rank)] = value_of(rank, 0);
  }
  return num_tokens;
}

}  // namespace millipede
