#include "tests/simulation/processes.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/existing_job.h"
#include "services/checkpoint/storage.h"
#include "services/coordinator/open_storage.h"
#include "services/protocol/ids.h"
#include "services/protocol/row_selection.h"
#include "services/ps/core/bounds.h"
#include "services/ps/core/partition_file.h"

namespace sluice::simulation {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(30);
// For a stream to another shard, which may be gone for good.
constexpr int kMaxPeerTries = 100;
// More than the gradients of a step.
constexpr uint64_t kStepBytes = 400;

v1::ProcessId Id(v1::Role role, uint32_t index, uint64_t incarnation) {
  v1::ProcessId id;
  id.set_role(role);
  id.set_index(index);
  id.set_incarnation(incarnation);
  return id;
}

std::pair<uint64_t, uint64_t> KeyOf(const v1::CheckpointRef& ref) {
  return {ref.attempt(), ref.step()};
}

PartitionFacts ViewOf(const ps::PartitionContent& content) {
  PartitionFacts view;
  view.partition = content.partition;
  view.version = content.version;
  for (const ps::BlockState& block : content.blocks) {
    view.blocks.push_back(FromBytes(block.parameters->bytes().data()));
  }
  return view;
}

}  // namespace

void Ticker::Plan(Cluster& cluster, const std::shared_ptr<Process>& process, absl::Time deadline,
                  std::function<void()> tick) {
  if (deadline == absl::InfiniteFuture() || deadline >= planned_) return;
  deadline = std::max(deadline, cluster.scheduler().now() + absl::Microseconds(100));
  planned_ = deadline;
  cluster.scheduler().At(deadline, [this, process, deadline, tick = std::move(tick)] {
    process->Handle([this, deadline, tick] {
      if (planned_ != deadline) return;
      planned_ = absl::InfiniteFuture();
      tick();
    });
  });
}

// ---- the coordinator

CoordinatorProcess::CoordinatorProcess(Cluster* cluster, uint64_t incarnation)
    : cluster_(*cluster),
      core_(
          [&] {
            coordinator::CoordinatorOptions options;
            options.job = cluster->scenario().job;
            options.incarnation = incarnation;
            options.checkpoint_directory = CheckpointDirectory;
            return options;
          }(),
          cluster->scheduler().now(), cluster->scenario().coordinator_rules) {}

void CoordinatorProcess::Start() { Perform(); }

void CoordinatorProcess::Accept(const StreamRef& stream) {
  streams_[stream->id] = stream;
  stream->server.on_closed = [this, stream] {
    streams_.erase(stream->id);
    core_.OnDisconnected(stream->id, cluster_.scheduler().now());
    Perform();
  };
  core_.OnConnected(stream->id, cluster_.scheduler().now());
  Perform();
}

void CoordinatorProcess::OnMessage(const StreamRef& stream, const v1::MemberMessage& message) {
  if (message.has_register_() && !static_cast<Member*>(stream->client.process.get())->hostile()) {
    registered_[stream->id] = message.register_().process().incarnation();
  }
  core_.OnMessage(stream->id, message, cluster_.scheduler().now());
  Perform();
}

void CoordinatorProcess::SetDesired(const v1::SetDesiredRequest& desired) {
  desired_ = desired;
  desired_.clear_deaths();
  core_.OnSetDesired(desired, cluster_.scheduler().now());
  Perform();
}

// As the coordinator's program does on SIGTERM.
void CoordinatorProcess::Leave() {
  core_.OnAskedToStop(cluster_.scheduler().now());
  Perform();
}

v1::JobProgress CoordinatorProcess::Progress() const {
  return core_.Progress(0, cluster_.scheduler().now());
}

uint64_t CoordinatorProcess::OpenSnapshot(const v1::OpenSnapshotRequest& request,
                                          SnapshotAnswered answered) {
  const uint64_t call = ++last_call_;
  snapshots_[call] = std::move(answered);
  core_.OnOpenSnapshot(call, request, cluster_.scheduler().now());
  Perform();
  return call;
}

void CoordinatorProcess::EndSnapshotCall(uint64_t call) {
  if (snapshots_.erase(call) == 0) return;
  core_.OnSnapshotCallEnded(call, cluster_.scheduler().now());
  Perform();
}

void CoordinatorProcess::OnThaw() {
  if (!cluster_.scenario().timers_first || !alive()) return;
  core_.OnTick(cluster_.scheduler().now());
  Perform();
}

void CoordinatorProcess::Perform() {
  for (const coordinator::Action& action : core_.TakeActions()) {
    if (!alive()) return;
    std::visit([this](const auto& a) { On(a); }, action);
  }
  if (cluster_.tracing()) TraceEvents();
  if (!alive()) return;
  ticker_.Plan(cluster_, shared_from_this(), core_.NextDeadline(), [this] {
    core_.OnTick(cluster_.scheduler().now());
    Perform();
  });
}

void CoordinatorProcess::TraceEvents() {
  const v1::JobProgress progress = core_.Progress(last_event_, cluster_.scheduler().now());
  for (const v1::Event& event : progress.events()) {
    last_event_ = event.sequence();
    cluster_.Trace(absl::StrCat("  event: ", event.message()));
  }
}

// The storage has a delay before the operation and before the answer.
void CoordinatorProcess::After(std::function<void()> event) {
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(50), absl::Milliseconds(5)),
      [self = shared_from_this(), event = std::move(event)] { self->Handle(event); });
}

