// millipede decode on all ranks of an MPI job.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <sstream>
#include <utility>

#include "millipede/distributed.h"
#include "tools/check.h"
#include "tools/commands.h"
#include "tools/decode_step.h"
#include "tools/errors.h"
#include "tools/progress.h"
#include "tools/rank_report.h"
#include "tools/stopwatch.h"
#include "tools/trace_file.h"
#include "tools/with_mpi/mpi_job.h"

namespace millipede::tools {
namespace {

constexpr const char* kCommand = "millipede decode";

// Ranks that a launcher started: by Open MPI's account, or by that of MPICH and its like.
int LaunchedRanks() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* const value = std::getenv(variable);
    if (value != nullptr) return std::atoi(value);
  }
  return 1;
}

// The result of `body`, an exception turned into an error: other ranks wait for either.
template <typename Body>
auto Caught(const Body& body) -> decltype(body()) {
  const auto error = [](std::string message) {
    return tl::make_unexpected(Error{ErrorCode::kOutOfMemory, -1, "memory", std::move(message)});
  };
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return error(kNoMemory);
  } catch (const std::exception& exception) {
    return error(exception.what());
  }
}

nlohmann::json ErrorJson(const Error& error) {
  return {{"error", {{"code", ErrorCodeName(error.code)}, {"message", error.message}}}};
}

class SharedDecode {
 public:
  SharedDecode(const MpiJob& job, const StepWords& words, const Streams& streams)
      : job_(job), words_(words), streams_(streams) {
    streams_.show_progress = streams.show_progress && job.rank() == 0;
  }

  // The same exit code on every rank.
  int Run() {
    if (const auto refused = AgreeOnArguments()) return *refused;
    const auto report = Execute();
    const std::vector<nlohmann::json> all =
        job_.Gather(report ? ToJson(*report) : ErrorJson(report.error()));
    if (const auto error = FirstError(all)) return Refuse(*error);
    return Report(all);
  }

 private:
  int Refuse(const std::string& message) const {
    if (job_.rank() == 0) PrintError(streams_, kCommand, message);
    return kExitUsage;
  }

  std::optional<int> AgreeOnArguments() {
    const Status checked = Caught([&] { return CheckArguments(); });
    const std::vector<nlohmann::json> all =
        job_.Gather(checked ? ComparedArguments(whole_) : ErrorJson(checked.error()));
    if (const auto error = FirstError(all)) return Refuse(*error);
    if (const auto difference = ArgumentDifference(all)) return Refuse(*difference);
    return std::nullopt;
  }

  Status CheckArguments() {
    auto arguments = ParseStepArguments(words_);
    if (!arguments) return ErrorOf(arguments);
    whole_ = *std::move(arguments);
    if (whole_.tp != job_.size()) {
      return BadValue(
          "--tp", std::to_string(whole_.tp),
          fmt::format("{}, the ranks of this job ('mpirun -n N' starts N)", job_.size()));
    }
    own_ = DealTo(whole_, job_.rank());
    // Pools, and with a check three copies of them and of those of one process alone.
    if (auto status = CheckDecodeMemory(own_, own_.check ? 7 : 1); !status) return status;
    auto json = JsonOutput::Open(job_.rank() == 0 ? whole_.json : "");
    if (!json) return ErrorOf(json);
    json_ = *std::move(json);
    auto trace = TraceOutput::Open(whole_.trace, whole_.threads, job_.rank());
    if (!trace) return ErrorOf(trace);
    trace_ = *std::move(trace);
    return {};
  }

  // Collective. Whatever happens to this rank, it makes the group's two calls.
  Result<RankReport> Execute() {
    auto group = TensorParallel::Create(whole_.config, whole_.tp, job_.communicator());
    if (!group) return ErrorOf(group);
    group_ = &*group;
    auto report = Caught([&] { return whole_.output_only ? OutputHalf() : WholeStep(); });
    if (!report && !called_) group_->Fail(report.error());
    if (report) report->bytes_sent = group_->bytes_sent();
    return report;
  }

  RankPart Part() {
    RankPart part;
    part.shard = group_->shard();
    part.run_layer = [this](Context& context, const Layer& layer, const Plan& plan,
                            const LayerPools& pools, const StepTensors& tensors,
                            std::span<std::byte> workspace, std::span<std::byte> overlay,
                            const StepActivations& activations) {
      called_ = true;
      return group_->Run(context, layer, plan, 0, pools, tensors, workspace, overlay, activations);
    };
    part.project_output = [this](Context& context, const OutputWeights& weights,
                                 TensorView<const Bf16, 3> heads, TensorView<Bf16, 2> attn_out) {
      called_ = true;
      return group_->ProjectOutput(context, weights, heads, attn_out);
    };
    return part;
  }

