#include "tools/progress.h"

#include <fmt/format.h>

#include <utility>

namespace millipede::tools {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr const char* kWipeLine = "\r\033[K";

}  // namespace

void Progress::Start(std::string label, int64_t total) {
  label_ = std::move(label);
  total_ = total;
  done_ = 0;
  if (streams_.show_progress) Show();
}

void Progress::Tick() {
  ++done_;
  if (!streams_.show_progress) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && std::chrono::steady_clock::now() - last_shown_ >= kInterval) Show();
}

void Progress::Finish() {
  if (!visible_) return;
  streams_.err << kWipeLine << std::flush;
  visible_ = false;
}

void Progress::Show() {
  const int64_t done = done_;
  streams_.err << kWipeLine << label_;
  if (total_ > 0) streams_.err << fmt::format(" {} of {}", done, total_);
  streams_.err << std::flush;
  visible_ = true;
  last_shown_ = std::chrono::steady_clock::now();
}

}  // namespace millipede::tools
