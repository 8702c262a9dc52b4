// A decoding engine on each rank: it owns some of the requests of one script of steps, and runs
// them with the other ranks.
#ifndef MILLIPEDE_TESTS_DISTRIBUTED_GROUP_WORLD_H_
#define MILLIPEDE_TESTS_DISTRIBUTED_GROUP_WORLD_H_

#include <mpi.h>

#include <optional>
#include <utility>

#include "millipede/distributed.h"
#include "support/decode_world.h"

namespace millipede::testing {

inline int WorldSize() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

inline int WorldRank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

inline Result<TensorParallel> CreateGroup(const ModelConfig& config) {
  return TensorParallel::Create(config, WorldSize(), MPI_Comm_c2f(MPI_COMM_WORLD));
}

// The layer of a world's weights that holds a group's shard of them alone.
inline Layer ShardLayer(const DecodeWorld& world, OutputShard shard) {
  const LayerWeights weights =
      WeightsOfShard(world.config(), world.fixture().views(), shard).value();
  return Layer::Create(world.config(), world.kind(), weights, shard).value();
}

class GroupWorld {
 public:
  GroupWorld(const ModelConfig& config, AttentionKind kind)
      : group_(CreateGroup(config).value()),
        world_(config, kind),
        layer_(ShardLayer(world_, group_.shard())) {
    world_.run_layer = [this](Context& context, const Plan& plan, const LayerPools& pools,
                              const StepTensors& tensors, std::span<std::byte> workspace,
                              std::span<std::byte> overlay, const StepActivations& activations) {
      return group_.Run(context, layer_, plan, 0, pools, tensors, workspace, overlay, activations);
    };
  }
  GroupWorld(const GroupWorld&) = delete;
  GroupWorld& operator=(const GroupWorld&) = delete;

  TensorParallel& group() { return group_; }
  const Layer& layer() const { return layer_; }
  DecodeWorld& world() { return world_; }
  bool owns(int64_t id) const { return id % group_.shard().degree == group_.shard().rank; }

  // The script's requests that this rank owns.
  void Add(int64_t id, int64_t start_pos) {
    if (owns(id)) world_.Add(id, start_pos);
  }
  std::map<int64_t, EntryResult> Step(Context& context, const std::vector<StepEntry>& entries) {
    std::vector<StepEntry> own;
    for (const StepEntry& entry : entries) {
      if (owns(entry.id)) own.push_back(entry);
    }
    return world_.Step(context, own);
  }

 private:
  TensorParallel group_;
  DecodeWorld world_;
  Layer layer_;
};

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_DISTRIBUTED_GROUP_WORLD_H_
