// Two shards for tests of copies: `a` owns both partitions, `b` holds their copies. Frames between
// them travel when a test says so.
#ifndef SLUICE_SERVICES_PS_CORE_TESTING_SHARD_PAIR_H_
#define SLUICE_SERVICES_PS_CORE_TESTING_SHARD_PAIR_H_

#include <cstdint>
#include <vector>

#include "services/ps/core/state/partition_file.h"
#include "services/ps/core/testing/shard_harness.h"

namespace sluice::ps {

struct ShardPair {
  ShardPair() {
    for (ShardHarness* shard : {&a, &b}) {
      shard->job.mutable_optimizer()->set_name(v1::OptimizerSpec::ADAM);
      shard->job.mutable_optimizer()->set_learning_rate(0.1);
    }
    b.options.identity.mutable_process()->set_incarnation(kOtherShardIncarnation);
  }

  // View 1: members 7 and 8, without copies.
  void BeginWithoutCopies() {
    a.Begin({7, 8});
    b.Connect();
    b.Prepare(1);
    b.ChangeView(1, 0, {7, 8});
    one = a.Open(7);
    two = a.Open(8);
  }
  // A view in which `b` is the follower of both partitions.
  v1::View ViewWithCopies(uint64_t number, uint64_t first_step) const {
    v1::View view = a.MakeView(number, first_step, {7, 8});
    for (int p = 0; p < 2; ++p) view.add_follower(2);
    return view;
  }
  // `whole`: the partitions whose copy is whole.
  v1::CoordinatorMessage MakeInstallWithCopies(uint64_t number, uint64_t first_step,
                                               const std::vector<uint32_t>& whole) const {
    v1::CoordinatorMessage message;
    *message.mutable_install() = a.MakeInstall(ViewWithCopies(number, first_step));
    for (uint32_t partition : whole) message.mutable_install()->add_whole_followers(partition);
    return message;
  }
  void Install(const v1::CoordinatorMessage& install) {
    for (ShardHarness* shard : {&a, &b}) {
      shard->Pause(install.install().view().id().number());
      shard->Deliver(install);
    }
    Connect();
  }

  // Streams of each shard to the other one, which replace those before.
  void Connect() {
    Discard();
    at_a = a.Open(kOtherShardIncarnation, v1::SHARD);
    at_b = b.Open(kShardIncarnation, v1::SHARD);
    a.core().OnShardConnected(kOtherShardIncarnation, a.now);
    b.core().OnShardConnected(kShardIncarnation, b.now);
  }
  // Carries frames between the shards until there are none.
  void Carry() {
    for (bool any = true; any;) {
      any = false;
      for (SendToShard& send : a.TakeActions<SendToShard>()) {
        b.Send(at_b, send.header, send.payload);
        any = true;
      }
      for (SendToShard& send : b.TakeActions<SendToShard>()) {
        a.Send(at_a, send.header, send.payload);
        any = true;
      }
    }
  }
  // One thing that is due. False: there is none.
  bool WorkIfDue() {
    return a.ReadCopyIfDue() || b.ReadCopyIfDue() || a.TickIfDue() || b.TickIfDue();
  }
  // Carries frames and does everything that is due.
  void Pump() {
    do {
      Carry();
    } while (WorkIfDue());
  }
  // Frames that are lost with their streams.
  void Discard() {
    a.TakeActions<SendToShard>();
    b.TakeActions<SendToShard>();
  }

  // Whether the shard's copy of a partition is the partition, to the bit.
  bool IsEqualCopy(uint32_t partition) {
    const auto copy = b.core().CopyContent(partition);
    const auto owned = a.core().Content(partition);
    return copy != nullptr && copy->version == owned->version &&
           StateHash(*copy) == StateHash(*owned);
  }

  ShardHarness a, b;
  StreamId one = 0, two = 0;    // workers' streams at a
  StreamId at_a = 0, at_b = 0;  // the other shard's stream
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_CORE_TESTING_SHARD_PAIR_H_
