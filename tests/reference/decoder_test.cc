// The golden's decoder: what a token sees, and what it leaves, for every kind of layer.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "reference/golden.h"
#include "reference/parallel.h"
#include "tests/reference/golden_fixture.h"

namespace millipede::reference {
namespace {

class DecoderTest : public testing::Test, protected TinyLayer {
 protected:
  DecoderTest() : TinyLayer(kSwa) {}

  // A decoder at `start` whose history is the formula's, as far back as position `first`.
  Decoder At(const Golden& golden, int64_t start, int64_t first) const {
    Decoder decoder(golden, start);
    for (int64_t p = std::max<int64_t>(0, first); p < start; ++p) decoder.SetHistory(p, KvRow(p));
    return decoder;
  }
};

TEST_F(DecoderTest, WindowIsTheLast128PositionsAndTheTokenItself) {
  const Golden golden = Make();
  for (const int64_t p : {127, 128, 129, 255, 256, 300}) {
    SCOPED_TRACE(p);
    const RopeRow rope = RopeRowAt(kSwa, p);
    const auto out = [&](int64_t poisoned) {
      Decoder decoder = At(golden, p, p - 140);
      std::vector<Bf16> row = KvRow(0);
      for (Bf16& v : row) v = Exact(4096);
      if (poisoned >= 0) decoder.SetHistory(poisoned, row);
      return decoder.Decode(X(0), rope).attn_out;
    };
    const auto same = [](const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
      return JudgeExact(a, b).ok;
    };
    const auto clean = out(-1);
    if (p >= 128) {
      EXPECT_TRUE(same(out(p - 128), clean));
    }
    EXPECT_FALSE(same(out(p - 127), clean));
    EXPECT_FALSE(same(out(p - 1), clean));
  }
  Decoder short_history = At(golden, 300, 300 - 126);
  EXPECT_THROW(short_history.Decode(X(0), RopeRowAt(kSwa, 300)), std::out_of_range);
}

TEST_F(DecoderTest, AppendedTokensDecodeAsOneByOneOnAnyThread) {
  const Golden golden = Make();
  constexpr int64_t kTokens = 12;
  Decoder serial = At(golden, 125, 0);
  std::vector<TokenResult> expected;
  for (int64_t t = 0; t < kTokens; ++t) {
    expected.push_back(serial.Decode(X(t), RopeRowAt(kSwa, 125 + t)));
  }
  EXPECT_EQ(serial.next_position(), 125 + kTokens);
  Decoder together = At(golden, 125, 0);
  for (int64_t t = 0; t < kTokens; ++t) together.Append(X(t), RopeRowAt(kSwa, 125 + t));
  std::vector<TokenResult> actual(kTokens);
  ParallelFor(
      kTokens,
      [&](int64_t t) {
        actual[static_cast<size_t>(t)] = together.DecodeAt(125 + t, X(t), RopeRowAt(kSwa, 125 + t));
      },
      3);
  for (size_t t = 0; t < kTokens; ++t) {
    EXPECT_TRUE(JudgeExact(actual[t].kv, expected[t].kv).ok);
    EXPECT_TRUE(JudgeExact(actual[t].heads, expected[t].heads).ok);
    EXPECT_TRUE(JudgeExact(actual[t].x_out, expected[t].x_out).ok);
  }
}

TEST_F(DecoderTest, FirstTokenSeesItselfAlone) {
  layer.attn_sink.assign(8, -kInf);
  const Golden golden = Make();
  Decoder decoder(golden, 0);
  const TokenResult token = decoder.Decode(X(0), no_turn);
  for (size_t i = 0; i < token.heads.size(); ++i) {
    ASSERT_EQ(token.heads[i].bits, token.kv[i % 512].bits);
  }
}

// What a decoder asked its history for.
struct Asked {
  std::set<int64_t> kv, compressed, state, index, inner_state;
};

std::set<int64_t> Range(int64_t begin, int64_t end) {
  std::set<int64_t> range;
  for (int64_t i = begin; i < end; ++i) range.insert(i);
  return range;
}

class CompressedDecoder : public testing::TestWithParam<AttentionKind>, protected TinyLayer {
 protected:
  CompressedDecoder() : TinyLayer(GetParam()) {}

  int64_t ratio() const { return kind == kHca ? kHcaRatio : kCsaRatio; }
  int64_t BlockStart(int64_t position) const { return position / ratio() * ratio(); }

  // Appends the token of `x` with the rotations of its own place.
  void Append(Decoder& decoder, int64_t x) const {
    const int64_t position = decoder.next_position();
    const RopeRow event = RopeRowAt(kind, BlockStart(position));
    decoder.Append(X(x), RopeRowAt(kind, position), &event);
  }
  TokenResult Decode(Decoder& decoder, int64_t x) const {
    Append(decoder, x);
    const int64_t position = decoder.next_position() - 1;
    return decoder.DecodeAt(position, X(x), RopeRowAt(kind, position));
  }

