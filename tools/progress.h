// Progress of long work: one line on a terminal, rewritten in place and gone at the end.
#ifndef MILLIPEDE_TOOLS_PROGRESS_H_
#define MILLIPEDE_TOOLS_PROGRESS_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "tools/command.h"

namespace millipede::tools {

class Progress {
 public:
  explicit Progress(const Streams& streams) : streams_(streams) {}
  ~Progress() { Finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // A new piece of work of `total` ticks; 0 if it is not known.
  void Start(std::string label, int64_t total = 0);

  // One more tick is done; from any thread.
  void Tick();

  // Wipes the line; the next piece of work may start.
  void Finish();

 private:
  void Show();

  const Streams& streams_;
  std::string label_;
  int64_t total_ = 0;
  std::atomic<int64_t> done_ = 0;
  std::mutex mutex_;  // one thread writes; the others go on
  std::chrono::steady_clock::time_point last_shown_;
  bool visible_ = false;
};

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_PROGRESS_H_
