// One rank dies in the midst of a layer's run: dying_rank REGION ends the last rank's process by
// SIGKILL right after the region of that name, while the others wait for what it owes them.
#include <csignal>
#include <cstdio>
#include <string>

#include "distributed/group_world.h"

namespace millipede::testing {
namespace {

class DyingExecutor : public Executor {
 public:
  explicit DyingExecutor(std::string region) : region_(std::move(region)) {}

  void Watch(const Context& context) { context_ = &context; }
  int num_threads() const override { return 1; }
  void Run(int64_t num_items, const Task& task) override {
    for (const RegionStats& region : context_->regions()) {
      if (region.name == region_ && region.num_calls > 0) std::raise(SIGKILL);
    }
    for (int64_t item = 0; item < num_items; ++item) task.Run(item, 0);
  }

 private:
  std::string region_;
  const Context* context_ = nullptr;
};

void Run(const std::string& region) {
  DyingExecutor executor(WorldRank() == WorldSize() - 1 ? region : "");
  Context context(executor);
  executor.Watch(context);
  GroupWorld group(ModelConfig::Tiny(), AttentionKind::kCsa);
  group.Add(WorldRank(), 300);
  group.Step(context, {{.id = WorldRank(), .num_tokens = 2}});
}

}  // namespace
}  // namespace millipede::testing

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  millipede::testing::Run(argc > 1 ? argv[1] : "");
  std::puts("the step is done");
  MPI_Finalize();
  return 0;
}
