#include "services/ps/core/shard_core.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/check.h"
#include "services/common/status_macros.h"
#include "services/protocol/ids.h"
#include "services/ps/core/asynchronous.h"
#include "services/ps/core/coordinator_checks.h"
#include "services/ps/core/copy_holder.h"
#include "services/ps/core/copy_sender.h"
#include "services/ps/core/data_sender.h"
#include "services/ps/core/frame_checks.h"
#include "services/ps/core/initialization.h"
#include "services/ps/core/progress_report.h"
#include "services/ps/core/registration.h"
#include "services/ps/core/shard_state.h"
#include "services/ps/core/snapshots.h"
#include "services/ps/core/streams.h"
#include "services/ps/core/synchronous.h"
#include "services/ps/core/update_holder.h"
#include "services/ps/core/views.h"

namespace sluice::ps {

// A shard whose tick is later than this was stopped. Same value as the coordinator's.
constexpr absl::Duration kLate = absl::Milliseconds(250);

// The dispatcher: decides which part handles an event, and whether it may do so now (views,
// promises). It implements view changes; the parts implement training within a view.
class ShardCore::Impl {
 public:
  Impl(ShardOptions options, ParallelRunner* parallel, const ShardRules* rules)
      : state(std::move(options), parallel, rules) {
    if (state.options.references != nullptr)
      state.options.references->Begin(state.options.identity);
  }

  // ---- coordinator
  void OnRegistered(const v1::Registered& message);
  void OnPrepareState(const v1::PrepareState& prepare);
  void OnInstall(const v1::Install& install);
  void OnCommitted(const v1::Committed& committed);
  void OnBarrier(const v1::Barrier& barrier);
  void Dispatch(const v1::CoordinatorMessage& message);

  // ---- streams
  absl::StatusOr<Handled> OnFrame(Stream& stream, const v1::Header& header,
                                  const absl::Cord& payload);
  absl::StatusOr<Handled> OnMemberFrame(Stream& stream, const v1::Header& header,
                                        const absl::Cord& payload);
  absl::StatusOr<Handled> OnReaderFrame(Stream& stream, const v1::Header& header);
  void OnAdmitted(const v1::Admitted& admitted);
  absl::StatusOr<Handled> OnShardFrame(const Stream& stream, const v1::Header& header,
                                       const absl::Cord& payload);
  StreamTable::Handler handler() { return handler_; }
  void Resume() { streams.Resume(handler_); }

  // ---- time
  // Begins an event, and sets its time. False: the shard has exited.
  bool Begin(absl::Time now);
  void OnTick();
  absl::Time NextDeadline() const;

  ShardStatus Status() const;
  // Null if the partition is null.
  std::shared_ptr<const PartitionContent> ContentOf(const Partition* held) const;

  ShardState state;
  StreamTable streams{&state};
  DataSender sender{&state, &streams};
  Registration registration{&state};
  Initialization initialization{&state};
  Views views{&state, &initialization, [this](v1::PauseReply* reply) {
                asynchronous.FillPauseReply(reply);
                update_holder.FillPauseReply(reply);
              }};
  Snapshots snapshots{&state,
                      [this](PartitionContent* content) { asynchronous.FillRecords(content); }};
  CopySender copy_sender{
      &state,
      {[this](Partition& partition) { synchronous.OnHeld(partition); },
       [this](uint64_t to, const Partition& partition) { asynchronous.OnTransfer(to, partition); },
       [this](PartitionContent* content) { asynchronous.FillRecords(content); }}};
  UpdateHolder update_holder{&state, [this](uint64_t worker, const v1::Lease& lease) {
                               asynchronous.OnLeased(worker, lease);
                             }};
  CopyHolder copy_holder{&state, &streams, &update_holder, [this] { OnCopyChanged(); }};
  Synchronous synchronous{
      &state,
      &streams,
      &sender,
      &copy_sender,
      {[this](Partition& partition) { OnClosed(partition); }, [this] { OnVersionCommitted(); }}};
  Asynchronous asynchronous{&state, &streams, &sender, &copy_sender, [this] { progress.Want(); }};
  ProgressReport progress{&state, &registration, &synchronous, &asynchronous, &copy_holder};

