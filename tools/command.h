// The millipede command as a function.
#ifndef MILLIPEDE_TOOLS_COMMAND_H_
#define MILLIPEDE_TOOLS_COMMAND_H_

#include <ostream>
#include <string>
#include <vector>

namespace millipede::tools {

inline constexpr int kExitOk = 0;
inline constexpr int kExitViolation = 1;  // a check, a vector file or a counter does not hold
inline constexpr int kExitUsage = 2;      // bad arguments or unreadable input

// Where a command writes. Results go to `out`; one line per error, and progress, to `err`.
struct Streams {
  std::ostream& out;
  std::ostream& err;
  bool show_progress = false;  // `err` is a terminal
};

// Runs the command; `arguments` are those after the program's name. Returns the exit code, and
// does not throw.
int RunCommand(const std::vector<std::string>& arguments, const Streams& streams);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_COMMAND_H_
