#include "services/ps/core/shard_core.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"
#include "services/ps/core/coordinator_checks.h"
#include "services/ps/core/frame_checks.h"

namespace sluice::ps {

// A shard whose tick is later than this was stopped. Same value as the coordinator's.
constexpr absl::Duration kLate = absl::Milliseconds(250);

ShardCore::ShardCore(ShardOptions options, ParallelRunner* parallel, const ShardRules* rules)
    : state_(std::move(options), parallel, rules),
      handler_([this](Stream& stream, const v1::Header& header, const absl::Cord& payload) {
        return HandleFrame(stream, header, payload);
      }),
      streams_(&state_),
      sender_(&state_, &streams_),
      registration_(&state_),
      initialization_(&state_),
      views_(&state_, &initialization_,
             [this](v1::PauseReply* reply) {
               asynchronous_.FillPauseReply(reply);
               update_holder_.FillPauseReply(reply);
             }),
      snapshots_(&state_,
                 [this](PartitionContent* content) { asynchronous_.FillRecords(content); }),
      copy_sender_(&state_,
                   {[this](Partition& partition) { synchronous_.OnHeld(partition); },
                    [this](uint64_t to, const Partition& partition) {
                      asynchronous_.OnTransfer(to, partition);
                    },
                    [this](PartitionContent* content) { asynchronous_.FillRecords(content); }}),
      update_holder_(&state_,
                     [this](uint64_t worker, const v1::Lease& lease) {
                       asynchronous_.OnLeased(worker, lease);
                     }),
      copy_holder_(&state_, &streams_, &update_holder_, [this] { OnCopyChanged(); }),
      synchronous_(&state_, &streams_, &sender_, &copy_sender_,
                   {[this](Partition& partition) { OnClosed(partition); },
                    [this] { OnVersionCommitted(); }}),
      asynchronous_(&state_, &streams_, &sender_, &copy_sender_, [this] { progress_.Want(); }),
      progress_(&state_, &registration_, &synchronous_, &asynchronous_, &copy_holder_) {
  if (state_.options.references != nullptr) {
    state_.options.references->Begin(state_.options.identity);
  }
}

// ---------------------------------------------------------------- events

bool ShardCore::Begin(absl::Time now) {
  if (state_.exited) return false;
  SLUICE_DCHECK(state_.frozen == views_.promised(),
                "R2: a shard is frozen from the reply to a Pause until the Install");
  SLUICE_DCHECK(
      !state_.view.has_value() ||
          (state_.model != nullptr && state_.partitions.size() == state_.model->partitions()),
      "a shard with a view holds its partitions");
  // While this process was stopped, the workers' messages waited unread, so that time does not
  // count against the workers.
  const absl::Time since = std::max(NextDeadline(), state_.now);
  if (now - since > kLate) synchronous_.Forgive(now - since);
  state_.now = now;
  return true;
}

void ShardCore::OnCoordinatorConnected(absl::Time now) {
  if (!Begin(now)) return;
  registration_.OnConnected(views_.Obeyed());
}

void ShardCore::OnCoordinatorDisconnected(absl::Time now) {
  if (!Begin(now)) return;
  registration_.OnDisconnected();
}

void ShardCore::OnCoordinatorMessage(const v1::CoordinatorMessage& message, absl::Time now) {
  if (!Begin(now)) return;
  Dispatch(message);
  progress_.SendIfDue();
}

void ShardCore::OnAskedToStop(std::string reason, absl::Duration grace, absl::Time now) {
  if (!Begin(now)) return;
  registration_.Leave(std::move(reason), grace);
}

void ShardCore::OnConnected(StreamId stream, absl::Time now) {
  if (!Begin(now)) return;
  streams_.Open(stream);
}

void ShardCore::OnFrame(StreamId stream, const v1::Header& header, const absl::Cord& payload,
                        absl::Time now) {
  if (!Begin(now)) return;
  streams_.Receive(stream, header, payload, handler_);
  progress_.SendIfDue();
}

void ShardCore::OnDisconnected(StreamId stream, absl::Time now) {
  if (!Begin(now)) return;
  streams_.Forget(stream);
}

v1::Header ShardCore::MakeHello(const v1::ProcessId& shard) const {
  return registration_.MakeHello(shard);
}

void ShardCore::OnShardConnected(uint64_t incarnation, absl::Time now) {
  if (!Begin(now)) return;
  synchronous_.OnShardConnected(incarnation);
  copy_sender_.OnShardConnected(incarnation);
  copy_holder_.OnShardConnected(incarnation);
  update_holder_.OnShardConnected(incarnation);
}

bool ShardCore::HasShard(uint64_t incarnation) const {
  return state_.view.has_value() && state_.view->HasShard(incarnation);
}

void ShardCore::OnPartitionLoaded(const v1::InitId& init_id, uint32_t partition,
                                  absl::StatusOr<absl::Cord> file, absl::Time now) {
  if (!Begin(now)) return;
  initialization_.OnLoaded(init_id, partition, std::move(file));
}

void ShardCore::OnPartitionWritten(uint64_t snapshot, const v1::CheckpointRef& checkpoint,
                                   uint32_t partition, absl::StatusOr<v1::PartitionFile> written,
                                   absl::Time now) {
  if (!Begin(now)) return;
  snapshots_.OnWritten(snapshot, checkpoint, partition, std::move(written));
}

void ShardCore::OnCopyRead(uint64_t transfer, absl::StatusOr<std::shared_ptr<ReceivedCopy>> read,
                           absl::Time now) {
  if (!Begin(now)) return;
  copy_holder_.OnRead(transfer, std::move(read));
}

void ShardCore::OnTick(absl::Time now) {
  if (!Begin(now)) return;
  registration_.ExitIfDue();
  if (state_.exited) return;
  streams_.Expire();
  copy_sender_.OnTick();
  copy_holder_.OnTick();
  if (registration_.HeartbeatIsDue()) {
    const bool awaits =
        state_.view.has_value() && (state_.view->synchronous() ? !synchronous_.Awaited().empty()
                                                               : !asynchronous_.Awaited().empty());
    if (awaits) progress_.Want();
    registration_.SendHeartbeat();
  }
  progress_.SendIfDue();
}

absl::Time ShardCore::NextDeadline() const {
  if (state_.exited) return absl::InfiniteFuture();
  const absl::Time next = std::min({streams_.NextExpiry(), registration_.NextDeadline(),
                                    copy_sender_.NextDeadline(), copy_holder_.NextDeadline()});
  return std::min(next, progress_.NextDeadline());
}

std::vector<ShardAction> ShardCore::TakeActions() {
  SLUICE_DCHECK(!state_.exited || state_.actions.empty() ||
                    std::holds_alternative<Exit>(state_.actions.back()),
                "Exit is the last action");
  return std::exchange(state_.actions, {});
}

// ---------------------------------------------------------------- coordinator

void ShardCore::OnRegistered(const v1::Registered& message) {
  // A coordinator answers before it has claimed an attempt. If it dies then, the storage has no
  // record of its term, and the next coordinator takes the same term.
  if (!views_.IsCurrent(message.attempt(), message.term())) return;
  registration_.OnRegistered(message.job());

  // Sends again what may have been lost with the previous connection.
  if (!state_.failure.empty()) state_.ReportFailure();
  if (!state_.view.has_value()) initialization_.Report();
  if (state_.view.has_value()) views_.ReportInstalled();
  snapshots_.Report();  // first: pins outlive the view
  views_.Report();
  if (state_.view.has_value()) progress_.Want();
}

void ShardCore::OnPrepareState(const v1::PrepareState& prepare) {
  if (!views_.Accept(prepare.init_id().attempt(), prepare.init_id().term())) return;
  // A view of this attempt is installed, so its first state is already loaded.
  if (state_.view.has_value() && prepare.init_id().attempt() <= state_.view->id().attempt()) return;
  if (initialization_.has_init_id() && Compare(prepare.init_id(), initialization_.init_id()) < 0)
    return;
  if (!initialization_.has_init_id() || Compare(prepare.init_id(), initialization_.init_id()) > 0)
    DiscardAttempt();
  initialization_.Prepare(prepare);
  SLUICE_DCHECK(Same(initialization_.init_id(), prepare.init_id()),
                "R12: a shard has one init request, the highest");
  streams_.SetShards(prepare.shards());
  streams_.Resume(handler_);
}

// Discards all state of an older attempt, or of an older init request.
void ShardCore::DiscardAttempt() {
  for (StreamId id : streams_.Ids()) streams_.Find(id)->parked_pulls = 0;
  synchronous_.DropParked();
  asynchronous_.Clear();
  snapshots_.Clear();
  sender_.Forget();
  state_.view.reset();
  state_.partitions.clear();
  state_.copies.clear();
  copy_sender_.Clear();
  copy_holder_.OnInstalled();
  update_holder_.Clear();
  state_.frozen = false;
  state_.committed = 0;
  state_.barrier = 0;
  state_.BeginDecisions({});
  state_.updates = 0;
  state_.failure.clear();
  views_.EndPause();
}

void ShardCore::OnInstall(const v1::Install& install) {
  const v1::ViewId& id = install.view().id();
  if (!views_.Accept(id.attempt(), id.term())) return;
  if (state_.view.has_value() && Same(id, state_.view->id())) {
    views_.ReportInstalled();
    return;
  }
  if (!views_.MayInstall(install)) return;

  if (absl::Status fits = CheckInstall(state_, initialization_.version(), install); !fits.ok()) {
    state_.Fail(absl::StrCat(fits.message()));
    return;
  }
  SLUICE_DCHECK(!state_.view.has_value() || Compare(id, state_.view->id()) > 0,
                "R1: an installed view is newer than the one before");

  asynchronous_.Settle(install);
  update_holder_.Settle(install);
  InstalledView view(install.view(), state_.self(), *state_.model);
  if (std::optional<std::string> wrong = AdoptPartitions(view, install); wrong.has_value()) {
    state_.Fail(*std::move(wrong));
    return;
  }

  std::vector<StreamId> parked = synchronous_.ParkedStreams();
  const std::vector<StreamId> more = asynchronous_.ParkedStreams();
  parked.insert(parked.end(), more.begin(), more.end());
  synchronous_.DropParked();
  asynchronous_.DropParked();
  sender_.Forget();

  state_.view = std::move(view);
  state_.frozen = false;
  views_.EndPause();
  if (state_.view->synchronous() && !state_.RollBackTo(install.view().first_step())) return;
  FinishInstall(install);

  streams_.SetShards(install.view().shards());
  streams_.RefuseParked(parked, "a new view");
  streams_.Resume(handler_);
}

// Takes the loaded partitions at the attempt's first view. Returns an error text if the shard does
// not hold what the view gives to it.
std::optional<std::string> ShardCore::AdoptPartitions(const InstalledView& view,
                                                      const v1::Install& install) {
  if (!state_.view.has_value()) {
    state_.partitions = initialization_.TakePartitions();
    asynchronous_.AdoptRecords(initialization_.clocks());
    if (initialization_.has_checkpoint()) state_.committed = initialization_.version();
  }
  return state_.Adopt(view, install);
}

void ShardCore::FinishInstall(const v1::Install& install) {
  state_.RetainReferences();
  state_.barrier = install.barrier();
  state_.BeginDecisions(install.decisions());
  copy_holder_.OnInstalled();
  if (state_.view->synchronous()) {
    synchronous_.OnInstalled();
    state_.committed =
        std::max({state_.committed, install.committed(), install.view().first_step()});
  } else {
    asynchronous_.OnInstalled(install);
    update_holder_.OnInstalled(asynchronous_.clocks());
  }
  copy_sender_.OnInstalled(install);
  views_.ReportInstalled();
  snapshots_.OnInstalled(install.has_snapshot() ? &install.snapshot() : nullptr);
  progress_.Want();
}

void ShardCore::OnCommitted(const v1::Committed& committed) {
  if (!state_.view.has_value() || !Same(committed.view(), state_.view->id())) return;
  if (!state_.MayChange() || !state_.view->synchronous()) return;
  if (absl::Status fits = CheckCommitted(state_, committed); !fits.ok()) {
    state_.Fail(absl::StrCat(fits.message()));
    return;
  }
  synchronous_.Commit(committed.version());
}

void ShardCore::OnBarrier(const v1::Barrier& barrier) {
  if (!state_.view.has_value() || !Same(barrier.view(), state_.view->id())) return;
  if (!state_.view->synchronous()) return;
  if (absl::Status fits = CheckDecisions(barrier.decisions()); !fits.ok()) {
    state_.Fail(absl::StrCat(fits.message()));
    return;
  }
  state_.AddDecisions(barrier.decisions());
  state_.barrier = barrier.version();
  views_.CheckAfterStep();
  synchronous_.OnBarrierMoved();
  copy_holder_.OnBarrierMoved();
}

void ShardCore::Dispatch(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kRegistered:
      return OnRegistered(message.registered());
    case v1::CoordinatorMessage::kRefusal:
      return registration_.OnRefusal(message.refusal());
    case v1::CoordinatorMessage::kPrepareState:
      return OnPrepareState(message.prepare_state());
    case v1::CoordinatorMessage::kPause:
      return views_.OnPause(message.pause());
    case v1::CoordinatorMessage::kInstall:
      return OnInstall(message.install());
    case v1::CoordinatorMessage::kCommitted:
      return OnCommitted(message.committed());
    case v1::CoordinatorMessage::kBarrier:
      return OnBarrier(message.barrier());
    case v1::CoordinatorMessage::kOpenSnapshot:
      if (state_.view.has_value()) snapshots_.Open(message.open_snapshot());
      return;
    case v1::CoordinatorMessage::kAdmitted:
      return OnAdmitted(message.admitted());
    case v1::CoordinatorMessage::kCloseSnapshot:
      return snapshots_.Close(message.close_snapshot().snapshot_id());
    case v1::CoordinatorMessage::kFinish:
      progress_.SendLast();
      return registration_.OnFinish(message.finish());
    default:
      return;  // HeartbeatReply, and messages for workers
  }
}

