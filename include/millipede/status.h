// Errors are values: every fallible call returns a Status or a Result. The library never prints,
// aborts or exits on the caller's input. Memory that cannot be had is kOutOfMemory; functions that
// return neither (constructors, counters, texts) throw std::bad_alloc as the standard library does.
#ifndef MILLIPEDE_STATUS_H_
#define MILLIPEDE_STATUS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace millipede {

// One comment per code; the codes are closed and stable in meaning.
enum class ErrorCode : uint8_t {
  kInvalidConfig,     // a model configuration field is outside what the kernels support
  kInvalidArgument,   // a scalar argument is out of range
  kShapeMismatch,     // a tensor view is null, or has the wrong shape or stride
  kPageOutOfRange,    // a page id is negative or not below the space's number of pages
  kPageNotAcquired,   // a listed page has no owner (reference count 0)
  kStaleEpoch,        // a listed page was released and acquired again since the list was made
  kDuplicatePage,     // one page stands twice in a list
  kRingPages,         // a ring list does not have exactly the pages of its ring
  kShortList,         // a ragged list does not cover the rows the step may write
  kHole,              // a ragged list has an empty entry below its end, or does not start at row 0
  kRangeMismatch,     // a valid range is malformed, or does not end where the step starts
  kRangeMissingRows,  // a ring lacks a row the step reads
  kContextCeiling,    // a position passes max_context_tokens
  kSharedWritePage,   // a write slot lies in a page with more than one reference
  kWriteConflict,     // two requests of a step name the same page for writing
  kListsDisagree,     // the main and index lists of a CSA request differ in range
  kInactiveTokens,    // an inactive request has new tokens
  kTooMuchWork,       // a step has more than 2^31-1 work items
  kOutOfPages,        // the page space has fewer free pages than asked for
  kOutOfMemory,       // address space or memory could not be had
  kDoubleFree,        // a released page has no owner, or stands twice in the list to release
  kBufferTooSmall,    // a workspace or overlay buffer is smaller than the plan asks for
  kPlanMismatch,      // pools, configuration or buffers are not those the plan was made for
  kCallOrder,         // the call is not allowed in the present state of the plan or request
  kRanksDisagree,     // processes of a tensor-parallel group differ in config, plan or call
  kRankFailed,        // another process of the group cannot go on; the message says why
  kCommunication,     // MPI reported an error, or was not started
};

// The code's name without its leading k, for example "StaleEpoch".
std::string_view ErrorCodeName(ErrorCode code);

struct Error {
  ErrorCode code;
  int64_t request =
      -1;               // batch index of the request at fault, -1 if the fault is not one request's
  std::string field;    // the argument at fault, for example "raw.pages[2].epoch"
  std::string message;  // one line: request, field, actual value, what is allowed
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

}  // namespace millipede

#endif  // MILLIPEDE_STATUS_H_
