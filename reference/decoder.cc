// Whole layers, one token at a time, over plain logical histories.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "reference/golden.h"

namespace millipede::reference {
namespace {

int64_t RatioOf(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kHca:
      return kHcaRatio;
    case AttentionKind::kCsa:
      return kCsaRatio;
    case AttentionKind::kSwa:
      break;
  }
  return 0;
}

// Row `i` of the decoded ones, or of the history if `i` is before `end`, the history's end.
template <typename Row, typename FromHistory>
Row RowAt(const std::map<int64_t, Row>& decoded, const FromHistory& from_history, bool has_history,
          int64_t i, int64_t end, const char* what) {
  if (const auto found = decoded.find(i); found != decoded.end()) return found->second;
  if (i < 0 || i >= end || !has_history) {
    throw std::out_of_range(std::string(what) + " row " + std::to_string(i) + " is not known");
  }
  return from_history();
}

std::vector<const float*> Pointers(const std::vector<std::vector<float>>& rows) {
  std::vector<const float*> pointers;
  pointers.reserve(rows.size());
  for (const auto& row : rows) pointers.push_back(row.empty() ? nullptr : row.data());
  return pointers;
}

}  // namespace

Decoder::Decoder(const Golden& golden, int64_t start_pos, History history)
    : golden_(golden),
      start_pos_(start_pos),
      next_position_(start_pos),
      ratio_(RatioOf(golden.kind())),
      history_(std::move(history)) {}

void Decoder::SetHistory(int64_t position, std::span<const Bf16> row) {
  kv_[position].assign(row.begin(), row.end());
}

std::vector<Bf16> Decoder::KvAt(int64_t position) const {
  const auto from_history = [&] {
    std::vector<Bf16> row(kHeadDim);
    history_.kv(position, row);
    return row;
  };
  return RowAt(kv_, from_history, history_.kv != nullptr, position, start_pos_, "KV");
}

std::vector<float> Decoder::StateAt(int64_t position) const {
  const auto from_history = [&] {
    const int32_t halves = golden_.kind() == AttentionKind::kCsa ? 2 : 1;
    std::vector<float> row(static_cast<size_t>(2 * halves * kHeadDim));
    history_.state(position, row);
    return row;
  };
  return RowAt(state_, from_history, history_.state != nullptr, position, start_pos_, "state");
}

std::vector<float> Decoder::InnerStateAt(int64_t position) const {
  const auto from_history = [&] {
    std::vector<float> row(4UL * kIndexDim);
    history_.inner_state(position, row);
    return row;
  };
  return RowAt(inner_state_, from_history, history_.inner_state != nullptr, position, start_pos_,
               "inner state");
}

std::vector<Bf16> Decoder::CompressedAt(int64_t row) const {
  const auto from_history = [&] {
    std::vector<Bf16> values(kHeadDim);
    history_.compressed(row, values);
    return values;
  };
  return RowAt(compressed_, from_history, history_.compressed != nullptr, row,
               start_pos_ / std::max<int64_t>(ratio_, 1), "compressed");
}

Quantized Decoder::IndexAt(int64_t row) const {
  const auto from_history = [&] {
    Quantized key{std::vector<int8_t>(kIndexDim), 0};
    key.scale = history_.index(row, key.codes);
    return key;
  };
  return RowAt(index_, from_history, history_.index != nullptr, row, start_pos_ / kCsaRatio,
               "index");
}

void Decoder::Append(std::span<const float> x, const RopeRow& rope, const RopeRow* event_rope) {
  const int64_t position = next_position_;
  const bool event = ratio_ > 0 && (position + 1) % ratio_ == 0;
  if (event && event_rope == nullptr) {
    throw std::invalid_argument("position " + std::to_string(position) +
                                " finishes a block and needs the rotation of its row");
  }
  const std::vector<Bf16> xn = golden_.AttnNorm(golden_.HcPre(x).x_mixed);
  kv_[position] = golden_.ProjectKv(xn, rope);
  if (ratio_ > 0) state_[position] = golden_.StateRow(xn, position);
  if (golden_.kind() == AttentionKind::kCsa) {
    inner_state_[position] = golden_.InnerStateRow(xn, position);
  }
  if (event) EmitRows(position / ratio_, *event_rope);
  ++next_position_;
}