// ---------------------------------------------------------------- streams

void ShardCore::OnAdmitted(const v1::Admitted& admitted) {
  streams_.SetAdmitted(admitted);
  streams_.Resume(handler_);
}

absl::StatusOr<Handled> ShardCore::HandleFrame(Stream& stream, const v1::Header& header,
                                               const absl::Cord& payload) {
  SLUICE_DCHECK(stream.greeted, "a frame is handled once its peer is admitted");
  if (stream.peer.role() == v1::READER) return OnReaderFrame(stream, header);
  if (header.body_case() == v1::Header::kInitPush && stream.peer.role() == v1::WORKER) {
    return initialization_.OnPush(streams_, stream, header.init_push(), payload);
  }
  if (!header.has_view() || header.view().attempt() == 0) {
    return absl::InvalidArgumentError("a frame without a view");
  }
  if (!state_.view.has_value()) {
    // A leftover frame of an abandoned attempt is dropped, so that it does not block the pushes of
    // version 0 of the next attempt behind it.
    return initialization_.IsAfter(header.view().attempt()) ? Handled::kDone : Handled::kWait;
  }
  const int order = Compare(header.view(), state_.view->id());
  if (order > 0) {
    RETURN_IF_ERROR(views_.CheckAnnounced(header.view()));
    return Handled::kWait;
  }
  if (order < 0 && state_.rules.RefuseOlderViews()) {
    if (stream.peer.role() == v1::WORKER)
      streams_.Refuse(stream, "the view is older than the newest");
    return Handled::kDone;
  }
  return stream.peer.role() == v1::SHARD ? OnShardFrame(stream, header, payload)
                                         : OnMemberFrame(stream, header, payload);
}

