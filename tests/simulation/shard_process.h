// The simulated shard: in simulated time, it does around the core what the real program does with
// threads, sockets and files.
#ifndef SLUICE_TESTS_SIMULATION_SHARD_PROCESS_H_
#define SLUICE_TESTS_SIMULATION_SHARD_PROCESS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "services/ps/core/shard_core.h"
#include "tests/simulation/checker/checker.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/member.h"
#include "tests/simulation/network.h"
#include "tests/simulation/simulated_core.h"

namespace sluice::simulation {

class ShardProcess : public Member {
 public:
  ShardProcess(Cluster* cluster, uint32_t index, uint64_t incarnation);

  uint32_t index() const { return index_; }
  uint64_t incarnation() const { return incarnation_; }
  void Start();
  // SIGTERM.
  void Leave();
  bool leaving() const { return leaving_; }
  void Accept(const StreamRef& stream);
  void OnFrame(const StreamRef& stream, const v1::Header& header, const absl::Cord& payload);

 private:
  using Core = ps::ShardCore;
  friend class SimulatedCore<Core, ShardProcess>;

  // This shard's stream to another shard.
  struct Peer {
    v1::ProcessId process;
    std::string address;
    StreamRef stream;  // null: not connected
    bool opening = false;
    bool ready = false;
    int tries = 0;
    std::deque<std::pair<v1::Header, absl::Cord>> waiting;  // for credit
    uint64_t credit = 0;
  };

  void OnCoordinatorConnected() override;
  void OnCoordinatorDisconnected() override;
  void OnCoordinatorMessage(const v1::CoordinatorMessage& message) override;
  // Checks the state and the uses of the bounds.
  void BeforeActions() const;
  void AfterActions() {}
  Checker::ShardNow Look() const;
  void On(const ps::SendFrame& action);
  void On(const ps::SendToShard& action);
  void SendWaiting(Peer& peer);
  void On(const ps::CloseStream& action);
  void On(const ps::SendToCoordinator& action);
  void On(const ps::DropCoordinator& action);
  void On(const ps::WritePartition& action);
  void On(const ps::LoadPartition& action);
  void On(const ps::ReadCopy& action);
  void On(const Exit& action);
  void OpenPeer(uint64_t incarnation);
  // When the next file is read or written.
  absl::Time NextFile();
  void NotePull(const StreamRef& stream, const v1::Header& header);
  void CheckAnswer(const ps::SendFrame& action);
  void OnThaw() override { core_.OnThaw(); }

  const uint32_t index_;
  const uint64_t incarnation_;
  SimulatedCore<Core, ShardProcess> core_;
  std::map<uint64_t, StreamRef> streams_;
  std::map<uint64_t, uint64_t> worker_of_;   // stream -> incarnation
  std::map<uint64_t, uint64_t> pull_clock_;  // stream -> clock of its newest pull
  std::map<uint64_t, Peer> peers_;           // by incarnation
  bool leaving_ = false;
  absl::Time file_done_ = absl::InfinitePast();
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_SHARD_PROCESS_H_
