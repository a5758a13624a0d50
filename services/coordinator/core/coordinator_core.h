// The coordinator of one job. It decides which workers are members, which view is current, when
// versions are saved and evaluated, and how the job ends. Shards and workers carry out its
// decisions.
//
// Intuition. Everything that the members must agree on is a view, and a view changes in one way
// only: Pause, replies, a decision, Install. So the core is a small set of facts (the live
// processes, the view, the progress of the shards, the open snapshot) and one function that looks
// at the facts after each event and starts what is due. The core does not remember *why* something
// is due.
//
// Within an attempt there is one coordinator: a new one reads the claims, claims the next attempt
// and restores from the newest checkpoint (R11). Views and init requests carry (attempt, term,
// number), so that messages of an older coordinator that are still under way are refused (R1).
//
//   start:     ReadStorage -> shards and a worker have come -> ClaimAttempt -> PrepareState (and
//              Initialize) -> StateReady from all shards -> first view
//   each view: Pause -> PauseReply of all shards -> Install -> Installed; NewView to the workers
//   a shard's death: the same as start, with the processes that live
//   end:       last version committed -> last evaluation, last checkpoint -> end record -> Finish
//              to the workers -> they leave -> Finish to the shards -> they leave -> Exit
//
// Pure: no threads, clocks, sockets, files. Not thread-safe: the shell calls it from one thread at
// a time. After each event take the actions and carry them out in order; call OnTick not later than
// NextDeadline(). Times must not go backwards.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_CORE_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/actions.h"
#include "services/coordinator/core/coordinator_rules.h"

namespace sluice::coordinator {

struct CoordinatorOptions {
  v1::JobSpec job;
  uint64_t incarnation = 0;  // of this coordinator; random, not 0
  // Found at the start; they become events of the job.
  std::vector<std::string> warnings;
  // Name of a checkpoint's directory in the storage (services/checkpoint).
  std::function<std::string(const v1::CheckpointRef&)> checkpoint_directory;
  std::string build;  // recorded in manifests
  std::string isa;    // recorded in manifests
};

// "<namespace>/<name>/<uid>", as members name the job.
std::string JobName(const v1::JobSpec& job);

class CoordinatorCore {
 public:
  // The first action is ReadStorage. All `options` must be set. `rules` must outlive the core;
  // null: all rules.
  CoordinatorCore(CoordinatorOptions options, absl::Time now,
                  const CoordinatorRules* rules = nullptr);
  ~CoordinatorCore();

  CoordinatorCore(const CoordinatorCore&) = delete;
  CoordinatorCore& operator=(const CoordinatorCore&) = delete;

  // ---- events

  // Answer to ReadStorage. After a transient error the storage is read again later; the error's
  // message is a sentence.
  void OnStorageRead(absl::StatusOr<StorageContents> contents, absl::Time now);

  // A process has opened a control stream. It must register on it.
  void OnConnected(StreamId stream, absl::Time now);
  // A message that violates the contract closes the stream with INVALID_ARGUMENT.
  void OnMessage(StreamId stream, const v1::MemberMessage& message, absl::Time now);
  void OnDisconnected(StreamId stream, absl::Time now);

  // Answer to ClaimAttempt: OK, ALREADY_EXISTS (lost), or another error (tried again).
  void OnClaimResult(uint64_t attempt, const absl::Status& status, absl::Time now);
  // Answer to ReadClaims.
  void OnClaimsRead(absl::StatusOr<std::vector<v1::Claim>> claims, absl::Time now);
  // Answer to WriteManifest.
  void OnCheckpointIndexWritten(const v1::CheckpointRef& checkpoint, const absl::Status& status,
                                absl::Time now);
  // Answer to RemoveIncomplete.
  void OnIncompleteRemoved(absl::Time now);

  // JobControl. Repeating a call has no effect.
  void OnSetDesired(const v1::SetDesiredRequest& desired, absl::Time now);
  // Answered by AnswerSnapshot with this request number, which the shell chooses and never reuses.
  // The version stays pinned until the shell reports the end of the call, or the core ends the
  // call.
  void OnOpenSnapshot(uint64_t request, const v1::OpenSnapshotRequest& snapshot, absl::Time now);
  // The reader has ended its call, or has disconnected. No effect if the core has ended the call.
  void OnSnapshotCallEnded(uint64_t request, absl::Time now);

  void OnTick(absl::Time now);

  // ---- actions

  std::vector<Action> TakeActions();
  // InfiniteFuture: none.
  absl::Time NextDeadline() const;

  // ---- state

  // For JobControl.GetProgress; events with a sequence above `events_after` only.
  v1::JobProgress Progress(uint64_t events_after, absl::Time now) const;
  v1::JobProgress Progress(const v1::GetProgressRequest& request, absl::Time now) const;
  // What was refused so far, and what is kept, for the metrics.
  struct Refusals {
    uint64_t messages = 0;       // violated the contract; their streams were closed
    uint64_t figures = 0;        // dropped from workers' reports
    uint64_t registrations = 0;  // refused or postponed
    uint64_t readers = 0;        // snapshots refused
    uint64_t expelled = 0;       // incarnations remembered as expelled
    uint64_t snapshots = 0;      // open
  };
  Refusals refusals() const;
  // The newest view that was decided; empty before the first one of an attempt.
  const v1::View& view() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_COORDINATOR_CORE_H_