void CoordinatorProcess::On(const coordinator::Send& action) {
  auto it = streams_.find(action.stream);
  if (it == streams_.end()) return;
  if (action.message.has_install()) cluster_.checker().OnView(action.message.install().view());
  if (action.message.has_committed()) cluster_.checker().OnCommitted(action.message.committed());
  cluster_.contract().OnCoordinatorSays(action.message);
  if (action.message.has_registered()) CheckAdmission(action.stream);
  StreamRef stream = it->second;
  auto member = std::static_pointer_cast<Member>(stream->client.process);
  cluster_.TraceMessage("coordinator", member->name(), action.message);
  cluster_.network().ToClient(
      stream, [member, message = action.message] { member->OnCoordinatorMessage(message); });
}

void CoordinatorProcess::On(const coordinator::CloseStream& action) {
  auto it = streams_.find(action.stream);
  if (it == streams_.end()) return;
  StreamRef stream = it->second;
  streams_.erase(it);
  cluster_.network().CloseByServer(stream);
}

// (R7) An incarnation that this coordinator has expelled is not admitted again.
void CoordinatorProcess::CheckAdmission(uint64_t stream) {
  const auto registered = registered_.find(stream);
  if (registered == registered_.end()) return;
  const v1::JobProgress progress = Progress();
  for (const v1::ProcessStatus& status : progress.processes()) {
    if (status.state() != v1::ProcessStatus::EXPELLED) continue;
    if (status.process().incarnation() != registered->second) continue;
    cluster_.checker().Fail(
        absl::StrCat("an incarnation of ", v1::Role_Name(status.process().role()), " ",
                     status.process().index(), " is admitted again after it was expelled (R7)"));
  }
}

void CoordinatorProcess::On(const coordinator::ReadStorage&) {
  After([this] {
    absl::StatusOr<coordinator::StorageContents> contents = ReadContents();
    After([this, contents] {
      core_.OnStorageRead(contents, cluster_.scheduler().now());
      Perform();
    });
  });
}

absl::StatusOr<coordinator::StorageContents> CoordinatorProcess::ReadContents() {
  if (cluster_.DiskFails()) return absl::UnavailableError("the storage is unavailable");
  MemoryStorage& storage = cluster_.storage();
  const std::vector<MemoryStorage::DamagedFile> damaged = storage.Damaged();
  absl::StatusOr<coordinator::StorageContents> contents;
  OnDisk([&] {
    contents = coordinator::OpenStorage(*storage, cluster_.scenario().job, /*restore_source=*/{});
  });
  cluster_.CheckReplaced();
  if (!contents.ok() || !alive()) return contents;
  cluster_.outcome().damaged += contents->damaged.size();
  using Kind = ExistingJob::Kind;
  const Kind kind = contents->existing.kind;
  if (kind != Kind::kReplace && kind != Kind::kRefused) CheckContents(*contents, damaged);
  return contents;
}

// Checks that the newest whole checkpoint is used, that all damage is reported, and that training
// does not start from zero if there are checkpoints. `damaged`: the files that were damaged before
// the storage was read.
void CoordinatorProcess::CheckContents(const coordinator::StorageContents& contents,
                                       const std::vector<MemoryStorage::DamagedFile>& damaged) {
  MemoryStorage& storage = cluster_.storage();
  const auto is_named = [&](const std::string& path) {
    return std::any_of(
        contents.damaged.begin(), contents.damaged.end(),
        [&](const std::string& sentence) { return MemoryStorage::Names(sentence, path); });
  };
  const std::vector<MemoryStorage::DamagedFile> left = storage.Damaged();
  const uint64_t newest_claim = contents.claims.empty() ? 0 : contents.claims.back().attempt();
  bool claims_are_whole = true;
  for (const MemoryStorage::DamagedFile& file : damaged) {
    claims_are_whole = claims_are_whole && file.claim == 0;
    // A removed claim without a successor leaves no trace.
    const bool claim = file.claim > 0 && file.claim <= newest_claim;
    // The storage writes an owner file that is missing or unreadable again. An owner file that is
    // still damaged was readable.
    const bool owner =
        file.owner && !file.removed &&
        std::none_of(left.begin(), left.end(), [](const auto& other) { return other.owner; });
    if ((claim || owner) && !is_named(file.path)) {
      cluster_.checker().Fail(absl::StrCat("the damage of ", file.path, " is not reported"));
    }
  }
  std::vector<v1::CheckpointRef> candidates = storage.CandidatesAsWritten();
  if (candidates.empty()) return;
  if (!contents.has_newest) {
    cluster_.checker().Fail("training starts from zero although there are checkpoints");
    return;
  }
  const std::pair<uint64_t, uint64_t> used = KeyOf(contents.newest.checkpoint());
  for (const v1::CheckpointRef& ref : candidates) {
    if (KeyOf(ref) == used) break;
    if (ReadWholeCheckpoint(*storage, ref).ok()) {
      // If a claim is damaged, its parent is unknown, so a newer checkpoint may be used.
      if (claims_are_whole || used < KeyOf(ref)) {
        cluster_.checker().Fail(absl::StrCat(CheckpointDirectory(contents.newest.checkpoint()),
                                             " is used although ", CheckpointDirectory(ref),
                                             " is whole"));
      }
      break;
    }
    if (!is_named(absl::StrCat(CheckpointDirectory(ref), "/manifest.json"))) {
      cluster_.checker().Fail(
          absl::StrCat(CheckpointDirectory(ref), " is skipped without a report"));
    }
  }
}

