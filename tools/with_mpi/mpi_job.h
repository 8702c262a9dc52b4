// The MPI job that this process is a rank of.
#ifndef MILLIPEDE_TOOLS_WITH_MPI_MPI_JOB_H_
#define MILLIPEDE_TOOLS_WITH_MPI_MPI_JOB_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace millipede::tools {

// Starts MPI, once per process, and ends it. What goes wrong in MPI itself ends the job, as it does
// by default.
class MpiJob {
 public:
  MpiJob();
  ~MpiJob();  // collective: no rank ends before all are here
  MpiJob(const MpiJob&) = delete;
  MpiJob& operator=(const MpiJob&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  int communicator() const;  // of all ranks, as TensorParallel::Create takes it

  // Collective: what every rank says, on every rank.
  std::vector<nlohmann::json> Gather(const nlohmann::json& own) const;

  // Collective: what every rank says, on rank 0; nothing on the others.
  std::vector<std::string> GatherTexts(const std::string& own) const;

  // Collective: returns on all ranks at about the same time.
  void Wait() const;

  // Ends the processes of all ranks with this exit code.
  [[noreturn]] static void Abort(int exit_code);

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_WITH_MPI_MPI_JOB_H_
