// The simulated coordinator: in simulated time, it does around the core what the real program does
// with threads, sockets and files.
#ifndef SLUICE_TESTS_SIMULATION_COORDINATOR_PROCESS_H_
#define SLUICE_TESTS_SIMULATION_COORDINATOR_PROCESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "proto/control.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/coordinator/core/coordinator_core.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/memory_storage.h"
#include "tests/simulation/network.h"
#include "tests/simulation/simulated_core.h"

namespace sluice::simulation {

class CoordinatorProcess : public Process {
 public:
  CoordinatorProcess(Cluster* cluster, uint64_t incarnation);

  const v1::View& view() const { return core_->view(); }
  void Start();
  void Accept(const StreamRef& stream);
  void OnMessage(const StreamRef& stream, const v1::MemberMessage& message);
  void SetDesired(const v1::SetDesiredRequest& desired);
  void OnParentCall();
  // SIGTERM.
  void Leave();
  v1::JobProgress Progress() const;
  // A reader's call; returns the call's number. Answers arrive later; an error is the last answer.
  using SnapshotAnswered = std::function<void(absl::StatusOr<v1::Snapshot>)>;
  uint64_t OpenSnapshot(const v1::OpenSnapshotRequest& request, SnapshotAnswered answered);
  void EndSnapshotCall(uint64_t call);

 private:
  using Core = coordinator::CoordinatorCore;
  friend class SimulatedCore<Core, CoordinatorProcess>;

  void OnThaw() override { core_.OnThaw(); }
  void BeforeActions() {}
  // Traces the job's events.
  void AfterActions();
  void After(std::function<void()> event);
  void CheckAdmission(uint64_t stream);
  absl::StatusOr<coordinator::StorageContents> ReadContents(FileCheck check);
  void CheckContents(const coordinator::StorageContents& contents,
                     const std::vector<MemoryStorage::DamagedFile>& damaged);
  void OnDisk(absl::FunctionRef<void()> use);
  absl::Status FailToClaim(const v1::Claim& claim);
  void CheckExit(const coordinator::Exit& exit);
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
  const uint64_t incarnation_;
  SimulatedCore<Core, CoordinatorProcess> core_;
  std::map<uint64_t, StreamRef> streams_;
  std::map<uint64_t, uint64_t> registered_;  // stream -> incarnation
  uint64_t last_event_ = 0;
  uint64_t last_call_ = 0;
  std::map<uint64_t, SnapshotAnswered> snapshots_;  // by call
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_COORDINATOR_PROCESS_H_