void Decoder::EmitRows(int64_t row, const RopeRow& rope) {
  const bool csa = golden_.kind() == AttentionKind::kCsa;
  std::vector<std::vector<float>> state;
  std::vector<std::vector<float>> inner_state;
  // CSA blocks overlap: the block before is pooled too, and there is none before block 0.
  for (int64_t p = (csa ? row - 1 : row) * ratio_; p < (row + 1) * ratio_; ++p) {
    state.push_back(p < 0 ? std::vector<float>() : StateAt(p));
    if (csa) inner_state.push_back(p < 0 ? std::vector<float>() : InnerStateAt(p));
  }
  compressed_[row] = golden_.CompressRow(Pointers(state), rope);
  if (csa) index_[row] = golden_.IndexRow(Pointers(inner_state), rope);
}

Selection Decoder::Select(const TokenResult& token, int64_t num_candidates) const {
  constexpr int64_t kChunk = 4096;  // candidates whose keys are held at once
  std::vector<float> scores;
  for (int64_t first = 0; first < num_candidates; first += kChunk) {
    std::vector<int8_t> keys;
    std::vector<float> key_scales;
    for (int64_t row = first; row < std::min(first + kChunk, num_candidates); ++row) {
      const Quantized key = IndexAt(row);
      keys.insert(keys.end(), key.codes.begin(), key.codes.end());
      key_scales.push_back(key.scale);
    }
    const std::vector<float> chunk = Scores(token.idx, token.idx_weights, keys, key_scales);
    scores.insert(scores.end(), chunk.begin(), chunk.end());
  }
  return TopK(scores, golden_.config().index_topk);
}

TokenResult Decoder::DecodeAt(int64_t position, std::span<const float> x,
                              const RopeRow& rope) const {
  TokenResult token;
  token.hc = golden_.HcPre(x);
  token.xn = golden_.AttnNorm(token.hc.x_mixed);
  token.qr = golden_.ProjectLatent(token.xn);
  token.q = golden_.ProjectQuery(token.qr.codes, token.qr.scale, rope);
  token.kv = kv_.at(position);

  std::vector<std::vector<Bf16>> rows;
  for (int64_t p = std::max<int64_t>(0, position - kWindowRows + 1); p <= position; ++p) {
    rows.push_back(KvAt(p));
  }
  const size_t num_window_rows = rows.size();
  const int64_t num_blocks = ratio_ > 0 ? (position + 1) / ratio_ : 0;  // visible ones
  if (golden_.kind() == AttentionKind::kHca) {
    for (int64_t row = 0; row < num_blocks; ++row) rows.push_back(CompressedAt(row));
  }
  if (golden_.kind() == AttentionKind::kCsa) {
    token.idx = golden_.IndexQuery(token.qr.codes, token.qr.scale, rope);
    token.idx_weights = golden_.IndexWeights(token.xn);
    token.selection = Select(token, num_blocks);
    for (int64_t i = 0; i < token.selection.count(); ++i) {
      rows.push_back(CompressedAt(token.selection.idx[static_cast<size_t>(i)]));
    }
  }
  std::vector<const Bf16*> pointers;
  pointers.reserve(rows.size());
  for (const auto& row : rows) pointers.push_back(row.data());
  const auto keys = std::span<const Bf16* const>(pointers);
  token.heads =
      golden_.Attend(token.q, keys.first(num_window_rows), keys.subspan(num_window_rows), rope)
          .heads;
  token.attn_out = golden_.ProjectOutput(token.heads);
  token.x_out = golden_.HcPost(x, token.attn_out, token.hc.post, token.hc.comb);
  return token;
}

TokenResult Decoder::Decode(std::span<const float> x, const RopeRow& rope,
                            const RopeRow* event_rope) {
  Append(x, rope, event_rope);
  return DecodeAt(next_position_ - 1, x, rope);
}

}  // namespace millipede::reference