absl::StatusOr<Handled> ShardCore::OnShardFrame(const Stream& stream, const v1::Header& header,
                                                const absl::Cord& payload) {
  const uint64_t sender = stream.incarnation();
  if (!state_.view->HasShard(sender)) {
    return absl::PermissionDeniedError("the sender is not a shard of the view");
  }
  // (R2) The holder knows which of these may be taken during a promise. The others are dropped: the
  // next Install makes them obsolete, and a step that its owner must finish may be behind them.
  if (header.has_copy_state()) return copy_holder_.OnState(sender, header.copy_state(), payload);
  if (!state_.view->synchronous() && header.has_copy_entry()) {
    return update_holder_.OnEntry(sender, header.copy_entry(), payload);
  }
  if (state_.view->synchronous() == header.has_copy_entry() && !header.has_copy_ack()) {
    return absl::InvalidArgumentError("the frame is not for the mode of the view");
  }
  if (header.has_copy_step()) return copy_holder_.OnStep(sender, header.copy_step(), payload);
  if (!state_.MayChange()) return Handled::kDone;

  absl::Status status;
  if (header.has_copy_ack()) {
    status = copy_sender_.OnAck(sender, header.copy_ack());
  } else if (header.has_norms()) {
    status = synchronous_.OnNorms(sender, header.norms());
  } else {
    SLUICE_DCHECK(header.has_step_participants(), "CheckSender refuses all other frames");
    status = synchronous_.OnStepParticipants(sender, header.step_participants());
  }
  if (!status.ok()) return status;
  return Handled::kDone;
}

