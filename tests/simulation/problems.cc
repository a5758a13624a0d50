#include "tests/simulation/problems.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sluice::simulation {
namespace {

void AtLeast(uint32_t faults, Scenario* scenario) {
  scenario->faults = std::max(scenario->faults, faults);
}

std::map<absl::string_view, uint32_t*> Weights(Scenario* scenario) {
  return {
      {"kill_worker", &scenario->kill_worker},
      {"freeze_worker", &scenario->freeze_worker},
      {"cut_stream", &scenario->cut_stream},
      {"cut_process", &scenario->cut_process},
      {"leave", &scenario->leave},
      {"join", &scenario->join},
      {"kill_shard", &scenario->kill_shard},
      {"freeze_shard", &scenario->freeze_shard},
      {"kill_coordinator", &scenario->kill_coordinator},
      {"freeze_coordinator", &scenario->freeze_coordinator},
      {"replace_coordinator", &scenario->replace_coordinator},
      {"freeze_for_good", &scenario->freeze_for_good},
      {"damage", &scenario->damage},
      {"damage_record", &scenario->damage_record},
      {"snapshot", &scenario->snapshot},
      {"suspend", &scenario->suspend},
      {"leave_all", &scenario->leave_all},
      {"leave_shard", &scenario->leave_shard},
      {"leave_coordinator", &scenario->leave_coordinator},
      {"two_coordinators", &scenario->two_coordinators},
      {"crash_at_write", &scenario->crash_at_write},
      {"break_group", &scenario->break_group},
      {"scale_shards", &scenario->scale_shards},
      {"cut_coordinator", &scenario->cut_coordinator},
  };
}

// An earlier job of the same name has left claims and checkpoints of other samples. It finished or
// was deleted while it trained.
void ReplaceEarlierJob(Scenario* scenario) {
  Scenario earlier = *scenario;
  earlier.seed = ~scenario->seed;
  earlier.faults = static_cast<uint32_t>(scenario->seed % 3);
  earlier.deleted_after = scenario->seed % 2 == 0 ? 400 + 20 * (scenario->seed % 100) : 0;
  earlier.storage = std::make_shared<MemoryStorage>();
  (void)Cluster(earlier, Cluster::Tracing::kNone).Run();
  scenario->storage = earlier.storage;
  scenario->job.set_uid("again");
  scenario->job.mutable_checkpoint()->set_on_existing(v1::CheckpointSpec::REPLACE);
  scenario->crash_at_write += 8;
  scenario->kill_coordinator += 4;
  AtLeast(6, scenario);
}

}  // namespace

