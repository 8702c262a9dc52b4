#include "pages/view_checks.h"

#include <string>

#include "base/checked.h"
#include "base/error.h"

namespace millipede {
namespace {

int64_t ElementBytes(PoolKind kind) {
  switch (kind) {
    case PoolKind::kRaw:
    case PoolKind::kHcaMain:
    case PoolKind::kCsaMain:
      return 2;
    case PoolKind::kCsaIndexRows:
      return 1;
    case PoolKind::kHcaState:
    case PoolKind::kCsaIndexScales:
    case PoolKind::kCsaState:
    case PoolKind::kCsaInnerState:
      return 4;
  }
  return 1;
}

// Made only for an error: checks of a step allocate nothing.
std::string NameOf(std::string_view field, const char* member) {
  return std::string(field) + member;
}

}  // namespace

Status CheckSpaceView(const PageSpaceView& space, std::string_view field) {
  const auto not_null = [&](const void* pointer, const char* member) -> Status {
    if (pointer == nullptr) {
      return MakeError(ErrorCode::kInvalidArgument, NameOf(field, member),
                       "null; allowed: an array");
    }
    return {};
  };
  MILLIPEDE_RETURN_IF_ERROR(not_null(space.epochs, ".epochs"));
  MILLIPEDE_RETURN_IF_ERROR(not_null(space.ref_counts, ".ref_counts"));
  MILLIPEDE_RETURN_IF_ERROR(not_null(space.generation, ".generation"));
  if (space.num_pages < 1 || space.num_pages > kMaxPagesPerSpace) {
    return MakeError(ErrorCode::kInvalidArgument, NameOf(field, ".num_pages"),
                     "{}; allowed: 1 to {}", space.num_pages, kMaxPagesPerSpace);
  }
  return {};
}

Status CheckPoolView(const PoolView& pool, PoolKind kind, int32_t space_pages,
                     std::string_view field) {
  const int64_t page_bytes = FormatOf(kind).page_bytes();
  const int64_t element_bytes = ElementBytes(kind);
  if (pool.base == nullptr) {
    return MakeError(ErrorCode::kPlanMismatch, NameOf(field, ".base"), "null; allowed: a pool");
  }
  if (reinterpret_cast<uintptr_t>(pool.base) % static_cast<uintptr_t>(element_bytes) != 0) {
    return MakeError(ErrorCode::kPlanMismatch, NameOf(field, ".base"),
                     "not aligned; allowed: a multiple of {} bytes", element_bytes);
  }
  if (pool.num_pages != space_pages) {
    return MakeError(ErrorCode::kPlanMismatch, NameOf(field, ".num_pages"),
                     "{}; allowed: {}, the pages of the plan's space", pool.num_pages, space_pages);
  }
  if (pool.page_stride_bytes < page_bytes || pool.page_stride_bytes % element_bytes != 0 ||
      !CheckedMultiply(pool.page_stride_bytes, pool.num_pages)) {
    return MakeError(ErrorCode::kPlanMismatch, NameOf(field, ".page_stride_bytes"),
                     "{}; allowed: at least {}, a multiple of {}", pool.page_stride_bytes,
                     page_bytes, element_bytes);
  }
  return {};
}

}  // namespace millipede
