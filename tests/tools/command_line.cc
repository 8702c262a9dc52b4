#include "tools/command_line.h"

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "tools/command.h"

namespace millipede::testing {

CommandResult RunLine(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream stream(line);
  for (std::string word; std::getline(stream, word, ' ');) words.push_back(word);
  return RunWords(words);
}

CommandResult RunWords(const std::vector<std::string>& words) {
  std::ostringstream out;
  std::ostringstream err;
  CommandResult result;
  result.exit_code = tools::RunCommand(words, {out, err});
  result.out = out.str();
  result.err = err.str();
  return result;
}

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "millipede_XXXXXX").string();
  const char* made = mkdtemp(pattern.data());
  if (made == nullptr) std::abort();
  path_ = made;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace millipede::testing
