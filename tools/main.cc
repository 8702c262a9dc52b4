#include <unistd.h>

#include <iostream>

#include "tools/command.h"

int main(int argc, char** argv) {
  const millipede::tools::Streams streams{std::cout, std::cerr, isatty(STDERR_FILENO) == 1};
  return millipede::tools::RunCommand({argv + 1, argv + argc}, streams);
}
