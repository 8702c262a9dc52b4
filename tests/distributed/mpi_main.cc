// GoogleTest under MPI: rank 0 reports as usual, the others only what fails. A rank with a failed
// test ends the job, as the others may wait for what it leaves out.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>

namespace {

class FailureListener : public testing::EmptyTestEventListener {
 public:
  explicit FailureListener(int rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed() || rank_ == 0) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_,
                 result.file_name() == nullptr ? "" : result.file_name(), result.line_number(),
                 result.message());
  }
  void OnTestEnd(const testing::TestInfo& info) override {
    if (!info.result()->Failed()) return;
    std::fprintf(stderr, "rank %d: %s.%s failed\n", rank_, info.test_suite_name(), info.name());
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }

  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  testing::InitGoogleTest(&argc, argv);
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailureListener(rank));
  const int result = level < MPI_THREAD_FUNNELED ? 1 : RUN_ALL_TESTS();
  MPI_Finalize();
  return result;
}
