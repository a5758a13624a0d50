#include "services/ps/core/membership/views.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/protocol/ids.h"
#include "services/ps/core/state/partition.h"

namespace sluice::ps {

void Views::OnPause(const v1::Pause& pause) {
  if (current_.pausing != Pausing::kNo && Compare(pause.id(), current_.pause.id()) < 0) return;
  // The view with this Pause's number is already installed.
  if (state_.view().has_value() && OrderOf(pause.id()) <= OrderOf(state_.view()->id())) return;

  const bool overrides = pause.now() && current_.pausing == Pausing::kWaiting;
  if (overrides && !state_.rules().NowOverrides()) return;
  const bool replied = current_.pausing == Pausing::kReplied;
  current_.pause = pause;

  // A promise is not withdrawn for an AfterStep; the Pause is answered at once.
  const bool at_once = replied || pause.now() || !state_.view().has_value() ||
                       !state_.view()->synchronous() || state_.failed();
  if (at_once) {
    ReplyToPause();
    return;
  }

  current_.pausing = Pausing::kWaiting;
  CheckAfterStep();
}

void Views::CheckAfterStep() {
  if (current_.pausing != Pausing::kWaiting) return;
  SLUICE_DCHECK(state_.view().has_value() && state_.view()->synchronous(),
                "only a synchronous view waits for a step");
  // R10: an owner waits for the acks of its copies, so a shard that holds some must not stop before
  // they have passed the step.
  const uint64_t lowest =
      state_.rules().WaitForCopies() ? state_.LowestHeld() : state_.LowestVersion();
  const uint64_t barrier = state_.barrier().version();
  const bool holds = !state_.view()->owned().empty() || !state_.copies().empty();
  const uint64_t reached =
      state_.rules().WaitForEveryPartition() ? lowest : state_.HighestVersion();
  if (!holds || reached >= current_.pause.after_step() + 1 || (barrier > 0 && lowest == barrier)) {
    ReplyToPause();
  }
}

void Views::ReplyToPause() {
  current_.pausing = Pausing::kReplied;
  v1::MemberMessage message;
  *message.mutable_pause_reply() = MakePauseReply();
  out_.Report(std::move(message));
}

v1::PauseReply Views::MakePauseReply() const {
  v1::PauseReply reply;
  *reply.mutable_pause() = current_.pause.id();
  reply.set_committed(state_.committed());
  if (state_.barrier().decisions().step() > 0)
    *reply.mutable_decisions() = state_.barrier().decisions();

  if (!state_.view().has_value()) {
    if (initialization_.ready()) *reply.mutable_ready_init_id() = initialization_.init_id();
    return reply;
  }

  *reply.mutable_view() = state_.view()->id();
  *reply.mutable_newest() = state_.view()->proto();
  const auto add = [&](const Partition& partition, bool copy) {
    v1::PauseReply::PartitionState& entry = *reply.add_partitions();
    entry.set_partition(partition.id());
    entry.set_version(partition.version());
    entry.set_has_undo(partition.has_undo());
    entry.set_copy(copy);
  };
  for (const auto& [number, partition] : state_.partitions()) add(partition, false);
  for (const auto& [number, partition] : state_.copies()) add(partition, true);
  if (!state_.view()->synchronous()) fill_reply_(&reply);
  return reply;
}

bool Views::MayInstall(const v1::Install& install) const {
  const v1::ViewId& id = install.view().id();
  if (!state_.view().has_value()) {
    // The first view names its init request (R12).
    if (!initialization_.ready()) return false;
    const bool answers = current_.pausing != Pausing::kReplied || !install.has_pause() ||
                         Same(install.pause(), current_.pause.id());
    if (!answers && state_.rules().FenceInstalls()) return false;
    return Same(install.view().init_id(), initialization_.init_id()) ||
           !state_.rules().CheckInitId();
  }
  if (id.attempt() != state_.view()->id().attempt() || Compare(id, state_.view()->id()) <= 0) {
    return false;
  }
  if (!state_.rules().FenceInstalls()) return true;
  return current_.pausing == Pausing::kReplied && Same(install.pause(), current_.pause.id());
}

void Views::Install(InstalledView view) {
  current_.installed = std::move(view);
  current_.pausing = Pausing::kNo;
}

void Views::ReportInstalled() {
  SLUICE_DCHECK(state_.view().has_value(), "an installed view is reported");
  v1::MemberMessage message;
  *message.mutable_installed()->mutable_view() = state_.view()->id();
  out_.Report(std::move(message));
}

absl::Status Views::CheckAnnounced(const v1::ViewId& later) const {
  if (OrderOf(later) <= OrderOf(current_.pause.id()) || !state_.rules().FenceInstalls()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("view ", later.number(), " of attempt ", later.attempt(),
                   " is ahead of this shard, which has seen neither its Install nor its Pause; "
                   "the newest view here is ",
                   state_.view()->id().number(), " of attempt ", state_.view()->id().attempt()));
}

void Views::Report() {
  if (current_.promised()) ReplyToPause();
}

}  // namespace sluice::ps