  // The formula's history, which notes what is asked for.
  History Recorded(Asked& asked) const {
    const History plain = HistoryOf(request);
    History history;
    history.kv = [plain, &asked](int64_t p, std::span<Bf16> out) {
      asked.kv.insert(p);
      plain.kv(p, out);
    };
    history.compressed = [plain, &asked](int64_t r, std::span<Bf16> out) {
      asked.compressed.insert(r);
      plain.compressed(r, out);
    };
    history.state = [plain, &asked](int64_t p, std::span<float> out) {
      asked.state.insert(p);
      plain.state(p, out);
    };
    history.index = [plain, &asked](int64_t r, std::span<int8_t> out) {
      asked.index.insert(r);
      return plain.index(r, out);
    };
    history.inner_state = [plain, &asked](int64_t p, std::span<float> out) {
      asked.inner_state.insert(p);
      plain.inner_state(p, out);
    };
    return history;
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, CompressedDecoder, testing::Values(kHca, kCsa),
                         [](const auto& kind) { return std::string(KindName(kind.param)); });

// One token at the last position of a block, and the one before it: the row that the last token
// finishes is seen by itself and not by the token before.
TEST_P(CompressedDecoder, AsksForWhatATokenSeesAndNothingElse) {
  const Golden golden = Make();
  const int64_t before = kind == kHca ? 382 : 2054;
  for (const int64_t p : {before, before + 1}) {
    SCOPED_TRACE(p);
    Asked asked;
    Decoder decoder(golden, p, Recorded(asked));
    const TokenResult token = Decode(decoder, 0);
    EXPECT_EQ(asked.kv, Range(p - 127, p));
    const int64_t old_rows = p / ratio();
    const bool event = p > before;
    const int64_t first_state = kind == kHca ? BlockStart(p) : BlockStart(p) - 4;
    EXPECT_EQ(asked.state, event ? Range(first_state, p) : Range(0, 0));
    if (kind == kHca) {
      EXPECT_EQ(asked.compressed, Range(0, old_rows));
      EXPECT_TRUE(asked.index.empty());
      EXPECT_TRUE(asked.inner_state.empty());
    } else {
      EXPECT_EQ(asked.index, Range(0, old_rows));
      EXPECT_EQ(asked.inner_state, asked.state);
      ASSERT_EQ(token.selection.count(), std::min<int64_t>(512, old_rows + (event ? 1 : 0)));
      std::set<int64_t> old_selected(token.selection.idx.begin(), token.selection.idx.end());
      old_selected.erase(-1);
      old_selected.erase(old_rows);  // the row of this step
      EXPECT_EQ(asked.compressed, old_selected);
    }
  }
}

TEST_P(CompressedDecoder, FinishedRowIsPooledFromItsBlockAndTurnedAtItsFirstPosition) {
  const Golden golden = Make();
  const int64_t p = kind == kHca ? 383 : 2055;
  const int64_t row = p / ratio();
  Decoder decoder(golden, p - 2, HistoryOf(request));
  for (int64_t x = 0; x < 3; ++x) Append(decoder, x);
  const int64_t first = BlockStart(p) - (kind == kCsa ? 4 : 0);
  std::vector<std::vector<float>> state, inner_state;
  for (int64_t q = first; q <= p; ++q) {
    state.push_back(decoder.StateAt(q));
    if (kind == kCsa) inner_state.push_back(decoder.InnerStateAt(q));
  }
  // Of the tokens: by their own xn; before them: the history's.
  EXPECT_EQ(state.back(), golden.StateRow(Xn(2), p));
  std::vector<float> old(state[0].size());
  request.StateRow(first, old);
  EXPECT_EQ(state[0], old);

  const RopeRow turn = RopeRowAt(kind, kind == kHca ? 256 : 2052);
  EXPECT_TRUE(SameBits(decoder.CompressedAt(row), golden.CompressRow(PointersOf(state), turn)));
  EXPECT_FALSE(SameBits(decoder.CompressedAt(row),
                        golden.CompressRow(PointersOf(state), RopeRowAt(kind, p))));
  if (kind == kCsa) {
    const Quantized expected = golden.IndexRow(PointersOf(inner_state), turn);
    EXPECT_EQ(decoder.IndexAt(row).codes, expected.codes);
    EXPECT_EQ(decoder.IndexAt(row).scale, expected.scale);
  }
  EXPECT_TRUE(SameBits(decoder.CompressedAt(row - 1), CmpRow(row - 1)));
  EXPECT_THROW(decoder.CompressedAt(row + 1), std::out_of_range);
  EXPECT_THROW(decoder.StateAt(p + 1), std::out_of_range);
}

TEST_P(CompressedDecoder, TokenThatFinishesABlockNeedsTheRowsRotation) {
  const Golden golden = Make();
  Decoder decoder(golden, 127, HistoryOf(request));
  EXPECT_THROW(decoder.Append(X(0), RopeRowAt(kind, 127)), std::invalid_argument);
  EXPECT_EQ(decoder.next_position(), 127);
  Append(decoder, 0);
  decoder.Append(X(1), RopeRowAt(kind, 128));  // starts a block
  EXPECT_EQ(decoder.next_position(), 129);
}

TEST_P(CompressedDecoder, MissingHistoryIsReported) {
  const Golden golden = Make();
  History history = HistoryOf(request);
  history.compressed = nullptr;
  Decoder decoder(golden, 256, std::move(history));
  Append(decoder, 0);
  EXPECT_THROW(decoder.DecodeAt(256, X(0), RopeRowAt(kind, 256)), std::out_of_range);
  history = HistoryOf(request);
  history.state = nullptr;
  Decoder stateless(golden, 383, std::move(history));
  EXPECT_THROW(Append(stateless, 0), std::out_of_range);
}

TEST_P(CompressedDecoder, GrowsFromNothingAndIsTheSameOnAnyThread) {
  const Golden golden = Make();
  constexpr int64_t kTokens = 140;
  Decoder serial(golden, 0);
  Decoder together(golden, 0);
  std::vector<TokenResult> expected;
  for (int64_t t = 0; t < kTokens; ++t) expected.push_back(Decode(serial, t));
  for (int64_t t = 0; t < kTokens; ++t) Append(together, t);
  ParallelFor(
      kTokens,
      [&](int64_t t) {
        const TokenResult actual = together.DecodeAt(t, X(t), RopeRowAt(kind, t));
        const TokenResult& one_by_one = expected[static_cast<size_t>(t)];
        EXPECT_TRUE(SameBits(actual.heads, one_by_one.heads));
        EXPECT_TRUE(SameBits(actual.x_out, one_by_one.x_out));
        EXPECT_EQ(actual.selection.idx, one_by_one.selection.idx);
        if (kind == kCsa) {
          EXPECT_EQ(actual.selection.count(), (t + 1) / 4);
          EXPECT_EQ(actual.selection.next_score, -FLT_MAX);
        }
      },
      3);
  for (int64_t row = 0; row < kTokens / ratio(); ++row) {
    EXPECT_TRUE(SameBits(serial.CompressedAt(row), together.CompressedAt(row)));
  }
}

// Row r of CSA depends on the tokens of block r-1, and on none before.
TEST(CsaDecoder, BlocksOverlapByOne) {
  const TinyLayer tiny(kCsa);
  const Golden golden = tiny.Make();
  const auto row_3 = [&](int64_t changed) {
    Decoder decoder(golden, 0);
    for (int64_t t = 0; t < 16; ++t) {
      const RopeRow event = RopeRowAt(kCsa, t / 4 * 4);
      decoder.Append(tiny.X(t == changed ? 100 : t), RopeRowAt(kCsa, t), &event);
    }
    return std::pair(decoder.CompressedAt(3), decoder.IndexAt(3).codes);
  };
  const auto clean = row_3(-1);
  for (const int64_t t : {8, 11, 12, 15}) {
    EXPECT_FALSE(SameBits(row_3(t).first, clean.first)) << t;
    EXPECT_NE(row_3(t).second, clean.second) << t;
  }
  for (const int64_t t : {4, 7}) {
    EXPECT_TRUE(SameBits(row_3(t).first, clean.first)) << t;
    EXPECT_EQ(row_3(t).second, clean.second) << t;
  }
}

// Candidate counts around the number of places, and more keys than are scored at once.
TEST(CsaDecoder, SelectsTheTopOfAllCandidates) {
  const TinyLayer tiny(kCsa);
  const Golden golden = tiny.Make();
  for (const int64_t n : {0, 1, 511, 512, 513, 4096, 4097, 9000}) {
    SCOPED_TRACE(n);
    const int64_t position = 4 * n;  // does not finish a block
    Decoder decoder(golden, position, HistoryOf(tiny.request));
    const TokenResult token = decoder.Decode(tiny.X(0), RopeRowAt(kCsa, position));
    EXPECT_EQ(token.selection.count(), std::min<int64_t>(n, 512));
    std::vector<int8_t> keys(static_cast<size_t>(n) * kIndexDim);
    std::vector<float> scales;
    for (int64_t row = 0; row < n; ++row) {
      tiny.request.IdxRow(row, std::span(keys).subspan(static_cast<size_t>(row) * 128, 128));
      scales.push_back(tiny.request.IdxScale(row));
    }
    const Selection expected = TopK(Scores(token.idx, token.idx_weights, keys, scales), 512);
    EXPECT_EQ(token.selection.idx, expected.idx);
    EXPECT_EQ(token.selection.score, expected.score);
    EXPECT_EQ(token.selection.next_score, expected.next_score);
    // The heads are those of the window and the selected rows, best first.
    std::vector<std::vector<Bf16>> window, rows;
    for (int64_t p = std::max<int64_t>(0, position - 127); p <= position; ++p) {
      window.push_back(decoder.KvAt(p));
    }
    for (int64_t i = 0; i < expected.count(); ++i) {
      rows.push_back(tiny.CmpRow(expected.idx[static_cast<size_t>(i)]));
    }
    EXPECT_TRUE(SameBits(
        token.heads,
        golden.Attend(token.q, PointersOf(window), PointersOf(rows), RopeRowAt(kCsa, position))
            .heads));
  }
}

}  // namespace
}  // namespace millipede::reference
