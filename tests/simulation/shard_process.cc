#include "tests/simulation/shard_process.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "services/protocol/ids.h"
#include "services/protocol/member_exit.h"
#include "services/ps/core/base/bounds.h"
#include "services/ps/core/state/partition_file.h"

namespace sluice::simulation {
namespace {

// For a stream to another shard, which may be gone for good.
constexpr int kMaxPeerTries = 100;
// More than the gradients of a step.
constexpr uint64_t kStepBytes = 400;

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

ShardProcess::ShardProcess(Cluster* cluster, uint32_t index, uint64_t incarnation)
    : Member(cluster, absl::StrCat("ps-", index)),
      index_(index),
      incarnation_(incarnation),
      core_(
          cluster, this,
          [&] {
            ps::ShardOptions options;
            *options.identity.mutable_process() = MakeProcessId(v1::SHARD, index, incarnation);
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
  core_.PerformActions();
}

void ShardProcess::Leave() {
  leaving_ = true;
  core_.Event(&Core::OnAskedToStop, "SIGTERM", absl::Seconds(10));
}

void ShardProcess::OnCoordinatorConnected() { core_.Event(&Core::OnCoordinatorConnected); }

void ShardProcess::OnCoordinatorDisconnected() { core_.Event(&Core::OnCoordinatorDisconnected); }

void ShardProcess::OnCoordinatorMessage(const v1::CoordinatorMessage& message) {
  if (message.has_pause() || message.has_install() || message.has_prepare_state()) {
    cluster_.checker().OnRelease(incarnation_);
  }
  cluster_.contract().OnShardReceives(incarnation_, message);
  core_.Event(&Core::OnCoordinatorMessage, message);
}

void ShardProcess::Accept(const StreamRef& stream) {
  streams_[stream->id] = stream;
  stream->server.on_closed = [this, stream] {
    streams_.erase(stream->id);
    core_.Event(&Core::OnDisconnected, stream->id);
  };
  core_.Event(&Core::OnConnected, stream->id);
}

void ShardProcess::OnFrame(const StreamRef& stream, const v1::Header& header,
                           const absl::Cord& payload) {
  if (header.has_hello()) worker_of_[stream->id] = header.hello().sender().incarnation();
  NotePull(stream, header);
  core_.Event(&Core::OnFrame, stream->id, header, payload);
}

void ShardProcess::NotePull(const StreamRef& stream, const v1::Header& header) {
  if (header.has_pull() && header.pull().snapshot_id() == 0) {
    pull_clock_[stream->id] = header.pull().clock();
  }
}

Checker::ShardNow ShardProcess::Look() const {
  Checker::ShardNow now;
  const ps::ShardStatus status = core_->Status();
  now.incarnation = incarnation_;
  now.view = status.view;
  now.committed = status.committed;
  if (!status.has_view) return now;
  for (uint32_t p = 0; p < cluster_.scenario().job.parameter_server().partitions(); ++p) {
    std::shared_ptr<const ps::PartitionContent> content = core_->Content(p);
    if (content == nullptr || content->blocks.empty()) continue;
    now.partitions.push_back(ViewOf(*content));
    for (const v1::ClockRecord& record : content->clocks) {
      now.clocks[record.worker()] = record.clock();
      now.last_samples[record.worker()] = {record.samples().begin(), record.samples().end()};
    }
  }
  for (uint32_t p = 0; p < cluster_.scenario().job.parameter_server().partitions(); ++p) {
    const std::shared_ptr<const ps::PartitionContent> copy = core_->CopyContent(p);
    if (copy == nullptr || copy->blocks.empty()) continue;
    now.copies.push_back(ViewOf(*copy));
    for (const v1::ClockRecord& record : copy->clocks) {
      now.last_samples[record.worker()] = {record.samples().begin(), record.samples().end()};
    }
  }
  return now;
}

// The actions were decided on this state.
void ShardProcess::BeforeActions() const {
  if (core_->Status().has_view) cluster_.checker().OnShard(Look());
  const ps::BoundUses uses = core_->Status().bounds;
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
  const bool arbiter = core_->Content(0) != nullptr;
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
  if (action.header.copy_entry().has_leased()) {
    const v1::CopyEntry& entry = action.header.copy_entry();
    cluster_.checker().OnLeaseRecorded(Look(), entry.worker(), entry.leased());
  }
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
          self->core_.Event(&Core::OnShardConnected, incarnation);
        };

        self->cluster_.network().ToServer(stream,
                                          [stream, hello = self->core_->MakeHello(peer.process)] {
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
  if (action.message.has_pause_reply() && core_->Status().has_view) {
    cluster_.checker().OnPauseReply(Look());
  }
  if (action.message.has_failure()) {
    cluster_.checker().Fail(
        absl::StrCat("a shard fails the job: ", action.message.failure().reason()));
  }
  DeliverToCoordinator(action.message);
}

void ShardProcess::On(const ps::DropCoordinator&) {
  LeaveCoordinator();
  OnCoordinatorDisconnected();
  cluster_.scheduler().After(kCoordinatorRetry,
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
            self->core_.Event(&Core::OnPartitionWritten, action.snapshot, action.checkpoint,
                              action.partition,
                              absl::ResourceExhaustedError("no space left on device"));
            return;
          }

          const ps::EncodedPartition encoded = ps::EncodePartition(*action.content);
          v1::PartitionFile file = encoded.file;
          (void)self->cluster_.storage()->WriteFile(action.checkpoint, file.name(), encoded.bytes);
          self->cluster_.checker().OnFile(action.checkpoint, ViewOf(*action.content));
          self->core_.Event(&Core::OnPartitionWritten, action.snapshot, action.checkpoint,
                            action.partition, file);
        });
      });
}

void ShardProcess::On(const ps::LoadPartition& action) {
  cluster_.scheduler().At(
      NextFile(), [self = std::static_pointer_cast<ShardProcess>(shared_from_this()), action] {
        self->Handle([self, action] {
          self->core_.Event(&Core::OnPartitionLoaded, action.init_id, action.file.partition(),
                            self->cluster_.storage()->ReadFile(action.checkpoint, action.file));
        });
      });
}

void ShardProcess::On(const ps::ReadCopy& action) {
  cluster_.scheduler().After(
      cluster_.random().Between(absl::Microseconds(100), absl::Milliseconds(20)),
      [self = std::static_pointer_cast<ShardProcess>(shared_from_this()), action] {
        self->Handle([self, action] {
          self->core_.Event(&Core::OnCopyRead, action.transfer, ps::ReadReceivedCopy(action));
        });
      });
}

void ShardProcess::On(const Exit& action) {
  const ExitCode code = ExitCodeOf(action.reason);
  cluster_.OnShardExit(*this, code == kExitOk, code == kExitFailed, action.message);
}

}  // namespace sluice::simulation
