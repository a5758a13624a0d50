// The coordinator's claims (R11): which attempt is its own, and with which checkpoint it begins.
//
// Intuition. The storage decides which coordinator is in charge, by exclusive create
// (docs/decisions/claims.md). This part reads the storage, takes the term and the attempt that
// follow from it, and requests claims: one for each attempt, and one for the end of the job. While
// the coordinator gathers processes, it reads the claims again from time to time: another
// coordinator may have ended or continued the job.
//
// It writes Facts::storage, and the attempt's number and term. Times must not go backwards.

#ifndef SLUICE_SERVICES_COORDINATOR_CORE_STORAGE_CLAIMS_H_
#define SLUICE_SERVICES_COORDINATOR_CORE_STORAGE_CLAIMS_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/control.pb.h"
#include "services/common/check.h"
#include "services/coordinator/core/base/actions.h"
#include "services/coordinator/core/base/verdict.h"
#include "services/coordinator/core/facts/attempt.h"
#include "services/coordinator/core/facts/facts.h"
#include "services/coordinator/core/facts/output.h"

namespace sluice::coordinator {

class Claims {
 public:
  // All must outlive it.
  Claims(const Facts& facts, AttemptId* attempt, StorageContents* storage, Output* output)
      : facts_(facts), attempt_(*attempt), storage_(*storage), output_(*output) {}

  // ---- the storage

  void ReadStorage();
  bool reading() const { return reading_; }
  // Phase kReading: reads again after a transient error.
  void Advance(absl::Time now);
  // The storage was read at least once: the term is known to be above all terms before it.
  bool known() const { return known_; }
  // A transient error is tried again: kContinue. Otherwise kContinue means that the next attempt
  // may begin.
  Verdict OnStorageRead(absl::StatusOr<StorageContents> contents, absl::Time now);
  // A shard could not load the checkpoint. If the storage still offers it when it is read again,
  // the job fails.
  void OnUnloadable(const v1::CheckpointRef& checkpoint, std::string why);

  // ---- other coordinators

  // A shard has registered with this view.
  Verdict OnViewSeen(const v1::ViewId& seen);
  // A shard has registered, and obeys this attempt and term.
  Verdict OnObeyed(const v1::ViewId& obeyed);
  // A shard knows an attempt that the storage did not have when it was read: it must be read again.
  // Another coordinator may have claimed that attempt meanwhile, or its claim was lost.
  bool MissesAttempt() const {
    return !claimed() && shards_attempt_ > highest_ && shards_attempt_ > shards_attempt_at_read_;
  }
  // Phase kGathering, while processes are missing: requests the claims when it is time.
  void RereadClaims(absl::Time now);
  void StopRereading() { reread_at_ = absl::InfiniteFuture(); }
  // A read of the claims is under way, and nothing is claimed before it is done.
  bool rereading() const { return rereading_; }
  // Whether there is a claim that is not known: the storage must be read again.
  bool OnClaimsSeen(const absl::StatusOr<std::vector<v1::Claim>>& claims);

  // ---- claims

  // Requests the claim of the next attempt, or of the end. False: no claim is needed, and it
  // counts as made (a simulator leaves out R11): the core calls OnClaimResult.
  bool Claim(bool end, absl::Time now);
  // A claim of this attempt was requested, and has no result yet.
  bool Awaits(uint64_t attempt) const {
    return claim_.has_value() && pending_ && claim_->attempt() == attempt;
  }
  uint64_t requested() const {
    SLUICE_DCHECK(claim_.has_value(), "a claim is wanted");
    return claim_->attempt();
  }
  bool for_end() const {
    SLUICE_DCHECK(claim_.has_value(), "a claim is wanted");
    return claim_->end();
  }
  // Requires Awaits. Where an error gives kContinue, the claim is tried again.
  Verdict OnClaimResult(const absl::Status& status, absl::Time now);
  // The claim of an attempt, or of the end, that failed before is due again.
  bool RetryDue(absl::Time now) const { return !pending_ && retry_at_ <= now; }
  bool EndDue(absl::Time now) const { return !claim_.has_value() || RetryDue(now); }
  // The job waits until its end can be recorded.
  bool EndFails() const { return claim_.has_value() && errors_ > 0; }

  // This coordinator takes over the attempt of the newest claim, instead of claiming the next one.
  // False: it may not, because it had an attempt before, or because the newest claim is of another
  // attempt or ends the job.
  bool MayTakeOver(uint64_t attempt) const;
  // The same of some attempt: shards may have a view of it.
  bool HasOpenAttempt() const;
  // Requires MayTakeOver.
  void TakeOver(uint64_t attempt);

  // The claims are to be read again before the attempt is taken over.
  void GiveBack() {
    SLUICE_DCHECK(!unused_ && !claim_.has_value(), "the attempt is another coordinator's");
    attempt_.number = 0;
  }

  // The attempt is claimed, and no view of it was made.
  bool unused() const { return unused_; }
  void OnFirstView();
  // The next attempt needs a claim of its own.
  void OnAttemptOver();
  // No claim is wanted any more.
  void GiveUp();

  // The highest attempt that is known to be claimed.
  uint64_t highest() const { return std::max(attempt_.number, highest_); }

  absl::Time NextDeadline() const;

 private:
  bool claimed() const { return attempt_.number != 0 || claim_.has_value(); }
  bool IsLater(const v1::ViewId& seen) const;
  Verdict Accept(StorageContents contents, absl::Time now);
  void CountClaims(absl::Time now);
  void TakeHigherTerm();

  const Facts& facts_;
  AttemptId& attempt_;
  StorageContents& storage_;
  Output& output_;

  bool known_ = false;
  bool reading_ = false;
  absl::Time retry_at_ = absl::InfiniteFuture();  // to read, or to claim
  int errors_ = 0;                                // in a row
  std::optional<v1::CheckpointRef> unloadable_;   // a shard could not load it
  std::string unloadable_why_;

  uint64_t highest_ = 0;          // claim
  uint64_t highest_counter_ = 0;  // of the terms seen so far
  // The highest attempt of which a shard has a view, now and when the latest read of the storage
  // began. If the storage has no claim of the latter, the claim was lost.
  uint64_t shards_attempt_ = 0;
  uint64_t shards_attempt_at_read_ = 0;
  absl::Time reread_at_ = absl::InfiniteFuture();
  bool rereading_ = false;

  std::optional<v1::Claim> claim_;  // wanted, or under way
  bool pending_ = false;            // under way
  bool unused_ = false;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_CORE_STORAGE_CLAIMS_H_
