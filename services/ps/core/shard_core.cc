#include "services/ps/core/shard_core.h"

#include <algorithm>
#include <utility>

#include "services/common/check.h"
#include "services/execution/references.h"
#include "services/protocol/ids.h"

namespace sluice::ps {

// A shard whose tick is later than this was stopped. Same value as the coordinator's.
constexpr absl::Duration kLate = absl::Milliseconds(250);

ShardCore::ShardCore(ShardOptions options, ParallelRunner* parallel, const ShardRules* rules)
    : state_(std::move(options), parallel, rules),
      streams_(&state_, &out_),
      registration_(&state_, &out_),
      authority_(&state_, &out_) {
  attempt_.emplace(&state_, &out_, &streams_, &registration_);
  if (state_.options().references != nullptr) {
    state_.options().references->Begin(state_.options().identity);
  }
}

// ---------------------------------------------------------------- events

bool ShardCore::Begin(absl::Time now) {
  if (out_.exited()) return false;
  SLUICE_DCHECK(
      !state_.view().has_value() || state_.partitions().size() == state_.view()->owned().size(),
      "a shard with a view holds its partitions");

  // While this process was stopped, the workers' messages waited unread, so that time does not
  // count against the workers.
  const absl::Time since = std::max(NextDeadline(), state_.now());
  if (now - since > kLate) attempt_->ExtendDeadlines(now - since);
  state_.SetTime(now);
  return true;
}

void ShardCore::OnCoordinatorConnected(absl::Time now) {
  if (!Begin(now)) return;
  registration_.OnConnected(authority_.Obeyed());
}

void ShardCore::OnCoordinatorDisconnected(absl::Time now) {
  if (!Begin(now)) return;
  registration_.OnDisconnected();
}

void ShardCore::OnCoordinatorMessage(const v1::CoordinatorMessage& message, absl::Time now) {
  if (!Begin(now)) return;
  Dispatch(message);
  attempt_->progress().SendIfDue();
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
  const std::optional<ReadyFrame> ready = streams_.Receive(stream, header, payload);
  if (ready.has_value()) Handle(*ready);
  attempt_->progress().SendIfDue();
}

void ShardCore::OnDisconnected(StreamId stream, absl::Time now) {
  if (!Begin(now)) return;
  streams_.Forget(stream);
}

v1::Header ShardCore::MakeHello(const v1::ProcessId& shard) const {
  v1::Header header = state_.NewHeader();
  *header.mutable_hello() = registration_.MakeHello(shard.incarnation());
  return header;
}

void ShardCore::OnShardConnected(uint64_t incarnation, absl::Time now) {
  if (!Begin(now)) return;
  attempt_->OnShardConnected(incarnation);
}

bool ShardCore::HasShard(uint64_t incarnation) const {
  return state_.view().has_value() && state_.view()->HasShard(incarnation);
}

void ShardCore::OnPartitionLoaded(const v1::InitId& init_id, uint32_t partition,
                                  absl::StatusOr<absl::Cord> file, absl::Time now) {
  if (!Begin(now)) return;
  attempt_->OnPartitionLoaded(init_id, partition, std::move(file));
}

void ShardCore::OnPartitionWritten(uint64_t snapshot, const v1::CheckpointRef& checkpoint,
                                   uint32_t partition, absl::StatusOr<v1::PartitionFile> written,
                                   absl::Time now) {
  if (!Begin(now)) return;
  attempt_->OnPartitionWritten(snapshot, checkpoint, partition, std::move(written));
}

void ShardCore::OnCopyRead(uint64_t transfer, absl::StatusOr<std::shared_ptr<ReceivedCopy>> read,
                           absl::Time now) {
  if (!Begin(now)) return;
  attempt_->OnCopyRead(transfer, std::move(read));
}

void ShardCore::OnTick(absl::Time now) {
  if (!Begin(now)) return;

  registration_.ExitIfDue();
  if (out_.exited()) return;
  streams_.Expire();

  attempt_->OnTick();
  if (registration_.HeartbeatIsDue()) {
    attempt_->OnHeartbeat();
    registration_.SendHeartbeat();
  }
  attempt_->progress().SendIfDue();
}

absl::Time ShardCore::NextDeadline() const {
  if (out_.exited()) return absl::InfiniteFuture();
  return std::min({streams_.NextExpiry(), registration_.NextDeadline(), attempt_->NextDeadline()});
}

std::vector<ShardAction> ShardCore::TakeActions() { return out_.TakeActions(); }

// ---------------------------------------------------------------- coordinator

void ShardCore::OnRegistered(const v1::Registered& message) {
  // A coordinator answers before it has claimed an attempt. If it dies then, the storage has no
  // record of its term, and the next coordinator takes the same term.
  if (!authority_.IsCurrent(message.attempt(), message.term())) return;
  registration_.OnRegistered(message.job());
  attempt_->ReportAgain();
}

void ShardCore::OnPrepareState(const v1::PrepareState& prepare) {
  if (!authority_.Accept(prepare.init_id().attempt(), prepare.init_id().term())) return;
  // A view of this attempt is installed, so its first state is already loaded.
  if (state_.view().has_value() && prepare.init_id().attempt() <= state_.view()->id().attempt()) {
    return;
  }

  const v1::InitId* const known = attempt_->init_id();
  const int order = known != nullptr ? Compare(prepare.init_id(), *known) : 1;
  if (order < 0) return;
  // A later attempt, or a later request to initialize this one.
  if (order > 0) attempt_.emplace(&state_, &out_, &streams_, &registration_);
  attempt_->OnPrepareState(prepare);
  HandleWaiting();
}

void ShardCore::OnPause(const v1::Pause& pause) {
  if (authority_.Accept(pause.id().attempt(), pause.id().term())) attempt_->OnPause(pause);
}

void ShardCore::OnInstall(const v1::Install& install) {
  const v1::ViewId& id = install.view().id();
  if (!authority_.Accept(id.attempt(), id.term())) return;
  if (attempt_->OnInstall(install)) HandleWaiting();
}

void ShardCore::OnFinish(const v1::Finish& finish) {
  attempt_->progress().SendLast();
  out_.ExitNow(registration_.ExitAfter(finish));
}

void ShardCore::Dispatch(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kRegistered:
      return OnRegistered(message.registered());
    case v1::CoordinatorMessage::kRefusal:
      if (std::optional<Exit> exit = registration_.ExitAfter(message.refusal())) {
        out_.ExitNow(*std::move(exit));
      }
      return;
    case v1::CoordinatorMessage::kPrepareState:
      return OnPrepareState(message.prepare_state());
    case v1::CoordinatorMessage::kPause:
      return OnPause(message.pause());
    case v1::CoordinatorMessage::kInstall:
      return OnInstall(message.install());
    case v1::CoordinatorMessage::kCommitted:
      return attempt_->OnCommitted(message.committed());
    case v1::CoordinatorMessage::kBarrier:
      return attempt_->OnBarrier(message.barrier());
    case v1::CoordinatorMessage::kOpenSnapshot:
      return attempt_->OnOpenSnapshot(message.open_snapshot());
    case v1::CoordinatorMessage::kAdmitted:
      streams_.SetAdmitted(message.admitted());
      return HandleWaiting();
    case v1::CoordinatorMessage::kCloseSnapshot:
      return attempt_->OnCloseSnapshot(message.close_snapshot().snapshot_id());
    case v1::CoordinatorMessage::kFinish:
      return OnFinish(message.finish());
    default:
      return;  // HeartbeatReply, and messages for workers
  }
}