absl::StatusOr<Handled> ShardCore::OnMemberFrame(Stream& stream, const v1::Header& header,
                                                 const absl::Cord& payload) {
  SLUICE_DCHECK(stream.peer.role() == v1::WORKER, "the members of a view are workers");
  const bool is_pull = header.body_case() == v1::Header::kPull;
  const bool of_snapshot = is_pull && header.pull().snapshot_id() != 0;
  // In a view without members, the previous members evaluate the final version.
  const bool may_read = of_snapshot && state_.view->members() == 0;
  if (!may_read && !state_.view->MemberIndex(stream.incarnation()).has_value()) {
    streams_.Refuse(stream, "the sender is not a member of the view");
    return Handled::kDone;
  }
  if (!state_.MayChange() && !is_pull) return Handled::kWait;
  absl::Status status;
  if (of_snapshot) {
    status = sender_.OnSnapshotPull(stream, header.pull(), snapshots_);
  } else if (!state_.view->synchronous()) {
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

absl::StatusOr<Handled> ShardCore::OnReaderFrame(Stream& stream, const v1::Header& header) {
  SLUICE_DCHECK(header.pull().snapshot_id() != 0, "CheckSender refuses all but pulls of snapshots");
  if (!state_.view.has_value()) return Handled::kWait;
  RETURN_IF_ERROR(sender_.OnSnapshotPull(stream, header.pull(), snapshots_));
  return Handled::kDone;
}

void ShardCore::OnClosed(Partition& partition) {
  snapshots_.OnVersion(partition);
  progress_.Want();
  views_.CheckAfterStep();
}

void ShardCore::OnVersionCommitted() {
  snapshots_.OnCommitted();
  copy_sender_.OnCommitted();
  progress_.Want();
}

void ShardCore::OnCopyChanged() {
  progress_.Want();
  views_.CheckAfterStep();
}

// ---------------------------------------------------------------- state

ShardStatus ShardCore::Status() const {
  ShardStatus status;
  status.has_view = state_.view.has_value();
  if (status.has_view) status.view = state_.view->id();
  status.frozen = state_.frozen;
  status.lowest = state_.LowestVersion();
  status.highest = state_.HighestVersion();
  status.committed = state_.committed;
  status.steps_skipped = state_.steps_skipped;
  status.dropped_contributions = state_.dropped_contributions;
  status.updates_applied = state_.updates;
  status.streams = streams_.size();
  status.waiting_frames = streams_.waiting_frames();
  status.waiting_bytes = streams_.waiting_bytes();
  status.parked_pulls = streams_.parked_pulls();
  status.staged_updates = asynchronous_.staged();
  status.open_snapshots = snapshots_.size();
  status.copies = state_.copies.size();
  status.copied_bytes = copy_holder_.received_bytes();
  status.blocks_allocated = state_.pool->allocated();
  status.repeated_blocks = state_.repeated_blocks;
  streams_.FillBounds(&status.bounds);
  status.bounds[static_cast<size_t>(Bound::kSnapshots)] = {state_.options.max_snapshots,
                                                           snapshots_.size()};
  status.bounds[static_cast<size_t>(Bound::kCopyQueueBytes)] = {
      state_.options.max_copy_queue_bytes,
      copy_holder_.QueuedBytes() + update_holder_.queued_bytes()};
  for (size_t bound = 0; bound < kBounds; ++bound) {
    status.bounds[bound].reached = state_.reached[bound];
  }
  return status;
}

std::shared_ptr<const PartitionContent> ShardCore::ContentOf(const Partition* held) const {
  if (held == nullptr) return nullptr;
  std::shared_ptr<PartitionContent> content = held->Pin(held->version());
  if (!state_.view->synchronous()) asynchronous_.FillRecords(content.get());
  return content;
}

std::shared_ptr<const PartitionContent> ShardCore::Content(uint32_t partition) const {
  return ContentOf(state_.Find(partition));
}

std::shared_ptr<const PartitionContent> ShardCore::CopyContent(uint32_t partition) const {
  const auto held = state_.copies.find(partition);
  return ContentOf(held == state_.copies.end() ? nullptr : held->second.get());
}

}  // namespace sluice::ps
