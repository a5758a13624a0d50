// Processes that send whatever they like, under an identity that the transport vouches for: role
// and index are theirs, and nothing else has to be true.
//
//   a stranger  a reader, or a worker that the job does not want. It never stops, and the job goes
//               on as if it were not there
//   a liar      a member: the process of a worker that does its work and sends everything else
//               beside it, for a while. What it may decide is its own contribution, and that is
//               right; so whatever its other messages claim, the job's model is that of the
//               samples. It leaves out what would be its own contribution made wrong
//               (LeaveOutOwn). It also pushes steps of which it does not hold all partitions, with
//               nothing in them: so it says to one shard that the others have closed the step
//               before
//
// What is sent: frames and messages that were recorded, of its own and of others, as they were or
// with some fields changed; and invented ones.
#ifndef SLUICE_TESTS_SIMULATION_HOSTILE_PROCESS_H_
#define SLUICE_TESTS_SIMULATION_HOSTILE_PROCESS_H_

#include <cstdint>
#include <vector>

#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "tests/simulation/processes.h"

namespace sluice::simulation {

class HostileProcess : public Member {
 public:
  // `role` WORKER or READER. A liar has the role and index of a worker of the job.
  HostileProcess(Cluster* cluster, v1::Role role, uint32_t index, bool liar);

  void Start();

 private:
  static constexpr size_t kMaxDataStreams = 6;
  static constexpr size_t kMaxControlStreams = 2;

  void OnCoordinatorConnected() override {}
  void OnCoordinatorLost() override {}
  void OnCoordinatorMessage(const v1::CoordinatorMessage& message) override;

  void Act();
  void OpenData();
  void OpenControl();
  void OpenSnapshot();
  void Send(const StreamRef& stream, v1::Header header);
  void Say(const StreamRef& stream, v1::MemberMessage message);
  // Its own, or another's: of a worker or a shard that lives.
  uint64_t SomeIncarnation();
  uint64_t OwnIncarnation();
  v1::Header MakeHello(const ShardProcess& shard);
  v1::Header MakeFrame();
  v1::MemberMessage MakeMessage();
  void LeaveOutOwn(v1::Header* header);
  // Whether shards believe no member of the view alone that all shards have closed a step.
  bool HoldersAreAwaited(const v1::ViewId& view);

  const v1::Role role_;
  const uint32_t index_;
  const bool liar_;
  const uint64_t incarnation_;
  absl::Time until_ = absl::InfiniteFuture();
  std::vector<StreamRef> data_, control_;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_HOSTILE_PROCESS_H_
