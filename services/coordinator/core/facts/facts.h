// The facts that the parts of the coordinator's core share. A part has a const reference to all
// facts; each fact is written at one place, which its comment names.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_FACTS_FACTS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_FACTS_FACTS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/base/phase.h"
#include "services/coordinator/core/base/rules.h"
#include "services/coordinator/core/base/timers.h"
#include "services/coordinator/core/facts/attempt.h"
#include "services/coordinator/core/facts/membership.h"
#include "services/coordinator/core/facts/progress.h"
#include "services/coordinator/core/facts/shard_load.h"
#include "services/coordinator/core/facts/training.h"
#include "services/coordinator/core/facts/view_change.h"
#include "services/protocol/arithmetic.h"
#include "services/protocol/samples/job_length.h"

namespace sluice::coordinator {

class TrainingMode;

struct CoordinatorOptions {
  v1::JobSpec job;
  uint64_t incarnation = 0;  // of this coordinator; random, not 0
  // Found at the start; they become events of the job.
  std::vector<std::string> warnings;
  // Name of a checkpoint's directory in the storage (services/checkpoint).
  std::function<std::string(const v1::CheckpointRef&)> checkpoint_directory;
  // Recorded in checkpoint indexes.
  std::string build;
  MachineArithmetic arithmetic;
};

// A shard's report is about this old, and an answer takes about this long to reach the shard.
inline constexpr absl::Duration kControlDelay = absl::Milliseconds(200);

struct Facts {
  Facts(CoordinatorOptions options, const CoordinatorRules* rules, absl::Time now);
  ~Facts();
  Facts(const Facts&) = delete;
  Facts& operator=(const Facts&) = delete;

  const CoordinatorOptions options;  // timeouts.gradients has its default
  const CoordinatorRules& rules;
  const Timers timers;
  const v1::JobSpec& job() const { return options.job; }

  // ---- written by the core itself

  Phase phase = Phase::kReading;
  absl::Time newest_event;  // when the newest event came
  // SetDesired
  uint64_t wanted_workers;
  uint64_t wanted_shards;
  bool suspend = false;
  Membership members;
  TrainingMeter meter;
  ShardLoad load;

  // ---- written by a part

  StorageContents storage;  // Claims: as the storage was read last
  Attempt attempt;  // its parts: Claims, ModelCheck, Losses; the rest: Initialization, Takeover
  ViewChange view_change;                         // Views
  Training training;                              // Views, Takeover; reports of shards: the core
  std::optional<v1::Evaluation> last_evaluation;  // Evaluations: the newest result

  // The attempt is over: its facts are those of an attempt that has not begun.
  void LeaveAttempt();

  // ---- derived

  // How the attempt trains.
  const TrainingMode& mode() const;
  // The connected workers that could be members.
  std::vector<const Process*> ReadyWorkers() const;
  // Whether partitions may have copies, and move.
  bool MovesPartitions() const { return sluice::MovesPartitions(job()); }
  // Whether the shard is to have partitions: it does not ask to leave, and the job wants it.
  bool Stays(const Process& shard) const;
  // Whether a shard of the newest view can take the partitions of shards that leave.
  bool CanDrain() const;
  // How many steps shards may close in this time; asynchronous training has none.
  uint64_t StepsIn(absl::Duration time, absl::Time now) const;
  // How many held-out samples are evaluated while the job trains; at the end all are. Requires the
  // attempt's model.
  uint64_t EvaluationSamples() const;
  // Why the newest checkpoint does not fit the model. Empty: it fits, or one of the two is not
  // known yet.
  std::string CheckCheckpoint() const;
  // The arithmetic that decides a synchronous job's bits, as far as the coordinator knows. It does
  // not know the thread counts that workers choose themselves.
  std::string Arithmetic() const;

 private:
  const std::unique_ptr<const TrainingMode> synchronous_;
  const std::unique_ptr<const TrainingMode> asynchronous_;
  const std::unique_ptr<const TrainingMode> bounded_staleness_;
};

// As messages name it.
std::string CheckpointName(const v1::CheckpointRef& checkpoint);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_FACTS_FACTS_H_
