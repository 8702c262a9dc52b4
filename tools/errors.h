// Errors of the command itself, and passing on those of the library.
#ifndef MILLIPEDE_TOOLS_ERRORS_H_
#define MILLIPEDE_TOOLS_ERRORS_H_

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "millipede/status.h"
#include "tools/command.h"

namespace millipede::tools {

// "field: value; allowed: what": one line that names all three.
inline tl::unexpected<Error> BadValue(std::string field, const std::string& value,
                                      const std::string& allowed) {
  std::string message = fmt::format("{}: {}; allowed: {}", field, value, allowed);
  return tl::make_unexpected(
      Error{ErrorCode::kInvalidArgument, -1, std::move(field), std::move(message)});
}

// The error of a Status or Result, to return from a function with another type of Result.
template <typename T>
tl::unexpected<Error> ErrorOf(Result<T>& result) {
  return tl::make_unexpected(std::move(result).error());
}

// One line, whatever bytes the message has.
inline void PrintError(const Streams& streams, const std::string& command, std::string message) {
  const auto is_control = [](unsigned char c) { return c < ' ' || c == '\x7F'; };
  std::replace_if(message.begin(), message.end(), is_control, ' ');
  streams.err << command << ": " << message << '\n' << std::flush;
}

// What is said when memory runs out.
inline constexpr const char* kNoMemory = "memory: not enough for this step; allowed: a smaller one";

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_ERRORS_H_
