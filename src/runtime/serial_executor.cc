#include "millipede/executor.h"

namespace millipede {
namespace {

class SerialExecutor final : public Executor {
 public:
  int num_threads() const override { return 1; }
  void Run(int64_t num_items, const Task& task) override {
    for (int64_t item = 0; item < num_items; ++item) task.Run(item, 0);
  }
};

}  // namespace

std::unique_ptr<Executor> MakeSerialExecutor() { return std::make_unique<SerialExecutor>(); }

}  // namespace millipede