 private:
  void DiscardAttempt();
  std::optional<std::string> AdoptPartitions(const InstalledView& view, const v1::Install& install);
  void FinishInstall(const v1::Install& install);
  void OnClosed(Partition& partition);
  void OnVersionCommitted();
  void OnCopyChanged();
  const std::function<absl::StatusOr<Handled>(Stream&, const v1::Header&, const absl::Cord&)>
      handler_ = [this](Stream& stream, const v1::Header& header, const absl::Cord& payload) {
        return OnFrame(stream, header, payload);
      };
};

// ---------------------------------------------------------------- coordinator

void ShardCore::Impl::OnRegistered(const v1::Registered& message) {
  // A coordinator answers before it has claimed an attempt. If it dies then, the storage has no
  // record of its term, and the next coordinator takes the same term.
  if (!views.Hears(message.attempt(), message.term())) return;
  registration.OnRegistered(message.job());

  // Sends again what may have been lost with the previous connection.
  if (!state.failure.empty()) state.SayFailed();
  if (!state.view.has_value()) initialization.Report();
  if (state.view.has_value()) views.ReportInstalled();
  snapshots.Report();  // first: pins outlive the view
  views.Report();
  if (state.view.has_value()) progress.Want();
}

void ShardCore::Impl::OnPrepareState(const v1::PrepareState& prepare) {
  if (!views.Accept(prepare.init_id().attempt(), prepare.init_id().term())) return;
  // A view of this attempt is installed, so its first state is already loaded.
  if (state.view.has_value() && prepare.init_id().attempt() <= state.view->id().attempt()) return;
  if (initialization.has_init_id() && Compare(prepare.init_id(), initialization.init_id()) < 0)
    return;
  if (!initialization.has_init_id() || Compare(prepare.init_id(), initialization.init_id()) > 0)
    DiscardAttempt();
  initialization.Prepare(prepare);
  SLUICE_DCHECK(Same(initialization.init_id(), prepare.init_id()),
                "R12: a shard has one init request, the highest");
  streams.SetShards(prepare.shards());
  Resume();
}

// Discards all state of an older attempt, or of an older init request.
void ShardCore::Impl::DiscardAttempt() {
  for (StreamId id : streams.Ids()) streams.Find(id)->parked_pulls = 0;
  synchronous.DropParked();
  asynchronous.Clear();
  snapshots.Clear();
  sender.Forget();
  state.view.reset();
  state.partitions.clear();
  state.copies.clear();
  copy_sender.Clear();
  copy_holder.OnInstalled();
  update_holder.Clear();
  state.frozen = false;
  state.committed = 0;
  state.barrier = 0;
  state.updates = 0;
  state.failure.clear();
  views.EndPause();
}

void ShardCore::Impl::OnInstall(const v1::Install& install) {
  const v1::ViewId& id = install.view().id();
  if (!views.Accept(id.attempt(), id.term())) return;
  if (state.view.has_value() && Same(id, state.view->id())) {
    views.ReportInstalled();
    return;
  }
  if (!views.MayInstall(install)) return;

  if (absl::Status fits = CheckInstall(state, initialization.version(), install); !fits.ok()) {
    state.Fail(absl::StrCat(fits.message()));
    return;
  }
  SLUICE_DCHECK(!state.view.has_value() || Compare(id, state.view->id()) > 0,
                "R1: an installed view is newer than the one before");

  asynchronous.Settle(install);
  update_holder.Settle(install);
  InstalledView view(install.view(), state.self(), *state.model);
  if (std::optional<std::string> wrong = AdoptPartitions(view, install); wrong.has_value()) {
    state.Fail(*std::move(wrong));
    return;
  }

  std::vector<StreamId> parked = synchronous.ParkedStreams();
  const std::vector<StreamId> more = asynchronous.ParkedStreams();
  parked.insert(parked.end(), more.begin(), more.end());
  synchronous.DropParked();
  asynchronous.DropParked();
  sender.Forget();

  state.view = std::move(view);
  state.frozen = false;
  views.EndPause();
  if (state.view->synchronous() && !state.RollBackTo(install.view().first_step())) return;
  FinishInstall(install);

  streams.SetShards(install.view().shards());
  streams.RefuseParked(parked, "a new view");
  Resume();
}

// Takes the loaded partitions at the attempt's first view. Returns an error text if the shard does
// not hold what the view gives to it.
std::optional<std::string> ShardCore::Impl::AdoptPartitions(const InstalledView& view,
                                                            const v1::Install& install) {
  if (!state.view.has_value()) {
    state.partitions = initialization.TakePartitions();
    asynchronous.AdoptRecords(initialization.clocks());
    if (initialization.has_checkpoint()) state.committed = initialization.version();
  }
  return state.Adopt(view, install);
}

void ShardCore::Impl::FinishInstall(const v1::Install& install) {
  state.RetainReferences();
  state.barrier = install.barrier();
  copy_holder.OnInstalled();
  if (state.view->synchronous()) {
    synchronous.OnInstalled();
    state.committed = std::max({state.committed, install.committed(), install.view().first_step()});
  } else {
    asynchronous.OnInstalled(install);
    update_holder.OnInstalled(asynchronous.clocks());
  }
  copy_sender.OnInstalled(install);
  views.ReportInstalled();
  snapshots.OnInstalled(install.has_snapshot() ? &install.snapshot() : nullptr);
  progress.Want();
}

void ShardCore::Impl::OnCommitted(const v1::Committed& committed) {
  if (!state.view.has_value() || !Same(committed.view(), state.view->id())) return;
  if (!state.MayChange() || !state.view->synchronous()) return;
  if (absl::Status fits = CheckCommitted(state, committed); !fits.ok()) {
    state.Fail(absl::StrCat(fits.message()));
    return;
  }
  synchronous.Commit(committed.version());
}

void ShardCore::Impl::OnBarrier(const v1::Barrier& barrier) {
  if (!state.view.has_value() || !Same(barrier.view(), state.view->id())) return;
  if (!state.view->synchronous()) return;
  state.barrier = barrier.version();
  views.CheckAfterStep();
  synchronous.OnBarrierMoved();
}

void ShardCore::Impl::Dispatch(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kRegistered:
      return OnRegistered(message.registered());
    case v1::CoordinatorMessage::kRefusal:
      return registration.OnRefusal(message.refusal());
    case v1::CoordinatorMessage::kPrepareState:
      return OnPrepareState(message.prepare_state());
    case v1::CoordinatorMessage::kPause:
      return views.OnPause(message.pause());
    case v1::CoordinatorMessage::kInstall:
      return OnInstall(message.install());
    case v1::CoordinatorMessage::kCommitted:
      return OnCommitted(message.committed());
    case v1::CoordinatorMessage::kBarrier:
      return OnBarrier(message.barrier());
    case v1::CoordinatorMessage::kOpenSnapshot:
      if (state.view.has_value()) snapshots.Open(message.open_snapshot());
      return;
    case v1::CoordinatorMessage::kAdmitted:
      return OnAdmitted(message.admitted());
    case v1::CoordinatorMessage::kCloseSnapshot:
      return snapshots.Close(message.close_snapshot().snapshot_id());
    case v1::CoordinatorMessage::kFinish:
      return registration.OnFinish(message.finish());
    default:
      return;  // HeartbeatReply, and messages for workers
  }
}

