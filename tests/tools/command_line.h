// Running the command in this process.
#ifndef MILLIPEDE_TESTS_TOOLS_COMMAND_LINE_H_
#define MILLIPEDE_TESTS_TOOLS_COMMAND_LINE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace millipede::testing {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Words are separated by single spaces; a word may be empty.
CommandResult RunLine(const std::string& line);
CommandResult RunWords(const std::vector<std::string>& words);

// A folder that is removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_TOOLS_COMMAND_LINE_H_