// If a crash is due, the coordinator dies at one of the disk's operations. Half of the time its
// machine loses power.
void CoordinatorProcess::OnDisk(absl::FunctionRef<void()> use) {
  if (!cluster_.TakeCrash()) return use();
  FakeFileSystem& disk = cluster_.storage().disk();
  disk.FailAfter(static_cast<int>(cluster_.random().Below(10)));
  use();
  disk.FailNever();
  if (cluster_.random().OneIn(2)) disk.CutPower();
  cluster_.OnCoordinatorCrash(*this);
}

void CoordinatorProcess::On(const coordinator::ClaimAttempt& action) {
  After([this, claim = action.claim] {
    absl::Status status = absl::UnavailableError("the storage is unavailable");
    if (!cluster_.DiskFails()) {
      OnDisk([&] { status = cluster_.storage()->CreateClaim(claim); });
    }
    cluster_.Trace(absl::StrCat("claim ", claim.attempt(), claim.end() ? " (end)" : "", ": ",
                                status.ok() ? "created" : "failed"));
    After([this, claim, status] {
      core_.OnClaimResult(claim.attempt(), status, cluster_.scheduler().now());
      Perform();
    });
  });
}

void CoordinatorProcess::On(const coordinator::ReadClaims&) {
  After([this] {
    absl::StatusOr<std::vector<v1::Claim>> claims = cluster_.storage()->ReadClaims();
    if (cluster_.DiskFails()) claims = absl::UnavailableError("the storage is unavailable");
    After([this, claims] {
      core_.OnClaimsRead(claims, cluster_.scheduler().now());
      Perform();
    });
  });
}

void CoordinatorProcess::On(const coordinator::WriteCheckpointIndex& action) {
  After([this, checkpoint_index = action.checkpoint_index] {
    if (cluster_.DiskFails()) {
      // The manifest may have been written nevertheless.
      if (cluster_.random().OneIn(2))
        (void)cluster_.storage()->WriteCheckpointIndex(checkpoint_index);
      cluster_.Trace("a manifest cannot be written");
      After([this, checkpoint_index] {
        core_.OnCheckpointIndexWritten(checkpoint_index.checkpoint(),
                                       absl::ResourceExhaustedError("no space left on device"),
                                       cluster_.scheduler().now());
        Perform();
      });
      return;
    }

    // If a newer attempt has removed the directory as incomplete, an older coordinator writes a
    // manifest without files. No attempt begins with that checkpoint.
    const std::vector<v1::Claim> claims = cluster_.storage()->ReadClaims().value();
    const bool newest =
        claims.empty() || claims.back().attempt() <= checkpoint_index.checkpoint().attempt();
    for (const v1::PartitionFile& file : checkpoint_index.files()) {
      if (!newest || cluster_.storage().HasFile(checkpoint_index.checkpoint(), file.name()))
        continue;
      cluster_.checker().Fail(absl::StrCat("the manifest of ",
                                           CheckpointDirectory(checkpoint_index.checkpoint()),
                                           " names ", file.name(), ", which does not exist"));
    }

    absl::Status status;
    OnDisk([&] { status = cluster_.storage()->WriteCheckpointIndex(checkpoint_index); });
    cluster_.Trace(absl::StrCat("manifest ", CheckpointDirectory(checkpoint_index.checkpoint())));
    cluster_.checker().OnCheckpointIndex(checkpoint_index);
    if (!alive()) return;
    if (newest && !status.ok()) cluster_.checker().Fail(std::string(status.message()));

    After([this, checkpoint_index, status] {
      core_.OnCheckpointIndexWritten(checkpoint_index.checkpoint(), status,
                                     cluster_.scheduler().now());
      Perform();
    });
  });
}

void CoordinatorProcess::On(const coordinator::DeleteCheckpoint& action) {
  OnDisk([&] { (void)RemoveReplaced(*cluster_.storage(), action.checkpoint, action.attempt); });
}

void CoordinatorProcess::On(const coordinator::RemoveIncomplete& action) {
  After([this, checkpoint = action.checkpoint] {
    if (absl::IsNotFound(cluster_.storage()->ReadCheckpointIndex(checkpoint).status())) {
      OnDisk([&] { (void)cluster_.storage()->Remove(checkpoint); });
    }
  });
}

void CoordinatorProcess::On(const coordinator::AnswerSnapshot& action) {
  const auto call = snapshots_.find(action.request);
  if (call == snapshots_.end()) return;
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(100), absl::Milliseconds(5)),
      [answered = call->second, snapshot = action.snapshot] { answered(snapshot); });
  if (!action.snapshot.ok()) snapshots_.erase(call);
}

void CoordinatorProcess::On(const coordinator::Exit& action) {
  // A suspension with enough time to save loses no step. A coordinator that was frozen and replaced
  // tells what was true then.
  const bool current = cluster_.coordinator().get() == this;
  if (current && action.reason == coordinator::ExitReason::kSuspended &&
      action.message == "suspended") {
    const std::optional<v1::CheckpointIndex> newest = cluster_.storage().NewestAsWritten();
    const uint64_t step = Progress().step();
    if (!newest.has_value() || newest->checkpoint().step() < step) {
      cluster_.checker().Fail(
          absl::StrCat("the job is suspended at step ", step, ", which is not saved"));
    }
  }
  cluster_.OnCoordinatorExit(*this, action.reason == coordinator::ExitReason::kSucceeded,
                             action.reason == coordinator::ExitReason::kFailed,
                             action.reason == coordinator::ExitReason::kSuspended, action.message);
}

// ---- members

