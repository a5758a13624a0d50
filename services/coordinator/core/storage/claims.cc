#include "services/coordinator/core/storage/claims.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "services/checkpoint/existing_job.h"
#include "services/common/check.h"
#include "services/protocol/ids.h"

namespace sluice::coordinator {
namespace {

constexpr int kMaxStorageErrors = 10;
// A shard may know an attempt this far above the newest claim in the storage; a higher report is
// ignored, because the storage accepts at most kMaxMissingClaims gaps.
constexpr uint64_t kMaxLostClaims = 10;
// With a damaged claim, the counters of the terms are unknown. They are below this number times the
// highest attempt: it is more than the number of coordinators that have raised the counter, and it
// is the same whichever claims are damaged or have been restored.
constexpr uint64_t kTermsOfAttempt = 1000;

// Whether a retry may succeed.
bool IsTransient(const absl::Status& status) {
  return status.code() == absl::StatusCode::kUnavailable ||
         status.code() == absl::StatusCode::kDeadlineExceeded ||
         status.code() == absl::StatusCode::kResourceExhausted ||
         status.code() == absl::StatusCode::kAborted;
}

bool SameCheckpoint(const v1::CheckpointRef& a, const v1::CheckpointRef& b) {
  return a.attempt() == b.attempt() && a.step() == b.step();
}

}  // namespace

// ---- the storage

void Claims::ReadStorage() {
  SLUICE_DCHECK(!reading_ && facts_.phase == Phase::kReading, "one read is under way at a time");
  reading_ = true;
  retry_at_ = absl::InfiniteFuture();
  shards_attempt_at_read_ = shards_attempt_;
  // Shards check the contents of the files that they load.
  output_.Add(
      coordinator::ReadStorage{unloadable_.has_value() ? FileCheck::kContents : FileCheck::kSizes});
}

void Claims::Advance(absl::Time now) {
  if (!reading_ && retry_at_ <= now) ReadStorage();
}

Verdict Claims::OnStorageRead(absl::StatusOr<StorageContents> contents, absl::Time now) {
  SLUICE_DCHECK(reading_, "the contents answer a read");
  reading_ = false;
  if (contents.ok()) {
    errors_ = 0;
    return Accept(*std::move(contents), now);
  }
  if (!IsTransient(contents.status()) || ++errors_ >= kMaxStorageErrors) {
    return Verdict::Failed(std::string(contents.status().message()));
  }
  retry_at_ = now + facts_.timers.storage_retry;
  return Verdict::Continue();
}

Verdict Claims::Accept(StorageContents contents, absl::Time now) {
  storage_ = std::move(contents);

  for (const std::string& damaged : storage_.damaged) {
    output_.Warn(absl::StrCat("skipped: ", damaged), now);
  }
  const ExistingJob& existing = storage_.existing;
  if (existing.kind == ExistingJob::Kind::kRefused) {
    return Verdict::Failed(existing.message, kCheckpointDirectoryInUse);
  }

  CountClaims(now);
  // A job that was made longer begins another attempt after the end record.
  const bool continues =
      existing.kind == ExistingJob::Kind::kResume || existing.kind == ExistingJob::Kind::kReplace;
  const bool ended = !storage_.claims.empty() && storage_.claims.back().end() && !continues;

  if (!known_) {
    known_ = true;
    attempt_.term.set_counter(1);
  }
  if (attempt_.number == 0) TakeHigherTerm();

  if (ended) {
    const bool finished = existing.kind == ExistingJob::Kind::kFinished;
    return {Verdict::Kind::kEnded,
            existing.message.empty() ? "the job has finished" : existing.message,
            finished ? kNothingTrained : ""};
  }
  // (R11) A coordinator may claim the attempt after its own, but not the one after a later
  // coordinator's attempt.
  if (attempt_.number != 0 && highest_ > attempt_.number && facts_.rules.ClaimAttempts()) {
    return Verdict::Superseded(absl::StrCat("another coordinator has claimed attempt ", highest_));
  }
  if (unloadable_.has_value() && storage_.has_newest &&
      SameCheckpoint(*unloadable_, storage_.newest.checkpoint())) {
    return Verdict::Failed(unloadable_why_);
  }
  if (std::string wrong = facts_.CheckCheckpoint(); !wrong.empty()) {
    return Verdict::Failed(std::move(wrong));
  }

  if (existing.kind == ExistingJob::Kind::kReplace) output_.Warn(existing.message, now);
  if (existing.kind == ExistingJob::Kind::kResume) output_.Info(existing.message, now);
  if (!existing.changes.empty() && storage_.has_newest && storage_.foreign_directory.empty()) {
    output_.Info(absl::StrCat("training continues at step ", storage_.newest.checkpoint().step(),
                              " with ", existing.changes),
                 now);
  }
  return Verdict::Continue();
}

void Claims::CountClaims(absl::Time now) {
  for (const v1::Claim& claim : storage_.claims) {
    highest_ = std::max(highest_, claim.attempt());
    highest_counter_ = std::max(highest_counter_, claim.term().counter());
  }
  if (absl::c_any_of(storage_.claims, IsDamaged)) {
    highest_counter_ = std::max(highest_counter_, kTermsOfAttempt * highest_);
  }
  // An attempt's number is never claimed twice: processes of the first attempt would accept the
  // messages of the second.
  if (shards_attempt_at_read_ > highest_ && shards_attempt_at_read_ - highest_ <= kMaxLostClaims) {
    output_.Warn(
        absl::StrCat("a shard knows attempt ", shards_attempt_at_read_,
                     ", and the newest claim is of attempt ", highest_, ": claims were removed"),
        now);
    highest_ = shards_attempt_at_read_;
  }
}

void Claims::OnUnloadable(const v1::CheckpointRef& checkpoint, std::string why) {
  unloadable_ = checkpoint;
  unloadable_why_ = std::move(why);
}

// ---- other coordinators

void Claims::TakeHigherTerm() {
  if (!facts_.rules.TakeHigherTerm()) return;
  attempt_.term.set_counter(std::max(attempt_.term.counter(), highest_counter_ + 1));
  SLUICE_DCHECK(!claimed(), "R1: a coordinator's term is fixed by its first claim");
}

// A term or attempt above ours belongs to a later coordinator; before our first claim, it belongs
// to an earlier one.
Verdict Claims::OnViewSeen(const v1::ViewId& seen) {
  highest_counter_ = std::max(highest_counter_, seen.term().counter());
  shards_attempt_ = std::max(shards_attempt_, seen.attempt());
  if (!claimed()) {
    if (known_) TakeHigherTerm();
  } else if (IsLater(seen)) {
    return Verdict::Superseded(
        absl::StrCat("a process knows view ", ShortName(seen), " of a newer coordinator"));
  }
  return Verdict::Continue();
}

// A shard obeys one coordinator of each counter, so it refuses another one of the same counter.
Verdict Claims::OnObeyed(const v1::ViewId& obeyed) {
  highest_counter_ = std::max(highest_counter_, obeyed.term().counter());
  if (!claimed()) {
    if (known_) TakeHigherTerm();
  } else if (IsLater(obeyed)) {
    return Verdict::Superseded(absl::StrCat("a shard obeys a newer coordinator, of attempt ",
                                            obeyed.attempt(), ", term ", obeyed.term().counter()));
  }
  return Verdict::Continue();
}

// Whether the attempt and term are of another coordinator, and not before ours. Requires claimed().
bool Claims::IsLater(const v1::ViewId& seen) const {
  SLUICE_DCHECK(claimed() && attempt_.term.counter() > 0, "ours are known");
  const uint64_t own = claim_.has_value() && !claim_->end() ? claim_->attempt() : attempt_.number;
  if (seen.attempt() != own) return seen.attempt() > own;
  return seen.term().counter() >= attempt_.term.counter() &&
         Compare(seen.term(), attempt_.term) != 0;
}

void Claims::RereadClaims(absl::Time now) {
  SLUICE_DCHECK(!rereading_ && facts_.phase == Phase::kGathering,
                "the claims are read while processes are missing, once at a time");
  if (reread_at_ == absl::InfiniteFuture()) reread_at_ = now + facts_.timers.claims;
  if (now < reread_at_) return;
  reread_at_ = absl::InfiniteFuture();
  rereading_ = true;
  output_.Add(ReadClaims{});
}

bool Claims::OnClaimsSeen(const absl::StatusOr<std::vector<v1::Claim>>& claims) {
  SLUICE_DCHECK(rereading_, "the claims answer a read");
  rereading_ = false;
  if (facts_.phase != Phase::kGathering || !claims.ok()) return false;  // read again later
  return std::any_of(claims->begin(), claims->end(),
                     [&](const v1::Claim& claim) { return claim.attempt() > highest_; });
}

// ---- claims

bool Claims::Claim(bool end, absl::Time now) {
  SLUICE_DCHECK(!claim_.has_value() || !pending_, "one claim is under way at a time");
  SLUICE_DCHECK(end || !unused_, "a claimed attempt is used before the next one is claimed");
  SLUICE_DCHECK(known_ && !rereading_, "R1: the claims before this one are known");
  v1::Claim claim;
  claim.set_format_version(kClaimFormatVersion);
  claim.set_attempt(highest() + 1);
  *claim.mutable_term() = attempt_.term;
  if (end) {
    claim.set_end(true);
  } else if (storage_.has_newest && storage_.foreign_directory.empty()) {
    // Another job's checkpoint is not a parent: parents are looked up in this job's storage.
    *claim.mutable_parent() = storage_.newest.checkpoint();
  }

  claim.set_job(FullJobName(facts_.job()));
  claim.set_settings(ClaimSettings(facts_.job()));
  claim.set_time(absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone()));

