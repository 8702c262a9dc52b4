// The end-to-end rules: a whole layer from x and the history alone.
#include <algorithm>
#include <string_view>

#include "tools/check_parts.h"

namespace millipede::tools {
namespace {

using reference::Decoder;
using reference::EndToEndTensor;
using reference::Golden;
using reference::Values;

constexpr std::string_view kRms = "end to end, rms";
constexpr std::string_view kPoints = "end to end, points";
constexpr std::string_view kSets = "end to end, sets";
constexpr std::string_view kSetsTogether = "end to end, all sets together";

// Each request's golden decoder, with all of the step's tokens appended.
std::vector<Decoder> DecodeAhead(const StepRecord& record, const Golden& golden,
                                 const StepRows& rows, int num_threads) {
  const StepInputs& inputs = record.inputs;
  const int64_t width = kHcStreams * int64_t{record.config.hidden};
  std::vector<Decoder> decoders;
  for (size_t r = 0; r < record.caches.start_pos.size(); ++r) {
    decoders.emplace_back(golden, record.caches.start_pos[r],
                          reference::HistoryOf(rows.history(static_cast<int64_t>(r))));
  }
  const auto append = [&](int64_t request) {
    for (int64_t t = 0; t < inputs.num_tokens(); ++t) {
      if (inputs.request[static_cast<size_t>(t)] != request) continue;
      const auto event = std::find_if(inputs.events.begin(), inputs.events.end(),
                                      [t](const StepEvent& e) { return e.query == t; });
      reference::RopeRow event_rope;
      if (event != inputs.events.end()) {
        event_rope = reference::RopeRowOf(inputs.event_rope(), event - inputs.events.begin());
      }
      decoders[static_cast<size_t>(request)].Append(
          TokenRow(inputs.x, t, width), reference::RopeRowOf(inputs.rope(), t),
          event == inputs.events.end() ? nullptr : &event_rope);
    }
  };
  reference::ParallelFor(static_cast<int64_t>(decoders.size()), append, num_threads);
  return decoders;
}

// The rows that a token, or an event, adds to the caches.
void JudgeTokenRows(const StepRecord& record, const Decoder& decoder, int64_t t, RuleTable& table) {
  const int64_t position = record.inputs.position[static_cast<size_t>(t)];
  const std::string where = TokenName(record.inputs, t);
  const auto judge = [&](std::string_view name, EndToEndTensor tensor, const auto& actual,
                         const auto& expected) {
    const auto width = static_cast<int64_t>(expected.size());
    table.Add(name, kRms, width,
              reference::JudgeEndToEnd(tensor, TokenRow(actual, t, width), expected), where);
  };
  judge("kv", EndToEndTensor::kKv, record.values.kv, decoder.KvAt(position));
  if (record.kind == AttentionKind::kSwa) return;
  judge("state_rows", EndToEndTensor::kState, record.values.state, decoder.StateAt(position));
  if (record.kind == AttentionKind::kHca) return;
  judge("inner_state_rows", EndToEndTensor::kState, record.values.inner_state,
        decoder.InnerStateAt(position));
}

void JudgeEventRows(const StepRecord& record, const Decoder& decoder, int64_t e, RuleTable& table) {
  const StepEvent& event = record.inputs.events[static_cast<size_t>(e)];
  const std::string where = EventName(record.inputs, event);
  table.Add("cmp_rows", kRms, kHeadDim,
            reference::JudgeEndToEnd(EndToEndTensor::kCompressedRow,
                                     TokenRow(record.values.cmp_rows, e, kHeadDim),
                                     decoder.CompressedAt(event.row)),
            where);
  if (record.kind == AttentionKind::kHca) return;
  const reference::Quantized key = decoder.IndexAt(event.row);
  table.Add("idx_rows", kRms, kIndexDim,
            reference::JudgeEndToEndIndexRow(TokenRow(record.values.idx_rows, e, kIndexDim),
                                             record.values.idx_scales[static_cast<size_t>(e)],
                                             key.codes, key.scale),
            where);
}

// Everything else of a token. CSA: its part of what all selections have in common.
void JudgeToken(const StepRecord& record, const Decoder& decoder, int64_t t,
                reference::SelectionAgreement& agreement, RuleTable& table) {
  const Activations& values = record.values;
  const int64_t hidden = record.config.hidden;
  const int64_t width = kHcStreams * hidden;
  const int64_t head_lanes = int64_t{record.config.num_heads} * kHeadDim;
  const std::string where = TokenName(record.inputs, t);
  const reference::TokenResult expected = decoder.DecodeAt(
      record.inputs.position[static_cast<size_t>(t)], TokenRow(record.inputs.x, t, width),
      reference::RopeRowOf(record.inputs.rope(), t));
  if (record.kind == AttentionKind::kCsa) {
    const int64_t topk = record.config.index_topk;
    agreement =
        reference::JudgeSelectionSet(TokenRow(values.topk_idx, t, topk), expected.selection.idx);
    table.Add("topk_idx", kSets, agreement.num_rows, agreement.verdict, where);
  }
  const bool differs = agreement.num_common != agreement.num_rows;
  const auto judge = [&](std::string_view name, EndToEndTensor tensor, Values a, Values e) {
    table.Add(name, kRms, a.size(), reference::JudgeEndToEnd(tensor, a, e, differs), where);
  };
  judge("q", EndToEndTensor::kQ, TokenRow(values.q, t, head_lanes), expected.q);
  judge("heads", EndToEndTensor::kHeads, TokenRow(values.heads, t, head_lanes), expected.heads);
  judge("attn_out", EndToEndTensor::kAttnOut, TokenRow(values.attn_out, t, hidden),
        expected.attn_out);
  const auto x_out = TokenRow(values.x_out, t, width);
  judge("x_out", EndToEndTensor::kXOut, x_out, expected.x_out);
  table.Add("x_out", kPoints, width,
            reference::JudgeXOutPoints(record.kind, x_out, expected.x_out, differs), where);
}

}  // namespace

RuleTable JudgeEndToEnd(const StepRecord& record, const Golden& golden, const StepRows& rows,
                        const std::vector<int64_t>& tokens, int num_threads, Progress& progress) {
  const std::vector<Decoder> decoders = DecodeAhead(record, golden, rows, num_threads);
  const auto decoder_of = [&](int64_t request) -> const Decoder& {
    return decoders[static_cast<size_t>(request)];
  };
  RuleTable table;
  for (int64_t t = 0; t < record.inputs.num_tokens(); ++t) {
    JudgeTokenRows(record, decoder_of(record.inputs.request[static_cast<size_t>(t)]), t, table);
  }
  for (int64_t e = 0; e < record.inputs.num_events(); ++e) {
    const StepEvent& event = record.inputs.events[static_cast<size_t>(e)];
    JudgeEventRows(record, decoder_of(event.request), e, table);
  }
  std::vector<reference::SelectionAgreement> agreements(
      static_cast<size_t>(record.inputs.num_tokens()));
  table.Merge(JudgeItems(tokens, num_threads, progress, [&](int64_t t, RuleTable& one) {
    const auto token = static_cast<size_t>(t);
    JudgeToken(record, decoder_of(record.inputs.request[token]), t, agreements[token], one);
  }));
  if (record.kind == AttentionKind::kCsa) {
    int64_t num_common = 0;
    int64_t num_rows = 0;
    for (const auto& agreement : agreements) {
      num_common += agreement.num_common;
      num_rows += agreement.num_rows;
    }
    table.Add("topk_idx", kSetsTogether, num_rows,
              reference::JudgeFileAgreement(num_common, num_rows), "all tokens");
  }
  return table;
}

}  // namespace millipede::tools
