// The simulated processes around the cores. In simulated time, they do what the real programs do
// with threads, sockets and files.
#ifndef SLUICE_TESTS_SIMULATION_PROCESSES_H_
#define SLUICE_TESTS_SIMULATION_PROCESSES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "proto/frame.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/ps/core/shard_core.h"
#include "services/worker/core/worker_core.h"
#include "tests/simulation/checker.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/network.h"

namespace sluice::simulation {

// Calls a core's OnTick at its deadline.
class Ticker {
 public:
  // Plans a tick unless an earlier one is planned.
  void Plan(Cluster& cluster, const std::shared_ptr<Process>& process, absl::Time deadline,
            std::function<void()> tick);

 private:
  absl::Time planned_ = absl::InfiniteFuture();
};

class CoordinatorProcess : public Process {
 public:
  CoordinatorProcess(Cluster* cluster, uint64_t incarnation);

  const v1::View& view() const { return core_.view(); }
  void Start();
  void Accept(const StreamRef& stream);
  void OnMessage(const StreamRef& stream, const v1::MemberMessage& message);
  void SetDesired(const v1::SetDesiredRequest& desired);
  // SIGTERM.
  void Leave();
  v1::JobProgress Progress() const;
  // A reader's call; returns the call's number. Answers arrive later; an error is the last answer.
  using SnapshotAnswered = std::function<void(absl::StatusOr<v1::Snapshot>)>;
  uint64_t OpenSnapshot(const v1::OpenSnapshotRequest& request, SnapshotAnswered answered);
  void EndSnapshotCall(uint64_t call);

 private:
  void OnThaw() override;
  void After(std::function<void()> event);
  void Perform();
  void TraceEvents();
  void CheckAdmission(uint64_t stream);
  absl::StatusOr<coordinator::StorageContents> ReadContents();
  void CheckContents(const coordinator::StorageContents& contents,
                     const std::vector<MemoryStorage::DamagedFile>& damaged);
  void OnDisk(absl::FunctionRef<void()> use);
  void On(const coordinator::Send& action);
  void On(const coordinator::CloseStream& action);
  void On(const coordinator::ReadStorage& action);
  void On(const coordinator::ClaimAttempt& action);
  void On(const coordinator::ReadClaims& action);
  void On(const coordinator::WriteCheckpointIndex& action);
  void On(const coordinator::DeleteCheckpoint& action);
  void On(const coordinator::RemoveIncomplete& action);
  void On(const coordinator::AnswerSnapshot& action);
  void On(const coordinator::Exit& action);

  Cluster& cluster_;
  coordinator::CoordinatorCore core_;
  v1::SetDesiredRequest desired_;
  std::map<uint64_t, StreamRef> streams_;
  std::map<uint64_t, uint64_t> registered_;  // stream -> incarnation
  uint64_t last_event_ = 0;
  uint64_t last_call_ = 0;
  std::map<uint64_t, SnapshotAnswered> snapshots_;  // by call
  Ticker ticker_;
};

// The part of shards and workers that looks for the coordinator.
class Member : public Process {
 public:
  Member(Cluster* cluster, std::string name) : cluster_(*cluster), name_(std::move(name)) {}

  const std::string& name() const { return name_; }
  // A hostile process sends arbitrary messages, so shards may close its streams.
  bool hostile() const { return hostile_; }

 protected:
  virtual void OnCoordinatorConnected() = 0;
  virtual void OnCoordinatorDisconnected() = 0;
  virtual void OnCoordinatorMessage(const v1::CoordinatorMessage& message) = 0;

  void LookForCoordinator();
  void TellCoordinator(const v1::MemberMessage& message);
  void LeaveCoordinator();

  Cluster& cluster_;
  const std::string name_;
  StreamRef coordinator_;
  bool hostile_ = false;

 private:
  friend class CoordinatorProcess;
};

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
  void Perform();
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
  void On(const ps::ExitProcess& action);
  void OpenPeer(uint64_t incarnation);
  // When the next file is read or written.
  absl::Time NextFile();
  void CheckBounds() const;
  void NotePull(const StreamRef& stream, const v1::Header& header);
  void CheckAnswer(const ps::SendFrame& action);
  void OnThaw() override;

  const uint32_t index_;
  const uint64_t incarnation_;
  ps::ShardCore core_;
  std::map<uint64_t, StreamRef> streams_;
  std::map<uint64_t, uint64_t> worker_of_;   // stream -> incarnation
  std::map<uint64_t, uint64_t> pull_clock_;  // stream -> clock of its newest pull
  std::map<uint64_t, Peer> peers_;           // by incarnation
  bool leaving_ = false;
  absl::Time file_done_ = absl::InfinitePast();
  Ticker ticker_;
};

class WorkerProcess : public Member {
 public:
  WorkerProcess(Cluster* cluster, uint32_t index, uint64_t incarnation);

  uint32_t index() const { return index_; }
  uint64_t incarnation() const { return incarnation_; }
  void Start();
  void Leave();

 private:
  using Buffer = std::vector<Elements3>;
  struct Job {
    bool evaluation = false;
    worker::Compute compute;
    worker::EvaluateSamples evaluate;
    bool cancelled = false;
  };

  void OnCoordinatorConnected() override;
  void OnCoordinatorDisconnected() override;
  void OnCoordinatorMessage(const v1::CoordinatorMessage& message) override;
  void Do();
  void On(const worker::ConnectShard& action);
  void On(const worker::DisconnectShard& action);
  void On(const worker::SendFrame& action);
  void On(const worker::SendToCoordinator& action);
  void On(const worker::OpenModel& action);
  void On(const worker::ReadInitialTensor& action);
  void On(const worker::StoreBlock& action);
  void On(const worker::AdoptVersion& action);
  void On(const worker::Compute& action);
  void On(const worker::FindRows& action);
  void On(const worker::CancelCompute& action);
  void On(const worker::EvaluateSamples& action);
  void On(const worker::JoinGroup& action);
  void On(const worker::LeaveGroup& action);
  void On(const worker::ReduceGradients& action);
  void On(const worker::Exit& action);

  void OnThaw() override;
  void NextJob();
  void RunCompute();
  void Gradient(size_t place, double tag);
  void RunEvaluation();
  void FinishJob();

  const uint32_t index_;
  const uint64_t incarnation_;
  worker::WorkerCore core_;
  std::map<uint64_t, StreamRef> shards_;
  std::map<uint64_t, uint64_t> attempts_;  // number of the newest connection, by shard
  Buffer current_, incoming_, evaluation_;
  uint64_t adopted_ = 0;
  std::set<std::pair<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>, uint64_t>>
      permits_;  // received: view, clock
  std::deque<Job> jobs_;
  bool working_ = false;
  Ticker ticker_;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_PROCESSES_H_