void Member::LookForCoordinator() {
  auto self = std::static_pointer_cast<Member>(shared_from_this());
  auto retry = [self] {
    self->cluster_.scheduler().After(kRetry, [self] {
      self->Handle([self] {
        if (self->coordinator_ == nullptr) self->LookForCoordinator();
      });
    });
  };

  cluster_.network().Open(
      self, [self] { return self->cluster_.FindCoordinator(); },
      [](const StreamRef& stream) {
        static_cast<CoordinatorProcess*>(stream->server.process.get())->Accept(stream);
      },
      [self, retry](const StreamRef& stream) {
        self->coordinator_ = stream;
        stream->client.on_closed = [self, stream, retry] {
          if (self->coordinator_ != stream) return;
          self->coordinator_ = nullptr;
          self->OnCoordinatorDisconnected();
          retry();
        };
        self->OnCoordinatorConnected();
      },
      retry);
}

void Member::TellCoordinator(const v1::MemberMessage& message) {
  if (coordinator_ == nullptr) return;
  StreamRef stream = coordinator_;
  cluster_.TraceMessage(name(), "coordinator", message);
  cluster_.Record(message);
  cluster_.network().ToServer(stream, [stream, message] {
    static_cast<CoordinatorProcess*>(stream->server.process.get())->OnMessage(stream, message);
  });
}

void Member::LeaveCoordinator() {
  if (coordinator_ == nullptr) return;
  cluster_.network().CloseByClient(coordinator_);
  coordinator_ = nullptr;
}

// ---- shards

ShardProcess::ShardProcess(Cluster* cluster, uint32_t index, uint64_t incarnation)
    : Member(cluster, absl::StrCat("ps-", index)),
      index_(index),
      incarnation_(incarnation),
      core_(
          [&] {
            ps::ShardOptions options;
            *options.identity.mutable_process() = Id(v1::SHARD, index, incarnation);
            options.identity.set_job(cluster->job_name());
            options.identity.set_address(absl::StrCat("ps-", index));
            options.identity.set_wire_version(1);
            // Small, so that workers sometimes wait for credit and permits.
            options.window_bytes = 200;
            options.copy_part_bytes = 150;
            options.copy_transfer_bytes = 300;  // about one partition
            options.max_copy_queue_bytes = 200;
            options.max_staged_bytes = 300;
            options.max_streams = 40;
            options.max_silent_streams = 8;
            options.max_unadmitted_streams = 16;
            options.max_reader_streams = 8;
            options.max_waiting_frames = 400;
            return options;
          }(),
          nullptr, cluster->scenario().shard_rules) {}

void ShardProcess::Start() {
  LookForCoordinator();
  Perform();
}

void ShardProcess::Leave() {
  leaving_ = true;
  core_.OnLeave("SIGTERM", absl::Seconds(10), cluster_.scheduler().now());
  Perform();
}

void ShardProcess::OnCoordinatorConnected() {
  core_.OnCoordinatorConnected(cluster_.scheduler().now());
  Perform();
}

void ShardProcess::OnCoordinatorDisconnected() {
  core_.OnCoordinatorDisconnected(cluster_.scheduler().now());
  Perform();
}

void ShardProcess::OnCoordinatorMessage(const v1::CoordinatorMessage& message) {
  if (message.has_pause() || message.has_install() || message.has_prepare_state()) {
    cluster_.checker().OnRelease(incarnation_);
  }
  cluster_.contract().OnShardIsTold(incarnation_, message);
  core_.OnCoordinatorMessage(message, cluster_.scheduler().now());
  Perform();
}

void ShardProcess::Accept(const StreamRef& stream) {
  streams_[stream->id] = stream;
  stream->server.on_closed = [this, stream] {
    streams_.erase(stream->id);
    core_.OnDisconnected(stream->id, cluster_.scheduler().now());
    Perform();
  };
  core_.OnConnected(stream->id, cluster_.scheduler().now());
  Perform();
}

void ShardProcess::OnFrame(const StreamRef& stream, const v1::Header& header,
                           const absl::Cord& payload) {
  if (header.has_hello()) worker_of_[stream->id] = header.hello().sender().incarnation();
  NotePull(stream, header);
  core_.OnFrame(stream->id, header, payload, cluster_.scheduler().now());
  Perform();
}

void ShardProcess::NotePull(const StreamRef& stream, const v1::Header& header) {
  if (header.has_pull() && header.pull().snapshot_id() == 0) {
    pull_clock_[stream->id] = header.pull().clock();
  }
}

Checker::ShardNow ShardProcess::Look() const {
  Checker::ShardNow now;
  const ps::ShardStatus status = core_.Status();
  now.incarnation = incarnation_;
  now.view = status.view;
  now.committed = status.committed;
  if (!status.has_view) return now;
  for (uint32_t p = 0; p < cluster_.scenario().job.parameter_server().partitions(); ++p) {
    std::shared_ptr<const ps::PartitionContent> content = core_.Content(p);
    if (content == nullptr || content->blocks.empty()) continue;
    now.partitions.push_back(ViewOf(*content));
    for (const v1::ClockRecord& record : content->clocks) {
      now.clocks[record.worker()] = record.clock();
      now.last_samples[record.worker()] = {record.samples().begin(), record.samples().end()};
    }
  }
  for (uint32_t p = 0; p < cluster_.scenario().job.parameter_server().partitions(); ++p) {
    const std::shared_ptr<const ps::PartitionContent> copy = core_.CopyContent(p);
    if (copy == nullptr || copy->blocks.empty()) continue;
    now.copies.push_back(ViewOf(*copy));
    for (const v1::ClockRecord& record : copy->clocks) {
      now.last_samples[record.worker()] = {record.samples().begin(), record.samples().end()};
    }
  }
  return now;
}

