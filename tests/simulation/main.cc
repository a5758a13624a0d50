// Runs simulations by seed: `simulate --first=1 --seeds=1000 --mode=all`.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/mutations.h"
#include "tests/simulation/problems.h"

ABSL_FLAG(uint64_t, first, 1, "first seed");
ABSL_FLAG(uint64_t, seeds, 100, "number of seeds");
ABSL_FLAG(std::string, mode, "all",
          "synchronous, allreduce, sync (sums over a step), stragglers, bitexact, decisions (of "
          "evaluations), asynchronous, "
          "balanced or bounded; with "
          "second copies: copies, copiesbitexact, copiesdecisions, copiessync, copiesstragglers, "
          "copiesrows, "
          "copiesasynchronous, copiesbounded, "
          "copiesrowsasynchronous; with "
          "rows of tables: rows (synchronous), rowsallreduce, rowsstragglers, rowsbitexact, "
          "rowsasynchronous or rowsbounded; or all");
ABSL_FLAG(bool, trace, false, "print every fault, view, claim and exit to standard error");
ABSL_FLAG(bool, messages, false, "print all messages too");
ABSL_FLAG(std::string, mutation, "", "a deliberate bug (mutations.cc) to run with");
ABSL_FLAG(
    std::string, with, "",
    "additional problems of each seed, separated by commas: strangers, liars, frozen, readers, "
    "slow_disk, disk_errors, damage, damaged_records, crashes_at_write, replaced_jobs, "
    "suspensions, leave_all, leave_shards, leave_coordinators, broken_groups, "
    "two_coordinators, single_deaths, slow_connections, scaling, cut_coordinators, timers_first, "
    "large");
ABSL_FLAG(std::string, faults, "",
          "only these kinds of faults, with their weights: kill_worker=10,join=2");
ABSL_FLAG(int32_t, nfaults, -1, "number of faults of each seed; below 0: the seed determines it");
ABSL_FLAG(int32_t, spacing, -1,
          "maximum number of events between two faults; 0 or below: the seed determines it");
ABSL_FLAG(bool, harmless, false,
          "a freeze of the coordinator counts as harming only workers, so it must cost no attempt");
ABSL_FLAG(bool, keep_going, false, "continue after a failure");

