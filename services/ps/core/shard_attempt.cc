#include "services/ps/core/shard_attempt.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/execution/references.h"
#include "services/protocol/ids.h"
#include "services/ps/core/session/coordinator_checks.h"
#include "services/ps/core/session/frame_checks.h"

namespace sluice::ps {
namespace {

// The partitions of which the shard holds a whole copy from this Install on, ascending.
std::vector<uint32_t> WholeCopies(const InstalledView& view, const v1::Install& install,
                                  uint64_t self) {
  std::vector<uint32_t> numbers;
  const auto add = [&](const google::protobuf::RepeatedField<uint32_t>& whole,
                       const google::protobuf::RepeatedField<uint32_t>& list) {
    for (const uint32_t number : whole) {
      const uint32_t position = list[static_cast<int>(number)];
      const v1::View::Shard& shard = view.proto().shards(static_cast<int>(position) - 1);
      if (shard.process().incarnation() == self) numbers.push_back(number);
    }
  };

  add(install.whole_followers(), view.proto().follower());
  add(install.whole_targets(), view.proto().target());
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace

ShardAttempt::ShardAttempt(ShardState* state, Outbox* out, StreamTable* streams,
                           const Registration* registration)
    : state_(*state),
      streams_(*streams),
      failure_(out),
      sender_(state, out, streams),
      initialization_(state, out),
      views_(state, out, &initialization_,
             [this](v1::PauseReply* reply) {
               asynchronous_.FillPauseReply(reply);
               replica_.FillPauseReply(reply);
             }),
      snapshots_(state, out,
                 [this](PartitionContent* content) { asynchronous_.FillRecords(content); }),
      copy_sender_(state, out,
                   [this](uint64_t to, PartitionContent* content) {
                     asynchronous_.OnTransfer(to, content->partition);
                     asynchronous_.FillRecords(content);
                   }),
      replica_(state, out, &failure_, &copies_, streams,
               {[this] { OnCopyChanged(); },
                [this](uint64_t worker, const v1::Lease& lease) {
                  asynchronous_.OnLeased(worker, lease);
                }}),
      synchronous_(state, out, &failure_, &partitions_, streams, &sender_, &copy_sender_,
                   {[this](Partition& partition) { OnClosed(partition); },
                    [this] { OnVersionCommitted(); }}),
      asynchronous_(state, out, &failure_, &partitions_, streams, &sender_, &copy_sender_,
                    [this] { progress_.Want(); }),
      progress_(state, out, registration, &synchronous_, &asynchronous_) {
  state->Attach(Facts());
}

ShardState::AttemptFacts ShardAttempt::Facts() const {
  ShardState::AttemptFacts facts;
  facts.job = &initialization_.job();
  facts.view = &views_.current();
  facts.barrier = &barrier_;
  facts.failure = &failure_;
  facts.partitions = &partitions_;
  facts.copies = &copies_;
  facts.committed = &synchronous_.committed();
  facts.updates = &asynchronous_.updates();
  return facts;
}

// ---------------------------------------------------------------- coordinator

void ShardAttempt::OnPrepareState(const v1::PrepareState& prepare) {
  initialization_.Prepare(prepare);
  streams_.SetShards(prepare.shards());
}

void ShardAttempt::OnOpenSnapshot(const v1::OpenSnapshot& request) {
  if (state_.view().has_value()) snapshots_.Open(request);
}

void ShardAttempt::ReportAgain() {
  if (failure_.failed()) failure_.Report();
  const bool has_view = state_.view().has_value();
  if (!has_view) initialization_.Report();
  if (has_view) views_.ReportInstalled();
  snapshots_.Report();  // first: pins outlive the view
  views_.Report();
  if (has_view) progress_.Want();
}

bool ShardAttempt::IsOfSynchronousView(const v1::ViewId& view) const {
  return state_.view().has_value() && Same(view, state_.view()->id()) &&
         state_.view()->synchronous();
}

void ShardAttempt::OnCommitted(const v1::Committed& committed) {
  if (!IsOfSynchronousView(committed.view()) || !state_.MayChange()) return;
  if (absl::Status fits = CheckCommitted(state_, committed); !fits.ok()) {
    failure_.Fail(absl::StrCat(fits.message()));
    return;
  }
  synchronous_.Commit(committed.version());
}

void ShardAttempt::OnBarrier(const v1::Barrier& barrier) {
  if (!IsOfSynchronousView(barrier.view())) return;
  if (absl::Status fits = CheckDecisions(barrier.decisions()); !fits.ok()) {
    failure_.Fail(absl::StrCat(fits.message()));
    return;
  }
  barrier_.Move(barrier.version(), barrier.decisions());
  views_.CheckAfterStep();
  synchronous_.OnBarrierMoved();
  replica_.OnBarrierMoved();
}

// ---------------------------------------------------------------- views

bool ShardAttempt::OnInstall(const v1::Install& install) {
  const v1::ViewId& id = install.view().id();
  if (state_.view().has_value() && Same(id, state_.view()->id())) {
    views_.ReportInstalled();
    return false;
  }
  if (!views_.MayInstall(install)) return false;

  if (absl::Status fits = CheckInstall(state_, initialization_.version(), install); !fits.ok()) {
    failure_.Fail(absl::StrCat(fits.message()));
    return false;
  }
  SLUICE_DCHECK(!state_.view().has_value() || Compare(id, state_.view()->id()) > 0,
                "R1: an installed view is newer than the one before");

  asynchronous_.Settle(install);
  replica_.Settle(install);
  InstalledView view(install.view(), state_.self(), *state_.model());
  if (std::optional<std::string> wrong = AdoptPartitions(view, install); wrong.has_value()) {
    failure_.Fail(*std::move(wrong));
    return false;
  }

  const std::vector<StreamId> parked = DropParked();
  views_.Install(std::move(view));
  if (!BeginTraining(install)) return false;

  streams_.SetShards(install.view().shards());
  streams_.RefuseParked(parked, "a new view");
  return true;
}

std::vector<StreamId> ShardAttempt::DropParked() {
  std::vector<StreamId> parked = synchronous_.ParkedStreams();
  const std::vector<StreamId> more = asynchronous_.ParkedStreams();
  parked.insert(parked.end(), more.begin(), more.end());
  synchronous_.DropParked();
  asynchronous_.DropParked();
  sender_.Forget();
  return parked;
}

std::optional<std::string> ShardAttempt::AdoptPartitions(const InstalledView& view,
                                                         const v1::Install& install) {
  if (!state_.view().has_value()) {
    partitions_ = initialization_.TakePartitions();
    asynchronous_.AdoptRecords(initialization_.clocks());
    if (initialization_.has_checkpoint()) synchronous_.BeginAt(initialization_.version());
  }
  return Adopt(view, install);
}

std::optional<std::string> ShardAttempt::Adopt(const InstalledView& next,
                                               const v1::Install& install) {
  const std::vector<uint32_t> copied = WholeCopies(next, install, state_.self());
  for (const std::vector<uint32_t>* numbers : {&next.owned(), &copied}) {
    for (uint32_t number : *numbers) {
      if (partitions_.count(number) > 0 || copies_.count(number) > 0) continue;
      return absl::StrCat("view ", ShortName(next.id()), " gives partition ", number,
                          " to a shard that does not hold it");
    }
  }

  PartitionMap held = std::exchange(copies_, {});
  held.merge(partitions_);
  partitions_.clear();
  for (uint32_t number : next.owned()) partitions_.insert(held.extract(number));
  for (uint32_t number : copied) copies_.insert(held.extract(number));
  for (auto& [number, copy] : copies_) copy.Reset(0);
  return std::nullopt;
}

bool ShardAttempt::RollBackTo(uint64_t first_step) {
  for (PartitionMap* held : {&partitions_, &copies_}) {
    for (auto& [number, partition] : *held) {
      if (!RollBack(partition, first_step)) return false;
    }
  }
  return true;
}

bool ShardAttempt::RollBack(Partition& partition, uint64_t first_step) {
  // Only the step that the view takes back is undone; its version is the first step plus one.
  if (partition.version() == first_step + 1 && partition.has_undo()) partition.RollBack();
  if (partition.version() != first_step) {
    failure_.Fail(absl::StrCat("view ", ShortName(state_.view()->id()), " begins at step ",
                               first_step, ", partition ", partition.id(), " is at ",
                               partition.version()));
    return false;
  }

  partition.DropUndo();
  return true;
}

bool ShardAttempt::BeginTraining(const v1::Install& install) {
  const bool synchronous = state_.view()->synchronous();
  if (synchronous && !RollBackTo(install.view().first_step())) return false;
  RetainReferences();
  barrier_.Begin(install.barrier(), install.decisions());

  replica_.OnInstalled();
  if (synchronous) {
    synchronous_.OnInstalled(install);
  } else {
    asynchronous_.OnInstalled(install);
    replica_.OnUpdatesInstalled(asynchronous_.clocks());
  }
  copy_sender_.OnInstalled(install);

  views_.ReportInstalled();
  snapshots_.OnInstalled(install.has_snapshot() ? &install.snapshot() : nullptr);
  progress_.Want();
  return true;
}

// In a view without members, the previous members evaluate the final version, so they keep theirs.
void ShardAttempt::RetainReferences() {
  References* const references = state_.options().references;
  if (references == nullptr || state_.view()->members() == 0) return;
  std::vector<v1::ProcessId> members;
  for (const v1::View::Member& worker : state_.view()->proto().workers()) {
    members.push_back(worker.process());
  }
  references->Retain(members);
}

// ---------------------------------------------------------------- frames

absl::StatusOr<Handled> ShardAttempt::HandleFrame(Stream& stream, const v1::Header& header,
                                                  const absl::Cord& payload) {
  SLUICE_DCHECK(stream.greeted, "a frame is handled once its peer is admitted");

  if (stream.peer.role() == v1::READER) return OnReaderFrame(stream, header);
  if (header.body_case() == v1::Header::kInitPush && stream.peer.role() == v1::WORKER) {
    return initialization_.OnPush(streams_, stream, header.init_push(), payload);
  }

  if (!header.has_view() || header.view().attempt() == 0) {
    return absl::InvalidArgumentError("a frame without a view");
  }

  if (!state_.view().has_value()) {
    // A leftover frame of an abandoned attempt is dropped, so that it does not block the pushes of
    // version 0 of the next attempt behind it.
    return initialization_.IsAfter(header.view().attempt()) ? Handled::kDone : Handled::kWait;
  }

  const int order = Compare(header.view(), state_.view()->id());
  if (order > 0) {
    RETURN_IF_ERROR(views_.CheckAnnounced(header.view()));
    return Handled::kWait;
  }

  if (order < 0 && state_.rules().RefuseOlderViews()) {
    if (stream.peer.role() == v1::WORKER)
      streams_.Refuse(stream, "the view is older than the newest");
    return Handled::kDone;
  }

  return stream.peer.role() == v1::SHARD ? OnShardFrame(stream, header, payload)
                                         : OnMemberFrame(stream, header, payload);
}

absl::StatusOr<Handled> ShardAttempt::OnShardFrame(const Stream& stream, const v1::Header& header,
                                                   const absl::Cord& payload) {
  const uint64_t sender = stream.incarnation();
  if (!state_.view()->HasShard(sender)) {
    return absl::PermissionDeniedError("the sender is not a shard of the view");
  }
  const bool of_updates = header.has_copy_entry() && header.copy_entry().worker() != 0;
  const bool of_steps = header.has_norms() || header.has_step_participants() ||
                        (header.has_copy_entry() && !of_updates);
  if (state_.view()->synchronous() ? of_updates : of_steps) {
    return absl::InvalidArgumentError("the frame is not for the mode of the view");
  }

  // (R2) The replica knows which frames it may take during a promise. The others are dropped: the
  // next Install makes them obsolete, and a step that its owner must finish may be behind them.
  absl::Status status;
  if (header.has_copy_state()) {
    status = replica_.OnState(sender, header.copy_state(), payload);
  } else if (header.has_copy_entry()) {
    status = replica_.OnEntry(sender, header.copy_entry(), payload);
  } else if (!state_.MayChange()) {
    return Handled::kDone;
  } else if (header.has_copy_ack()) {
    status = copy_sender_.log().OnAck(sender, header.copy_ack());
  } else if (header.has_copy_whole()) {
    status = copy_sender_.OnWhole(sender, header.copy_whole());
  } else if (header.has_norms()) {
    status = synchronous_.OnNorms(sender, header.norms());
  } else {
    SLUICE_DCHECK(header.has_step_participants(), "CheckSender refuses all other frames");
    status = synchronous_.OnStepParticipants(sender, header.step_participants());
  }
  if (!status.ok()) return status;
  return Handled::kDone;
}

absl::StatusOr<Handled> ShardAttempt::OnMemberFrame(Stream& stream, const v1::Header& header,
                                                    const absl::Cord& payload) {
  SLUICE_DCHECK(stream.peer.role() == v1::WORKER, "the members of a view are workers");
  const bool is_pull = header.body_case() == v1::Header::kPull;
  const bool of_snapshot = is_pull && header.pull().snapshot_id() != 0;

  // In a view without members, the previous members evaluate the final version.
  const bool may_read = of_snapshot && state_.view()->members() == 0;
  if (!may_read && !state_.view()->MemberIndex(stream.incarnation()).has_value()) {
    streams_.Refuse(stream, "the sender is not a member of the view");
    return Handled::kDone;
  }
  if (!state_.MayChange() && !is_pull) return Handled::kWait;

  absl::Status status;
  if (of_snapshot) {
    status = sender_.OnSnapshotPull(stream, header.pull(), snapshots_);
  } else if (!state_.view()->synchronous()) {
    status = asynchronous_.OnFrame(stream, header, payload);
  } else if (is_pull) {
    status = synchronous_.OnPull(stream, header.pull(), payload);
  } else if (header.body_case() == v1::Header::kPush) {
    status = synchronous_.OnPush(stream, header.push(), payload);
  } else if (header.has_step_sum()) {
    status = synchronous_.OnStepSum(stream, header.step_sum(), payload);
  } else {
    status = absl::InvalidArgumentError(
        absl::StrCat("frame ", header.body_case(), " is not for a shard in synchronous training"));
  }
  if (!status.ok()) return status;
  return Handled::kDone;
}

absl::StatusOr<Handled> ShardAttempt::OnReaderFrame(Stream& stream, const v1::Header& header) {
  SLUICE_DCHECK(header.pull().snapshot_id() != 0, "CheckSender refuses all but pulls of snapshots");
  if (!state_.view().has_value()) return Handled::kWait;
  RETURN_IF_ERROR(sender_.OnSnapshotPull(stream, header.pull(), snapshots_));
  return Handled::kDone;
}

void ShardAttempt::OnShardConnected(uint64_t incarnation) {
  synchronous_.OnShardConnected(incarnation);
  copy_sender_.OnShardConnected(incarnation);
  replica_.OnShardConnected(incarnation);
}

// ---------------------------------------------------------------- parts

void ShardAttempt::OnClosed(Partition& partition) {
  snapshots_.OnVersion(partition);
  progress_.Want();
  views_.CheckAfterStep();
}

void ShardAttempt::OnVersionCommitted() {
  snapshots_.OnCommitted();
  copy_sender_.OnCommitted();
  progress_.Want();
}

void ShardAttempt::OnCopyChanged() {
  progress_.Want();
  views_.CheckAfterStep();
}

// ---------------------------------------------------------------- time and state

void ShardAttempt::OnTick() {
  copy_sender_.OnTick();
  replica_.OnTick();
}

void ShardAttempt::OnHeartbeat() {
  if (!state_.view().has_value()) return;
  if (!synchronous_.Awaited().empty() || !asynchronous_.Awaited().empty()) progress_.Want();
}

absl::Time ShardAttempt::NextDeadline() const {
  return std::min({copy_sender_.NextDeadline(), replica_.NextDeadline(), progress_.NextDeadline()});
}

std::shared_ptr<const PartitionContent> ShardAttempt::Content(const PartitionMap& held,
                                                              uint32_t partition) const {
  const auto found = held.find(partition);
  if (found == held.end()) return nullptr;
  std::shared_ptr<PartitionContent> content = found->second.Pin(found->second.version());
  if (!state_.view()->synchronous()) asynchronous_.FillRecords(content.get());
  return content;
}

}  // namespace sluice::ps
