#include "tests/fuzz/shard_world.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "services/common/check.h"
#include "services/ps/core/shard_core.h"
#include "tests/fuzz/message_change.h"
#include "tests/fuzz/shard_bounds.h"

namespace sluice::fuzz {
namespace {

using ps::ShardHarness;
using ps::StreamId;

constexpr int kMaxEvents = 64;
// The largest block in a hostile header: the frame parser refuses larger ones (kMaxPayloadBytes).
constexpr uint64_t kMaxFuzzedBlockBytes = 4095;
constexpr uint64_t kJobSteps = 100;
constexpr uint64_t kBatch = 4;  // of ShardHarness

constexpr size_t kOtherShard = 3;  // its stream: the members' are 0 and 1, the reader's 2

// The asynchronous updates that the view begins with; with `winner`, also the first staged one,
// as if another shard had applied it.
void KeepUpdates(const v1::PauseReply& reply, bool winner, v1::Install* install) {
  *install->mutable_clocks() = reply.clocks();
  *install->mutable_ledger() = reply.ledger();
  for (v1::LeaseRecord lease : reply.leases()) {
    const auto staged = std::find_if(
        reply.staged().begin(), reply.staged().end(),
        [&](const v1::StagedUpdate& update) { return update.worker() == lease.worker(); });
    if (winner && staged != reply.staged().end()) {
      winner = false;
      v1::ClockRecord& record = *install->add_clocks();
      record.set_worker(lease.worker());
      record.set_clock(staged->clock());
      *record.mutable_samples() = lease.samples();
      record.mutable_samples()->set_end(
          std::min(lease.samples().end(), lease.samples().begin() + kBatch));
      *install->mutable_ledger()->add_applied() = record.samples();
      lease.mutable_samples()->set_begin(record.samples().end());
      install->mutable_view()->set_first_step(install->view().first_step() + 1);
    }
    const auto& workers = install->view().workers();
    const bool stays = std::any_of(workers.begin(), workers.end(), [&](const auto& member) {
      return member.process().incarnation() == lease.worker();
    });
    if (stays && lease.samples().begin() < lease.samples().end()) {
      *install->add_leases() = std::move(lease);
    }
  }
}

// 0: none, so that the samples count.
void SetWeight(size_t choice, v1::Push* push) {
  constexpr double kWeights[] = {0, 0, 0.5, 3e29};
  if (choice > 0) push->set_weight(kWeights[choice]);
}

void SetSnapshot(uint64_t id, uint64_t step, bool write, v1::OpenSnapshot* snapshot) {
  snapshot->set_snapshot_id(id);
  snapshot->set_step(step);
  snapshot->set_write(write);
  snapshot->set_directory("snapshot");
  snapshot->mutable_name()->set_attempt(1);
  snapshot->mutable_name()->set_step(step);
}

}  // namespace

ShardWorld::ShardWorld(ByteSource* bytes, bool hostile_coordinator)
    : bytes_(bytes), hostile_coordinator_(hostile_coordinator) {
  SetJob(static_cast<ShardJob>(bytes_->Below(kJobs)));
  SetBounds();
  shard_.Begin({7, 8});
  streams_ = {shard_.Open(7), shard_.Open(8), shard_.Open(9, v1::READER),
              shard_.Open(ps::kOtherShardIncarnation, v1::SHARD)};
  SLUICE_CHECK(streams_.size() == kOtherShard + 1, "the streams are numbered");
}

void ShardWorld::SetJob(ShardJob job) {
  v1::TrainingSpec& training = *shard_.job.mutable_training();
  training.set_steps(kJobSteps);
  switch (job) {
    case kPlain:
    case kJobs:
      break;
    case kAsynchronous:
      training.set_mode(v1::ASYNCHRONOUS);
      break;
    case kBoundedStaleness:
      training.set_mode(v1::BOUNDED_STALENESS);
      training.set_max_staleness(2);
      break;
    case kDropsStragglers:
      training.mutable_stragglers()->set_policy(v1::TrainingSpec::Stragglers::DROP);
      training.mutable_stragglers()->set_backup(1);
      break;
    case kClipsOverShards:
      shard_.job.mutable_optimizer()->set_clip_norm(1);
      shard_.owner = {0, 1};
      break;
    case kBitExact:
      training.set_non_finite(v1::TrainingSpec::SKIP);
      training.set_bit_exact(true);
      break;
    case kRows:
      // "w" is a matrix, "b" a vector.
      shard_.table.mutable_tensors(0)->clear_shape();
      shard_.table.mutable_tensors(0)->add_shape(2);
      shard_.table.mutable_tensors(0)->add_shape(2);
      break;
    case kAsynchronousRules:
      training.set_mode(v1::ASYNCHRONOUS);
      training.set_non_finite(v1::TrainingSpec::SKIP);
      training.mutable_staleness()->set_rule(v1::TrainingSpec::Staleness::DELAY_COMPENSATION);
      training.mutable_staleness()->set_lambda(0.5);
      shard_.job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
      shard_.job.mutable_optimizer()->set_learning_rate(0.5);
      shard_.job.mutable_optimizer()->set_clip_norm(1);
      break;
    case kTogether:
      training.set_mode(v1::BOUNDED_STALENESS);
      break;
    case kNoArbiter:
      training.set_mode(v1::ASYNCHRONOUS);
      shard_.owner = {1, 0};
  }
  shard_.job.mutable_timeouts()->set_gradients(15);
}

void ShardWorld::SetBounds() {
  shard_.options.max_streams = 12;
  shard_.options.max_silent_streams = 4;
  shard_.options.max_unadmitted_streams = 4;
  shard_.options.max_reader_streams = 4;
  shard_.options.window_bytes = 8192;
  shard_.options.max_waiting_frames = 16;
  shard_.options.max_waiting_header_bytes = 4096;
  shard_.options.max_waiting_bytes = 16384;
  shard_.options.max_parked_pulls = 16;
  shard_.options.max_parked_bytes = 4096;
  shard_.options.max_snapshots = 2;
  shard_.options.max_staged_bytes = 4096;
  shard_.options.max_idle_bytes = 1 << 16;
}

void ShardWorld::Run() {
  for (int event = 0; event < kMaxEvents && !bytes_->empty() && !exited_; ++event) {
    Act();
    CheckBounds();
  }
}

ps::StreamId ShardWorld::AnyStream() { return streams_[bytes_->Below(256) % streams_.size()]; }

void ShardWorld::Act() {
  const auto event = static_cast<char>(bytes_->Below(16));
  if (event >= kFiles) return Files();
  if (event >= kConnections) return Connections();
  if (event >= kCoordinator) return FromCoordinator();
  if (event >= kView) return ChangeView();
  if (event >= kTime) return PassTime();
  if (event >= kDisconnect) return shard_.core().OnDisconnected(AnyStream(), shard_.now);
  if (event >= kOpen) return OpenStream();
  if (event >= kFrame) return AnyFrame();
  if (event >= kPull) return Pull();
  if (synchronous()) return HonestStep();
  HonestUpdate();
}

// ---- honest members

// The stream of a member that follows the protocol; it opens another one after it was closed.
ps::StreamId ShardWorld::HonestStream(size_t member) {
  StreamId& stream = streams_[member];
  if (shard_.StatusOf(stream).ok()) return stream;
  shard_.admits = true;
  return stream = shard_.Open(7 + member);
}

// Both members' gradients of the current step, and the other shard's norm of its partition.
void ShardWorld::HonestStep() {
  const ps::ShardStatus status = shard_.core().Status();
  const size_t choice = bytes_->Below(16);
  const float value = static_cast<float>(choice % 4);
  for (uint32_t member : {0, 1}) {
    const StreamId stream = HonestStream(member);
    for (uint32_t partition : {0, 1}) {
      if (shard_.owner[partition] != 0) continue;
      if (shard_.core().Content(partition) == nullptr) continue;
      v1::Header push =
          shard_.MakePush(status.lowest, partition,
                          ShardHarness::Microbatches(member * 2, member * 2 + 2), /*samples=*/1);
      push.mutable_push()->set_pull_next(true);
      SetWeight(choice / 4, push.mutable_push());
      shard_.Send(stream, push, ps::CordOf(std::vector<float>(partition == 0 ? 4 : 2, value)));
    }
  }
  if (shard_.owner[1] == 0) return;
  StreamId& other = streams_[kOtherShard];
  if (!shard_.StatusOf(other).ok()) other = shard_.Open(ps::kOtherShardIncarnation, v1::SHARD);
  v1::Header norms = NewHeader();
  norms.mutable_norms()->set_step(status.lowest);
  norms.mutable_norms()->add_partitions()->set_partition(1);
  shard_.Send(other, norms);
}

v1::Header ShardWorld::NewHeader() {
  v1::Header header;
  *header.mutable_view() = shard_.core().Status().view;
  return header;
}

// The next update of a member, in the order of docs/protocol.md 8: lease, pull, permit, pushes,
// Apply. Ends early where the shard lets the member wait, or after as many parts as the input
// says; the member's next update then begins with the same lease and the same permit.
void ShardWorld::HonestUpdate() {
  const size_t member = bytes_->Below(2);
  const size_t parts = bytes_->Below(6);
  const StreamId stream = HonestStream(member);
  const bool arbiter = shard_.owner[0] == 0;
  v1::Lease lease;
  v1::Permit permit;
  if (arbiter) {
    shard_.TakeFrames(stream);
    v1::Header request = NewHeader();
    request.mutable_lease_request()->set_samples(2 * kBatch);
    shard_.Send(stream, request);
    for (const v1::Header& frame : shard_.TakeFrames(stream)) {
      if (frame.has_lease()) lease = frame.lease();
    }
    if (lease.samples().end() == 0 || parts == 1) return;
  } else {
    // As if the other shard had given out one batch after the other.
    lease.set_clock(other_clocks_[member]);
    lease.mutable_samples()->set_begin(kBatch * shard_.core().Status().updates_applied);
    lease.mutable_samples()->set_end(lease.samples().begin() + kBatch);
    permit.set_ordinal(shard_.core().Status().updates_applied);
  }
  const uint64_t clock = lease.clock() + 1;

  v1::Header pull = NewHeader();
  pull.mutable_pull()->set_clock(lease.clock());
  shard_.Send(stream, pull);
  if (parts == 2) return;

  if (arbiter) {
    v1::Header request = NewHeader();
    request.mutable_permit_request()->set_clock(clock);
    request.mutable_permit_request()->set_base_version(shard_.core().Status().updates_applied);
    shard_.TakeFrames(stream);
    shard_.Send(stream, request);
    for (const v1::Header& frame : shard_.TakeFrames(stream)) {
      if (frame.has_permit()) permit = frame.permit();
    }
    if (permit.clock() != clock || parts == 3) return;
  }
  SendUpdate(stream, lease, permit, clock, /*apply=*/parts != 4);
  if (shard_.core().Status().updates_applied > 0) other_clocks_[member] = clock;
}

void ShardWorld::SendUpdate(StreamId stream, const v1::Lease& lease, const v1::Permit& permit,
                            uint64_t clock, bool apply) {
  v1::Range samples = lease.samples();
  samples.set_end(std::min(samples.end(), samples.begin() + kBatch));
  const size_t choice = bytes_->Below(16);
  const float value = static_cast<float>(choice % 4);
  v1::Header request = NewHeader();
  request.mutable_apply()->set_clock(clock);
  request.mutable_apply()->set_ordinal(permit.ordinal());
  request.mutable_apply()->set_staleness(permit.staleness());
  *request.mutable_apply()->mutable_samples() = samples;

  for (uint32_t partition : {0, 1}) {
    if (shard_.owner[partition] != 0) continue;
    v1::Header push = shard_.MakePush(0, partition, ShardHarness::Microbatches(0, 1),
                                      samples.end() - samples.begin());
    push.mutable_push()->set_clock(clock);
    push.mutable_push()->set_ordinal(permit.ordinal());
    SetWeight(choice / 4, push.mutable_push());
    shard_.Send(stream, push, ps::CordOf(std::vector<float>(partition == 0 ? 4 : 2, value)));
  }
  for (const v1::Header& frame : shard_.TakeFrames(stream)) {
    for (const v1::Norms::PartitionNorm& norm : frame.staged().norms()) {
      request.mutable_apply()->set_square_sum(request.apply().square_sum() + norm.square_sum());
    }
  }
  if (apply) shard_.Send(stream, request);
}

// ---- frames of any peer

void ShardWorld::Pull() {
  v1::Header header = NewHeader();
  v1::Pull& pull = *header.mutable_pull();
  const StreamId stream = AnyStream();
  pull.set_version(bytes_->Below(4) + (synchronous() ? shard_.core().Status().lowest : 0));
  pull.set_request(bytes_->Byte());
  pull.set_snapshot_id(bytes_->Below(4));
  if (!synchronous() && pull.snapshot_id() == 0) pull.set_clock(bytes_->Below(4));
  shard_.Send(stream, header);
}

// The frame parser has checked that a payload matches its header's blocks.
absl::Cord ShardWorld::PayloadOf(v1::Header* header) {
  uint64_t total = 0;
  auto* blocks = header->has_push()        ? header->mutable_push()->mutable_blocks()
                 : header->has_init_push() ? header->mutable_init_push()->mutable_blocks()
                 : header->has_data()      ? header->mutable_data()->mutable_blocks()
                                           : nullptr;
  if (blocks != nullptr) {
    for (v1::BlockHeader& block : *blocks) {
      block.set_payload_bytes(block.payload_bytes() & kMaxFuzzedBlockBytes);
      total += block.payload_bytes();
    }
  }
  if (header->has_pull()) {
    for (v1::RowSelection& rows : *header->mutable_pull()->mutable_rows()) {
      rows.set_count(rows.count() % 64);
      total += rows.count() * sizeof(uint64_t);
    }
  }
  std::string payload(bytes_->Take(bytes_->Below(256)));
  payload.resize(total, '\0');
  return absl::Cord(payload);
}

void ShardWorld::AnyFrame() {
  v1::Header header = shard_.HeaderOf(1);
  *header.mutable_view() = shard_.core().Status().view;
  switch (bytes_->Below(8)) {
    case 0:
    case 1: {
      const auto begin = bytes_->Below(4);
      header =
          shard_.MakePush(shard_.core().Status().lowest, static_cast<uint32_t>(bytes_->Below(2)),
                          ShardHarness::Microbatches(begin, begin + 2), 1);
      header.mutable_push()->set_clock(bytes_->Below(4));
      break;
    }
    case 2:
      header.mutable_apply()->set_clock(bytes_->Below(4));
      header.mutable_apply()->mutable_samples()->set_end(4);
      break;
    case 3:
      header.mutable_lease_request()->set_clock(bytes_->Below(4));
      header.mutable_lease_request()->set_samples(4);
      break;
    case 4:
      header.mutable_permit_request()->set_clock(bytes_->Below(4));
      break;
    default:
      ChooseBody(bytes_, &header);
  }
  ChangeFields(bytes_, &header);
  const absl::Cord payload = PayloadOf(&header);
  shard_.Send(AnyStream(), header, payload);
}

void ShardWorld::OpenStream() {
  if (streams_.size() > 24) return;
  if (bytes_->Below(4) == 0) {
    streams_.push_back(shard_.OpenSilent());
    return;
  }
  shard_.admits = bytes_->Below(2) == 0;
  constexpr v1::Role kRoles[] = {v1::WORKER, v1::READER, v1::SHARD, v1::OPERATOR};
  const uint64_t incarnation = bytes_->Below(12);
  streams_.push_back(shard_.Open(incarnation, kRoles[bytes_->Below(4)]));
}

// ---- time, the coordinator, files

void ShardWorld::PassTime() {
  shard_.now += absl::Milliseconds(1 + 50 * bytes_->Byte());
  shard_.core().OnTick(shard_.now);
  SLUICE_CHECK(shard_.core().NextDeadline() > shard_.now, "the shell would spin");
}

// As the coordinator decides a view from the replies to its Pause.
void ShardWorld::ChangeView() {
  std::vector<uint64_t> members = {7, 8};
  const size_t choice = bytes_->Below(4);
  if (choice == 1) members = {7};
  if (choice == 2) members = {8, 10};
  if (choice == 3) members = {};
  shard_.TakeMessages();
  shard_.Pause(++view_);
  const std::vector<v1::PauseReply> replies = shard_.TakePauseReplies();
  v1::Install install =
      shard_.MakeInstall(shard_.MakeView(view_, shard_.core().Status().lowest, members));
  if (!synchronous() && !replies.empty()) {
    KeepUpdates(replies.back(), /*winner=*/bytes_->Below(2) == 1, &install);
  }
  if (const size_t snapshot = bytes_->Below(4); snapshot != 0) {
    SetSnapshot(snapshot, install.view().first_step(), bytes_->Below(2) == 1,
                install.mutable_snapshot());
  }
  v1::CoordinatorMessage message;
  *message.mutable_install() = std::move(install);
  shard_.Deliver(message);
}

void ShardWorld::FromCoordinator() {
  v1::CoordinatorMessage message;
  const ps::ShardStatus status = shard_.core().Status();
  switch (bytes_->Below(6)) {
    case 0:
      *message.mutable_committed()->mutable_view() = status.view;
      message.mutable_committed()->set_version(status.lowest);
      break;
    case 1:
      *message.mutable_barrier()->mutable_view() = status.view;
      message.mutable_barrier()->set_version(status.lowest + bytes_->Below(3));
      break;
    case 2: {
      const uint64_t id = 1 + bytes_->Below(4);
      const uint64_t step = status.lowest + bytes_->Below(3);
      SetSnapshot(id, step, bytes_->Below(2) == 1, message.mutable_open_snapshot());
      break;
    }
    case 3:
      message.mutable_close_snapshot()->set_snapshot_id(1 + bytes_->Below(4));
      break;
    case 4:
      *message.mutable_install() =
          shard_.MakeInstall(shard_.MakeView(view_, status.lowest, {7, 8}));
      break;
    default:
      *message.mutable_prepare_state() = shard_.MakePrepareState(++view_, 1 + bytes_->Below(2));
  }
  if (hostile_coordinator_) {
    if (bytes_->Below(4) == 0) ChooseBody(bytes_, &message);
    ChangeFields(bytes_, &message);
  }
  shard_.Deliver(message);
}

void ShardWorld::Connections() {
  switch (bytes_->Below(4)) {
    case 0:
      shard_.core().OnCoordinatorDisconnected(shard_.now);
      return;
    case 1:
      shard_.Connect();
      return;
    case 2:
      shard_.core().OnShardConnected(bytes_->Below(2) == 0 ? ps::kOtherShardIncarnation : 3,
                                     shard_.now);
      return;
    default:
      (void)shard_.core().MakeHello(v1::ProcessId());
  }
}

// The end of a file's reading or writing: of the oldest one that the core requested, or of any.
void ShardWorld::Files() {
  const size_t choice = bytes_->Below(6);
  if (choice < 2) {
    if (writes_.empty()) return;
    const ps::WritePartition write = writes_.front();
    writes_.erase(writes_.begin());
    absl::StatusOr<v1::PartitionFile> written = v1::PartitionFile();
    if (choice == 1) written = absl::ResourceExhaustedError("disk full");
    return shard_.core().OnPartitionWritten(write.snapshot, write.checkpoint, write.partition,
                                            std::move(written), shard_.now);
  }
  const uint64_t snapshot = bytes_->Below(4);
  const auto partition = static_cast<uint32_t>(bytes_->Below(3));
  v1::CheckpointRef checkpoint;
  checkpoint.set_attempt(1);
  checkpoint.set_step(bytes_->Below(4));
  switch (choice) {
    case 2:
      return shard_.core().OnPartitionWritten(snapshot, checkpoint, partition, v1::PartitionFile(),
                                              shard_.now);
    case 3:
      return shard_.core().OnPartitionWritten(
          snapshot, checkpoint, partition, absl::ResourceExhaustedError("disk full"), shard_.now);
    case 4:
      return shard_.core().OnPartitionLoaded(ShardHarness::FirstInitId(1), partition,
                                             absl::Cord(bytes_->Piece()), shard_.now);
    default:
      return shard_.core().OnPartitionLoaded(ShardHarness::FirstInitId(1), partition,
                                             absl::DataLossError("damaged"), shard_.now);
  }
}

void ShardWorld::CheckBounds() {
  for (const Exit& exit : shard_.TakeActions<Exit>()) {
    (void)exit;
    exited_ = true;
  }
  while (shard_.ReadCopyIfDue()) {
  }
  for (StreamId stream : streams_) (void)shard_.TakeSent(stream);
  (void)shard_.TakeMessages();
  (void)shard_.TakeActions<ps::SendToShard>();
  for (ps::WritePartition& write : shard_.TakeActions<ps::WritePartition>()) {
    if (writes_.size() < kMaxEvents) writes_.push_back(std::move(write));
  }
  const ps::ShardStatus status = shard_.core().Status();
  CheckBoundsOf(status);
  SLUICE_CHECK(!synchronous() || status.highest <= kJobSteps,
               "no step is closed beyond the job's length");
  SLUICE_CHECK(
      synchronous() || hostile_coordinator_ || status.updates_applied <= kJobSteps * kBatch,
      "an update has at least one sample of the job");
  SLUICE_CHECK(status.lowest <= status.highest, "versions are in order");
}

}  // namespace sluice::fuzz
