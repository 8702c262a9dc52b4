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

// Bytes of the buffers a step needs per token, roughly and from below.
int64_t BytesPerToken(const StepArguments& arguments);

// kInvalidArgument if `bytes` are more than the machine's memory.
Status CheckMemory(const StepArguments& arguments, int64_t bytes);

}  // namespace millipede::tools

#endif  // MILLIPEDE_TOOLS_COMMANDS_H_
