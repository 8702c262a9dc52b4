#include "kernels/hc_post.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hc_post.cc"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <cstddef>

#include "kernels/row-inl.h"
#include "millipede/config.h"

HWY_BEFORE_NAMESPACE();
namespace millipede {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void HcPost(const HcPostArgs& args) {
  static_assert(kHcStreams == 4);
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  V comb[4][4];
  V post[4];
  for (size_t o = 0; o < 4; ++o) {
    post[o] = hn::Set(d, args.post[o]);
    for (size_t i = 0; i < 4; ++i) comb[i][o] = hn::Set(d, args.comb[4 * i + o]);
  }
  const auto hidden = static_cast<size_t>(args.hidden);
  const auto end = static_cast<size_t>(args.end);
  for (auto k = static_cast<size_t>(args.begin); k < end; k += hn::Lanes(d)) {
    const size_t count = end - k;
    // Every stream is read before any is written, so x_out may be x.
    const V x0 = LoadUpTo(d, args.x + k, count);
    const V x1 = LoadUpTo(d, args.x + hidden + k, count);
    const V x2 = LoadUpTo(d, args.x + 2 * hidden + k, count);
    const V x3 = LoadUpTo(d, args.x + 3 * hidden + k, count);
    const V attn_out = LoadBf16UpTo(d, args.attn_out + k, count);
    for (size_t o = 0; o < 4; ++o) {
      const V low = hn::MulAdd(x1, comb[1][o], hn::Mul(x0, comb[0][o]));
      const V high = hn::MulAdd(x3, comb[3][o], hn::Mul(x2, comb[2][o]));
      const V sum = hn::MulAdd(attn_out, post[o], hn::Add(low, high));
      StoreUpTo(d, sum, args.x_out + o * hidden + k, count);
    }
  }
}

const char* HcPostTargetName() { return hwy::TargetName(HWY_TARGET); }

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace millipede
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace millipede {

HWY_EXPORT(HcPost);
void HcPost(const HcPostArgs& args) { HWY_DYNAMIC_DISPATCH(HcPost)(args); }

HWY_EXPORT(HcPostTargetName);
const char* HcPostTargetName() { return HWY_DYNAMIC_DISPATCH(HcPostTargetName)(); }

}  // namespace millipede
#endif
