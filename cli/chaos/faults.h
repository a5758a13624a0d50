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
#include "services/protocol/timeouts.h"

namespace sluice::chaos {

enum class Action {
  kKill,       // SIGKILL
  kFreeze,     // SIGSTOP, and later SIGCONT
  kTerminate,  // SIGTERM: the process leaves
  kScale,      // another number of processes, as by `sluice scale`
  kCut,        // no byte passes between the process and the others
  kSlow,       // its bytes arrive later, and few in a second
  kFill,       // no file of the coordinator and the shards can grow, as on a full disk
};

// A fault of the connections of a process.
struct LinkFault {
  bool cut = false;
  absl::Duration delay;         // of each byte, in each direction
  double bytes_per_second = 0;  // of each connection, in each direction; 0: not limited
};

// One kind of fault: an action on one process, or on several different processes at once; or
// another number of processes of each of the roles.
struct FaultKind {
  Action action = Action::kKill;
  std::vector<v1::Role> roles;  // of kFill: none
};

// The faults by default: those that need no relay between the processes.
inline constexpr char kDefaultFaults[] =
    "kill:worker,kill:shard,kill:coordinator,freeze:worker,freeze:shard,freeze:coordinator";

// Parses "kill:worker,freeze:shard+shard,scale:shard". INVALID_ARGUMENT names the word that is
// wrong and the words that exist.
absl::StatusOr<std::vector<FaultKind>> ParseFaults(absl::string_view text);

// "kill:worker+shard"
std::string KindText(const FaultKind& kind);

// Whether the fault changes the number of shards, which needs a job whose partitions move.
bool ScalesShards(const FaultKind& kind);

// Whether the fault disturbs connections.
bool DisturbsLinks(Action action);

// Whether the fault ends by itself, after PlannedFault::lasts.
bool Lasts(Action action);

// INVALID_ARGUMENT if a fault needs more processes of a role than the job has at first.
absl::Status CheckFaults(const std::vector<FaultKind>& kinds, uint32_t workers, uint32_t shards);

// One fault to inject.
struct PlannedFault {
  Action action = Action::kKill;
  std::vector<policy::Replica> targets;  // all different; of kScale and kFill: none
  local::Sizes sizes;                    // of the job from now on
  // How long after the job has recovered from the previous fault, or has begun to train.
  absl::Duration delay;
  // How long the fault lasts; zero if it is over at once.
  absl::Duration lasts;
  LinkFault link;
};

// "kill worker-1", "freeze ps-0 and ps-1 for 2.5 s", "scale to 4 shards and 2 workers",
// "slow ps-0 for 2.5 s (40 ms, 10 MB/s)", "fill the disk for 2.5 s"
std::string FaultText(const PlannedFault& fault);

// The arguments of the schedule: the same options give the same faults.
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
  // How long a fault lasts that ends by itself. Zero: any time up to twice `heartbeat_timeout`, so
  // that the job expels about half of the frozen processes.
  absl::Duration lasting;
  absl::Duration heartbeat_timeout = absl::Seconds(kDefaultHeartbeatTimeout);
};

// Fault number n of the schedule, from 0. The kinds take turns: each kind occurs once in every
// kinds.size() faults, in an order that differs from turn to turn.
PlannedFault FaultAt(const ScheduleOptions& options, uint64_t n);

}  // namespace sluice::chaos

#endif  // SLUICE_CLI_CHAOS_FAULTS_H_
