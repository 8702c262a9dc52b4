// The rows that the stages of a step read.
#include <fmt/format.h>

#include "tools/check_parts.h"

namespace millipede::tools {

std::string TokenName(const StepInputs& inputs, int64_t t) {
  const auto token = static_cast<size_t>(t);
  const int64_t id = inputs.ids[static_cast<size_t>(inputs.request[token])];
  return fmt::format("request {} position {}", id, inputs.position[token]);
}

std::string EventName(const StepInputs& inputs, const StepEvent& event) {
  const int64_t id = inputs.ids[static_cast<size_t>(event.request)];
  return fmt::format("request {} compressed row {}", id, event.row);
}

StepRows::StepRows(const StepRecord& record) : record_(record), ratio_(RatioOf(record.kind)) {
  int64_t first_query = 0;
  int64_t first_event = 0;
  for (size_t r = 0; r < record.caches.start_pos.size(); ++r) {
    const int64_t start = record.caches.start_pos[r];
    const int64_t end = start + record.caches.num_tokens[r];
    requests_.push_back(
        {fixtures::RequestFixture(record.config, record.history_seed, record.inputs.ids[r]), start,
         first_query, first_event});
    first_query += end - start;
    if (ratio_ > 0) first_event += end / ratio_ - start / ratio_;
  }
}

std::vector<std::vector<Bf16>> StepRows::Window(int64_t t) const {
  const auto token = static_cast<size_t>(t);
  const RequestRows& request = requests_[static_cast<size_t>(record_.inputs.request[token])];
  const int64_t position = record_.inputs.position[token];
  std::vector<std::vector<Bf16>> window;
  for (int64_t p = std::max<int64_t>(0, position - kWindowRows + 1); p <= position; ++p) {
    std::vector<Bf16>& row = window.emplace_back(kHeadDim);
    if (p < request.start) {
      request.history.KvRow(p, row);
    } else {
      const auto own =
          TokenRow(record_.values.kv, request.first_query + p - request.start, kHeadDim);
      row.assign(own.begin(), own.end());
    }
  }
  return window;
}

int64_t StepRows::NumVisible(int64_t t) const {
  return ratio_ == 0 ? 0 : (record_.inputs.position[static_cast<size_t>(t)] + 1) / ratio_;
}

std::vector<Bf16> StepRows::CompressedRow(const RequestRows& request, int64_t row) const {
  const int64_t num_history = request.start / ratio_;
  std::vector<Bf16> values(kHeadDim);
  if (row < num_history) {
    request.history.CmpRow(row, values);
  } else {
    const auto own =
        TokenRow(record_.values.cmp_rows, request.first_event + row - num_history, kHeadDim);
    values.assign(own.begin(), own.end());
  }
  return values;
}

std::vector<std::vector<Bf16>> StepRows::Compressed(int64_t t) const {
  const RequestRows& request =
      requests_[static_cast<size_t>(record_.inputs.request[static_cast<size_t>(t)])];
  const int64_t num_visible = NumVisible(t);
  std::vector<std::vector<Bf16>> rows;
  if (record_.kind == AttentionKind::kHca) {
    for (int64_t row = 0; row < num_visible; ++row) rows.push_back(CompressedRow(request, row));
  }
  if (record_.kind == AttentionKind::kCsa) {
    for (const int32_t row : TokenRow(record_.values.topk_idx, t, record_.config.index_topk)) {
      if (row >= 0 && row < num_visible) rows.push_back(CompressedRow(request, row));
    }
  }
  return rows;
}

template <typename FromHistory>
std::vector<std::vector<float>> StepRows::Block(int64_t r, int64_t row,
                                                const std::vector<float>& own, int64_t width,
                                                const FromHistory& from_history) const {
  const RequestRows& request = requests_[static_cast<size_t>(r)];
  const int64_t overlap = record_.kind == AttentionKind::kCsa ? ratio_ : 0;
  std::vector<std::vector<float>> rows;
  for (int64_t p = row * ratio_ - overlap; p < (row + 1) * ratio_; ++p) {
    std::vector<float>& values = rows.emplace_back();
    if (p < 0) continue;
    if (p < request.start) {
      values.resize(static_cast<size_t>(width));
      from_history(request.history, p, values);
    } else {
      const auto own_row = TokenRow(own, request.first_query + p - request.start, width);
      values.assign(own_row.begin(), own_row.end());
    }
  }
  return rows;
}

std::vector<std::vector<float>> StepRows::BlockState(int64_t r, int64_t row) const {
  const auto width = static_cast<int64_t>(record_.values.state.size()) / record_.values.num_tokens;
  return Block(r, row, record_.values.state, width,
               [](const auto& history, int64_t p, std::vector<float>& values) {
                 history.StateRow(p, values);
               });
}

std::vector<std::vector<float>> StepRows::BlockInnerState(int64_t r, int64_t row) const {
  return Block(r, row, record_.values.inner_state, int64_t{4} * kIndexDim,
               [](const auto& history, int64_t p, std::vector<float>& values) {
                 history.InnerStateRow(p, values);
               });
}

float StepRows::Index(int64_t r, int64_t row, std::span<int8_t> codes) const {
  const RequestRows& request = requests_[static_cast<size_t>(r)];
  const int64_t num_history = request.start / ratio_;
  if (row < num_history) {
    request.history.IdxRow(row, codes);
    return request.history.IdxScale(row);
  }
  const int64_t event = request.first_event + row - num_history;
  std::ranges::copy(TokenRow(record_.values.idx_rows, event, kIndexDim), codes.begin());
  return record_.values.idx_scales[static_cast<size_t>(event)];
}

}  // namespace millipede::tools
