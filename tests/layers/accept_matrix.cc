#include "layers/accept_matrix.h"

#include <algorithm>
#include <string>

namespace millipede::testing {
namespace {

constexpr int64_t kId = 5;
constexpr int64_t kTokensAfter = 16;

template <typename T>
void Append(std::vector<T>& to, std::span<T> row) {
  to.insert(to.end(), row.begin(), row.end());
}

bool SameRange(const RowRange& a, const RowRange& b) {
  return a.begin == b.begin && a.end == b.end;
}

// Token `i` of a step's result alone. `values` has the tokens' values one after another.
template <typename T>
bool SameToken(const std::vector<T>& values, int64_t i, int64_t num_tokens,
               const std::vector<T>& expected) {
  const auto width = values.size() / static_cast<size_t>(num_tokens);
  return width == expected.size() &&
         (width == 0 || std::memcmp(values.data() + static_cast<size_t>(i) * width, expected.data(),
                                    width * sizeof(T)) == 0);
}

}  // namespace

SerialTruth::SerialTruth(AttentionKind kind, int64_t start, int64_t total) {
  const std::unique_ptr<Executor> serial = MakeSerialExecutor();
  Context context(*serial);
  DecodeWorld world(ModelConfig::Tiny(), kind);
  world.Add(kId, start);
  for (int64_t position = start; position < start + total; ++position) {
    caches_[position] = Read(world, kId);
    outputs_[position] = world.Step(context, {{.id = kId}}).at(kId);
  }
  caches_[start + total] = Read(world, kId);
}

SerialTruth::Caches SerialTruth::Read(DecodeWorld& world, int64_t id) {
  Caches caches;
  caches.ranges = world.request(id).pages(world.kind());
  const auto each = [](const RowRange& range, const auto& body) {
    for (int64_t row = range.begin; row < range.end; ++row) body(row);
  };
  each(caches.ranges.raw.valid, [&](int64_t p) { Append(caches.raw, world.RawRow(id, p)); });
  each(caches.ranges.main.valid, [&](int64_t r) { Append(caches.main, world.MainRow(id, r)); });
  each(caches.ranges.state.valid, [&](int64_t p) { Append(caches.state, world.StateRow(id, p)); });
  each(caches.ranges.inner_state.valid,
       [&](int64_t p) { Append(caches.inner_state, world.InnerStateRow(id, p)); });
  each(caches.ranges.index.valid, [&](int64_t r) {
    Append(caches.index_rows, world.IndexRow(id, r));
    caches.index_scales.push_back(world.IndexScale(id, r));
  });
  return caches;
}

void SerialTruth::ExpectSameCaches(DecodeWorld& world, int64_t id) const {
  const Caches& expected = caches_.at(world.position(id));
  const Caches actual = Read(world, id);
  EXPECT_TRUE(SameRange(actual.ranges.raw.valid, expected.ranges.raw.valid));
  EXPECT_TRUE(SameRange(actual.ranges.main.valid, expected.ranges.main.valid));
  EXPECT_TRUE(SameRange(actual.ranges.index.valid, expected.ranges.index.valid));
  EXPECT_TRUE(SameRange(actual.ranges.state.valid, expected.ranges.state.valid));
  EXPECT_TRUE(SameRange(actual.ranges.inner_state.valid, expected.ranges.inner_state.valid));
  EXPECT_TRUE(SameBits(actual.raw, expected.raw));
  EXPECT_TRUE(SameBits(actual.main, expected.main));
  EXPECT_TRUE(SameBits(actual.state, expected.state));
  EXPECT_TRUE(SameBits(actual.inner_state, expected.inner_state));
  EXPECT_TRUE(SameBits(actual.index_rows, expected.index_rows));
  EXPECT_TRUE(SameBits(actual.index_scales, expected.index_scales));
}

void SerialTruth::ExpectSameOutputs(const EntryResult& result, int64_t count) const {
  for (int64_t i = 0; i < count; ++i) {
    const EntryResult& expected = outputs_.at(result.start_pos + i);
    const int64_t n = result.num_tokens;
    EXPECT_TRUE(
        SameToken(result.kv, i, n, expected.kv) && SameToken(result.state, i, n, expected.state) &&
        SameToken(result.inner_state, i, n, expected.inner_state) &&
        SameToken(result.topk_idx, i, n, expected.topk_idx) &&
        SameToken(result.q, i, n, expected.q) && SameToken(result.heads, i, n, expected.heads) &&
        SameToken(result.attn_out, i, n, expected.attn_out) &&
        SameToken(result.x_out, i, n, expected.x_out))
        << "position " << result.start_pos + i;
  }
}

void ExpectAcceptedIsAll(AttentionKind kind, int64_t start, const std::vector<int64_t>& widths,
                         const std::vector<int64_t>& accepted) {
  const std::unique_ptr<Executor> serial = MakeSerialExecutor();
  Context context(*serial);
  const int64_t most = *std::max_element(widths.begin(), widths.end());
  const SerialTruth truth(kind, start, most + kTokensAfter);
  DecodeWorld world(ModelConfig::Tiny(), kind);
  for (const int64_t width : widths) {
    for (const int64_t count : accepted) {
      if (count > width) continue;
      SCOPED_TRACE("start " + std::to_string(start) + ", width " + std::to_string(width) +
                   ", accepted " + std::to_string(count));
      world.Add(kId, start);
      world.edit_x = [&](int64_t, int64_t position, std::span<float> row) {
        if (position >= start + count) std::ranges::reverse(row);
      };
      truth.ExpectSameOutputs(
          world.Step(context, {{.id = kId, .num_tokens = width, .accepted = count}}).at(kId),
          count);
      world.edit_x = nullptr;
      truth.ExpectSameCaches(world, kId);
      truth.ExpectSameOutputs(
          world.Step(context, {{.id = kId, .num_tokens = kTokensAfter}}).at(kId));
      truth.ExpectSameCaches(world, kId);
      world.Remove(kId);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

void ExpectAnyPrefix(AttentionKind kind, int64_t start, const std::vector<int64_t>& widths) {
  std::vector<int64_t> accepted;
  for (int64_t n = 0; n <= *std::max_element(widths.begin(), widths.end()); ++n) {
    accepted.push_back(n);
  }
  ExpectAcceptedIsAll(kind, start, widths, accepted);
}

void ExpectAllWidths(AttentionKind kind, int64_t start) {
  std::vector<int64_t> widths;
  for (int64_t width = 1; width <= 33; ++width) widths.push_back(width);
  ExpectAnyPrefix(kind, start, widths);
  ExpectAcceptedIsAll(kind, start, {130}, {0, 1, 127, 128, 129, 130});
}

}  // namespace millipede::testing