  Result<RankReport> WholeStep() {
    Progress progress(streams_);
    const RankPart part = Part();
    auto step = ExecuteDecodeStep(own_, progress, trace_.trace(), &part);
    if (!step) return ErrorOf(step);
    RankReport result{std::move(step->report), 0, std::move(step->counter_differences)};
    if (!own_.check) return result;
    Stopwatch watch;
    result.report.check = CheckStep(*step->record, *step->weights, own_.threads, progress);
    result.report.coverage = CoverageOf(*step->record);
    result.report.phases.push_back({"check", watch.Restart()});
    auto alone = ExecuteDecodeStep(own_, progress);
    if (!alone) return ErrorOf(alone);
    result.report.check->Merge(CheckSameBits(*step->record, *alone->record));
    result.report.phases.push_back({"comparison with TP 1", watch.Restart()});
    return result;
  }

  Result<RankReport> OutputHalf() {
    Progress progress(streams_);
    const RankPart part = Part();
    auto step = ExecuteOutputStep(own_, progress, trace_.trace(), &part);
    if (!step) return ErrorOf(step);
    RankReport result{std::move(step->report), 0, {}};
    if (!own_.check) return result;
    Stopwatch watch;
    result.report.check = CheckOutput(step->record, step->weights, own_.threads, progress);
    result.report.coverage = fmt::format("all {} tokens", own_.num_tokens());
    result.report.phases.push_back({"check", watch.Restart()});
    auto alone = ExecuteOutputStep(own_, progress);
    if (!alone) return ErrorOf(alone);
    result.report.check->Merge(CheckSameBits(step->record, alone->record));
    result.report.phases.push_back({"comparison with TP 1", watch.Restart()});
    return result;
  }

  int Report(const std::vector<nlohmann::json>& all) {
    std::vector<RankReport> ranks;
    for (size_t i = 0; i < all.size(); ++i) {
      ranks.push_back(RankReportFromJson(all[i], whole_, static_cast<int32_t>(i)));
    }
    const SharedReport report(whole_, std::move(ranks));
    Status status = WriteTrace();
    if (job_.rank() == 0) {
      for (const std::string& difference : report.counter_differences()) {
        PrintError(streams_, kCommand, difference);
      }
      if (!json_.to_stdout()) streams_.out << report.Text() << std::flush;
      if (status) status = json_.Write(report.Json().dump(2), streams_);
    }
    const nlohmann::json written = status ? nlohmann::json::object() : ErrorJson(status.error());
    if (const auto error = FirstError(job_.Gather(written))) return Refuse(*error);
    return report.holds() ? kExitOk : kExitViolation;
  }

  // Collective: all ranks' events to the one file of rank 0.
  Status WriteTrace() {
    const Trace* const trace = trace_.trace();
    if (trace == nullptr) return {};
    // Clocks of ranks on several machines have this moment in common.
    job_.Wait();
    const int64_t now =
        std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
    const int64_t first = TraceOrigin(*trace);
    int64_t longest_ns = 0;
    int64_t num_dropped = 0;
    for (const nlohmann::json& rank :
         job_.Gather({{"ns", first == 0 ? 0 : now - first}, {"dropped", trace->num_dropped()}})) {
      longest_ns = std::max<int64_t>(longest_ns, rank.at("ns"));
      num_dropped += rank.at("dropped").get<int64_t>();
    }
    std::ostringstream events;
    WriteTraceEvents(*trace,
                     {.name = fmt::format("millipede decode, rank {}", job_.rank()),
                      .rank = job_.rank(),
                      .origin_ns = now - longest_ns,
                      .layers = {},
                      .requests = own_.requests},
                     events);
    const std::vector<std::string> processes = job_.GatherTexts(events.str());
    if (job_.rank() != 0) return {};
    return trace_.Write({processes.begin(), processes.end()}, num_dropped);
  }

  const MpiJob& job_;
  const StepWords& words_;
  Streams streams_;
  StepArguments whole_;
  StepArguments own_;  // of this rank's requests
  JsonOutput json_ = *JsonOutput::Open("");
  TraceOutput trace_;
  TensorParallel* group_ = nullptr;
  bool called_ = false;  // the group's call was made
};

}  // namespace

bool IsRankOfMany() { return LaunchedRanks() > 1; }

int DecodeShared(const StepWords& words, const Streams& streams) {
  const MpiJob job;
  try {
    return SharedDecode(job, words, streams).Run();
  } catch (const std::exception& exception) {
    PrintError(streams, kCommand, exception.what());
    MpiJob::Abort(kExitUsage);
  }
}

int RefuseShared(const std::string& command, const Error& error, const Streams& streams) {
  const MpiJob job;
  const auto message = FirstError(job.Gather(ErrorJson(error)));
  if (job.rank() == 0) PrintError(streams, command, *message);
  return kExitUsage;
}

}  // namespace millipede::tools