// ---------------------------------------------------------------- streams

void ShardCore::Impl::OnAdmitted(const v1::Admitted& admitted) {
  streams.SetAdmitted(admitted);
  Resume();
}

absl::StatusOr<Handled> ShardCore::Impl::OnFrame(Stream& stream, const v1::Header& header,
                                                 const absl::Cord& payload) {
  SLUICE_DCHECK(stream.greeted, "a frame is handled once its peer is admitted");
  if (stream.peer.role() == v1::READER) return OnReaderFrame(stream, header);
  if (header.body_case() == v1::Header::kInitPush && stream.peer.role() == v1::WORKER) {
    return initialization.OnPush(streams, stream, header.init_push(), payload);
  }
  if (!header.has_view() || header.view().attempt() == 0) {
    return absl::InvalidArgumentError("a frame without a view");
  }
  if (!state.view.has_value()) {
    // A leftover frame of an abandoned attempt is dropped, so that it does not block the pushes of
    // version 0 of the next attempt behind it.
    return initialization.IsAfter(header.view().attempt()) ? Handled::kDone : Handled::kWait;
  }
  const int order = Compare(header.view(), state.view->id());
  if (order > 0) {
    RETURN_IF_ERROR(views.CheckAnnounced(header.view()));
    return Handled::kWait;
  }
  if (order < 0 && state.rules.RefuseOlderViews()) {
    if (stream.peer.role() == v1::WORKER)
      streams.Refuse(stream, "the view is older than the newest");
    return Handled::kDone;
  }
  return stream.peer.role() == v1::SHARD ? OnShardFrame(stream, header, payload)
                                         : OnMemberFrame(stream, header, payload);
}

