#include "distributed/ranks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace millipede {
namespace {

constexpr int kTag = 0;  // messages between two ranks keep their order

// kCommunication with MPI's own words if `code`, the result of an MPI call, is an error.
Status CheckMpi(const char* call, int code) {
  if (code == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  return MakeError(ErrorCode::kCommunication, call, "error {}: {}", code,
                   std::string_view(text.data(), static_cast<size_t>(length)));
}

bool MpiIsRunning() {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

// The layout of rows, as MPI knows it.
class RowsType {
 public:
  explicit RowsType(const ByteRows& rows) {
    status_ = CheckMpi(
        "MPI_Type_create_hvector",
        MPI_Type_create_hvector(static_cast<int>(rows.num_rows), static_cast<int>(rows.row_bytes),
                                rows.stride_bytes, MPI_BYTE, &type_));
    if (status_) status_ = CheckMpi("MPI_Type_commit", MPI_Type_commit(&type_));
  }
  ~RowsType() {
    if (type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);
  }
  RowsType(const RowsType&) = delete;
  RowsType& operator=(const RowsType&) = delete;

  MPI_Datatype get() const { return type_; }
  const Status& status() const { return status_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
  Status status_;
};

}  // namespace

Result<Ranks> Ranks::Duplicate(int communicator) {
  if (!MpiIsRunning()) {
    return MakeError(ErrorCode::kCommunication, "MPI",
                     "not running; allowed: between its start "
                     "and its end");
  }
  Ranks ranks;
  MILLIPEDE_RETURN_IF_ERROR(
      CheckMpi("MPI_Comm_dup", MPI_Comm_dup(MPI_Comm_f2c(communicator), &ranks.communicator_)));
  // Errors become values. What goes wrong before this is MPI's own to handle.
  MILLIPEDE_RETURN_IF_ERROR(CheckMpi(
      "MPI_Comm_set_errhandler", MPI_Comm_set_errhandler(ranks.communicator_, MPI_ERRORS_RETURN)));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckMpi("MPI_Comm_rank", MPI_Comm_rank(ranks.communicator_, &ranks.rank_)));
  MILLIPEDE_RETURN_IF_ERROR(
      CheckMpi("MPI_Comm_size", MPI_Comm_size(ranks.communicator_, &ranks.size_)));
  return ranks;
}

Ranks::Ranks(Ranks&& other) noexcept
    : communicator_(std::exchange(other.communicator_, MPI_COMM_NULL)),
      rank_(other.rank_),
      size_(other.size_),
      bytes_sent_(other.bytes_sent_) {}

Ranks& Ranks::operator=(Ranks&& other) noexcept {
  std::swap(communicator_, other.communicator_);
  std::swap(rank_, other.rank_);
  std::swap(size_, other.size_);
  std::swap(bytes_sent_, other.bytes_sent_);
  return *this;
}

Ranks::~Ranks() {
  if (communicator_ != MPI_COMM_NULL && MpiIsRunning()) MPI_Comm_free(&communicator_);
}

Status Ranks::Gather(std::span<const int64_t> own, std::vector<int64_t>& all) {
  all.resize(own.size() * static_cast<size_t>(size_));
  const int count = static_cast<int>(own.size());
  return CheckMpi("MPI_Allgather", MPI_Allgather(own.data(), count, MPI_INT64_T, all.data(), count,
                                                 MPI_INT64_T, communicator_));
}

Status Ranks::Agree(const Status& own) {
  const int32_t failed = own ? size_ : rank_;
  int32_t first_failed = size_;
  MILLIPEDE_RETURN_IF_ERROR(
      CheckMpi("MPI_Allreduce",
               MPI_Allreduce(&failed, &first_failed, 1, MPI_INT32_T, MPI_MIN, communicator_)));
  if (first_failed == size_) return {};
  std::array<char, 512> message{};  // ends in a zero
  if (first_failed == rank_) own.error().message.copy(message.data(), message.size() - 1);
  MILLIPEDE_RETURN_IF_ERROR(
      CheckMpi("MPI_Bcast", MPI_Bcast(message.data(), static_cast<int>(message.size()), MPI_CHAR,
                                      first_failed, communicator_)));
  if (!own) return own;
  return MakeError(ErrorCode::kRankFailed, fmt::format("rank {}", first_failed), "{}",
                   message.data());
}

Status Ranks::Exchange(std::span<const ByteRows> to, std::span<const ByteRows> from) {
  const auto self = static_cast<size_t>(rank_);
  for (int64_t row = 0; row < to[self].num_rows; ++row) {
    std::memcpy(from[self].data + row * from[self].stride_bytes,
                to[self].data + row * to[self].stride_bytes,
                static_cast<size_t>(to[self].row_bytes));
  }
  std::vector<MPI_Request> requests;
  Status status;
  for (int peer = 0; peer < size_ && status; ++peer) {
    const ByteRows& rows = from[static_cast<size_t>(peer)];
    if (peer == rank_ || rows.num_rows == 0) continue;
    const RowsType type(rows);
    status = type.status();
    if (!status) break;
    MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
    status = CheckMpi("MPI_Irecv",
                      MPI_Irecv(rows.data, 1, type.get(), peer, kTag, communicator_, &request));
  }
  for (int peer = 0; peer < size_ && status; ++peer) {
    const ByteRows& rows = to[static_cast<size_t>(peer)];
    if (peer == rank_ || rows.num_rows == 0) continue;
    const RowsType type(rows);
    status = type.status();
    if (!status) break;
    MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
    status = CheckMpi("MPI_Isend",
                      MPI_Isend(rows.data, 1, type.get(), peer, kTag, communicator_, &request));
    bytes_sent_ += rows.num_rows * rows.row_bytes;
  }
  if (!status) return status;
  return CheckMpi("MPI_Waitall", MPI_Waitall(static_cast<int>(requests.size()), requests.data(),
                                             MPI_STATUSES_IGNORE));
}

}  // namespace millipede
