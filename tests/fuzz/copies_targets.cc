// Two shards, one with the copies of the other's partitions. Frames between them are delivered,
// delayed, lost with their streams, and changed.
//
// An input is a list of events. No frame may end a process or exceed a bound, and as long as no
// frame was changed a whole copy has the bits of its partition.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/common/check.h"
#include "services/ps/core/base/action.h"
#include "services/ps/core/state/partition_file.h"
#include "services/ps/core/testing/shard_pair.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/message_change.h"
#include "tests/fuzz/shard_bounds.h"

namespace sluice::fuzz {
namespace {

using ps::ShardHarness;
using ps::StreamId;

constexpr int kMaxEvents = 64;
constexpr uint64_t kBatch = 4;  // of ShardHarness

// The first byte of an event.
enum Event : char {
  kStep = 0,  // of both members; asynchronous: an update of one
  kDeliver = 1,
  kDeliverChanged = 2,
  kTime = 3,
  kCommit = 4,
  kView = 5,
  kConnect = 6,
  kFrame = 7,
  kTicks = 8,  // what is due
  kEvents = 9,
};

// The first byte of an input.
enum Job : char { kPlain = 0, kAsynchronous = 1, kOneAtATime = 2, kJobs = 3 };

class CopiesWorld {
 public:
  explicit CopiesWorld(ByteSource* bytes) : bytes_(bytes) {
    const auto job = static_cast<Job>(bytes_->Below(kJobs));
    for (ShardHarness* shard : {&pair_.a, &pair_.b}) {
      if (job == kAsynchronous) shard->job.mutable_training()->set_mode(v1::ASYNCHRONOUS);
      if (job == kOneAtATime) shard->options.copy_transfer_bytes = 1;
      shard->options.copy_part_bytes = 128;
    }
    pair_.BeginWithoutCopies();
    ChangeView();
  }

  void Run() {
    for (int event = 0; event < kMaxEvents && !bytes_->empty(); ++event) {
      Act();
      Check();
    }
  }

  // Whether a copy was whole after training had made progress.
  bool Trained() const { return trained_; }

 private:
  bool synchronous() const { return pair_.a.job.training().mode() == v1::SYNCHRONOUS; }

  void Act() {
    switch (static_cast<Event>(bytes_->Below(kEvents))) {
      case kStep:
        return synchronous() ? Step() : Update();
      case kDeliver:
        return Deliver(/*changed=*/SIZE_MAX);
      case kDeliverChanged:
        return Deliver(bytes_->Below(8));
      case kTime:
        for (ShardHarness* shard : {&pair_.a, &pair_.b}) {
          shard->now += absl::Milliseconds(1 + 50 * bytes_->Byte());
          shard->core().OnTick(shard->now);
        }
        return;
      case kTicks:
        while (pair_.WorkIfDue()) {
        }
        return;
      case kCommit:
        return Commit();
      case kView:
        return ChangeView();
      case kConnect:
        return pair_.Connect();
      case kFrame:
      case kEvents:
        return AnyFrame();
    }
  }

  // ---- members

  void Step() {
    const uint64_t step = pair_.a.core().Status().lowest;
    const float value = static_cast<float>(bytes_->Below(4));
    for (uint32_t partition : {0, 1}) {
      const std::vector<float> values(partition == 0 ? 4 : 2, value);
      pair_.a.Push(pair_.one, step, partition, values, ShardHarness::Microbatches(0, 2));
      pair_.a.Push(pair_.two, step, partition, values, ShardHarness::Microbatches(2, 4));
    }
  }

  v1::Header NewHeader() {
    v1::Header header;
    *header.mutable_view() = pair_.a.core().Status().view;
    return header;
  }

