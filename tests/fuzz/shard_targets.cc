// A shard's state machine with peers that send anything, in any order.
//
// An input is a list of events: actions of honest members, frames that break the protocol, streams
// that open and close, time, view changes. The core must not end the process, exceed a bound of
// ShardOptions, or close a step beyond the job's length.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/checkpoint.pb.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/common/check.h"
#include "services/ps/core/bounds.h"
#include "services/ps/core/shard_action.h"
#include "services/ps/core/shard_core.h"
#include "services/ps/core/testing/shard_harness.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/message_change.h"

namespace sluice::fuzz {
namespace {

using ps::ShardHarness;
using ps::StreamId;

constexpr int kMaxEvents = 64;
// The largest block in a hostile header: the frame parser refuses larger ones (kMaxPayloadBytes).
constexpr uint64_t kMaxFuzzedBlockBytes = 4095;
constexpr uint64_t kJobSteps = 100;

class ShardWorld {
 public:
  ShardWorld(ByteSource* bytes, bool hostile_coordinator)
      : bytes_(bytes), hostile_coordinator_(hostile_coordinator) {
    v1::TrainingSpec& training = *shard_.job.mutable_training();
    training.set_steps(kJobSteps);
    switch (bytes_->Below(7)) {
      case 0:
        break;
      case 1:
        training.set_mode(v1::ASYNCHRONOUS);
        break;
      case 2:
        training.set_mode(v1::BOUNDED_STALENESS);
        training.set_max_staleness(2);
        break;
      case 3:
        training.mutable_stragglers()->set_policy(v1::TrainingSpec::Stragglers::DROP);
        training.mutable_stragglers()->set_backup(1);
        break;
      case 4:
        shard_.job.mutable_optimizer()->set_clip_norm(1);
        shard_.owner = {0, 1};
        break;
      case 5:
        training.set_non_finite(v1::TrainingSpec::SKIP);
        training.set_bit_exact(true);
        break;
      default:
        // Rows: "w" is a matrix, "b" a vector.
        shard_.table.mutable_tensors(0)->clear_shape();
        shard_.table.mutable_tensors(0)->add_shape(2);
        shard_.table.mutable_tensors(0)->add_shape(2);
    }
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
    shard_.Begin({7, 8});
    streams_ = {shard_.Open(7), shard_.Open(8), shard_.Open(9, v1::READER),
                shard_.Open(ps::kOtherShardIncarnation, v1::SHARD)};
  }

  void Run() {
    for (int event = 0; event < kMaxEvents && !bytes_->empty() && !exited_; ++event) {
      Act();
      CheckBounds();
    }
  }

  // Whether training made progress.
  bool Trained() { return shard_.core().Status().lowest > 0; }

 private:
  StreamId AnyStream() { return streams_[bytes_->Below(256) % streams_.size()]; }

  void Act() {
    switch (bytes_->Below(16)) {
      case 0:
      case 1:
        return HonestStep();
      case 2:
        return shard_.Pull(AnyStream(), bytes_->Below(4) + shard_.core().Status().lowest,
                           bytes_->Byte());
      case 3:
      case 4:
      case 5:
      case 6:
      case 7:
        return AnyFrame();
      case 8:
        return OpenStream();
      case 9:
        shard_.core().OnDisconnected(AnyStream(), shard_.now);
        return;
      case 10:
        return PassTime();
      case 11:
        return ChangeView();
      case 12:
      case 13:
        return FromCoordinator();
      case 14:
        return Connections();
      default:
        return Files();
    }
  }

  // Both members' gradients of the current step, or an update of one of them.
  void HonestStep() {
    const ps::ShardStatus status = shard_.core().Status();
    const float value = static_cast<float>(bytes_->Below(4));
    for (uint32_t member : {0, 1}) {
      for (uint32_t partition : {0, 1}) {
        if (shard_.owner[partition] != 0) continue;
        if (shard_.core().Content(partition) == nullptr) continue;
        shard_.Push(streams_[member], status.lowest, partition,
                    std::vector<float>(partition == 0 ? 4 : 2, value),
                    ShardHarness::Microbatches(member * 2, member * 2 + 2));
      }
    }
  }

