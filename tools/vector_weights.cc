#include "tools/vector_weights.h"

#include <utility>

#include "tools/errors.h"
#include "tools/output_weights.h"

namespace millipede::tools {
namespace {

Result<CompressorWeights> PackCompressor(TensorView<const Bf16, 2> wkv,
                                         TensorView<const Bf16, 2> wgate,
                                         const std::vector<float>& ape,
                                         const std::vector<float>& norm) {
  auto packed_wkv = MatrixBf16::Pack(wkv);
  if (!packed_wkv) return ErrorOf(packed_wkv);
  auto packed_wgate = MatrixBf16::Pack(wgate);
  if (!packed_wgate) return ErrorOf(packed_wgate);
  return CompressorWeights{*std::move(packed_wkv), *std::move(packed_wgate), ape, norm};
}

Result<IndexerWeights> PackIndexer(const fixtures::LayerFixture& fixture,
                                   const LayerWeights& plain) {
  auto wq_b = MatrixInt8::Pack(plain.idx_wq_b, plain.idx_wq_b_scale);
  if (!wq_b) return ErrorOf(wq_b);
  auto weights_proj = MatrixBf16::Pack(plain.idx_weights_proj);
  if (!weights_proj) return ErrorOf(weights_proj);
  auto compressor = PackCompressor(plain.idx_cmp_wkv, plain.idx_cmp_wgate, fixture.idx_cmp_ape,
                                   fixture.idx_cmp_norm);
  if (!compressor) return ErrorOf(compressor);
  return IndexerWeights{*std::move(wq_b), *std::move(weights_proj), *std::move(compressor)};
}

}  // namespace

Result<VectorWeights> VectorWeights::Make(const ModelConfig& config, AttentionKind kind,
                                          uint64_t seed) {
  fixtures::LayerFixture fixture = fixtures::MakeLayerFixture(config, kind, seed);
  const LayerWeights plain = fixture.views();
  auto layer = Layer::Create(config, kind, plain);
  if (!layer) return ErrorOf(layer);
  auto hc = HcWeights::Pack(plain.hc_fn, plain.hc_scale, plain.hc_base);
  if (!hc) return ErrorOf(hc);
  auto wq_a = MatrixBf16::Pack(plain.wq_a);
  if (!wq_a) return ErrorOf(wq_a);
  auto wkv = MatrixBf16::Pack(plain.wkv);
  if (!wkv) return ErrorOf(wkv);
  auto wq_b = MatrixInt8::Pack(plain.wq_b, plain.wq_b_scale);
  if (!wq_b) return ErrorOf(wq_b);
  auto output = PackOutputWeights(config, plain);
  if (!output) return ErrorOf(output);
  Result<CompressorWeights> compressor;
  if (kind != AttentionKind::kSwa) {
    compressor = PackCompressor(plain.cmp_wkv, plain.cmp_wgate, fixture.cmp_ape, fixture.cmp_norm);
    if (!compressor) return ErrorOf(compressor);
  }
  Result<IndexerWeights> indexer;
  if (kind == AttentionKind::kCsa) {
    indexer = PackIndexer(fixture, plain);
    if (!indexer) return ErrorOf(indexer);
  }
  return VectorWeights{std::move(fixture), *std::move(layer),      *std::move(hc),
                       *std::move(wq_a),   *std::move(wkv),        *std::move(wq_b),
                       *std::move(output), *std::move(compressor), *std::move(indexer)};
}

}  // namespace millipede::tools