  // As far as the shard lets the member go: it waits for answers of the copy.
  void Update() {
    Member& member = bytes_->Below(2) == 0 ? one_ : two_;
    const StreamId stream = &member == &one_ ? pair_.one : pair_.two;
    for (const v1::Header& frame : pair_.a.TakeFrames(stream)) {
      if (frame.has_lease()) member.lease = frame.lease();
      if (frame.has_permit()) member.permit = frame.permit();
      if (frame.has_staged()) member.staged = frame.staged().clock();
    }
    v1::Header request = NewHeader();
    const uint64_t clock = member.lease.clock() + 1;
    v1::Range samples = member.lease.samples();
    if (member.permit.clock() == clock && member.staged == clock) {
      request.mutable_apply()->set_clock(clock);
      request.mutable_apply()->set_ordinal(member.permit.ordinal());
      request.mutable_apply()->set_staleness(member.permit.staleness());
      *request.mutable_apply()->mutable_samples() = samples;
      pair_.a.Send(stream, request);
      request = NewHeader();
      request.mutable_lease_request()->set_clock(clock);
      request.mutable_lease_request()->set_samples(kBatch);
    } else if (member.permit.clock() == clock) {
      for (uint32_t partition : {0, 1}) {
        v1::Header push = pair_.a.MakePush(0, partition, ShardHarness::Microbatches(0, 1), kBatch);
        push.mutable_push()->set_clock(clock);
        push.mutable_push()->set_ordinal(member.permit.ordinal());
        pair_.a.Send(stream, push, ps::CordOf(std::vector<float>(partition == 0 ? 4 : 2, 1)));
      }
      return;
    } else if (samples.end() > samples.begin()) {
      request.mutable_permit_request()->set_clock(clock);
    } else {
      request.mutable_lease_request()->set_samples(kBatch);
    }
    pair_.a.Send(stream, request);
  }

  // ---- between the shards

  // Everything that is on its way in one direction; of the frames, changes one.
  void Deliver(size_t changed) {
    const bool to_copies = bytes_->Below(2) == 0;
    ShardHarness& from = to_copies ? pair_.a : pair_.b;
    ShardHarness& to = to_copies ? pair_.b : pair_.a;
    size_t number = 0;
    for (ps::SendToShard& send : from.TakeActions<ps::SendToShard>()) {
      if (number++ == changed) {
        honest_ = false;
        ChangeFields(bytes_, &send.header);
        if (bytes_->Below(4) == 0) send.payload = absl::Cord(bytes_->Take(bytes_->Below(64)));
      }
      to.Send(to_copies ? pair_.at_b : pair_.at_a, send.header, send.payload);
    }
  }

  void AnyFrame() {
    honest_ = false;
    const bool to_copies = bytes_->Below(2) == 0;
    v1::Header header = NewHeader();
    switch (bytes_->Below(6)) {
      case 0:
        header.mutable_copy_state()->set_parts(1);
        break;
      case 1:
        header.mutable_copy_entry()->set_sequence(1);
        header.mutable_copy_entry()->mutable_gradients()->set_parts(1);
        break;
      case 2:
        header.mutable_copy_entry()->set_sequence(1);
        break;
      case 3:
        header.mutable_copy_ack()->set_sequence(1);
        break;
      case 4:
        header.mutable_copy_whole();
        break;
      default:
        ChooseBody(bytes_, &header);
    }
    ChangeFields(bytes_, &header);
    ShardHarness& to = to_copies ? pair_.b : pair_.a;
    to.Send(to_copies ? pair_.at_b : pair_.at_a, header,
            absl::Cord(bytes_->Take(bytes_->Below(64))));
  }

  // ---- the coordinator

  void Commit() {
    v1::CoordinatorMessage message;
    *message.mutable_committed()->mutable_view() = pair_.a.core().Status().view;
    message.mutable_committed()->set_version(pair_.a.core().Status().lowest);
    for (ShardHarness* shard : {&pair_.a, &pair_.b}) shard->Deliver(message);
  }

