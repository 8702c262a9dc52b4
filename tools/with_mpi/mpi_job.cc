#include "tools/with_mpi/mpi_job.h"

#include <mpi.h>

#include <algorithm>
#include <cstdint>
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

std::vector<std::string> MpiJob::GatherTexts(const std::string& own) const {
  const size_t kPieceBytes = size_t{1} << 30;
  // Calls body(offset, length) for the pieces of a text.
  const auto for_pieces = [kPieceBytes](size_t size, const auto& body) {
    for (size_t offset = 0; offset < size; offset += kPieceBytes) {
      body(offset, static_cast<int>(std::min(kPieceBytes, size - offset)));
    }
  };
  uint64_t size = own.size();
  if (rank_ != 0) {
    MPI_Send(&size, 1, MPI_UINT64_T, 0, 0, MPI_COMM_WORLD);
    for_pieces(own.size(), [&](size_t offset, int length) {
      MPI_Send(own.data() + offset, length, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    });
    return {};
  }
  std::vector<std::string> texts = {own};
  for (int peer = 1; peer < size_; ++peer) {
    MPI_Recv(&size, 1, MPI_UINT64_T, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    std::string& text = texts.emplace_back(static_cast<size_t>(size), ' ');
    for_pieces(text.size(), [&](size_t offset, int length) {
      MPI_Recv(text.data() + offset, length, MPI_CHAR, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    });
  }
  return texts;
}

void MpiJob::Wait() const { MPI_Barrier(MPI_COMM_WORLD); }

void MpiJob::Abort(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

}  // namespace millipede::tools