  claim_ = claim;
  pending_ = true;
  retry_at_ = absl::InfiniteFuture();
  const bool needed = end ? facts_.rules.ClaimTheEnd() : facts_.rules.ClaimAttempts();
  if (needed) output_.Add(ClaimAttempt{std::move(claim)});
  return needed;
}

bool Claims::MayTakeOver(uint64_t attempt) const {
  return attempt != 0 && highest_ == attempt && HasOpenAttempt();
}

bool Claims::HasOpenAttempt() const {
  if (claimed() || storage_.claims.empty()) return false;
  const v1::Claim& newest = storage_.claims.back();
  // Its shards compute with the settings of the attempt's begin: others take effect in the next
  // one.
  return newest.attempt() == highest_ && !newest.end() && !IsDamaged(newest) &&
         storage_.existing.changes.empty();
}

void Claims::TakeOver(uint64_t attempt) {
  SLUICE_DCHECK(MayTakeOver(attempt), "the attempt of the newest claim continues");
  attempt_.number = attempt;
}

Verdict Claims::OnClaimResult(const absl::Status& status, absl::Time now) {
  SLUICE_DCHECK(claim_.has_value() && pending_, "a result is that of the claim under way");
  pending_ = false;
  const uint64_t attempt = claim_->attempt();

  if (absl::IsAlreadyExists(status)) {
    return Verdict::Superseded(absl::StrCat("another coordinator has claimed attempt ", attempt));
  }
  if (claim_->end()) {
    // Everything is saved. The job waits for the disk, as for its last checkpoint.
    if (!status.ok()) retry_at_ = now + facts_.timers.RetryDelay(++errors_);
    return Verdict::Continue();
  }
  if (!status.ok()) {
    if (!IsTransient(status) || ++errors_ >= kMaxStorageErrors) {
      return Verdict::Failed(
          absl::StrCat("attempt ", attempt, " cannot be claimed: ", status.message()));
    }
    retry_at_ = now + facts_.timers.storage_retry;
    return Verdict::Continue();
  }

  SLUICE_DCHECK(attempt > attempt_.number, "an attempt's number is never claimed twice");
  errors_ = 0;
  attempt_.number = highest_ = attempt;
  storage_.claims.push_back(*claim_);
  if (claim_->has_parent()) {
    output_.Info(
        absl::StrCat("attempt ", attempt, ": resumed from ", CheckpointName(claim_->parent())),
        now);
  }
  unused_ = true;
  claim_.reset();
  return Verdict::Continue();
}

void Claims::OnFirstView() {
  SLUICE_DCHECK(attempt_.number != 0 && !pending_, "R11: a view is of a claimed attempt");
  unused_ = false;
  unloadable_.reset();
}

void Claims::OnAttemptOver() {
  unused_ = false;
  claim_.reset();
}

void Claims::GiveUp() {
  claim_.reset();
  pending_ = false;
}

absl::Time Claims::NextDeadline() const {
  switch (facts_.phase) {
    case Phase::kReading:
      return reading_ ? absl::InfiniteFuture() : retry_at_;
    case Phase::kGathering:
      return rereading_ ? absl::InfiniteFuture() : reread_at_;
    case Phase::kClaiming:
      return pending_ ? absl::InfiniteFuture() : retry_at_;
    case Phase::kRunning:
      return claim_.has_value() && !pending_ ? retry_at_ : absl::InfiniteFuture();
    default:
      return absl::InfiniteFuture();
  }
}

}  // namespace sluice::coordinator
