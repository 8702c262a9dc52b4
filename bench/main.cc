// millipede_bench [--threads N] [--json FILE] [Google Benchmark's own options]
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/attend/attend_bench.h"
#include "bench/hc/hc_bench.h"
#include "bench/index/index_bench.h"
#include "bench/machine/peaks.h"
#include "bench/machine/thread_team.h"
#include "bench/matmul/matmul_bench.h"
#include "bench/stages/attend_stage_bench.h"
#include "bench/stages/layer_bench.h"

int main(int argc, char** argv) {
  int num_threads = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<std::string> arguments(argv, argv + 1);
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if ((argument == "--threads" || argument == "--json") && i + 1 == argc) {
      std::fprintf(stderr, "%s needs a value\n", argv[i]);
      return 2;
    }
    if (argument == "--threads") {
      num_threads = std::atoi(argv[++i]);
    } else if (argument == "--json") {
      arguments.push_back(std::string("--benchmark_out=") + argv[++i]);
      arguments.emplace_back("--benchmark_out_format=json");
    } else {
      arguments.emplace_back(argument);
    }
  }
  if (num_threads < 1 || num_threads > 1024) {
    std::fprintf(stderr, "--threads: allowed: 1 to 1024\n");
    return 2;
  }

  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  int num_arguments = static_cast<int>(pointers.size());
  benchmark::Initialize(&num_arguments, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(num_arguments, pointers.data())) return 2;

  millipede::bench::ThreadTeam team(num_threads);
  benchmark::AddCustomContext("threads", std::to_string(num_threads));
  benchmark::AddCustomContext("simd_target", millipede::bench::PeaksTargetName());
  millipede::bench::RegisterMatmulBenches(team);
  millipede::bench::RegisterAttendBenches(team);
  millipede::bench::RegisterAttendStageBenches(team);
  millipede::bench::RegisterHcBenches(team);
  millipede::bench::RegisterIndexBenches(team);
  millipede::bench::RegisterPlanBenches();
  millipede::bench::RegisterLayerBenches(team);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
