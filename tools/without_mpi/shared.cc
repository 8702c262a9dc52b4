// Builds without MPI: decode runs in one process.
#include "tools/commands.h"
#include "tools/errors.h"

namespace millipede::tools {

bool IsRankOfMany() { return false; }

int DecodeShared(const StepWords& words, const Streams& streams) {
  const auto error = BadValue("--tp", *words.tp, "1, as this millipede was built without MPI");
  PrintError(streams, "millipede decode", error.value().message);
  return kExitUsage;
}

int RefuseShared(const std::string& command, const Error& error, const Streams& streams) {
  PrintError(streams, command, error.message);
  return kExitUsage;
}

}  // namespace millipede::tools