absl::StatusOr<Handled> ShardCore::Impl::OnShardFrame(const Stream& stream,
                                                      const v1::Header& header,
                                                      const absl::Cord& payload) {
  const uint64_t sender = stream.incarnation();
  if (!state.view->HasShard(sender)) {
    return absl::PermissionDeniedError("the sender is not a shard of the view");
  }
  // (R2) The holder knows which of these may be taken during a promise. The others are dropped: the
  // next Install makes them obsolete, and a step that its owner must finish may be behind them.
  if (header.has_copy_state()) return copy_holder.OnState(sender, header.copy_state(), payload);
  if (!state.view->synchronous() && header.has_copy_entry()) {
    return update_holder.OnEntry(sender, header.copy_entry(), payload);
  }
  if (state.view->synchronous() == header.has_copy_entry() && !header.has_copy_ack()) {
    return absl::InvalidArgumentError("the frame is not for the mode of the view");
  }
  if (header.has_copy_step()) return copy_holder.OnStep(sender, header.copy_step(), payload);
  if (!state.MayChange()) return Handled::kDone;

  absl::Status status;
  if (header.has_copy_ack()) {
    status = copy_sender.OnAck(sender, header.copy_ack());
  } else if (header.has_norms()) {
    status = synchronous.OnNorms(sender, header.norms());
  } else {
    SLUICE_DCHECK(header.has_step_participants(), "CheckSender refuses all other frames");
    status = synchronous.OnStepParticipants(sender, header.step_participants());
  }
  if (!status.ok()) return status;
  return Handled::kDone;
}

absl::StatusOr<Handled> ShardCore::Impl::OnMemberFrame(Stream& stream, const v1::Header& header,
                                                       const absl::Cord& payload) {
  SLUICE_DCHECK(stream.peer.role() == v1::WORKER, "the members of a view are workers");
  const bool is_pull = header.body_case() == v1::Header::kPull;
  const bool of_snapshot = is_pull && header.pull().snapshot_id() != 0;
  // In a view without members, the previous members evaluate the final version.
  const bool may_read = of_snapshot && state.view->members() == 0;
  if (!may_read && !state.view->MemberIndex(stream.incarnation()).has_value()) {
    streams.Refuse(stream, "the sender is not a member of the view");
    return Handled::kDone;
  }
  if (!state.MayChange() && !is_pull) return Handled::kWait;
  absl::Status status;
  if (of_snapshot) {
    status = sender.OnSnapshotPull(stream, header.pull(), snapshots);
  } else if (!state.view->synchronous()) {
    status = asynchronous.OnFrame(stream, header, payload);
  } else if (is_pull) {
    status = synchronous.OnPull(stream, header.pull(), payload);
  } else if (header.body_case() == v1::Header::kPush) {
    status = synchronous.OnPush(stream, header.push(), payload);
  } else {
    status = absl::InvalidArgumentError(
        absl::StrCat("frame ", header.body_case(), " is not for a shard in synchronous training"));
  }
  if (!status.ok()) return status;
  return Handled::kDone;
}

