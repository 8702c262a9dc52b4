// Random histories by hand and in CI: any seed, any number of steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <limits>
#include <map>
#include <string>

#include "life/random_life.h"

namespace {

using millipede::AttentionKind;
using millipede::testing::LifeReport;
using millipede::testing::Plant;
using millipede::testing::RunHistory;

int Run(uint64_t seed, int64_t num_steps, int64_t history_steps,
        const std::vector<AttentionKind>& kinds, Plant plant) {
  const auto start = std::chrono::steady_clock::now();
  LifeReport sum;
  int64_t num_histories = 0;
  for (; sum.num_steps < num_steps; ++seed, ++num_histories) {
    const LifeReport report =
        RunHistory(seed, std::min(history_steps, num_steps - sum.num_steps), kinds, plant);
    if (report.failure) {
      fmt::print("{}", report.failure->Text());
      return 1;
    }
    sum.num_steps += report.num_steps;
    sum.num_golden_steps += report.num_golden_steps;
    sum.num_refusals += report.num_refusals;
    if (num_histories % 1000 == 999) {
      fmt::print(stderr, "{} steps, next seed {}\n", sum.num_steps, seed + 1);
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print(
      "ok: {} steps in {} histories, {} values of layers judged by the golden, {} misuses refused, "
      "{:.1f} s\n",
      sum.num_steps, num_histories, sum.num_golden_steps, sum.num_refusals, seconds.count());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Runs random histories of requests against a model that decodes one token at a time, bit for "
      "bit.");
  int64_t seed = 1;
  int64_t num_steps = 1000;
  int64_t history_steps = 120;
  std::vector<std::string> kind_names;
  std::string plant_name = "none";
  // CLI11's own ranges take what is beyond 64 bits for the most there is.
  const auto at_least = [](int64_t least) {
    const auto check = [least](const std::string& text) -> std::string {
      int64_t value = 0;
      const char* const end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, value);
      if (error == std::errc() && stop == end && value >= least) return {};
      return fmt::format("{}; allowed: {} to {}", text, least, std::numeric_limits<int64_t>::max());
    };
    return CLI::Validator(check, "INT");
  };
  app.add_option("--seed", seed, "seed of the first history; the next ones count on")
      ->check(at_least(0));
  app.add_option("--steps", num_steps, "steps in all histories together")->check(at_least(1));
  app.add_option("--history", history_steps, "steps of each history")->check(at_least(1));
  app.add_option("--kinds", kind_names, "kinds of layers; default: as each seed has it")
      ->delimiter(',')
      ->check(CLI::IsMember({"swa", "hca", "csa"}));
  app.add_option("--plant", plant_name, "a fault put in on purpose, to see that it is found")
      ->check(CLI::IsMember({"none", "byte", "copy"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    fmt::print(stderr, "random_life: {}\n", error.what());
    return 2;
  }
  ::testing::InitGoogleTest();
  std::vector<AttentionKind> kinds;
  for (const AttentionKind kind : {AttentionKind::kSwa, AttentionKind::kHca, AttentionKind::kCsa}) {
    if (std::ranges::count(kind_names, KindName(kind)) > 0) kinds.push_back(kind);
  }
  const std::map<std::string, Plant> plants = {
      {"none", Plant::kNone}, {"byte", Plant::kByte}, {"copy", Plant::kCopy}};
  return Run(static_cast<uint64_t>(seed), num_steps, history_steps, kinds, plants.at(plant_name));
}
