#include "millipede/status.h"

namespace millipede {

std::string_view ErrorCodeName(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidConfig:
      return "InvalidConfig";
    case ErrorCode::kInvalidArgument:
      return "InvalidArgument";
    case ErrorCode::kShapeMismatch:
      return "ShapeMismatch";
    case ErrorCode::kPageOutOfRange:
      return "PageOutOfRange";
    case ErrorCode::kPageNotAcquired:
      return "PageNotAcquired";
    case ErrorCode::kStaleEpoch:
      return "StaleEpoch";
    case ErrorCode::kDuplicatePage:
      return "DuplicatePage";
    case ErrorCode::kRingPages:
      return "RingPages";
    case ErrorCode::kShortList:
      return "ShortList";
    case ErrorCode::kHole:
      return "Hole";
    case ErrorCode::kRangeMismatch:
      return "RangeMismatch";
    case ErrorCode::kRangeMissingRows:
      return "RangeMissingRows";
    case ErrorCode::kContextCeiling:
      return "ContextCeiling";
    case ErrorCode::kSharedWritePage:
      return "SharedWritePage";
    case ErrorCode::kWriteConflict:
      return "WriteConflict";
    case ErrorCode::kListsDisagree:
      return "ListsDisagree";
    case ErrorCode::kInactiveTokens:
      return "InactiveTokens";
    case ErrorCode::kTooMuchWork:
      return "TooMuchWork";
    case ErrorCode::kOutOfPages:
      return "OutOfPages";
    case ErrorCode::kOutOfMemory:
      return "OutOfMemory";
    case ErrorCode::kDoubleFree:
      return "DoubleFree";
    case ErrorCode::kBufferTooSmall:
      return "BufferTooSmall";
    case ErrorCode::kPlanMismatch:
      return "PlanMismatch";
    case ErrorCode::kCallOrder:
      return "CallOrder";
    case ErrorCode::kRanksDisagree:
      return "RanksDisagree";
    case ErrorCode::kRankFailed:
      return "RankFailed";
    case ErrorCode::kCommunication:
      return "Communication";
  }
  return "Unknown";
}

}  // namespace millipede