void ShardProcess::Perform() {
  if (!alive()) return;
  // Before the actions, because they were decided on this state.
  const Checker::ShardNow now = Look();
  if (core_.Status().has_view) cluster_.checker().OnShard(now);
  CheckBounds();
  for (const ps::ShardAction& action : core_.TakeActions()) {
    if (!alive()) return;
    std::visit([this](const auto& a) { On(a); }, action);
  }
  if (!alive()) return;
  ticker_.Plan(cluster_, shared_from_this(), core_.NextDeadline(), [this] {
    core_.OnTick(cluster_.scheduler().now());
    Perform();
  });
}

void ShardProcess::OnThaw() {
  if (!cluster_.scenario().timers_first || !alive()) return;
  core_.OnTick(cluster_.scheduler().now());
  Perform();
}

void ShardProcess::CheckBounds() const {
  const ps::BoundUses uses = core_.Status().bounds;
  for (size_t bound = 0; bound < uses.size(); ++bound) {
    // Acks are held back once the queue is full, and each partition's step may be under way then.
    const bool is_queue = bound == static_cast<size_t>(ps::Bound::kCopyQueueBytes);
    if (uses[bound].used <= uses[bound].limit + (is_queue ? kStepBytes : 0)) continue;
    cluster_.checker().Fail(absl::StrCat(name(), " exceeds ", ps::kBoundNames[bound], ": it uses ",
                                         uses[bound].used, " of ", uses[bound].limit));
  }
}

absl::Time ShardProcess::NextFile() {
  const absl::Duration slow = cluster_.scenario().slow_disk;
  const absl::Duration time =
      cluster_.random().Between(absl::Microseconds(100), absl::Milliseconds(20) + slow);
  if (slow == absl::ZeroDuration()) return cluster_.scheduler().now() + time;
  file_done_ = std::max(file_done_, cluster_.scheduler().now()) + time;
  return file_done_;
}

void ShardProcess::CheckAnswer(const ps::SendFrame& action) {
  auto worker = worker_of_.find(action.stream);
  if (worker == worker_of_.end()) return;
  if (action.header.has_lease()) {
    cluster_.checker().OnLease(Look(), worker->second, action.header.lease());
  }
  auto clock = pull_clock_.find(action.stream);
  if (clock == pull_clock_.end()) return;
  // The arbiter's answer is its PullAnswer; the answer of every other shard is its data.
  const bool data = action.header.has_data() && action.header.data().snapshot_id() == 0 &&
                    action.header.data().partition() != 0 && action.header.data().request() != 0;
  const bool arbiter = core_.Content(0) != nullptr;
  if (action.header.has_pull_answer() || (data && !arbiter)) {
    cluster_.checker().OnPullAnswered(Look(), arbiter, worker->second, clock->second);
  }
}

void ShardProcess::On(const ps::SendFrame& action) {
  auto it = streams_.find(action.stream);
  if (it == streams_.end()) return;
  CheckAnswer(action);
  StreamRef stream = it->second;
  cluster_.TraceMessage(name(), static_cast<Member*>(stream->client.process.get())->name(),
                        action.header);
  cluster_.network().ToClient(stream, [stream, header = action.header, payload = action.payload] {
    if (stream->on_frame) stream->on_frame(header, payload);
  });
}

void ShardProcess::On(const ps::SendToShard& action) {
  const uint64_t incarnation = action.shard.incarnation();
  Peer& peer = peers_[incarnation];
  peer.process = action.shard;
  peer.address = action.address;
  cluster_.TraceMessage(name(), peer.address, action.header);
  cluster_.Record(action.header);
  if (peer.ready) {
    peer.waiting.emplace_back(action.header, action.payload);
    SendWaiting(peer);
    return;
  }
  // The frame is lost: the core sends it again if it is needed (OnShardConnected).
  if (peer.stream == nullptr && !peer.opening) OpenPeer(incarnation);
}

void ShardProcess::SendWaiting(Peer& peer) {
  while (!peer.waiting.empty() && peer.waiting.front().second.size() <= peer.credit) {
    auto [header, payload] = std::move(peer.waiting.front());
    peer.waiting.pop_front();
    peer.credit -= payload.size();
    StreamRef stream = peer.stream;
    cluster_.network().ToServer(stream, [stream, header = header, payload = payload] {
      static_cast<ShardProcess*>(stream->server.process.get())->OnFrame(stream, header, payload);
    });
  }
}

void ShardProcess::OpenPeer(uint64_t incarnation) {
  auto self = std::static_pointer_cast<ShardProcess>(shared_from_this());
  Peer& peer = peers_[incarnation];
  peer.opening = true;

  auto retry = [self, incarnation] {
    self->peers_[incarnation].opening = false;
    self->cluster_.scheduler().After(absl::Milliseconds(50), [self, incarnation] {
      self->Handle([self, incarnation] {
        Peer& peer = self->peers_[incarnation];
        if (!peer.opening && peer.stream == nullptr && ++peer.tries < kMaxPeerTries) {
          self->OpenPeer(incarnation);
        }
      });
    });
  };

  cluster_.network().Open(
      self, [self, address = peer.address] { return self->cluster_.FindShard(address); },
      [](const StreamRef& stream) {
        static_cast<ShardProcess*>(stream->server.process.get())->Accept(stream);
      },
      [self, incarnation, retry](const StreamRef& stream) {
        Peer& peer = self->peers_[incarnation];
        peer.stream = stream;
        peer.opening = false;
        stream->client.on_closed = [self, incarnation, stream, retry] {
          Peer& peer = self->peers_[incarnation];
          if (peer.stream != stream) return;
          peer.stream = nullptr;
          peer.ready = false;
          peer.waiting.clear();
          retry();
        };
        stream->on_frame = [self, incarnation, stream](const v1::Header& header,
                                                       const absl::Cord&) {
          Peer& peer = self->peers_[incarnation];
          if (peer.stream != stream) return;
          if (header.has_credit()) {
            peer.credit += header.credit().bytes();
            self->SendWaiting(peer);
          }
          if (!header.has_hello_reply()) return;
          peer.ready = true;
          peer.tries = 0;
          peer.credit = header.hello_reply().window_bytes();
          self->core_.OnShardConnected(incarnation, self->cluster_.scheduler().now());
          self->Perform();
        };

        self->cluster_.network().ToServer(stream,
                                          [stream, hello = self->core_.MakeHello(peer.process)] {
                                            static_cast<ShardProcess*>(stream->server.process.get())
                                                ->OnFrame(stream, hello, absl::Cord());
                                          });
      },
      retry);
}

