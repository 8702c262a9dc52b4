// Judging trace files: the format that viewers document, and the events against a plan.
#ifndef MILLIPEDE_TESTS_TOOLS_TRACE_CHECKER_H_
#define MILLIPEDE_TESTS_TOOLS_TRACE_CHECKER_H_

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tools/arguments.h"

namespace millipede::testing {

// What is wrong with the form of a trace of `num_processes` processes of `num_threads` threads, a
// line each: fields that a phase lacks or has of the wrong type, lanes without a name, events of a
// lane out of order or overlapping but not lying in each other, counters that go back.
std::vector<std::string> FormatFaults(const nlohmann::json& trace, int num_threads,
                                      int num_processes = 1);

// A line per task that a step has in each layer, as a trace that is whole must have them: what the
// plan holds, each with its layer, request, query, index and rows.
std::multiset<std::string> PlannedTasks(const tools::StepArguments& arguments, AttentionKind kind,
                                        const std::vector<int64_t>& layers);

// The same lines of what a trace has.
std::multiset<std::string> TracedTasks(const nlohmann::json& trace);

// Lines of one and not of the other.
std::vector<std::string> Differences(const std::multiset<std::string>& planned,
                                     const std::multiset<std::string>& traced);

// Regions of a report ([{name, calls, items}]) that the trace does not have as often, or with
// another number of items.
std::vector<std::string> RegionFaults(const nlohmann::json& trace, const nlohmann::json& regions);

}  // namespace millipede::testing

#endif  // MILLIPEDE_TESTS_TOOLS_TRACE_CHECKER_H_