  // A view with the same members and copies.
  void ChangeView() {
    v1::PauseReply reply;
    ++view_;
    for (ShardHarness* shard : {&pair_.b, &pair_.a}) {
      shard->TakeMessages();
      shard->Pause(view_);
      for (v1::PauseReply& one : shard->TakePauseReplies()) reply = std::move(one);
    }
    std::vector<uint32_t> whole;
    for (uint32_t p : {0, 1}) {
      if (pair_.IsEqualCopy(p)) whole.push_back(p);
    }
    v1::CoordinatorMessage message =
        pair_.MakeInstallWithCopies(view_, pair_.a.core().Status().lowest, whole);
    v1::Install& install = *message.mutable_install();
    if (!synchronous()) {
      *install.mutable_clocks() = reply.clocks();
      *install.mutable_ledger() = reply.ledger();
      *install.mutable_leases() = reply.leases();
    }
    for (ShardHarness* shard : {&pair_.a, &pair_.b}) shard->Deliver(message);
    pair_.Connect();
    one_ = two_ = Member();
  }

  // ---- promises

  void Check() {
    for (ShardHarness* shard : {&pair_.a, &pair_.b}) {
      shard->TakeMessages();
      const ps::ShardStatus status = shard->core().Status();
      CheckBoundsOf(status);
      SLUICE_CHECK(status.lowest <= status.highest, "versions are in order");
    }
    for (uint32_t p : {0, 1}) {
      const auto copy = pair_.b.core().CopyContent(p);
      const auto owned = pair_.a.core().Content(p);
      if (copy == nullptr) continue;
      trained_ |= copy->version > 0;
      if (!honest_) continue;
      if (synchronous()) {
        SLUICE_CHECK(copy->version == owned->version || copy->version == owned->version + 1,
                     "a whole copy is at its owner's version, or one past it");
      }
      SLUICE_CHECK(copy->version != owned->version || pair_.IsEqualCopy(p),
                   "a copy has the bits of its partition");
    }
  }

  struct Member {
    v1::Lease lease;
    v1::Permit permit;
    uint64_t staged = 0;  // the clock of the update
  };

  ByteSource* const bytes_;
  ps::ShardPair pair_;
  Member one_, two_;
  uint64_t view_ = 1;
  bool honest_ = true;
  bool trained_ = false;
};

bool RunCopies(absl::string_view input) {
  ByteSource bytes(input);
  CopiesWorld world(&bytes);
  world.Run();
  return world.Trained();
}

// Copies that become whole, steps with and without answers, and each event between them.
std::vector<std::string> CopiesSeeds() {
  constexpr char kToCopies = 0;
  constexpr char kToOwner = 1;
  const std::string both = {kDeliver, kToCopies, kTicks, kDeliver, kToOwner};
  std::vector<std::string> seeds;
  for (char job = 0; job < kJobs; ++job) {
    // Lease, permit, push and apply, each after the answers.
    std::string step;
    for (int i = 0; i < (job == kAsynchronous ? 4 : 1); ++i) step += std::string{kStep, 1} + both;
    std::string seed =
        absl::StrCat(std::string(1, job), both, both, step, std::string{kCommit}, both);
    seeds.push_back(seed + step);
    for (char event = kDeliverChanged; event < kEvents; ++event) {
      seeds.push_back(absl::StrCat(seed, std::string{kStep, 2, event, 0, 0, 1, 3}, both, step));
    }
  }
  return seeds;
}

}  // namespace

std::vector<FuzzTarget> CopiesTargets() {
  static constexpr char kSources[] =
      "services/ps/core/replication/sender.cc services/ps/core/replication/replica.cc "
      "services/ps/core/replication/log.cc services/ps/core/replication/checks.cc "
      "services/ps/core/replication/gradients.cc "
      "services/ps/core/training/asynchronous_copies.cc";
  return {{"copies", RunCopies, CopiesSeeds, 1024, kSources}};
}

}  // namespace sluice::fuzz