absl::StatusOr<Handled> ShardCore::Impl::OnReaderFrame(Stream& stream, const v1::Header& header) {
  SLUICE_DCHECK(header.pull().snapshot_id() != 0, "CheckSender refuses all but pulls of snapshots");
  if (!state.view.has_value()) return Handled::kWait;
  RETURN_IF_ERROR(sender.OnSnapshotPull(stream, header.pull(), snapshots));
  return Handled::kDone;
}

void ShardCore::Impl::OnClosed(Partition& partition) {
  snapshots.OnVersion(partition);
  progress.Want();
  views.CheckAfterStep();
}

void ShardCore::Impl::OnVersionCommitted() {
  snapshots.OnCommitted();
  copy_sender.OnCommitted();
  progress.Want();
}

void ShardCore::Impl::OnCopyChanged() {
  progress.Want();
  views.CheckAfterStep();
}

// ---------------------------------------------------------------- time

bool ShardCore::Impl::Begin(absl::Time now) {
  if (state.exited) return false;
  SLUICE_DCHECK(state.frozen == views.promised(),
                "R2: a shard is frozen from the reply to a Pause until the Install");
  SLUICE_DCHECK(!state.view.has_value() || (state.model != nullptr &&
                                            state.partitions.size() == state.model->partitions()),
                "a shard with a view holds its partitions");
  // While this process was stopped, the workers' messages waited unread, so that time does not
  // count against the workers.
  const absl::Time since = std::max(NextDeadline(), state.now);
  if (now - since > kLate) synchronous.Forgive(now - since);
  state.now = now;
  return true;
}

void ShardCore::Impl::OnTick() {
  registration.ExitIfDue();
  if (state.exited) return;
  streams.Expire();
  copy_sender.OnTick();
  copy_holder.OnTick();
  if (!registration.HeartbeatIsDue()) return;
  if (state.view.has_value()) {
    const bool awaits = state.view->synchronous() ? !synchronous.Awaited().empty()
                                                  : !asynchronous.Awaited().empty();
    if (awaits) progress.Want();
  }
  registration.SendHeartbeat();
}

absl::Time ShardCore::Impl::NextDeadline() const {
  if (state.exited) return absl::InfiniteFuture();
  const absl::Time next = std::min({streams.NextExpiry(), registration.NextDeadline(),
                                    copy_sender.NextDeadline(), copy_holder.NextDeadline()});
  return std::min(next, progress.NextDeadline());
}

ShardStatus ShardCore::Impl::Status() const {
  ShardStatus status;
  status.has_view = state.view.has_value();
  if (status.has_view) status.view = state.view->id();
  status.frozen = state.frozen;
  status.lowest = state.LowestVersion();
  status.highest = state.HighestVersion();
  status.committed = state.committed;
  status.steps_skipped = state.steps_skipped;
  status.dropped_contributions = state.dropped_contributions;
  status.updates_applied = state.updates;
  status.streams = streams.size();
  status.waiting_frames = streams.waiting_frames();
  status.waiting_bytes = streams.waiting_bytes();
  status.parked_pulls = streams.parked_pulls();
  status.staged_updates = asynchronous.staged();
  status.open_snapshots = snapshots.size();
  status.copies = state.copies.size();
  status.copied_bytes = copy_holder.received_bytes();
  status.blocks_allocated = state.pool->allocated();
  status.repeated_blocks = state.repeated_blocks;
  streams.FillBounds(&status.bounds);
  status.bounds[static_cast<size_t>(Bound::kSnapshots)] = {state.options.max_snapshots,
                                                           snapshots.size()};
  status.bounds[static_cast<size_t>(Bound::kCopyQueueBytes)] = {
      state.options.max_copy_queue_bytes, copy_holder.QueuedBytes() + update_holder.queued_bytes()};
  for (size_t bound = 0; bound < kBounds; ++bound) {
    status.bounds[bound].reached = state.reached[bound];
  }
  return status;
}

