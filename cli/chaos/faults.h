// The faults of `sluice chaos`, and when each is injected. Pure: a function of the seed.
#ifndef SLUICE_CLI_CHAOS_FAULTS_H_
#define SLUICE_CLI_CHAOS_FAULTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/local/job_directory.h"
#include "operator/policy/policy.h"
#include "proto/common.pb.h"

namespace sluice::chaos {

enum class Action {
  kKill,       // SIGKILL
  kFreeze,     // SIGSTOP, and later SIGCONT
  kTerminate,  // SIGTERM: the process leaves
  kScale,      // another number of processes, as by `sluice scale`
};

// One kind of fault: an action on one process, or on several different processes at once; or
// another number of processes of each of the roles.
struct FaultKind {
  Action action = Action::kKill;
  std::vector<v1::Role> roles;
};

// Every action that --faults takes by default, on one process of each role.
inline constexpr char kDefaultFaults[] =
    "kill:worker,kill:shard,kill:coordinator,freeze:worker,freeze:shard,freeze:coordinator";

// Parses "kill:worker,freeze:shard+shard,scale:shard". INVALID_ARGUMENT names the word that is
// wrong and the words that exist.
absl::StatusOr<std::vector<FaultKind>> ParseFaults(absl::string_view text);

// "kill:worker+shard"
std::string KindText(const FaultKind& kind);

bool ScalesShards(const FaultKind& kind);

// INVALID_ARGUMENT if a fault needs more processes of a role than the job has at first.
absl::Status CheckFaults(const std::vector<FaultKind>& kinds, uint32_t workers, uint32_t shards);

// One fault to inject.
struct PlannedFault {
  Action action = Action::kKill;
  std::vector<policy::Replica> targets;  // all different; of a scaling: none
  local::Sizes sizes;                    // of the job from now on
  // How long after the job has recovered from the previous fault, or has begun to train.
  absl::Duration delay;
  // How long the targets stay frozen; zero unless they are frozen.
  absl::Duration frozen;
};

// "kill worker-1", "freeze ps-0 and ps-1 for 2.5 s", "scale to 4 shards and 2 workers"
std::string FaultText(const PlannedFault& fault);

struct ScheduleOptions {
  uint64_t seed = 0;
  std::vector<FaultKind> kinds;  // not empty; CheckFaults accepts them
  uint32_t workers = 1;
  uint32_t shards = 1;
  // The numbers of a scaling are at most twice those above, and never fewer than another kind of
  // fault needs. Shards are also within these bounds.
  uint32_t min_shards = 1;
  uint32_t max_shards = UINT32_MAX;
  // The mean of the delays, which are between half of it and one and a half of it.
  absl::Duration every = absl::Seconds(5);
  // How long a freeze lasts. Zero: any time up to twice `heartbeat_timeout`, so that the job expels
  // about half of the frozen processes.
  absl::Duration freeze;
  absl::Duration heartbeat_timeout = absl::Seconds(5);
};

// Fault number n of the schedule, from 0. The kinds take turns: each kind occurs once in every
// kinds.size() faults, in an order that differs from turn to turn.
PlannedFault FaultAt(const ScheduleOptions& options, uint64_t n);

}  // namespace sluice::chaos

#endif  // SLUICE_CLI_CHAOS_FAULTS_H_
