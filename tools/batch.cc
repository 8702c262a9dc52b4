#include "tools/batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "fixtures/formula.h"
#include "reference/parallel.h"
#include "tools/errors.h"

namespace millipede::tools {
namespace {

constexpr PoolKind kSwaPools[] = {PoolKind::kRaw};
constexpr PoolKind kHcaPools[] = {PoolKind::kRaw, PoolKind::kHcaMain, PoolKind::kHcaState};
constexpr PoolKind kCsaPools[] = {PoolKind::kRaw,          PoolKind::kCsaMain,
                                  PoolKind::kCsaIndexRows, PoolKind::kCsaIndexScales,
                                  PoolKind::kCsaState,     PoolKind::kCsaInnerState};

constexpr int64_t kNobodysPages = 2;       // of each space, the first and the last
constexpr int64_t kSkippedIndexPages = 3;  // so that index pages are not main pages

// A page space of the batch, and where requests look for it.
struct SpaceOf {
  PoolKind pool;
  PageSpace* RequestSpaces::*member;
};
constexpr SpaceOf kRawSpace = {PoolKind::kRaw, &RequestSpaces::raw};
constexpr SpaceOf kHcaSpaces[] = {{PoolKind::kHcaMain, &RequestSpaces::hca_main},
                                  {PoolKind::kHcaState, &RequestSpaces::hca_state}};
constexpr SpaceOf kCsaSpaces[] = {{PoolKind::kCsaMain, &RequestSpaces::csa_main},
                                  {PoolKind::kCsaIndexRows, &RequestSpaces::csa_index},
                                  {PoolKind::kCsaState, &RequestSpaces::csa_state},
                                  {PoolKind::kCsaInnerState, &RequestSpaces::csa_inner_state}};

PoolKind SpacePool(PoolKind pool) {
  return pool == PoolKind::kCsaIndexScales ? PoolKind::kCsaIndexRows : pool;
}

// Pages of all requests' lists in a space.
int64_t CountPages(AttentionKind kind, PoolKind pool, std::span<const int64_t> start_pos,
                   std::span<const int64_t> num_tokens) {
  const PoolFormat format = FormatOf(pool);
  if (format.ring_pages > 0) return format.ring_pages * static_cast<int64_t>(start_pos.size());
  int64_t sum = 0;
  for (size_t r = 0; r < start_pos.size(); ++r) {
    const int64_t rows = (start_pos[r] + num_tokens[r]) / RatioOf(kind);
    sum += (rows + format.rows_per_page - 1) / format.rows_per_page;
  }
  return sum;
}

std::vector<int64_t> IdsOf(std::span<const int64_t> given, size_t num_requests) {
  std::vector<int64_t> ids(given.begin(), given.end());
  if (ids.empty()) {
    ids.resize(num_requests);
    std::iota(ids.begin(), ids.end(), 0);
  }
  return ids;
}

Status RopeOf(AttentionKind kind, std::span<const int64_t> positions, std::vector<float>& cos,
              std::vector<float>& sin) {
  cos.resize(positions.size() * kRopePairs);
  sin.resize(cos.size());
  return ComputeRopeRows(kind, positions, MakeView(cos.data(), positions.size(), kRopePairs),
                         MakeView(sin.data(), positions.size(), kRopePairs));
}

}  // namespace

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

std::span<const PoolKind> PoolKindsOf(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kHca:
      return kHcaPools;
    case AttentionKind::kCsa:
      return kCsaPools;
    case AttentionKind::kSwa:
      break;
  }
  return kSwaPools;
}

const PageListView& ListOf(const RequestPages& pages, PoolKind pool) {
  switch (pool) {
    case PoolKind::kHcaMain:
    case PoolKind::kCsaMain:
      return pages.main;
    case PoolKind::kHcaState:
    case PoolKind::kCsaState:
      return pages.state;
    case PoolKind::kCsaIndexRows:
    case PoolKind::kCsaIndexScales:
      return pages.index;
    case PoolKind::kCsaInnerState:
      return pages.inner_state;
    case PoolKind::kRaw:
      break;
  }
  return pages.raw;
}

int64_t CacheBytes(AttentionKind kind, int64_t num_tokens) {
  constexpr int64_t kStart = 0;
  int64_t sum = 0;
  for (const PoolKind pool : PoolKindsOf(kind)) {
    sum += CountPages(kind, pool, {&num_tokens, 1}, {&kStart, 1}) * FormatOf(pool).page_bytes();
  }
  return sum;
}

int64_t PoolRowOf(PoolKind pool, std::span<const int32_t> pages, int64_t i) {
  const PoolFormat format = FormatOf(pool);
  if (format.ring_pages > 0) i %= format.ring_rows();
  const int64_t page = pages[static_cast<size_t>(i / format.rows_per_page)];
  return page * format.rows_per_page + i % format.rows_per_page;
}

