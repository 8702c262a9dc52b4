#include "tools/activations.h"

#include <limits>

namespace millipede::tools {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr Bf16 kNanBf16{0x7FC0};
constexpr int8_t kNoCode = -128;

}  // namespace

Activations::Activations(const ModelConfig& model, int64_t tokens)
    : config(model), num_tokens(tokens) {
  const auto count = static_cast<size_t>(tokens);
  const auto hidden = static_cast<size_t>(model.hidden);
  const auto head_lanes = static_cast<size_t>(model.num_heads) * kHeadDim;
  x_mixed.assign(count * hidden, kNanBf16);
  post.assign(count * kHcStreams, kNan);
  comb.assign(count * kHcStreams * kHcStreams, kNan);
  xn.assign(count * hidden, kNanBf16);
  qr.assign(count * static_cast<size_t>(model.q_rank), kNoCode);
  qr_scale.assign(count, kNan);
  q.assign(count * head_lanes, kNanBf16);
  kv.assign(count * kHeadDim, kNanBf16);
  heads.assign(count * head_lanes, kNanBf16);
  attn_out.assign(count * hidden, kNanBf16);
  x_out.assign(count * hidden * kHcStreams, kNan);
}

StepActivations Activations::views() {
  const int64_t tokens = num_tokens;
  StepActivations views;
  views.x_mixed = MakeView(x_mixed.data(), tokens, config.hidden);
  views.post = MakeView(post.data(), tokens, kHcStreams);
  views.comb = MakeView(comb.data(), tokens, kHcStreams, kHcStreams);
  views.xn = MakeView(xn.data(), tokens, config.hidden);
  views.qr = MakeView(qr.data(), tokens, config.q_rank);
  views.qr_scale = MakeView(qr_scale.data(), tokens);
  views.q = MakeView(q.data(), tokens, config.num_heads, kHeadDim);
  views.heads = MakeView(heads.data(), tokens, config.num_heads, kHeadDim);
  views.attn_out = MakeView(attn_out.data(), tokens, config.hidden);
  return views;
}

std::vector<NamedActivation> Activations::named() {
  const auto named = [&]<typename T>(std::string_view name, std::vector<T>& values) {
    const auto total = static_cast<int64_t>(values.size());
    return NamedActivation{name, fixtures::DTypeOf<T>(), num_tokens == 0 ? 0 : total / num_tokens,
                           std::as_writable_bytes(std::span(values))};
  };
  return {
      named("x_mixed", x_mixed), named("post", post),         named("comb", comb),  named("xn", xn),
      named("qr", qr),           named("qr_scale", qr_scale), named("q", q),        named("kv", kv),
      named("heads", heads),     named("attn_out", attn_out), named("x_out", x_out)};
}

}  // namespace millipede::tools
