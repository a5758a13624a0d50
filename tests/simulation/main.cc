// Runs simulations by seed: `simulate --first=1 --seeds=1000 --mode=all`.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/common/status_macros.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/mutations.h"
#include "tests/simulation/problems.h"

ABSL_FLAG(uint64_t, first, 1, "first seed");
ABSL_FLAG(uint64_t, seeds, 100, "number of seeds");
ABSL_FLAG(std::string, mode, "all",
          "synchronous, allreduce, stragglers, bitexact, asynchronous, balanced or bounded; with "
          "second copies: copies, copiesbitexact, copiesstragglers, copiesrows, "
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
    "two_coordinators, single_deaths, scaling, timers_first, large");
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

}  // namespace
}  // namespace sluice::simulation

int main(int argc, char** argv) {
  using namespace sluice;              // NOLINT(google-build-using-namespace)
  using namespace sluice::simulation;  // NOLINT(google-build-using-namespace)
  absl::SetProgramUsageMessage("simulates whole jobs with faults, by seed");
  absl::ParseCommandLine(argc, argv);
  const std::vector<std::pair<std::string, ScenarioOptions>> modes = {
      {"synchronous", {v1::SYNCHRONOUS, false}},
      {"stragglers", {v1::SYNCHRONOUS, false, true}},
      {"bitexact", {v1::SYNCHRONOUS, true}},
      {"asynchronous", {v1::ASYNCHRONOUS, false}},
      {"balanced", {v1::ASYNCHRONOUS, false, false, false, true}},
      {"bounded", {v1::BOUNDED_STALENESS, false}},
      {"allreduce", {v1::SYNCHRONOUS, false, false, false, false, true}},
      {"rowsallreduce", {v1::SYNCHRONOUS, false, false, true, false, true}},
      {"rows", {v1::SYNCHRONOUS, false, false, true}},
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

  const uint64_t first = absl::GetFlag(FLAGS_first);
  const Cluster::Tracing tracing = absl::GetFlag(FLAGS_messages) ? Cluster::Tracing::kMessages
                                   : absl::GetFlag(FLAGS_trace)  ? Cluster::Tracing::kEvents
                                                                 : Cluster::Tracing::kNone;

  const Mutation* mutation = nullptr;
  for (const Mutation& one : Mutations()) {
    if (one.name == absl::GetFlag(FLAGS_mutation)) mutation = &one;
  }
  if (mutation == nullptr && !absl::GetFlag(FLAGS_mutation).empty()) {
    std::fprintf(stderr, "there is no mutation \"%s\"\n", absl::GetFlag(FLAGS_mutation).c_str());
    return 2;
  }

  uint64_t failures = 0;
  bool known = false;
  for (const auto& [name, options] : modes) {
    if (absl::GetFlag(FLAGS_mode) != "all" && absl::GetFlag(FLAGS_mode) != name) continue;
    known = true;
    uint64_t events = 0;
    uint64_t views = 0;
    uint64_t faults = 0;
    for (uint64_t seed = first; seed < first + absl::GetFlag(FLAGS_seeds); ++seed) {
      Scenario scenario = MakeScenario(seed, options);
      if (absl::Status status = Adapt(&scenario); !status.ok()) {
        std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
        return 2;
      }
      if (mutation != nullptr) mutation->apply(scenario);
      const Outcome outcome = Cluster(scenario, tracing).Run();
      events += outcome.events;
      views += outcome.views;
      faults += outcome.faults;
      if (outcome.failure.empty()) continue;
      ++failures;
      std::printf("FAILED %s\n  %s\n  --mode=%s --first=%llu --seeds=1%s --trace\n",
                  Describe(scenario).c_str(), outcome.failure.c_str(), name.c_str(),
                  static_cast<unsigned long long>(seed), OtherFlags().c_str());
      if (!absl::GetFlag(FLAGS_keep_going)) return 1;
    }

    std::printf("%s: %llu seeds, %llu events, %llu faults, %llu views\n", name.c_str(),
                static_cast<unsigned long long>(absl::GetFlag(FLAGS_seeds)),
                static_cast<unsigned long long>(events), static_cast<unsigned long long>(faults),
                static_cast<unsigned long long>(views));
  }

  if (!known) {
    std::fprintf(stderr, "there is no mode \"%s\"\n", absl::GetFlag(FLAGS_mode).c_str());
    return 2;
  }
  return failures == 0 ? 0 : 1;
}