void ShardProcess::On(const ps::CloseStream& action) {
  auto it = streams_.find(action.stream);
  if (it == streams_.end()) return;
  StreamRef stream = it->second;
  streams_.erase(it);
  if (absl::IsInvalidArgument(action.status) &&
      !static_cast<Member*>(stream->client.process.get())->hostile()) {
    cluster_.checker().Fail(
        absl::StrCat("a shard closes the stream of an honest process: ", action.status.message()));
  }
  cluster_.network().CloseByServer(stream);
}

void ShardProcess::On(const ps::SendToCoordinator& action) {
  // Without a stream the message is lost.
  if (coordinator_ != nullptr) cluster_.contract().OnShardSays(incarnation_, action.message);
  if (action.message.has_pause_reply() && core_.Status().has_view) {
    cluster_.checker().OnPauseReply(Look());
  }
  if (action.message.has_failure()) {
    cluster_.checker().Fail(
        absl::StrCat("a shard fails the job: ", action.message.failure().reason()));
  }
  TellCoordinator(action.message);
}

void ShardProcess::On(const ps::DropCoordinator&) {
  LeaveCoordinator();
  OnCoordinatorDisconnected();
  cluster_.scheduler().After(kRetry,
                             [self = std::static_pointer_cast<ShardProcess>(shared_from_this())] {
                               self->Handle([self] {
                                 if (self->coordinator_ == nullptr) self->LookForCoordinator();
                               });
                             });
}

void ShardProcess::On(const ps::WritePartition& action) {
  cluster_.scheduler().At(
      NextFile(), [self = std::static_pointer_cast<ShardProcess>(shared_from_this()), action] {
        self->Handle([self, action] {
          if (self->cluster_.DiskFails()) {
            self->cluster_.Trace("a partition cannot be written");
            self->core_.OnPartitionWritten(action.snapshot, action.checkpoint, action.partition,
                                           absl::ResourceExhaustedError("no space left on device"),
                                           self->cluster_.scheduler().now());
            self->Perform();
            return;
          }

          const ps::EncodedPartition encoded = ps::EncodePartition(*action.content);
          v1::PartitionFile file = encoded.file;
          (void)self->cluster_.storage()->WriteFile(action.checkpoint, file.name(), encoded.bytes);
          self->cluster_.checker().OnFile(action.checkpoint, ViewOf(*action.content));
          self->core_.OnPartitionWritten(action.snapshot, action.checkpoint, action.partition, file,
                                         self->cluster_.scheduler().now());
          self->Perform();
        });
      });
}

void ShardProcess::On(const ps::LoadPartition& action) {
  cluster_.scheduler().At(
      NextFile(), [self = std::static_pointer_cast<ShardProcess>(shared_from_this()), action] {
        self->Handle([self, action] {
          self->core_.OnPartitionLoaded(
              action.init_id, action.file.partition(),
              self->cluster_.storage()->ReadFile(action.checkpoint, action.file),
              self->cluster_.scheduler().now());
          self->Perform();
        });
      });
}

void ShardProcess::On(const ps::ReadCopy& action) {
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(100), absl::Milliseconds(20)),
      [self = std::static_pointer_cast<ShardProcess>(shared_from_this()), action] {
        self->Handle([self, action] {
          self->core_.OnCopyRead(action.transfer, ps::ReadReceivedCopy(action),
                                 self->cluster_.scheduler().now());
          self->Perform();
        });
      });
}

void ShardProcess::On(const ps::ExitProcess& action) {
  cluster_.OnShardExit(*this, action.code == ps::kExitFinished, action.code == ps::kExitFailed,
                       action.reason);
}

// ---- workers

WorkerProcess::WorkerProcess(Cluster* cluster, uint32_t index, uint64_t incarnation)
    : Member(cluster, absl::StrCat("worker-", index)),
      index_(index),
      incarnation_(incarnation),
      core_(
          [&] {
            worker::WorkerOptions options;
            options.process = Id(v1::WORKER, index, incarnation);
            options.job = cluster->job_name();
            return options;
          }(),
          cluster->scenario().worker_rules),
      current_(cluster->scenario().tensors),
      incoming_(cluster->scenario().tensors),
      evaluation_(cluster->scenario().tensors) {}

void WorkerProcess::Start() { LookForCoordinator(); }

void WorkerProcess::OnThaw() {
  if (!cluster_.scenario().timers_first || !alive()) return;
  core_.OnTick(cluster_.scheduler().now());
  Do();
}

void WorkerProcess::Leave() {
  core_.OnLeave("SIGTERM", absl::Seconds(10), cluster_.scheduler().now());
  Do();
}