  // The frame parser has checked that a payload matches its header's blocks.
  absl::Cord PayloadOf(v1::Header* header) {
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

  void AnyFrame() {
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

  void OpenStream() {
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

  void PassTime() {
    shard_.now += absl::Milliseconds(1 + 50 * bytes_->Byte());
    shard_.core().OnTick(shard_.now);
    SLUICE_CHECK(shard_.core().NextDeadline() > shard_.now, "the shell would spin");
  }

  void ChangeView() {
    const ps::ShardStatus status = shard_.core().Status();
    std::vector<uint64_t> members = {7, 8};
    const size_t choice = bytes_->Below(4);
    if (choice == 1) members = {7};
    if (choice == 2) members = {8, 10};
    if (choice == 3) members = {};
    shard_.ChangeView(++view_, status.lowest, members);
  }

  void FromCoordinator() {
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
      case 2:
        message.mutable_open_snapshot()->set_snapshot_id(1 + bytes_->Below(4));
        message.mutable_open_snapshot()->set_step(status.lowest + bytes_->Below(3));
        message.mutable_open_snapshot()->set_write(bytes_->Below(2) == 1);
        message.mutable_open_snapshot()->set_directory("snapshot");
        break;
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
    shard_.Tell(message);
  }

  void Connections() {
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

  void Files() {
    const uint64_t snapshot = bytes_->Below(4);
    const auto partition = static_cast<uint32_t>(bytes_->Below(3));
    v1::CheckpointRef checkpoint;
    checkpoint.set_attempt(1);
    checkpoint.set_step(bytes_->Below(4));
    switch (bytes_->Below(4)) {
      case 0:
        return shard_.core().OnPartitionWritten(snapshot, checkpoint, partition,
                                                v1::PartitionFile(), shard_.now);
      case 1:
        return shard_.core().OnPartitionWritten(
            snapshot, checkpoint, partition, absl::ResourceExhaustedError("disk full"), shard_.now);
      case 2:
        return shard_.core().OnPartitionLoaded(ShardHarness::FirstInitId(1), partition,
                                               absl::Cord(bytes_->Piece()), shard_.now);
      default:
        return shard_.core().OnPartitionLoaded(ShardHarness::FirstInitId(1), partition,
                                               absl::DataLossError("damaged"), shard_.now);
    }
  }

  void CheckBounds() {
    for (const ps::ExitProcess& exit : shard_.TakeActions<ps::ExitProcess>()) {
      (void)exit;
      exited_ = true;
    }
    for (StreamId stream : streams_) (void)shard_.TakeSent(stream);
    (void)shard_.TakeMessages();
    (void)shard_.TakeActions<ps::SendToShard>();
    (void)shard_.TakeActions<ps::WritePartition>();
    const ps::ShardStatus status = shard_.core().Status();
    for (size_t i = 0; i < ps::kBounds; ++i) {
      if (status.bounds[i].used <= status.bounds[i].limit) continue;
      std::fprintf(stderr, "%s: %llu of %llu\n", std::string(ps::kBoundNames[i]).c_str(),
                   static_cast<unsigned long long>(status.bounds[i].used),
                   static_cast<unsigned long long>(status.bounds[i].limit));
      SLUICE_CHECK(false, "no bound is exceeded");
    }
    SLUICE_CHECK(shard_.job.training().mode() != v1::SYNCHRONOUS || status.highest <= kJobSteps,
                 "no step is closed beyond the job's length");
    SLUICE_CHECK(status.lowest <= status.highest, "versions are in order");
  }

  ByteSource* const bytes_;
  const bool hostile_coordinator_;
  ShardHarness shard_;
  std::vector<StreamId> streams_;
  uint64_t view_ = 1;
  bool exited_ = false;
};

bool RunShard(absl::string_view input) {
  ByteSource bytes(input);
  ShardWorld world(&bytes, /*hostile_coordinator=*/false);
  world.Run();
  return world.Trained();
}

// The coordinator as well: it is a program of the job, but may have another version.
bool RunShardCoordinator(absl::string_view input) {
  ByteSource bytes(input);
  ShardWorld world(&bytes, /*hostile_coordinator=*/true);
  world.Run();
  return world.Trained();
}

// Some honest steps of a synchronous job with frames and messages between them.
std::vector<std::string> ShardSeeds() {
  std::vector<std::string> seeds;
  for (char mode : {0, 3, 5, 6}) {
    std::string seed(1, mode);
    for (char between = 2; between < 16; ++between) {
      seed += std::string{0, 1, between, 1, 0, 0, 0, 0, 0, 1, 2};
    }
    seeds.push_back(seed);
  }
  return seeds;
}

}  // namespace

std::vector<FuzzTarget> ShardTargets() {
  static constexpr char kSources[] =
      "services/ps/core/shard_core.cc services/ps/core/streams.cc services/ps/core/synchronous.cc "
      "services/ps/core/asynchronous.cc services/ps/core/arbiter.cc services/ps/core/staleness.cc "
      "services/ps/core/initialization.cc services/ps/core/snapshots.cc "
      "services/ps/core/partition.cc "
      "services/ps/core/norm_exchange.cc services/ps/core/step_participants.cc "
      "services/ps/core/data_sender.cc "
      "services/ps/core/gradient_sum.cc";
  return {
      {"shard", RunShard, ShardSeeds, 1024, kSources},
      {"shard_coordinator", RunShardCoordinator, ShardSeeds, 1024, kSources},
  };
}

}  // namespace sluice::fuzz
