// The processes of a group: what they tell and send each other.
#ifndef MILLIPEDE_DISTRIBUTED_RANKS_H_
#define MILLIPEDE_DISTRIBUTED_RANKS_H_

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "millipede/status.h"

namespace millipede {

// Rows of bytes at equal distances, in the caller's memory.
struct ByteRows {
  std::byte* data = nullptr;
  int64_t num_rows = 0;
  int64_t row_bytes = 0;
  int64_t stride_bytes = 0;  // from row to row
};

// Owns a duplicate of a communicator. Every member function that returns a Status is collective;
// each returns kCommunication if MPI reports an error.
class Ranks {
 public:
  static Result<Ranks> Duplicate(int communicator);  // a Fortran handle

  Ranks(Ranks&& other) noexcept;
  Ranks& operator=(Ranks&& other) noexcept;
  ~Ranks();

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }

  // all [size, own.size()]: every rank's `own`, which are equally long.
  Status Gather(std::span<const int64_t> own, std::vector<int64_t>& all);

  // Success if every rank's `own` is. Else this rank's own error, or kRankFailed with the message
  // of the lowest rank that has one.
  Status Agree(const Status& own);

  // Sends to[r] to each rank r, whose from[this rank] has the same number and size of rows.
  Status Exchange(std::span<const ByteRows> to, std::span<const ByteRows> from);

  int64_t bytes_sent() const { return bytes_sent_; }  // to others, by Exchange

 private:
  Ranks() = default;

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  int64_t bytes_sent_ = 0;
};

}  // namespace millipede

#endif  // MILLIPEDE_DISTRIBUTED_RANKS_H_