// ---------------------------------------------------------------- streams

bool ShardCore::Handle(const ReadyFrame& frame) {
  return streams_.OnHandled(frame,
                            attempt_->HandleFrame(frame.stream, frame.header, frame.payload));
}

void ShardCore::HandleWaiting() {
  for (const StreamId id : streams_.Ids()) {
    for (;;) {
      const std::optional<ReadyFrame> ready = streams_.Next(id);
      if (!ready.has_value() || !Handle(*ready)) break;
    }
  }
}

// ---------------------------------------------------------------- state

ShardStatus ShardCore::Status() const {
  const Outbox::Counts& counts = out_.counts();
  ShardStatus status;
  status.has_view = state_.view().has_value();
  if (status.has_view) status.view = state_.view()->id();

  status.frozen = state_.promised();
  status.lowest = state_.LowestVersion();
  status.highest = state_.HighestVersion();
  status.committed = state_.committed();

  status.steps_skipped = counts.steps_skipped;
  status.dropped_contributions = counts.dropped_contributions;
  status.updates_applied = state_.updates();

  status.streams = streams_.size();
  status.waiting_frames = streams_.waiting_frames();
  status.waiting_bytes = streams_.waiting_bytes();
  status.parked_pulls = streams_.parked_pulls();
  status.staged_updates = attempt_->staged();
  status.open_snapshots = attempt_->open_snapshots();

  status.copies = state_.copies().size();
  status.copied_bytes = counts.copied_bytes;
  status.blocks_allocated = state_.pool()->allocated();
  status.repeated_blocks = counts.repeated_blocks;

  streams_.FillBounds(&status.bounds);
  status.bounds[static_cast<size_t>(Bound::kSnapshots)] = {state_.options().max_snapshots,
                                                           attempt_->open_snapshots()};
  status.bounds[static_cast<size_t>(Bound::kCopyQueueBytes)] = {
      state_.options().max_copy_queue_bytes, attempt_->queued_bytes()};
  for (size_t bound = 0; bound < kBounds; ++bound) {
    status.bounds[bound].reached = counts.reached[bound];
  }
  return status;
}

std::shared_ptr<const PartitionContent> ShardCore::Content(uint32_t partition) const {
  return attempt_->Content(state_.partitions(), partition);
}

std::shared_ptr<const PartitionContent> ShardCore::CopyContent(uint32_t partition) const {
  return attempt_->Content(state_.copies(), partition);
}

}  // namespace sluice::ps
