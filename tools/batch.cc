#include "tools/batch.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "fixtures/formula.h"
#include "reference/parallel.h"
#include "tools/errors.h"

namespace millipede::tools {
namespace {

constexpr int kNanByte = 0xFF;  // in every byte: a NaN as bf16

std::span<Bf16> RawRow(const PoolView& pool, int64_t page, int64_t slot) {
  std::byte* row = pool.base + page * pool.page_stride_bytes + slot * kRawRowBytes;
  return {reinterpret_cast<Bf16*>(row), static_cast<size_t>(kHeadDim)};
}

}  // namespace

Result<Batch> Batch::Create(std::span<const int64_t> start_pos) {
  if (static_cast<int64_t>(start_pos.size()) > kMaxBatchRequests) {
    return BadValue("requests", std::to_string(start_pos.size()),
                    fmt::format("at most {}", kMaxBatchRequests));
  }
  const auto num_requests = static_cast<int32_t>(start_pos.size());
  Batch batch;
  auto space = PageSpace::Create(num_requests * kRingPages + 2);
  if (!space) return ErrorOf(space);
  batch.raw_ = std::make_unique<PageSpace>(*std::move(space));
  batch.request_spaces_ = std::make_unique<RequestSpaces>();
  batch.request_spaces_->raw = batch.raw_.get();

  PageEntry nobodys;
  if (auto status = batch.raw_->Acquire({&nobodys, 1}); !status) return ErrorOf(status);
  batch.requests_.reserve(start_pos.size());
  for (const int64_t start : start_pos) {
    auto request = Request::Create(*batch.request_spaces_, start);
    if (!request) return ErrorOf(request);
    batch.requests_.push_back(*std::move(request));
  }
  if (auto status = batch.raw_->Acquire({&nobodys, 1}); !status) return ErrorOf(status);
  return batch;
}

std::vector<StepRequest> Batch::Step(AttentionKind kind,
                                     std::span<const int64_t> num_tokens) const {
  std::vector<StepRequest> step(requests_.size());
  for (size_t r = 0; r < step.size(); ++r) {
    step[r].active = num_tokens[r] > 0;
    step[r].start_pos = requests_[r].position(kind);
    step[r].num_tokens = num_tokens[r];
    step[r].request = &requests_[r];
  }
  return step;
}

Result<LayerPool> Batch::MakeRawPool(const ModelConfig& config, AttentionKind kind,
                                     uint64_t seed) const {
  auto pool = LayerPool::Create(PoolKind::kRaw, num_pages());
  if (!pool) return ErrorOf(pool);
  const PoolView view = pool->view();
  for (int64_t page = 0; page < view.num_pages; ++page) {
    std::memset(view.base + page * view.page_stride_bytes, kNanByte,
                static_cast<size_t>(kRawPageBytes));
  }
  reference::ParallelFor(size(), [&](int64_t r) {
    const fixtures::RequestFixture fixture(config, seed, r);
    const std::array<int32_t, kRingPages> ring = RingPages(kind, r);
    const int64_t end = request(r).position(kind);
    for (int64_t p = std::max<int64_t>(0, end - kRingRows); p < end; ++p) {
      const int64_t row = p % kRingRows;
      fixture.KvRow(p, RawRow(view, ring[static_cast<size_t>(row / kPageRows)], row % kPageRows));
    }
  });
  return pool;
}

std::array<int32_t, kRingPages> Batch::RingPages(AttentionKind kind, int64_t r) const {
  std::array<int32_t, kRingPages> pages{};
  const RequestPages lists = request(r).pages(kind);
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = lists.raw.pages[i].page;
  return pages;
}

TensorView<const float, 3> StepInputs::XView(const ModelConfig& config) const {
  return MakeView(x.data(), num_tokens(), kHcStreams, config.hidden);
}

RopeRows StepInputs::rope() const {
  return {MakeView(rope_cos.data(), num_tokens(), kRopePairs),
          MakeView(rope_sin.data(), num_tokens(), kRopePairs)};
}

Result<StepInputs> MakeStepInputs(const ModelConfig& config, AttentionKind kind, uint64_t seed,
                                  std::span<const int64_t> start_pos,
                                  std::span<const int64_t> num_tokens, int64_t step) {
  StepInputs inputs;
  for (size_t r = 0; r < num_tokens.size(); ++r) {
    for (int64_t i = 0; i < num_tokens[r]; ++i) {
      inputs.request.push_back(static_cast<int64_t>(r));
      inputs.position.push_back(start_pos[r] + step * num_tokens[r] + i);
    }
  }
  const auto total = static_cast<size_t>(inputs.num_tokens());
  const auto width = static_cast<size_t>(kHcStreams) * static_cast<size_t>(config.hidden);
  inputs.x.resize(total * width);
  reference::ParallelFor(inputs.num_tokens(), [&](int64_t t) {
    const auto token = static_cast<size_t>(t);
    const int64_t r = inputs.request[token];
    const fixtures::RequestFixture fixture(config, seed, r);
    fixture.X(inputs.position[token] - start_pos[static_cast<size_t>(r)],
              std::span(inputs.x).subspan(token * width, width));
  });
  inputs.rope_cos.resize(total * kRopePairs);
  inputs.rope_sin.resize(total * kRopePairs);
  auto status =
      ComputeRopeRows(kind, inputs.position, MakeView(inputs.rope_cos.data(), total, kRopePairs),
                      MakeView(inputs.rope_sin.data(), total, kRopePairs));
  if (!status) return ErrorOf(status);
  return inputs;
}

std::vector<std::byte> CopyPool(const PoolView& pool) {
  std::vector<std::byte> bytes(static_cast<size_t>(pool.num_pages * kRawPageBytes));
  for (int64_t page = 0; page < pool.num_pages; ++page) {
    std::memcpy(bytes.data() + page * kRawPageBytes, pool.base + page * pool.page_stride_bytes,
                static_cast<size_t>(kRawPageBytes));
  }
  return bytes;
}

}  // namespace millipede::tools
