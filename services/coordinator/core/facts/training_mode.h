// The decisions that depend on the training mode: synchronous, asynchronous, or bounded staleness.
//
// Each mode is a set of pure functions of the facts. A mode answers only while its attempt has a
// model and shards.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_FACTS_TRAINING_MODE_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_FACTS_TRAINING_MODE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "services/common/check.h"
#include "services/coordinator/core/decisions/assignment.h"
#include "services/coordinator/core/decisions/view_decision.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/membership.h"
#include "services/coordinator/core/facts/snapshot.h"
#include "services/protocol/samples/job_length.h"

namespace sluice::coordinator {

class TrainingMode {
 public:
  // `facts` must outlive the mode.
  TrainingMode(const Facts& facts, bool synchronous) : facts_(facts), synchronous_(synchronous) {}
  virtual ~TrainingMode() = default;

  // Whether the members compute each step together. If not, they work through leases, each view
  // change is at once, and a snapshot is opened and a barrier is moved only by a view change.
  bool synchronous() const { return synchronous_; }
  // Whether all workers train from the same version, so that training can be held at a version.
  virtual bool InStep() const = 0;

  // ---- how far training has come

  // Samples that were trained on; 0 without an attempt.
  virtual uint64_t Samples() const = 0;
  // The step and the samples that users see.
  virtual uint64_t ShownStep() const = 0;
  virtual uint64_t ShownSamples() const = 0;
  // The step number that the schedules of checkpoints and evaluations use.
  virtual uint64_t ScheduleStep() const = 0;
  virtual bool Complete() const = 0;
  // The version that the attempt ends with, if training ends now.
  virtual uint64_t FinalVersion() const = 0;

  // ---- views

  // Decides what the pending change of the view keeps. `staying`: members of both views.
  virtual Decision Decide(const absl::flat_hash_set<uint64_t>& staying) const = 0;
  virtual size_t MaxMembers() const = 0;
  // Divides each step among the members of the view, which has no work yet. `speeds`: of its
  // members, in samples a second; 0: unknown.
  virtual void DivideWork(const std::vector<double>& speeds, v1::View* view) const = 0;
  // Samples in each of the worker's next updates; 0: training.globalBatchSize.
  virtual uint64_t BatchSizeOf(const Process& worker) const = 0;
  // Why a member is expelled for which the shard has waited for `limit` while at version `closed`.
  virtual std::string WhyOverdue(const std::string& shard, uint64_t closed,
                                 absl::Duration limit) const = 0;
  // By the arbiter's reply to the pending Pause: the members that have leases and for which the
  // job waits.
  virtual std::vector<uint64_t> IdleLeaseholders() const = 0;
  // Install.barrier for a barrier at this step of the schedule.
  virtual uint64_t InstalledBarrier(uint64_t step) const = 0;

  // ---- snapshots

  virtual uint64_t ScheduleStepOf(const Snapshot& snapshot) const = 0;
  // The samples that the pinned version was trained on.
  virtual uint64_t SamplesOf(const Snapshot& snapshot) const = 0;
  // The step at which a checkpoint that completes or fails now counts as done.
  virtual uint64_t DoneStepOf(const Snapshot& snapshot) const = 0;

 protected:
  const Attempt& attempt() const { return facts_.attempt; }
  const Training& training() const { return facts_.training; }
  const JobLength& length() const {
    SLUICE_DCHECK(facts_.attempt.model.length.has_value(), "the job's length is known");
    return *facts_.attempt.model.length;
  }

  const Facts& facts_;

 private:
  const bool synchronous_;
};

std::unique_ptr<TrainingMode> MakeSynchronousMode(const Facts& facts);
std::unique_ptr<TrainingMode> MakeAsynchronousMode(const Facts& facts);
std::unique_ptr<TrainingMode> MakeBoundedStalenessMode(const Facts& facts);

// How the steps of a synchronous attempt are divided. Requires a model.
Division DivisionOf(const Facts& facts);

uint64_t SamplesIn(const v1::Ledger& ledger);
// The reason for which a member is expelled that has a lease and does not use it.
std::string IdleLeaseholderReason(absl::Duration limit);

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_FACTS_TRAINING_MODE_H_
