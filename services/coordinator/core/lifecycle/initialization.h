// The beginning of an attempt, once it is claimed: its shards are chosen, and hold its first state.
//
// Intuition. An attempt begins with the processes that are there: as soon as all wanted shards have
// come, and the wanted workers, or those of them that came in time. The facts of the attempt follow
// from the newest checkpoint, or from the model. Then an init request brings the first state into
// the shards (R12): a checkpoint from the storage, or version 0 from one worker. If that worker is
// gone or too slow, another one is asked.
//
// It writes the attempt, except for number, term, model and length.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_INITIALIZATION_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_INITIALIZATION_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/model.pb.h"
#include "services/coordinator/core/base/verdict.h"
#include "services/coordinator/core/facts/attempt.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"
#include "services/coordinator/core/lifecycle/init_request.h"

namespace sluice::coordinator {

// The layout of the attempt's model: that of the newest checkpoint, or the one that every process
// computes. An error fails the job.
absl::StatusOr<v1::Layout> LayoutOfModel(const Facts& facts);
// The PrepareState of the attempt, without a checkpoint.
v1::PrepareState PrepareStateOf(const Facts& facts);
// The checkpoint's samples as an asynchronous attempt counts them.
v1::Ledger LedgerOf(const v1::CheckpointIndex& checkpoint_index);

class Initialization {
 public:
  // All must outlive it.
  Initialization(const Facts& facts, Attempt* attempt, Output* output)
      : facts_(facts), attempt_(*attempt), output_(*output), request_(&facts.rules) {}

  // Whether an attempt can begin with the processes that have come. `continues`: shards are in the
  // attempt already, and after a while it continues without those that have not come.
  bool Gathered(bool continues, absl::Time now);

  // Sets the facts of the claimed attempt, with the shards that live now. Requires an
  // attempt that has none yet. An error fails the job.
  absl::Status BeginAttempt(absl::Time now);

  // Begins an init request, which is to be sent. False: a worker must create the model, and none is
  // ready.
  bool Begin(absl::Time now);
  void SendRequest();
  // To a shard, before the first view. To the worker that was asked, in phase kPreparing.
  void ResendToShard(const Process& shard);
  void ResendToWorker(const Process& worker);

  // Phase kPreparing.
  Verdict OnStateReady(const Process& shard, const v1::StateReady& ready);
  enum class State { kWaiting, kComplete, kAskNextWorker };
  State Check(absl::Time now);

  absl::Time NextDeadline() const;

 private:
  void BeginFromCheckpoint(absl::Time now);
  void WarnOfOtherEnvironment(absl::Time now);
  v1::CoordinatorMessage PrepareStateMessage() const;
  v1::CoordinatorMessage InitializeMessage() const;

  const Facts& facts_;
  Attempt& attempt_;
  Output& output_;
  InitRequest request_;
  absl::Time gather_at_ = absl::InfiniteFuture();  // no further worker is awaited from then on
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_LIFECYCLE_INITIALIZATION_H_
