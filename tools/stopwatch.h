#ifndef MILLIPEDE_TOOLS_STOPWATCH_H_
#define MILLIPEDE_TOOLS_STOPWATCH_H_

#include <chrono>
#include <utility>

namespace millipede::tools {

class Stopwatch {
 public:
  // Seconds since it was made or last restarted.
  double Restart() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(begin_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_STOPWATCH_H_