Status Batch::CreateSpace(PoolKind pool, PageSpace* RequestSpaces::*member, int64_t num_pages,
                          int64_t num_skipped) {
  const int64_t total = num_pages + num_skipped + kNobodysPages;
  if (total > kMaxPagesPerSpace) {
    return BadValue("--start-pos", fmt::format("{} pages in one space", total),
                    fmt::format("at most {}", kMaxPagesPerSpace));
  }
  auto space = PageSpace::Create(static_cast<int32_t>(total));
  if (!space) return ErrorOf(space);
  PageSpace& own = spaces_.emplace(pool, *std::move(space)).first->second;
  std::vector<PageEntry> nobodys(static_cast<size_t>(num_skipped) + 1);
  request_spaces_.*member = &own;
  return own.Acquire(nobodys);
}

Result<Batch> Batch::Create(std::span<const AttentionKind> kinds,
                            std::span<const int64_t> start_pos, std::span<const int64_t> num_tokens,
                            std::span<const int64_t> ids) {
  Batch batch;
  batch.ids_ = IdsOf(ids, start_pos.size());
  auto status =
      batch.CreateSpace(kRawSpace.pool, kRawSpace.member,
                        CountPages(AttentionKind::kSwa, kRawSpace.pool, start_pos, num_tokens), 0);
  if (!status) return ErrorOf(status);
  for (const AttentionKind kind : kinds) {
    std::span<const SpaceOf> spaces;
    if (kind == AttentionKind::kHca) spaces = kHcaSpaces;
    if (kind == AttentionKind::kCsa) spaces = kCsaSpaces;
    for (const SpaceOf& space : spaces) {
      status = batch.CreateSpace(space.pool, space.member,
                                 CountPages(kind, space.pool, start_pos, num_tokens),
                                 space.pool == PoolKind::kCsaIndexRows ? kSkippedIndexPages : 0);
      if (!status) return ErrorOf(status);
    }
  }
  batch.requests_.reserve(start_pos.size());
  for (size_t r = 0; r < start_pos.size(); ++r) {
    auto request = Request::Create(batch.request_spaces_, start_pos[r]);
    if (!request) return ErrorOf(request);
    if (status = request->Prepare(num_tokens[r]); !status) return ErrorOf(status);
    batch.requests_.push_back(*std::move(request));
  }
  for (auto& item : batch.spaces_) {
    PageEntry nobodys;
    if (status = item.second.Acquire({&nobodys, 1}); !status) return ErrorOf(status);
  }
  return batch;
}

int32_t Batch::num_pages(PoolKind pool) const { return spaces_.at(SpacePool(pool)).num_pages(); }

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

std::vector<int32_t> Batch::Pages(AttentionKind kind, PoolKind pool, int64_t r) const {
  const RequestPages lists = request(r).pages(kind);
  std::vector<int32_t> pages;
  for (const PageEntry& entry : ListOf(lists, pool).pages) pages.push_back(entry.page);
  return pages;
}

int64_t Batch::BytesHeld(AttentionKind kind, int64_t r) const {
  const RequestPages lists = request(r).pages(kind);
  int64_t sum = 0;
  for (const PoolKind pool : PoolKindsOf(kind)) {
    sum += static_cast<int64_t>(ListOf(lists, pool).pages.size()) * FormatOf(pool).page_bytes();
  }
  return sum;
}

TensorView<const float, 3> StepInputs::XView(const ModelConfig& config) const {
  return MakeView(x.data(), num_tokens(), kHcStreams, config.hidden);
}

RopeRows StepInputs::rope() const {
  return {MakeView(rope_cos.data(), num_tokens(), kRopePairs),
          MakeView(rope_sin.data(), num_tokens(), kRopePairs)};
}

RopeRows StepInputs::event_rope() const {
  return {MakeView(event_rope_cos.data(), num_events(), kRopePairs),
          MakeView(event_rope_sin.data(), num_events(), kRopePairs)};
}

Status SetRope(AttentionKind kind, StepInputs& inputs) {
  const int64_t ratio = RatioOf(kind);
  inputs.events.clear();
  std::vector<int64_t> event_positions;
  for (int64_t t = 0; ratio > 0 && t < inputs.num_tokens(); ++t) {
    const auto token = static_cast<size_t>(t);
    const int64_t position = inputs.position[token];
    if ((position + 1) % ratio != 0) continue;
    inputs.events.push_back({inputs.request[token], t, position / ratio});
    event_positions.push_back(position / ratio * ratio);
  }
  auto status = RopeOf(kind, inputs.position, inputs.rope_cos, inputs.rope_sin);
  if (!status) return status;
  return RopeOf(kind, event_positions, inputs.event_rope_cos, inputs.event_rope_sin);
}

Result<StepInputs> MakeStepInputs(const ModelConfig& config, AttentionKind kind, uint64_t seed,
                                  std::span<const int64_t> start_pos,
                                  std::span<const int64_t> num_tokens, int64_t step,
                                  std::span<const int64_t> ids) {
  StepInputs inputs;
  inputs.ids = IdsOf(ids, start_pos.size());
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
    const auto r = static_cast<size_t>(inputs.request[token]);
    const fixtures::RequestFixture fixture(config, seed, inputs.ids[r]);
    fixture.X(inputs.position[token] - start_pos[r],
              std::span(inputs.x).subspan(token * width, width));
  });
  if (auto status = SetRope(kind, inputs); !status) return ErrorOf(status);
  return inputs;
}

}  // namespace millipede::tools