std::shared_ptr<const PartitionContent> ShardCore::Impl::ContentOf(const Partition* held) const {
  if (held == nullptr) return nullptr;
  std::shared_ptr<PartitionContent> content = held->Pin(held->version());
  if (!state.view->synchronous()) asynchronous.FillRecords(content.get());
  return content;
}

// ---------------------------------------------------------------- ShardCore

ShardCore::ShardCore(ShardOptions options, ParallelRunner* parallel, const ShardRules* rules)
    : impl_(std::make_unique<Impl>(std::move(options), parallel, rules)) {}

ShardCore::~ShardCore() = default;

void ShardCore::OnCoordinatorConnected(absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->registration.OnConnected(impl_->views.Obeyed());
}

void ShardCore::OnCoordinatorDisconnected(absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->registration.OnDisconnected();
}

void ShardCore::OnCoordinatorMessage(const v1::CoordinatorMessage& message, absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->Dispatch(message);
  impl_->progress.SendIfDue();
}

void ShardCore::OnAskedToStop(std::string reason, absl::Duration grace, absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->registration.Leave(std::move(reason), grace);
}

void ShardCore::OnConnected(StreamId stream, absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->streams.Open(stream);
}

void ShardCore::OnFrame(StreamId stream, const v1::Header& header, const absl::Cord& payload,
                        absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->streams.Receive(stream, header, payload, impl_->handler());
  impl_->progress.SendIfDue();
}

void ShardCore::OnDisconnected(StreamId stream, absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->streams.Forget(stream);
}

v1::Header ShardCore::MakeHello(const v1::ProcessId& shard) const {
  return impl_->registration.MakeHello(shard);
}

void ShardCore::OnShardConnected(uint64_t incarnation, absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->synchronous.OnShardConnected(incarnation);
  impl_->copy_sender.OnShardConnected(incarnation);
  impl_->copy_holder.OnShardConnected(incarnation);
  impl_->update_holder.OnShardConnected(incarnation);
}

bool ShardCore::HasShard(uint64_t incarnation) const {
  return impl_->state.view.has_value() && impl_->state.view->HasShard(incarnation);
}

void ShardCore::OnPartitionLoaded(const v1::InitId& init_id, uint32_t partition,
                                  absl::StatusOr<absl::Cord> file, absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->initialization.OnLoaded(init_id, partition, std::move(file));
}

void ShardCore::OnPartitionWritten(uint64_t snapshot, const v1::CheckpointRef& checkpoint,
                                   uint32_t partition, absl::StatusOr<v1::PartitionFile> written,
                                   absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->snapshots.OnWritten(snapshot, checkpoint, partition, std::move(written));
}

void ShardCore::OnCopyRead(uint64_t transfer, absl::StatusOr<std::shared_ptr<ReceivedCopy>> read,
                           absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->copy_holder.OnRead(transfer, std::move(read));
}

void ShardCore::OnTick(absl::Time now) {
  if (!impl_->Begin(now)) return;
  impl_->OnTick();
  impl_->progress.SendIfDue();
}

absl::Time ShardCore::NextDeadline() const { return impl_->NextDeadline(); }

std::vector<ShardAction> ShardCore::TakeActions() {
  SLUICE_DCHECK(!impl_->state.exited || impl_->state.actions.empty() ||
                    std::holds_alternative<Exit>(impl_->state.actions.back()),
                "Exit is the last action");
  return std::exchange(impl_->state.actions, {});
}

ShardStatus ShardCore::Status() const { return impl_->Status(); }

std::shared_ptr<const PartitionContent> ShardCore::Content(uint32_t partition) const {
  return impl_->ContentOf(impl_->state.Find(partition));
}

std::shared_ptr<const PartitionContent> ShardCore::CopyContent(uint32_t partition) const {
  const auto held = impl_->state.copies.find(partition);
  return impl_->ContentOf(held == impl_->state.copies.end() ? nullptr : held->second.get());
}

}  // namespace sluice::ps