const std::vector<Problem>& Problems() {
  static const auto* const problems = new std::vector<Problem>{
      {"strangers", "readers and unwanted workers send arbitrary messages",
       [](Scenario* s) { s->strangers = 2; }, [](const Outcome& o) { return o.lies > 20; }},
      {"liars", "members do their work and also send arbitrary messages",
       [](Scenario* s) { s->liars = 1; }, [](const Outcome& o) { return o.lies > 20; }},
      {"frozen", "processes freeze for good, alone or while another process dies",
       [](Scenario* s) {
         s->freeze_for_good = 12;
         AtLeast(4, s);
       },
       [](const Outcome& o) { return o.replaced_frozen > 0; }},
      {"readers", "readers take snapshots",
       [](Scenario* s) {
         s->snapshot = 20;
         AtLeast(6, s);
       },
       [](const Outcome& o) { return o.snapshots > 0; }},
      {"slow_disk", "each read or write of a file takes up to 3 s",
       [](Scenario* s) { s->slow_disk = absl::Seconds(3); }, nullptr},
      {"disk_errors", "one in eight operations of the storage fails",
       [](Scenario* s) {
         s->disk_errors = 8;
         AtLeast(6, s);
       },
       [](const Outcome& o) { return o.disk_errors > 0; }},
      {"damage", "files of checkpoints are corrupted, truncated or removed",
       [](Scenario* s) {
         s->damage = 12;
         s->kill_shard += 4;
         s->kill_coordinator += 4;
         AtLeast(8, s);
       },
       [](const Outcome& o) { return o.damaged > 0; }},
      {"damaged_records",
       "claims, the owner file and checkpoints are corrupted, truncated or removed",
       [](Scenario* s) {
         s->damage = 4;
         s->damage_record = 12;
         s->kill_shard += 4;
         s->kill_coordinator += 4;
         AtLeast(8, s);
       },
       [](const Outcome& o) { return o.damaged > 0; }},
      {"crashes_at_write", "coordinators die while they use the storage",
       [](Scenario* s) {
         s->crash_at_write = 12;
         AtLeast(6, s);
       },
       [](const Outcome& o) { return o.crashes > 0; }},
      {"replaced_jobs", "the job replaces an earlier job, and coordinators die meanwhile",
       ReplaceEarlierJob, [](const Outcome& o) { return o.crashes > 0; }},
      {"suspensions", "the job is suspended and resumed",
       [](Scenario* s) {
         s->suspend = 6;
         AtLeast(4, s);
       },
       nullptr},
      {"leave_all", "all workers receive SIGTERM at once",
       [](Scenario* s) {
         s->leave_all = 10;
         AtLeast(4, s);
       },
       nullptr},
      {"leave_shards", "shards receive SIGTERM",
       [](Scenario* s) {
         s->leave_shard = 10;
         AtLeast(4, s);
       },
       nullptr},
      {"leave_coordinators", "coordinators receive SIGTERM",
       [](Scenario* s) {
         s->leave_coordinator = 10;
         AtLeast(4, s);
       },
       nullptr},
      {"broken_groups", "connections among workers break, and no worker dies",
       [](Scenario* s) {
         s->break_group = 12;
         AtLeast(6, s);
       },
       nullptr},
      {"two_coordinators", "two coordinators run at once, and processes connect to either",
       [](Scenario* s) {
         s->two_coordinators = 10;
         AtLeast(4, s);
       },
       nullptr},
      {"single_deaths",
       "processes die and leave, shards only if copies of their partitions remain: no attempt is "
       "lost with second copies",
       [](Scenario* s) {
         (void)SetFaults(
             "kill_worker=2,kill_shard=8,join=1,leave=1,leave_shard=4,"
             "kill_coordinator=4,leave_coordinator=2",
             s);
         s->spare_last_copies = true;
         s->fault_spacing = 400;
         AtLeast(8, s);
       },
       nullptr},
      {"slow_connections", "connections to the coordinator take up to 2 s longer",
       [](Scenario* s) { s->slow_connections = absl::Seconds(2); }, nullptr},
      {"scaling", "shards are added and removed while the job trains",
       [](Scenario* s) {
         s->scale_shards = 12;
         AtLeast(6, s);
       },
       nullptr},
      {"cut_coordinators",
       "the coordinator is cut off from all processes or shards for up to 3 timeouts, or 8",
       [](Scenario* s) {
         s->cut_coordinator = 12;
         AtLeast(6, s);
       },
       [](const Outcome& o) { return o.cuts > 0; }},
      {"timers_first", "a thawed process handles its timers before its messages",
       [](Scenario* s) { s->timers_first = true; }, nullptr},
      {"large", "more shards, workers and partitions", MakeLarge, nullptr},
  };
  return *problems;
}

absl::Status AddProblems(absl::string_view names, Scenario* scenario) {
  for (absl::string_view name : absl::StrSplit(names, ',', absl::SkipEmpty())) {
    const auto problem = std::find_if(Problems().begin(), Problems().end(),
                                      [&](const Problem& t) { return t.name == name; });
    if (problem == Problems().end()) {
      return absl::InvalidArgumentError(absl::StrCat("there is no problem \"", name, "\""));
    }
    problem->apply(scenario);
  }
  return absl::OkStatus();
}

absl::Status SetFaults(absl::string_view weights, Scenario* scenario) {
  std::map<absl::string_view, uint32_t*> known = Weights(scenario);
  for (const auto& [name, weight] : known) *weight = 0;
  for (absl::string_view part : absl::StrSplit(weights, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(part, '=');
    const auto weight = known.find(pair.first);
    if (weight == known.end() || !absl::SimpleAtoi(pair.second, weight->second)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part, "\" is not the weight of a kind of fault: name=number"));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::simulation
