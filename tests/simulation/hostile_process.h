// Processes that send arbitrary messages under an identity that the transport authenticates: role
// and index are true, everything else may be false.
//
//   a stranger  a reader, or a worker that the job does not want. It never stops, and the job must
//               continue as if the stranger did not exist
//   a liar      a member that does its work and also sends arbitrary messages for a while. Its own
//               contribution is correct, so the model must be correct, whatever its other messages
//               claim. It leaves out messages that would falsify its own contribution
//               (LeaveOutOwn). It also pushes empty steps although it has not received all
//               partitions, and so claims to one shard that the other shards have closed the
//               previous step
//
// Both send recorded frames and messages, their own and those of other processes, unchanged or with
// some fields changed, and invented ones.
#ifndef SLUICE_TESTS_SIMULATION_HOSTILE_PROCESS_H_
#define SLUICE_TESTS_SIMULATION_HOSTILE_PROCESS_H_

#include <cstdint>
#include <vector>

#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "tests/simulation/member.h"
#include "tests/simulation/shard_process.h"

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
  void OnCoordinatorDisconnected() override {}
  void OnCoordinatorMessage(const v1::CoordinatorMessage& message) override;

  void Act();
  void OpenData();
  void OpenControl();
  void OpenSnapshot();
  void Send(const StreamRef& stream, v1::Header header);
  void Say(const StreamRef& stream, v1::MemberMessage message);
  // Its own incarnation, or that of another running worker or shard.
  uint64_t SomeIncarnation();
  uint64_t OwnIncarnation();
  v1::Header MakeHello(const ShardProcess& shard);
  v1::Header MakeFrame();
  v1::MemberMessage MakeMessage();
  void LeaveOutOwn(v1::Header* header);
  // Whether shards commit a step only after more than one member has pushed the next.
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
