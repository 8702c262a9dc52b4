#include "tools/command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <new>
#include <optional>

#include "millipede/config.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/errors.h"

namespace millipede::tools {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 all is well; 1 a check, a vector file or a counter does not hold; 2 bad\n"
    "arguments or unreadable input, with one line on standard error.";

// The words of a command line and the command they are for.
struct CommandLine {
  StepWords step;
  std::vector<std::string> paths;
  std::optional<std::string> dump;
};

constexpr const char* kAllJson =
    "Write all that is printed to this file as JSON; - is standard output, which\n"
    "then holds nothing else";

void AddJson(CLI::App& app, StepWords& words, const char* help) {
  app.add_option("--json", words.json, help)->type_name("FILE");
}

void AddTrace(CLI::App& app, StepWords& words) {
  app.add_option("--trace", words.trace,
                 "Write what each thread executed and when to this file, for Perfetto or\n"
                 "chrome://tracing")
      ->type_name("FILE");
}

void AddAttention(CLI::App& app, StepWords& words) {
  app.add_option("--attention", words.attention, "Attention kind: swa (the default), hca or csa")
      ->type_name("KIND");
}

void AddStepOptions(CLI::App& app, StepWords& words) {
  app.add_option("--start-pos", words.start_pos,
                 "Position of the first new token, which is the length of the history: one number\n"
                 "for every request, or a comma list with one per request. 0 to the ceiling - 1")
      ->type_name("P[,P...]");
  app.add_option("--seq", words.seq, "New tokens of each request (1 by default)")->type_name("N");
  app.add_option("--batch", words.batch,
                 "Requests, where --start-pos is one number (by default: as many as positions)")
      ->type_name("N");
  app.add_option("--preset", words.preset, "Shapes: flash (the default), pro or tiny")
      ->type_name("NAME");
  app.add_option("--seed", words.seed,
                 "Seed of the formula that makes weights, inputs and histories (1 by default)")
      ->type_name("N");
  app.add_option("--threads", words.threads, "Threads, 1 to 1024 (by default: all)")
      ->type_name("N");
  app.add_option(
         "--max-context", words.max_context,
         fmt::format("Ceiling on a request's tokens, 1 to {} (the default)", kMaxContextTokens))
      ->type_name("N");
}

void AddDecode(CLI::App& app, StepWords& words) {
  AddAttention(app, words);
  AddStepOptions(app, words);
  app.add_flag("--check", words.check,
               "Judge every value against the golden, stage by stage and end to end (flash and\n"
               "pro), and all caches bit for bit; exit 1 on a violation. Of long steps the\n"
               "dearest stages are judged at a few tokens of each request; the report says which");
  app.add_flag("--output-only", words.output_only,
               "Run the output half alone (output projection and hyper-connection) on heads made\n"
               "by formula, --batch times --seq tokens; refuses --start-pos");
  app.add_option("--tp", words.tp,
                 "Tensor parallel: ranks that share the step, started by 'mpirun -n N'; each has\n"
                 "the requests r with r mod N its own number, and 1/N of the output groups. A\n"
                 "divisor of the output groups (1 by default). With --check the outputs and all\n"
                 "cache rows are also compared with those of one process, bit for bit")
      ->type_name("N");
  AddJson(app, words, kAllJson);
  AddTrace(app, words);
  app.footer(std::string("Makes one layer's weights and the requests' histories by formula, then "
                         "plans, runs and\ncommits one step.\n\n") +
             kExitCodes);
}

void AddStack(CLI::App& app, StepWords& words) {
  AddStepOptions(app, words);
  app.add_option("--weight-sets", words.weight_sets,
                 "Different weights that the layers of each kind take by turns (1 by default:\n"
                 "they share theirs), to the number of layers")
      ->type_name("N");
  app.add_flag("--check", words.check,
               "Judge every layer against the golden, fed the same streams, and its caches bit\n"
               "for bit; exit 1 on a violation");
  AddJson(app, words, kAllJson);
  AddTrace(app, words);
  app.footer(
      std::string("Runs the attention layers of the whole model in order on one set of "
                  "requests: one plan per\nkind, each layer with pools and an overlay of its "
                  "own.\n\n") +
      kExitCodes);
}

void AddPlan(CLI::App& app, StepWords& words) {
  AddAttention(app, words);
  AddStepOptions(app, words);
  AddJson(app, words,
          "Write the plan to this file as JSON; - is standard output, which then holds\n"
          "nothing else");
  app.footer(std::string("Prints the work that decode would do with the same arguments. Makes no "
                         "weights and runs\nnothing.\n\n") +
             kExitCodes);
}

void AddVerify(CLI::App& app, CommandLine& line) {
  app.add_option("PATH", line.paths,
                 "Vector files, or folders whose *.safetensors files are all taken")
      ->type_name("");
  app.add_option("--dump", line.dump,
                 "Write the library's own values to this folder, in files and tensors of the same\n"
                 "names")
      ->type_name("DIR");
  app.add_option("--threads", line.step.threads, "Threads, 1 to 1024 (by default: all)")
      ->type_name("N");
  AddJson(app, line.step, kAllJson);
  app.footer(std::string("Decodes what each file describes and compares every tensor in it. Fails "
                         "on a violated rule,\nan unknown, missing or unchecked tensor, and when "
                         "nothing was checked.\n\n") +
             kExitCodes);
}

Result<int> RunStep(Result<int> (*run)(const StepArguments&, const Streams&),
                    const StepWords& words, const Streams& streams) {
  auto arguments = ParseStepArguments(words);
  if (!arguments) return ErrorOf(arguments);
  return run(*arguments, streams);
}

Result<int> RunVerify(const CommandLine& line, const Streams& streams) {
  VerifyArguments arguments;
  arguments.paths = line.paths;
  if (arguments.paths.empty()) {
    return BadValue("PATH", "missing", "vector files, or folders of *.safetensors");
  }
  auto threads = ParseThreads(line.step.threads);
  if (!threads) return ErrorOf(threads);
  arguments.threads = *threads;
  if (line.dump) {
    if (line.dump->empty()) return BadValue("--dump", "nothing", "a folder");
    arguments.dump = *line.dump;
  }
  auto json = ParseJsonPath(line.step.json);
  if (!json) return ErrorOf(json);
  arguments.json = *std::move(json);
  return Verify(arguments, streams);
}

int Run(const std::vector<std::string>& words, const Streams& streams) {
  CommandLine line;
  CLI::App app("Exact decode attention over paged, ragged caches", "millipede");
  app.set_version_flag("--version", std::string("millipede ") + MILLIPEDE_VERSION);
  app.require_subcommand(0, 1);
  app.allow_extras();
  CLI::App* decode = app.add_subcommand("decode", "Plan, run and commit one decode step");
  CLI::App* stack =
      app.add_subcommand("stack", "Plan, run and commit one step of all layers of a model");
  CLI::App* plan = app.add_subcommand("plan", "Print the work of a step without running it");
  CLI::App* verify = app.add_subcommand("verify", "Compare the library with files of test vectors");
  AddDecode(*decode, line.step);
  AddStack(*stack, line.step);
  AddPlan(*plan, line.step);
  AddVerify(*verify, line);
  for (CLI::App* command : {decode, stack, plan, verify}) command->allow_extras();
  app.footer("'millipede COMMAND --help' says more.");

  std::string name = "millipede";
  const auto refuse = [&](const Error& error) {
    if (IsRankOfMany()) return RefuseShared(name, error, streams);
    PrintError(streams, name, error.message);
    return kExitUsage;
  };
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error, streams.out, streams.err);
    for (const CLI::App* command : app.get_subcommands()) name += " " + command->get_name();
    return refuse({ErrorCode::kInvalidArgument, -1, "argument",
                   fmt::format("{}; allowed: what '{} --help' lists", error.what(), name)});
  }

  const std::vector<CLI::App*> commands = app.get_subcommands();
  const std::vector<std::string> extras = app.remaining(/*recurse=*/true);
  if (commands.empty()) {
    const auto error = BadValue("command", extras.empty() ? "missing" : extras.front(),
                                "decode, stack, plan or verify (see millipede --help)");
    return refuse(error.value());
  }
  const CLI::App* command = commands.front();
  name += " " + command->get_name();
  if (!extras.empty()) {
    const auto error =
        BadValue("argument", extras.front(), fmt::format("what '{} --help' lists", name));
    return refuse(error.value());
  }

  if (command != decode && IsRankOfMany()) {
    const auto error =
        BadValue("command", command->get_name(), "decode, in a job of several ranks");
    return refuse(error.value());
  }

  Result<int> result = 0;
  if (command == verify) {
    result = RunVerify(line, streams);
  } else if (command == plan) {
    result = RunStep(ShowPlan, line.step, streams);
  } else if (command == stack) {
    result = RunStep(Stack, line.step, streams);
  } else if (IsRankOfMany() || (line.step.tp && *line.step.tp != "1")) {
    result = DecodeShared(line.step, streams);
  } else {
    result = RunStep(line.step.output_only ? DecodeOutputOnly : Decode, line.step, streams);
  }
  return result ? *result : refuse(result.error());
}

}  // namespace

int RunCommand(const std::vector<std::string>& arguments, const Streams& streams) {
  try {
    const int exit_code = Run(arguments, streams);
    if (exit_code == kExitUsage || streams.out.flush()) return exit_code;
    PrintError(streams, "millipede", "standard output: cannot write");
  } catch (const std::bad_alloc&) {
    PrintError(streams, "millipede", kNoMemory);
  } catch (const std::exception& error) {
    PrintError(streams, "millipede", error.what());
  }
  return kExitUsage;
}

}  // namespace millipede::tools
