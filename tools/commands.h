// The commands, once their arguments are checked.
#ifndef MILLIPEDE_TOOLS_COMMANDS_H_
#define MILLIPEDE_TOOLS_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "millipede/status.h"
#include "tools/arguments.h"
#include "tools/command.h"

namespace millipede::tools {

struct VerifyArguments {
  std::vector<std::string> paths;  // files, or folders of *.safetensors
  std::string dump;                // a folder, empty for none
  std::string json;                // as in StepArguments
  int threads = 1;
};

// Each returns the exit code, or the error of an argument that only the work could find.
Result<int> Decode(const StepArguments& arguments, const Streams& streams);
Result<int> DecodeOutputOnly(const StepArguments& arguments, const Streams& streams);
Result<int> Stack(const StepArguments& arguments, const Streams& streams);
Result<int> ShowPlan(const StepArguments& arguments, const Streams& streams);
Result<int> Verify(const VerifyArguments& arguments, const Streams& streams);

// Whether a launcher of MPI started several ranks, of which this process is one.
bool IsRankOfMany();

// On all ranks of an MPI job together: decode, whole or the output half alone. Rank 0 prints what
// there is to print; every rank returns the same exit code.
int DecodeShared(const StepWords& words, const Streams& streams);

// Ends the job with this rank's error where the others may be in DecodeShared or here; printed
// once.
int RefuseShared(const std::string& command, const Error& error, const Streams& streams);

// kInvalidArgument if the caches of decode, `copies` times, and its buffers do not fit in memory.
Status CheckDecodeMemory(const StepArguments& arguments, int64_t copies);

// Bytes of the buffers a step needs per token, roughly and from below.
int64_t BytesPerToken(const StepArguments& arguments);

// kInvalidArgument if `bytes` are more than the machine's memory.
Status CheckMemory(const StepArguments& arguments, int64_t bytes);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_COMMANDS_H_