void WorkerProcess::OnCoordinatorConnected() {
  core_.OnCoordinatorConnected(cluster_.scheduler().now());
  Do();
}

void WorkerProcess::OnCoordinatorDisconnected() {
  core_.OnCoordinatorDisconnected(cluster_.scheduler().now());
  Do();
}

void WorkerProcess::OnCoordinatorMessage(const v1::CoordinatorMessage& message) {
  if (message.has_new_view() && message.new_view().has_view()) {
    cluster_.checker().OnView(message.new_view().view());
  }
  core_.OnCoordinatorMessage(message, cluster_.scheduler().now());
  Do();
}

void WorkerProcess::Do() {
  for (const worker::WorkerAction& action : core_.TakeActions()) {
    if (!alive()) return;
    std::visit([this](const auto& a) { On(a); }, action);
  }
  if (!alive()) return;
  ticker_.Plan(cluster_, shared_from_this(), core_.NextDeadline(), [this] {
    core_.OnTick(cluster_.scheduler().now());
    Do();
  });
}

void WorkerProcess::On(const worker::ConnectShard& action) {
  auto self = std::static_pointer_cast<WorkerProcess>(shared_from_this());
  const uint64_t shard = action.shard;
  const uint64_t attempt = ++attempts_[shard];

  auto broken = [self, shard, attempt] {
    if (self->attempts_[shard] != attempt) return;
    self->shards_.erase(shard);
    self->core_.OnShardDisconnected(shard, absl::UnavailableError("broken"),
                                    self->cluster_.scheduler().now());
    self->Do();
  };

  cluster_.network().Open(
      self, [self, address = action.address] { return self->cluster_.FindShard(address); },
      [](const StreamRef& stream) {
        static_cast<ShardProcess*>(stream->server.process.get())->Accept(stream);
      },
      [self, shard, attempt, broken](const StreamRef& stream) {
        if (self->attempts_[shard] != attempt) {
          self->cluster_.network().CloseByClient(stream);
          return;
        }
        self->shards_[shard] = stream;
        stream->client.on_closed = broken;
        stream->on_frame = [self, shard, attempt](const v1::Header& header,
                                                  const absl::Cord& payload) {
          if (self->attempts_[shard] != attempt) return;
          if (header.has_permit()) {
            self->permits_.emplace(Order(header.view()), header.permit().clock());
          }
          self->core_.OnShardFrame(shard, header, payload, self->cluster_.scheduler().now());
          self->Do();
        };
        self->core_.OnShardConnected(shard, self->cluster_.scheduler().now());
        self->Do();
      },
      broken);
}

void WorkerProcess::On(const worker::DisconnectShard& action) {
  ++attempts_[action.shard];
  auto it = shards_.find(action.shard);
  if (it == shards_.end()) return;
  cluster_.network().CloseByClient(it->second);
  shards_.erase(it);
}

void WorkerProcess::On(const worker::SendFrame& action) {
  auto it = shards_.find(action.shard);
  if (it == shards_.end()) return;
  StreamRef stream = it->second;
  cluster_.TraceMessage(name(), static_cast<Member*>(stream->server.process.get())->name(),
                        action.header);
  cluster_.Record(action.header);
  // Permits bound the updates that wait in the shards' memory.
  const bool update = action.header.has_push() && action.header.push().clock() != 0;
  if (update && permits_.count({Order(action.header.view()), action.header.push().clock()}) == 0) {
    cluster_.checker().Fail(
        absl::StrCat(name(), " pushes update ", action.header.push().clock(), " without a permit"));
  }
  cluster_.network().ToServer(stream, [stream, header = action.header, payload = action.payload] {
    static_cast<ShardProcess*>(stream->server.process.get())->OnFrame(stream, header, payload);
  });
}

void WorkerProcess::On(const worker::SendToCoordinator& action) { TellCoordinator(action.message); }

void WorkerProcess::On(const worker::OpenModel&) {
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Milliseconds(1), absl::Milliseconds(20)),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this())] {
        self->Handle([self] {
          ToyModel& model = self->cluster_.model();
          self->core_.SetRowTensors(model.RowTensors());
          self->core_.OnModelReady(model.table(), model.samples(), 20,
                                   self->cluster_.scheduler().now());
          self->Do();
        });
      });
}

void WorkerProcess::On(const worker::ReadInitialTensor& action) {
  cluster_.scheduler().After(
      absl::Microseconds(100),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this()), action] {
        self->Handle([self, action] {
          Elements3 initial = self->cluster_.model().Initial(action.tensor);
          self->core_.OnInitialTensor(action.init_id, action.tensor, ToCord(initial),
                                      self->cluster_.scheduler().now());
          self->Do();
        });
      });
}

void WorkerProcess::On(const worker::StoreBlock& action) {
  Buffer& buffer = action.buffer == ComputeEngine::Buffer::kEvaluation ? evaluation_ : incoming_;
  // A requested row arrives as a whole block, which is smaller than the row with its header.
  if (action.codec != v1::CODEC_ROWS) buffer[action.tensor] = FromCord(action.payload);
}

void WorkerProcess::On(const worker::FindRows& action) {
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(20), absl::Milliseconds(2)),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this()), action] {
        self->Handle([self, action] {
          const ToyModel& model = self->cluster_.model();
          RowSelections rows;
          for (uint32_t tensor : model.RowTensors()) {
            const bool named = std::any_of(
                action.positions.begin(), action.positions.end(),
                [&](const PositionRange& positions) { return model.Names(positions, tensor); });
            if (named) rows[tensor] = {0};
          }
          self->core_.OnRows(action.id, rows, self->cluster_.scheduler().now());
          self->Do();
        });
      });
}

