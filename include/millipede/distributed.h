// Tensor parallel over MPI: the output projection of a layer spread over the processes of a group.
//
// Each process (rank) owns whole requests: it plans and runs them alone up to the attention heads,
// and caches do not split. The heads are then exchanged, so that each rank holds, for the tokens of
// all ranks, the heads of its own output groups. It projects them with its shard of wo_a and wo_b,
// and sends each group's product back to the tokens' owners, who add them as one process alone
// does: outputs and caches have the same bits for every degree.
//
// These calls are in the library millipede::mpi, which exists where MPI was found at build time.
// Nothing else of millipede needs MPI, and no MPI header is needed here. The caller starts MPI,
// with MPI_THREAD_FUNNELED or more, and makes all calls on the thread that started it.
//
// Calls are collective: every rank makes the same call in the same order, or Fail in place of it.
// No call leaves a rank waiting for one that cannot go on: before anything is exchanged, all ranks
// learn of all ranks' errors. A rank that has one returns it; all others return kRankFailed, naming
// the rank and its error. Ranks that differ in config, plan (kind, layers) or layer all
// return the same kRanksDisagree. After any of these the group can go on with its next call. After
// kCommunication it cannot, nor after kOutOfMemory that names "group", of a rank without the memory
// to tell the others: end the job.
#ifndef MILLIPEDE_DISTRIBUTED_H_
#define MILLIPEDE_DISTRIBUTED_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "millipede/config.h"
#include "millipede/executor.h"
#include "millipede/layer.h"
#include "millipede/pages.h"
#include "millipede/plan.h"
#include "millipede/stages.h"
#include "millipede/status.h"
#include "millipede/tensor.h"

namespace millipede {

class TensorParallel {
 public:
  // Collective. `communicator` is MPI_Comm_c2f of a communicator of exactly `degree` processes,
  // which the group duplicates. kInvalidConfig; kInvalidArgument if degree does not divide the
  // config's output groups or is not the communicator's size; kCommunication.
  static Result<TensorParallel> Create(const ModelConfig& config, int32_t degree, int communicator);

  TensorParallel(TensorParallel&&) noexcept;
  TensorParallel& operator=(TensorParallel&&) noexcept;
  ~TensorParallel();  // before MPI ends

  OutputShard shard() const;  // this rank's

  // Collective: Layer::Run for layers of this rank's shard. The plan is of this rank's own
  // requests, of which there may be none, or none with tokens; kind, number of layers and
  // layer_index are the same on every rank. Writes nothing if any rank is refused or ranks
  // disagree, but for a given selection, which is looked at when attention comes to it. The errors
  // of Layer::Run and those above; kPlanMismatch for a layer of another config or shard.
  Status Run(Context& context, const Layer& layer, const Plan& plan, int32_t layer_index,
             const LayerPools& pools, const StepTensors& tensors, std::span<std::byte> workspace,
             std::span<std::byte> overlay, const StepActivations& activations = {});

  // Collective: ProjectOutput with the weights of this rank's groups. heads [T,H,512] -> attn_out
  // [T,D]; T is this rank's own, 0 or more.
  Status ProjectOutput(Context& context, const OutputWeights& weights,
                       TensorView<const Bf16, 3> heads, TensorView<Bf16, 2> attn_out);

  // Collective, in place of the other ranks' next call: this rank cannot make it, because of
  // `error`.
  Status Fail(const Error& error);

  // Payload this rank has sent to others, since Create.
  int64_t bytes_sent() const;

 private:
  struct State;
  explicit TensorParallel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace millipede

#endif  // MILLIPEDE_DISTRIBUTED_H_
