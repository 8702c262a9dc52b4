// Making the Error values of status.h.
#ifndef MILLIPEDE_BASE_ERROR_H_
#define MILLIPEDE_BASE_ERROR_H_

#include <fmt/format.h>

#include <new>
#include <string>
#include <utility>

#include "millipede/status.h"

namespace millipede {

// An error that no single request causes. `format` says actual and allowed; the field is put in
// front of it.
template <typename... Args>
tl::unexpected<Error> MakeError(ErrorCode code, std::string field,
                                fmt::format_string<Args...> format, Args&&... args) {
  std::string message = field + ": " + fmt::format(format, std::forward<Args>(args)...);
  return tl::make_unexpected(Error{code, -1, std::move(field), std::move(message)});
}

// An error of the request at batch index `request`.
template <typename... Args>
tl::unexpected<Error> MakeRequestError(ErrorCode code, int64_t request, std::string field,
                                       fmt::format_string<Args...> format, Args&&... args) {
  std::string message = fmt::format("request {}: {}: {}", request, field,
                                    fmt::format(format, std::forward<Args>(args)...));
  return tl::make_unexpected(Error{code, request, std::move(field), std::move(message)});
}

// In place of std::bad_alloc: there is no memory for `what`, which `field` asks for. Does not
// throw; without memory for the words either, they are few.
inline tl::unexpected<Error> OutOfMemory(const char* field, const char* what) noexcept {
  try {
    return MakeError(ErrorCode::kOutOfMemory, field, "no memory for {}", what);
  } catch (const std::bad_alloc&) {
    // Strings this short lie in the object.
    return tl::make_unexpected(Error{ErrorCode::kOutOfMemory, -1, "memory", "memory: none"});
  }
}

}  // namespace millipede

// Returns the error of a Status or Result expression from the enclosing function.
#define MILLIPEDE_RETURN_IF_ERROR(expression)                 \
  do {                                                        \
    if (auto status_ = (expression); !status_)                \
      return tl::make_unexpected(std::move(status_).error()); \
  } while (false)

#endif  // MILLIPEDE_BASE_ERROR_H_