void WorkerProcess::On(const worker::AdoptVersion& action) {
  if (working_) cluster_.checker().Fail("a worker adopts a version while it computes");
  std::swap(current_, incoming_);
  adopted_ = action.version;
}

void WorkerProcess::On(const worker::Compute& action) {
  if (cluster_.scenario().job.training().mode() == v1::SYNCHRONOUS) {
    if (action.step != adopted_) cluster_.checker().Fail("a worker computes on a wrong version");
    cluster_.checker().OnSynchronousCompute(core_.view().id(), action.step, action.positions,
                                            current_);
  }
  Job job;
  job.compute = action;
  jobs_.push_back(job);
  if (!working_) NextJob();
}

void WorkerProcess::On(const worker::CancelCompute& action) {
  for (Job& job : jobs_) {
    if (!job.evaluation && job.compute.id == action.id) job.cancelled = true;
  }
}

void WorkerProcess::On(const worker::EvaluateSamples& action) {
  cluster_.checker().OnEvaluate(action.buffer == ComputeEngine::Buffer::kCurrent ? current_
                                                                                 : evaluation_);
  Job job;
  job.evaluation = true;
  job.evaluate = action;
  jobs_.push_back(job);
  if (!working_) NextJob();
}

void WorkerProcess::On(const worker::JoinGroup& action) {
  cluster_.groups().Join(
      incarnation_, action.view, action.plan,
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this())](
          const v1::ViewId& view, uint64_t step, absl::StatusOr<worker::ReducedPart> part) {
        self->Handle([self, view, step, part = std::move(part)] {
          self->core_.OnReduced(view, step, part, self->cluster_.scheduler().now());
          self->Do();
        });
      });
}

void WorkerProcess::On(const worker::LeaveGroup&) { cluster_.groups().Leave(incarnation_); }

void WorkerProcess::On(const worker::ReduceGradients& action) {
  cluster_.groups().Reduce(incarnation_, action.step, action.gradients);
}

void WorkerProcess::NextJob() {
  working_ = !jobs_.empty();
  if (!working_) return;
  const absl::Duration time =
      cluster_.random().Between(absl::Microseconds(200), absl::Milliseconds(3));
  cluster_.scheduler().After(time,
                             [self = std::static_pointer_cast<WorkerProcess>(shared_from_this())] {
                               self->Handle([self] {
                                 if (self->jobs_.front().evaluation) {
                                   self->RunEvaluation();
                                 } else {
                                   self->RunCompute();
                                 }
                               });
                             });
}

void WorkerProcess::RunCompute() {
  const Job& job = jobs_.front();
  if (job.cancelled && cluster_.random().OneIn(2)) return FinishJob();
  const double tag = static_cast<double>((cluster_.random().Next() >> 32) + 1);
  if (cluster_.scenario().job.training().mode() != v1::SYNCHRONOUS) {
    cluster_.checker().OnUpdate(tag, job.compute.positions);
    cluster_.NoteUpdate(job.compute.positions.size());
  } else {
    cluster_.checker().OnContribution(tag, job.compute.step, job.compute.positions);
  }
  Gradient(0, tag);
}

// Delivers the gradients one tensor at a time, from the last tensor to the first.
void WorkerProcess::Gradient(size_t place, double tag) {
  if (place == current_.size()) return FinishJob();
  const worker::Compute compute = jobs_.front().compute;
  const auto tensor = static_cast<uint32_t>(current_.size() - 1 - place);
  const absl::Time now = cluster_.scheduler().now();
  ToyModel& model = cluster_.model();

  if (model.IsSilent(tensor)) {
    core_.OnNoGradient(compute.id, tensor, now);
    Do();
  } else {
    absl::Cord gradient = ToCord(model.Gradient(compute.positions, tensor, tag));
    const bool table = model.table().tensors(static_cast<int>(tensor)).shape_size() == 2;
    if (table) {
      core_.OnRowGradient(compute.id, tensor, {0}, std::move(gradient), now);
    } else {
      core_.OnGradient(compute.id, tensor, std::move(gradient), now);
    }
    Do();
  }

  if (!alive()) return;
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(20), absl::Microseconds(400)),
      [self = std::static_pointer_cast<WorkerProcess>(shared_from_this()), place, tag] {
        self->Handle([self, place, tag] { self->Gradient(place + 1, tag); });
      });
}

void WorkerProcess::FinishJob() {
  const Job job = jobs_.front();
  jobs_.pop_front();
  working_ = false;
  worker::ComputeResult result;
  result.samples = job.compute.positions.size();
  result.loss_sum = 1;
  if (cluster_.scenario().job.training().max_batch_size() > 0) {
    // The reported time is deterministic; the simulated time is random.
    result.compute_time = absl::Milliseconds(1 + 2 * index_) * static_cast<double>(result.samples);
  }
  core_.OnComputed(job.compute.id, result, cluster_.scheduler().now());
  Do();
  if (alive() && !working_) NextJob();
}

void WorkerProcess::RunEvaluation() {
  const Job job = jobs_.front();
  jobs_.pop_front();
  working_ = false;
  worker::ComputeResult result;
  result.samples = job.evaluate.samples.size();
  core_.OnEvaluated(job.evaluate.id, result, cluster_.scheduler().now());
  Do();
  if (alive() && !working_) NextJob();
}

void WorkerProcess::On(const worker::Exit& action) {
  cluster_.OnWorkerExit(*this, action.reason == worker::ExitReason::kFinished,
                        action.reason == worker::ExitReason::kFailed, action.message);
}

}  // namespace sluice::simulation
