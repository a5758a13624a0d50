#include "services/ps/core/views.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/protocol/ids.h"
#include "services/ps/core/partition.h"

namespace sluice::ps {

bool Views::IsOlder(uint64_t attempt, const v1::Term& term) const {
  const v1::Term& known = authority_.term;
  if (attempt != authority_.attempt) return attempt < authority_.attempt;
  if (term.counter() != known.counter()) return term.counter() < known.counter();
  return known.counter() > 0 && term.coordinator() != known.coordinator();
}

bool Views::IsCurrent(uint64_t attempt, const v1::Term& term) {
  if (!IsOlder(attempt, term) || !state_.rules.FenceTerms()) return true;
  state_.actions.push_back(
      DropCoordinator{absl::StrCat("attempt ", attempt, ", term ", term.counter(),
                                   " of this coordinator is over: this shard knows attempt ",
                                   authority_.attempt, ", term ", authority_.term.counter())});
  return false;
}

bool Views::Accept(uint64_t attempt, const v1::Term& term) {
  if (!IsCurrent(attempt, term)) return false;
  if (!IsOlder(attempt, term)) authority_ = {attempt, term};
  return true;
}

v1::ViewId Views::Obeyed() const {
  v1::ViewId obeyed;
  obeyed.set_attempt(authority_.attempt);
  *obeyed.mutable_term() = authority_.term;
  return obeyed;
}

void Views::OnPause(const v1::Pause& pause) {
  if (!Accept(pause.id().attempt(), pause.id().term())) return;
  if (pausing_ != Pausing::kNo && Compare(pause.id(), pause_.id()) < 0) return;
  // The view with this Pause's number is already installed.
  if (state_.view.has_value() && OrderOf(pause.id()) <= OrderOf(state_.view->id())) return;

  const bool overrides = pause.now() && pausing_ == Pausing::kWaiting;
  if (overrides && !state_.rules.NowOverrides()) return;
  const bool replied = pausing_ == Pausing::kReplied;
  pause_ = pause;

  // A promise is not withdrawn for an AfterStep; the Pause is answered at once.
  const bool at_once = replied || pause.now() || !state_.view.has_value() ||
                       !state_.view->synchronous() || !state_.failure.empty();
  if (at_once) {
    ReplyToPause();
    return;
  }

  pausing_ = Pausing::kWaiting;
  CheckAfterStep();
}

void Views::CheckAfterStep() {
  if (pausing_ != Pausing::kWaiting) return;
  SLUICE_DCHECK(state_.view.has_value() && state_.view->synchronous(),
                "only a synchronous view waits for a step");
  // R10: an owner waits for the acks of its copies, so a shard that holds some must not stop before
  // they have passed the step.
  const uint64_t lowest =
      state_.rules.WaitForCopies() ? state_.LowestHeld() : state_.LowestVersion();
  const bool holds = !state_.view->owned().empty() || !state_.copies.empty();
  const uint64_t reached = state_.rules.WaitForEveryPartition() ? lowest : state_.HighestVersion();
  if (!holds || reached >= pause_.after_step() + 1 ||
      (state_.barrier > 0 && lowest == state_.barrier)) {
    ReplyToPause();
  }
}

void Views::ReplyToPause() {
  pausing_ = Pausing::kReplied;
  state_.frozen = true;
  v1::MemberMessage message;
  *message.mutable_pause_reply() = MakePauseReply();
  state_.Report(std::move(message));
}

v1::PauseReply Views::MakePauseReply() const {
  v1::PauseReply reply;
  *reply.mutable_pause() = pause_.id();
  reply.set_committed(state_.committed);
  if (state_.decisions.step() > 0) *reply.mutable_decisions() = state_.decisions;

  if (!state_.view.has_value()) {
    if (initialization_.ready()) *reply.mutable_ready_init_id() = initialization_.init_id();
    return reply;
  }

  *reply.mutable_view() = state_.view->id();
  *reply.mutable_newest() = state_.view->proto();
  const auto add = [&](const Partition& partition, bool copy) {
    v1::PauseReply::PartitionState& entry = *reply.add_partitions();
    entry.set_partition(partition.id());
    entry.set_version(partition.version());
    entry.set_has_undo(partition.has_undo());
    entry.set_copy(copy);
  };
  for (uint32_t number : state_.view->owned()) add(*state_.partitions[number], false);
  for (const auto& [number, partition] : state_.copies) add(*partition, true);
  if (!state_.view->synchronous()) fill_reply_(&reply);
  return reply;
}

bool Views::MayInstall(const v1::Install& install) const {
  const v1::ViewId& id = install.view().id();
  if (!state_.view.has_value()) {
    // The first view names its init request (R12).
    if (!initialization_.ready()) return false;
    const bool answers =
        pausing_ != Pausing::kReplied || !install.has_pause() || Same(install.pause(), pause_.id());
    if (!answers && state_.rules.FenceInstalls()) return false;
    return Same(install.view().init_id(), initialization_.init_id()) || !state_.rules.CheckInitId();
  }
  if (id.attempt() != state_.view->id().attempt() || Compare(id, state_.view->id()) <= 0) {
    return false;
  }
  if (!state_.rules.FenceInstalls()) return true;
  return pausing_ == Pausing::kReplied && Same(install.pause(), pause_.id());
}

void Views::ReportInstalled() {
  SLUICE_DCHECK(state_.view.has_value(), "an installed view is reported");
  v1::MemberMessage message;
  *message.mutable_installed()->mutable_view() = state_.view->id();
  state_.Report(std::move(message));
}

absl::Status Views::CheckAnnounced(const v1::ViewId& later) const {
  if (OrderOf(later) <= OrderOf(pause_.id()) || !state_.rules.FenceInstalls()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("view ", later.number(), " of attempt ", later.attempt(),
                   " is ahead of this shard, which has seen neither its Install nor its Pause; "
                   "the newest view here is ",
                   state_.view->id().number(), " of attempt ", state_.view->id().attempt()));
}

void Views::Report() {
  if (promised()) ReplyToPause();
}

}  // namespace sluice::ps
