// The golden's stages on small shapes: against values known in closed form or worked out by other
// means, and its behaviour on hostile data.
#include "reference/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "reference/judge.h"
#include "reference/parallel.h"
#include "tests/reference/golden_fixture.h"

namespace millipede::reference {
namespace {

// cos and sin of the float32 angle, evaluated with 60 decimal digits by a separate program.
struct RopeAnswer {
  AttentionKind kind;
  int64_t position;
  size_t pair;
  uint32_t cos, sin;
};

constexpr RopeAnswer kRopeAnswers[] = {
    {kSwa, 1, 0, 0x3F0A5140U, 0x3F576AA4U},        {kSwa, 1, 1, 0x3F3B54B0U, 0x3F2E7ACEU},
    {kSwa, 1, 14, 0x3F7FF5A3U, 0x3C91AB42U},       {kSwa, 1, 16, 0x3F7FFCB9U, 0x3C23D657U},
    {kSwa, 1, 20, 0x3F7FFFACU, 0x3B4F3E20U},       {kSwa, 1, 25, 0x3F7FFFFBU, 0x3A44948BU},
    {kSwa, 1, 31, 0x3F800000U, 0x390BD472U},       {kSwa, 127, 0, 0x3E6DEF8BU, 0x3F78FE49U},
    {kSwa, 127, 1, 0x3F0CB97BU, 0x3F55DA12U},      {kSwa, 127, 14, 0xBF227B9EU, 0x3F45D393U},
    {kSwa, 127, 16, 0x3E97B221U, 0x3F74817DU},     {kSwa, 127, 20, 0x3F6BA181U, 0x3EC8240EU},
    {kSwa, 127, 25, 0x3F7ED705U, 0x3DC2BFF1U},     {kSwa, 127, 31, 0x3F7FF69AU, 0x3C8ABB16U},
    {kSwa, 65535, 0, 0x3E44F5D5U, 0x3F7B3848U},    {kSwa, 65535, 1, 0xBF6D7F5DU, 0xBEBF1C9FU},
    {kSwa, 65535, 14, 0xBF7DA764U, 0x3E0A50FEU},   {kSwa, 65535, 16, 0xBEA4E562U, 0x3F725C23U},
    {kSwa, 65535, 20, 0x3F7E955EU, 0xBDD725E9U},   {kSwa, 65535, 25, 0x3EDE87DBU, 0xBF668E4FU},
    {kSwa, 65535, 31, 0xBF4629B9U, 0x3F221282U},   {kSwa, 65536, 0, 0xBF38CA2AU, 0x3F312B34U},
    {kSwa, 65536, 1, 0xBED94785U, 0xBF67CE01U},    {kSwa, 65536, 14, 0xBF7E3AD6U, 0x3DF06CDDU},
    {kSwa, 65536, 16, 0xBEA9BD57U, 0x3F7185C2U},   {kSwa, 65536, 20, 0x3F7EAAC9U, 0xBDD0B6CDU},
    {kSwa, 65536, 25, 0x3EDEE08DU, 0xBF6678E3U},   {kSwa, 65536, 31, 0xBF462F43U, 0x3F220BBCU},
    {kSwa, 1048575, 0, 0x3F49BD23U, 0xBF1D9959U},  {kSwa, 1048575, 1, 0x3DBB744FU, 0xBF7EECE6U},
    {kSwa, 1048575, 14, 0xBEA5A430U, 0xBF723B9AU}, {kSwa, 1048575, 16, 0x3F21DE6CU, 0xBF465447U},
    {kSwa, 1048575, 20, 0xBD86A50EU, 0xBF7F7236U}, {kSwa, 1048575, 25, 0x3F1AA6E2U, 0x3F4C01C1U},
    {kSwa, 1048575, 31, 0xBCEC5703U, 0x3F7FE4B8U}, {kHca, 1, 0, 0x3F0A5140U, 0x3F576AA4U},
    {kHca, 1, 1, 0x3F45D205U, 0x3F227D83U},        {kHca, 1, 14, 0x3F7FFF16U, 0x3BAD3D28U},
    {kHca, 1, 16, 0x3F7FFFD5U, 0x3B147AD9U},       {kHca, 1, 20, 0x3F7FFFFFU, 0x399BB3AFU},
    {kHca, 1, 25, 0x3F800000U, 0x36B443D1U},       {kHca, 1, 31, 0x3F800000U, 0x35187C4CU},
    {kHca, 127, 0, 0x3E6DEF8BU, 0x3F78FE49U},      {kHca, 127, 1, 0x3F4E82FDU, 0xBF174A77U},
    {kHca, 127, 14, 0x3F486E42U, 0x3F1F4264U},     {kHca, 127, 16, 0x3F7579C5U, 0x3E914BACU},
    {kHca, 127, 20, 0x3F7FD165U, 0x3D1A72E8U},     {kHca, 127, 25, 0x3F7FFFFCU, 0x3A32DB48U},
    {kHca, 127, 31, 0x3F800000U, 0x38974B53U},     {kHca, 65535, 0, 0x3E44F5D5U, 0x3F7B3848U},
    {kHca, 65535, 1, 0xBF523027U, 0x3F1223E6U},    {kHca, 65535, 14, 0x3F1F58C7U, 0x3F485C76U},
    {kHca, 65535, 16, 0xBF2E1BBCU, 0xBF3BAD0FU},   {kHca, 65535, 20, 0x3F516801U, 0x3F134222U},
    {kHca, 65535, 25, 0x3F704BFAU, 0x3EB08FA2U},   {kHca, 65535, 31, 0x3F7FD298U, 0x3D1872B0U},
    {kHca, 65536, 0, 0xBF38CA2AU, 0x3F312B34U},    {kHca, 65536, 1, 0xBF7F2EADU, 0xBDA38E7DU},
    {kHca, 65536, 14, 0x3F1E4969U, 0x3F49331DU},   {kHca, 65536, 16, 0xBF2DAF1FU, 0xBF3C1198U},
    {kHca, 65536, 20, 0x3F515CC9U, 0x3F135215U},   {kHca, 65536, 25, 0x3F704BDBU, 0x3EB0904BU},
    {kHca, 65536, 31, 0x3F7FD297U, 0x3D187348U},   {kHca, 1048575, 0, 0x3F49BD23U, 0xBF1D9959U},
    {kHca, 1048575, 1, 0x3F547C5DU, 0x3F0EC760U},  {kHca, 1048575, 14, 0xBEA363D2U, 0x3F729D62U},
    {kHca, 1048575, 16, 0x3F4E4C20U, 0x3F17953DU}, {kHca, 1048575, 20, 0xBF6D2EF3U, 0xBEC0AA7AU},
    {kHca, 1048575, 25, 0x3F4BCFA1U, 0xBF1AE8EAU}, {kHca, 1048575, 31, 0x3F53E9CCU, 0x3F0FA08EU},
};

TEST(Rope, RowsAtEdgePositionsOfBothProfiles) {
  for (const RopeAnswer& answer : kRopeAnswers) {
    SCOPED_TRACE(testing::Message() << KindName(answer.kind) << " position " << answer.position
                                    << " pair " << answer.pair);
    const RopeRow row = RopeRowAt(answer.kind, answer.position);
    EXPECT_EQ(row.cos[answer.pair], std::bit_cast<float>(answer.cos));
    EXPECT_EQ(row.sin[answer.pair], std::bit_cast<float>(answer.sin));
  }
  const RopeRow hca = RopeRowAt(kHca, 1048575);
  const RopeRow csa = RopeRowAt(AttentionKind::kCsa, 1048575);
  EXPECT_EQ(hca.cos, csa.cos);
  EXPECT_EQ(hca.sin, csa.sin);
}

TEST(Quantize, RoundsHalfToEvenAndKeepsTheFloor) {
  // amax 127: codes are the values themselves, rounded half to even.
  const std::vector<double> halves = {127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -127, 3.49};
  const Quantized q = Quantize(halves);
  EXPECT_EQ(q.codes, (std::vector<int8_t>{127, 0, 2, 2, 0, -2, -2, 126, -127, 3}));
  EXPECT_EQ(q.scale, 1.0F);

  const Quantized small = Quantize(std::vector<double>{0, 5e-5, -1e-6});
  EXPECT_EQ(small.scale, 1e-4F / 127.0F);
  EXPECT_EQ(small.codes, (std::vector<int8_t>{0, 64, -1}));  // 63.5 is a tie, 64 even; 1.27

  for (const double bad : {double{kNaN}, double{kInf}, -double{kInf}}) {
    const Quantized result = Quantize(std::vector<double>{1, bad, 2});
    EXPECT_TRUE(std::isnan(result.scale));
    EXPECT_EQ(result.codes, (std::vector<int8_t>{0, 0, 0}));
  }
}

class GoldenTest : public testing::Test, protected TinyLayer {
 protected:
  GoldenTest() : TinyLayer(kSwa) {}
};

TEST_F(GoldenTest, HcPreOfZeroMixIsTheBase) {
  std::fill(layer.hc_fn.begin(), layer.hc_fn.end(), 0.0F);
  std::fill(layer.hc_base.begin() + 8, layer.hc_base.end(), 0.0F);
  const std::vector<float> x = X(0);
  const HcPreResult hc = Make().HcPre(x);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_FLOAT_EQ(hc.post[i], static_cast<float>(2 / (1 + std::exp(-layer.hc_base[4 + i]))));
  }
  for (const float c : hc.comb) EXPECT_NEAR(c, 0.25, 1e-5);
  for (size_t d = 0; d < 256; ++d) {
    double mixed = 0;
    for (size_t i = 0; i < 4; ++i) {
      mixed += (1 / (1 + std::exp(-double{layer.hc_base[i]})) + 1e-6) * x[i * 256 + d];
    }
    EXPECT_NEAR(ToFloat(hc.x_mixed[d]), mixed, std::abs(mixed) / 256 + 1e-9);
  }
}

TEST_F(GoldenTest, CombHasUnitColumns) {
  const HcPreResult hc = Make().HcPre(X(1));
  for (size_t o = 0; o < 4; ++o) {  // the last division is by the sums over i
    EXPECT_NEAR(hc.comb[o] + hc.comb[4 + o] + hc.comb[8 + o] + hc.comb[12 + o], 1, 1e-5);
  }
  // i and o are not symmetric: rows only come near 1, and the matrix is far from its transpose.
  EXPECT_GT(std::abs(hc.comb[1] - hc.comb[4]), 1e-3F);
}

TEST_F(GoldenTest, HcPostByHand) {
  const std::vector<float> x = X(2);
  const std::vector<Bf16> attn_out(256, Exact(2.0F));
  const std::array<float, 4> post = {1, 10, 100, 1000};
  std::array<float, 16> comb{};
  comb[4 * 3 + 1] = 0.5F;  // stream 3 into stream 1
  const std::vector<float> x_out = Make().HcPost(x, attn_out, post, comb);
  for (size_t d = 0; d < 256; ++d) {
    EXPECT_EQ(x_out[d], 2.0F);
    EXPECT_FLOAT_EQ(x_out[256 + d], 20.0F + 0.5F * x[3 * 256 + d]);
    EXPECT_EQ(x_out[2 * 256 + d], 200.0F);
    EXPECT_EQ(x_out[3 * 256 + d], 2000.0F);
  }
}

TEST_F(GoldenTest, ProjectionsNormalizeAndTurn) {
  const Golden golden = Make();
  const std::vector<Bf16> xn = golden.AttnNorm(golden.HcPre(X(3)).x_mixed);
  double sum = 0;
  for (size_t i = 0; i < xn.size(); ++i) {
    const double value = ToFloat(xn[i]) / layer.attn_norm[i];
    sum += value * value;
  }
  EXPECT_NEAR(sum / 256, 1, 1e-2);

  const RopeRow turn = RopeRowAt(kSwa, 777);
  const Quantized qr = golden.ProjectLatent(xn);
  const std::vector<Bf16> flat = golden.ProjectQuery(qr.codes, qr.scale, no_turn);
  const std::vector<Bf16> turned = golden.ProjectQuery(qr.codes, qr.scale, turn);
  const std::vector<Bf16> kv_flat = golden.ProjectKv(xn, no_turn);
  const std::vector<Bf16> kv_turned = golden.ProjectKv(xn, turn);
  for (size_t h = 0; h <= 8; ++h) {  // the heads of q, then kv
    const Bf16* a = h < 8 ? &flat[h * 512] : kv_flat.data();
    const Bf16* b = h < 8 ? &turned[h * 512] : kv_turned.data();
    double squares = 0;
    for (size_t d = 0; d < 512; ++d) {
      const double value = ToFloat(a[d]) / (h < 8 ? 1.0F : layer.kv_norm[d]);
      squares += value * value;
    }
    EXPECT_NEAR(squares / 512, 1, 1e-2);
    for (size_t d = 0; d < 448; ++d) ASSERT_EQ(a[d].bits, b[d].bits);
    for (size_t i = 0; i < 32; ++i) {
      const float even = ToFloat(a[448 + 2 * i]);
      const float odd = ToFloat(a[449 + 2 * i]);
      EXPECT_NEAR(ToFloat(b[448 + 2 * i]), even * turn.cos[i] - odd * turn.sin[i], 0.03);
      EXPECT_NEAR(ToFloat(b[449 + 2 * i]), even * turn.sin[i] + odd * turn.cos[i], 0.03);
    }
  }
}

// Against sums in plain order, without quantization: within what it costs.
TEST_F(GoldenTest, OutputAgreesWithPlainProducts) {
  const std::vector<Bf16> heads = Heads(4);
  const std::vector<Bf16> out = Make().ProjectOutput(heads);
  std::vector<double> latent(4 * 32);
  for (size_t g = 0; g < 4; ++g) {
    for (size_t r = 0; r < 32; ++r) {
      for (size_t i = 0; i < 1024; ++i) {
        latent[g * 32 + r] +=
            ToFloat(layer.wo_a[(g * 32 + r) * 1024 + i]) * ToFloat(heads[g * 1024 + i]);
      }
    }
  }
  std::vector<double> expected(256);
  double squares = 0;
  for (size_t d = 0; d < 256; ++d) {
    for (size_t i = 0; i < 128; ++i) expected[d] += latent[i] * layer.wo_b[d * 128 + i];
    expected[d] *= layer.wo_b_scale[d];
    squares += expected[d] * expected[d] / 256;
  }
  for (size_t d = 0; d < 256; ++d) {
    EXPECT_NEAR(ToFloat(out[d]), expected[d], 0.05 * std::sqrt(squares));
  }
}

TEST_F(GoldenTest, NaNIsNeverSwallowed) {
  const Golden golden = Make();
  std::vector<float> x = X(0);
  x[700] = kNaN;
  const HcPreResult hc = golden.HcPre(x);
  for (const float c : hc.comb) EXPECT_TRUE(std::isnan(c));
  for (const Bf16 v : hc.x_mixed) EXPECT_TRUE(std::isnan(ToFloat(v)));
  const std::vector<Bf16> xn = golden.AttnNorm(hc.x_mixed);
  EXPECT_TRUE(std::isnan(ToFloat(xn[0])));
  const Quantized qr = golden.ProjectLatent(xn);
  EXPECT_TRUE(std::isnan(qr.scale));
  for (const Bf16 v : golden.ProjectQuery(qr.codes, qr.scale, no_turn)) {
    EXPECT_TRUE(std::isnan(ToFloat(v)));
  }
  std::vector<Bf16> bad_row = KvRow(1);
  bad_row[5] = {0x7FC0};
  const std::vector<Bf16> good_row = KvRow(0);
  for (const auto& window : {std::vector<const Bf16*>{good_row.data(), bad_row.data()},
                             std::vector<const Bf16*>{bad_row.data(), good_row.data()}}) {
    for (const Bf16 v : golden.Attend(Heads(0), window, no_turn).heads) {
      EXPECT_TRUE(std::isnan(ToFloat(v)));
    }
  }
  std::vector<Bf16> heads = Heads(1);
  heads[3000] = {0x7F80};
  for (const Bf16 v : golden.ProjectOutput(heads)) EXPECT_TRUE(std::isnan(ToFloat(v)));
}

TEST(ParallelFor, RunsEveryItemOnceAndPassesOnExceptions) {
  for (const int threads : {0, 1, 2, 5}) {
    std::vector<int> counts(100, 0);
    ParallelFor(
        100, [&](int64_t i) { ++counts[static_cast<size_t>(i)]; }, threads);
    EXPECT_EQ(counts, std::vector<int>(100, 1));
    EXPECT_THROW(ParallelFor(
                     10,
                     [](int64_t i) {
                       if (i == 3) throw std::runtime_error("x");
                     },
                     threads),
                 std::runtime_error);
  }
  ParallelFor(0, [](int64_t) { FAIL(); });
}

}  // namespace
}  // namespace millipede::reference