namespace sluice::simulation {
namespace {

absl::Status Adapt(Scenario* scenario) {
  RETURN_IF_ERROR(AddProblems(absl::GetFlag(FLAGS_with), scenario));
  scenario->coordinator_freezes_are_harmless = absl::GetFlag(FLAGS_harmless);
  if (absl::GetFlag(FLAGS_nfaults) >= 0) {
    scenario->faults = static_cast<uint32_t>(absl::GetFlag(FLAGS_nfaults));
  }
  if (absl::GetFlag(FLAGS_spacing) > 0) {
    scenario->fault_spacing = static_cast<uint32_t>(absl::GetFlag(FLAGS_spacing));
  }
  const std::string faults = absl::GetFlag(FLAGS_faults);
  return faults.empty() ? absl::OkStatus() : SetFaults(faults, scenario);
}

// The flags besides mode and seed that a failure needs to be replayed.
std::string OtherFlags() {
  std::string flags;
  const auto add = [&](const char* name, const std::string& value, bool set) {
    if (set) absl::StrAppend(&flags, " --", name, "=", value);
  };
  add("with", absl::GetFlag(FLAGS_with), !absl::GetFlag(FLAGS_with).empty());
  add("faults", absl::GetFlag(FLAGS_faults), !absl::GetFlag(FLAGS_faults).empty());
  add("nfaults", absl::StrCat(absl::GetFlag(FLAGS_nfaults)), absl::GetFlag(FLAGS_nfaults) >= 0);
  add("spacing", absl::StrCat(absl::GetFlag(FLAGS_spacing)), absl::GetFlag(FLAGS_spacing) > 0);
  add("harmless", "true", absl::GetFlag(FLAGS_harmless));
  add("mutation", absl::GetFlag(FLAGS_mutation), !absl::GetFlag(FLAGS_mutation).empty());
  return flags;
}

struct Mode {
  std::string name;
  ScenarioOptions options;
};

std::vector<Mode> Modes() {
  return {
      {"synchronous", {v1::SYNCHRONOUS, false}},
      {"stragglers", {v1::SYNCHRONOUS, false, true}},
      {"bitexact", {v1::SYNCHRONOUS, true}},
      {"asynchronous", {v1::ASYNCHRONOUS, false}},
      {"balanced", {v1::ASYNCHRONOUS, false, false, false, true}},
      {"bounded", {v1::BOUNDED_STALENESS, false}},
      {"allreduce", {v1::SYNCHRONOUS, false, false, false, false, true}},
      {"sync", {v1::SYNCHRONOUS, false, false, false, false, false, false, false, true}},
      {"copiessync", {v1::SYNCHRONOUS, false, false, false, false, false, true, false, true}},
      {"rowsallreduce", {v1::SYNCHRONOUS, false, false, true, false, true}},
      {"rows", {v1::SYNCHRONOUS, false, false, true}},
      {"decisions", {v1::SYNCHRONOUS, false, false, false, false, false, false, true}},
      {"copiesdecisions", {v1::SYNCHRONOUS, true, false, true, false, false, true, true}},
      {"copies", {v1::SYNCHRONOUS, false, false, false, false, false, true}},
      {"copiesbitexact", {v1::SYNCHRONOUS, true, false, false, false, false, true}},
      {"copiesstragglers", {v1::SYNCHRONOUS, false, true, false, false, false, true}},
      {"copiesrows", {v1::SYNCHRONOUS, true, false, true, false, false, true}},
      {"copiesasynchronous", {v1::ASYNCHRONOUS, false, false, false, false, false, true}},
      {"copiesbounded", {v1::BOUNDED_STALENESS, false, false, false, false, false, true}},
      {"copiesrowsasynchronous", {v1::ASYNCHRONOUS, false, false, true, false, false, true}},
      {"rowsstragglers", {v1::SYNCHRONOUS, false, true, true}},
      {"rowsbitexact", {v1::SYNCHRONOUS, true, false, true}},
      {"rowsasynchronous", {v1::ASYNCHRONOUS, false, false, true}},
      {"rowsbounded", {v1::BOUNDED_STALENESS, false, false, true}},
  };
}

// Null: the flag is not set.
absl::StatusOr<const Mutation*> ChosenMutation() {
  const std::string name = absl::GetFlag(FLAGS_mutation);
  if (name.empty()) return nullptr;
  const Mutation* chosen = nullptr;
  for (const Mutation& one : Mutations()) {
    if (one.name == name) chosen = &one;
  }
  if (chosen != nullptr) return chosen;
  return absl::InvalidArgumentError(absl::StrCat("there is no mutation \"", name, "\""));
}

Cluster::Tracing ChosenTracing() {
  if (absl::GetFlag(FLAGS_messages)) return Cluster::Tracing::kMessages;
  return absl::GetFlag(FLAGS_trace) ? Cluster::Tracing::kEvents : Cluster::Tracing::kNone;
}

// Runs all seeds of a mode, or up to the first failure. Returns the number of failures.
absl::StatusOr<uint64_t> RunSeeds(const Mode& mode, const Mutation* mutation) {
  const uint64_t first = absl::GetFlag(FLAGS_first);
  const uint64_t seeds = absl::GetFlag(FLAGS_seeds);
  uint64_t failures = 0;
  uint64_t events = 0;
  uint64_t views = 0;
  uint64_t faults = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    Scenario scenario = MakeScenario(seed, mode.options);
    RETURN_IF_ERROR(Adapt(&scenario));
    if (mutation != nullptr) mutation->apply(scenario);
    const Outcome outcome = Cluster(scenario, ChosenTracing()).Run();
    events += outcome.events;
    views += outcome.views;
    faults += outcome.faults;
    if (outcome.failure.empty()) continue;
    ++failures;
    std::printf("FAILED %s\n  %s\n  --mode=%s --first=%llu --seeds=1%s --trace\n",
                Describe(scenario).c_str(), outcome.failure.c_str(), mode.name.c_str(),
                static_cast<unsigned long long>(seed), OtherFlags().c_str());
    if (!absl::GetFlag(FLAGS_keep_going)) return failures;
  }

  std::printf("%s: %llu seeds, %llu events, %llu faults, %llu views\n", mode.name.c_str(),
              static_cast<unsigned long long>(seeds), static_cast<unsigned long long>(events),
              static_cast<unsigned long long>(faults), static_cast<unsigned long long>(views));
  return failures;
}

// Runs the modes that the flags choose. Returns the number of failures.
absl::StatusOr<uint64_t> RunModes() {
  ASSIGN_OR_RETURN(const Mutation* const mutation, ChosenMutation());
  const std::string chosen = absl::GetFlag(FLAGS_mode);
  uint64_t failures = 0;
  bool known = false;
  for (const Mode& mode : Modes()) {
    if (chosen != "all" && chosen != mode.name) continue;
    known = true;
    ASSIGN_OR_RETURN(const uint64_t failed, RunSeeds(mode, mutation));
    failures += failed;
    if (failures > 0 && !absl::GetFlag(FLAGS_keep_going)) return failures;
  }
  if (known) return failures;
  return absl::InvalidArgumentError(absl::StrCat("there is no mode \"", chosen, "\""));
}

}  // namespace
}  // namespace sluice::simulation

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("simulates whole jobs with faults, by seed");
  absl::ParseCommandLine(argc, argv);
  const absl::StatusOr<uint64_t> failures = sluice::simulation::RunModes();
  if (!failures.ok()) {
    std::fprintf(stderr, "%s\n", std::string(failures.status().message()).c_str());
    return 2;
  }
  return *failures == 0 ? 0 : 1;
}
