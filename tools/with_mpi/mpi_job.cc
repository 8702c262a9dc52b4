#include "tools/with_mpi/mpi_job.h"

#include <mpi.h>

#include <cstdlib>
#include <string>

namespace millipede::tools {

MpiJob::MpiJob() {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

MpiJob::~MpiJob() {
  // A launcher ends the job when a process ends with an error, while another may still print.
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
}

int MpiJob::communicator() const { return MPI_Comm_c2f(MPI_COMM_WORLD); }

std::vector<nlohmann::json> MpiJob::Gather(const nlohmann::json& own) const {
  const std::string text = own.dump();
  const int length = static_cast<int>(text.size());
  std::vector<int> lengths(static_cast<size_t>(size_));
  MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, MPI_COMM_WORLD);
  std::vector<int> offsets;
  int total = 0;
  for (const int one : lengths) {
    offsets.push_back(total);
    total += one;
  }
  std::string all(static_cast<size_t>(total), ' ');
  MPI_Allgatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(),
                 MPI_CHAR, MPI_COMM_WORLD);
  std::vector<nlohmann::json> parsed;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto begin = all.begin() + offsets[i];
    parsed.push_back(nlohmann::json::parse(begin, begin + lengths[i]));
  }
  return parsed;
}

void MpiJob::Abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace millipede::tools
