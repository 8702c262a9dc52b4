// millipede verify: the library against files of test vectors.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "fixtures/safetensors.h"
#include "tools/commands.h"
#include "tools/errors.h"
#include "tools/executor.h"
#include "tools/indexer_case.h"
#include "tools/progress.h"
#include "tools/report.h"
#include "tools/vector_judge.h"

namespace millipede::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExtension = ".safetensors";

// The files a path stands for, in order of name. kInvalidArgument naming a path that cannot be
// read.
Result<std::vector<std::string>> FilesOf(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status) || access(path.c_str(), R_OK) != 0) {
    return BadValue("PATH", path, "a file or folder that can be read");
  }
  if (!fs::is_directory(status)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() == kExtension) files.push_back(entry->path().string());
  }
  if (error) return BadValue("PATH", path, "a folder that can be read");
  std::sort(files.begin(), files.end());
  return files;
}

class Verifier {
 public:
  Verifier(const VerifyArguments& arguments, Context& context, const Streams& streams)
      : arguments_(arguments), context_(context), progress_(streams) {}

  // A file that cannot be judged is a report with the reason. kInvalidArgument if the dump cannot
  // be written.
  Result<FileReport> VerifyFile(const std::string& path) {
    FileReport report;
    report.path = path;
    progress_.Start("reading " + path);
    auto file = fixtures::SafetensorsFile::Load(path);
    if (!file) return Failed(report, file.error());
    if (auto kind = file->Metadata("kind")) report.kind = *kind;
    return IsIndexerFile(*file) ? VerifyIndexer(*file, report) : VerifyLayer(*file, report);
  }

 private:
  Result<FileReport> VerifyLayer(const fixtures::SafetensorsFile& file, FileReport& report) {
    auto vectors = ReadVectorCase(file, ModelConfig::Flash(), report.problems);
    if (!vectors) return Failed(report, vectors.error());
    if (!report.problems.empty()) return Finished(report);
    progress_.Start("making weights of " + report.path);
    auto weights = VectorWeights::Make(vectors->config, vectors->kind, vectors->seed);
    if (!weights) return Failed(report, weights.error());
    auto own = RunVectorCase(*weights, *vectors, file, context_, progress_);
    if (!own) return Failed(report, own.error());
    auto status = Dump(report, [&] { return DumpVectorCase(*vectors, file, *own); });
    if (!status) return ErrorOf(status);
    progress_.Start("judging " + report.path);
    report = JudgeVectorCase(*vectors, file, *own);
    return Finished(report);
  }

  Result<FileReport> VerifyIndexer(const fixtures::SafetensorsFile& file, FileReport& report) {
    auto indexer = ReadIndexerCase(file, ModelConfig::Flash(), report.problems);
    if (!indexer) return Failed(report, indexer.error());
    if (!report.problems.empty()) return Finished(report);
    progress_.Start("selecting for " + report.path);
    auto own = RunIndexerCase(*indexer, context_);
    if (!own) return Failed(report, own.error());
    auto status = Dump(report, [&] { return DumpIndexerCase(*indexer, file, *own); });
    if (!status) return ErrorOf(status);
    report = JudgeIndexerCase(*indexer, file, *own);
    return Finished(report);
  }

  // Writes what `make` returns where the dump is to go, if there is to be one.
  template <typename Make>
  Status Dump(const FileReport& report, const Make& make) const {
    if (arguments_.dump.empty()) return {};
    const fs::path name = fs::path(report.path).filename();
    return make().Write((fs::path(arguments_.dump) / name).string());
  }

  FileReport Failed(FileReport& report, const Error& error) {
    report.problems.push_back(error.message);
    return Finished(report);
  }

  FileReport Finished(FileReport& report) {
    progress_.Finish();
    return std::move(report);
  }

  const VerifyArguments& arguments_;
  Context& context_;
  Progress progress_;
};

Status MakeDumpFolder(const std::string& dump, const std::vector<std::string>& files) {
  if (dump.empty()) return {};
  std::error_code error;
  fs::create_directories(dump, error);
  if (error || !fs::is_directory(dump)) {
    return BadValue("--dump", dump, "a folder that can be written");
  }
  for (const std::string& file : files) {
    const fs::path target = fs::path(dump) / fs::path(file).filename();
    if (fs::equivalent(target, file, error)) {
      return BadValue("--dump", dump, "another folder than that of " + file);
    }
  }
  return {};
}

}  // namespace

Result<int> Verify(const VerifyArguments& arguments, const Streams& streams) {
  std::vector<std::string> files;
  for (const std::string& path : arguments.paths) {
    auto found = FilesOf(path);
    if (!found) return ErrorOf(found);
    files.insert(files.end(), found->begin(), found->end());
  }
  if (auto status = MakeDumpFolder(arguments.dump, files); !status) return ErrorOf(status);
  auto json = JsonOutput::Open(arguments.json);
  if (!json) return ErrorOf(json);
  auto executor = MakeExecutor(arguments.threads);
  if (!executor) return ErrorOf(executor);
  Context context(**executor);
  Verifier verifier(arguments, context, streams);

  int64_t num_ok = 0;
  nlohmann::json reports = nlohmann::json::array();
  for (const std::string& file : files) {
    auto report = verifier.VerifyFile(file);
    if (!report) return ErrorOf(report);
    if (report->ok()) ++num_ok;
    if (!json->to_stdout()) streams.out << report->Text() << std::flush;
    reports.push_back(report->Json());
  }
  const bool ok = !files.empty() && num_ok == static_cast<int64_t>(files.size());
  if (!json->to_stdout()) {
    if (files.empty()) {
      streams.out << "FAILED: nothing was checked: no *.safetensors file\n";
    } else {
      streams.out << fmt::format("{}: {} of {} files hold\n", ok ? "ok" : "FAILED", num_ok,
                                 files.size());
    }
  }
  const nlohmann::json all{{"command", "verify"}, {"ok", ok}, {"files", std::move(reports)}};
  if (auto status = json->Write(all.dump(2), streams); !status) return ErrorOf(status);
  return ok ? kExitOk : kExitViolation;
}

}  // namespace millipede::tools
