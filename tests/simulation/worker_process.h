// The simulated worker: in simulated time, it does around the core what the real program does with
// threads, sockets and a model.
#ifndef SLUICE_TESTS_SIMULATION_WORKER_PROCESS_H_
#define SLUICE_TESTS_SIMULATION_WORKER_PROCESS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "proto/control.pb.h"
#include "services/worker/core/worker_core.h"
#include "tests/simulation/checker/toy_model.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/member.h"
#include "tests/simulation/network.h"
#include "tests/simulation/simulated_core.h"

namespace sluice::simulation {

class WorkerProcess : public Member {
 public:
  WorkerProcess(Cluster* cluster, uint32_t index, uint64_t incarnation);

  uint32_t index() const { return index_; }
  uint64_t incarnation() const { return incarnation_; }
  void Start();
  void Leave();

 private:
  using Core = worker::WorkerCore;
  friend class SimulatedCore<Core, WorkerProcess>;

  using Buffer = std::vector<Elements3>;
  struct Job {
    bool evaluation = false;
    worker::Compute compute;
    worker::EvaluateSamples evaluate;
    double loss = 0;  // of each held-out sample
    bool cancelled = false;
  };

  void OnCoordinatorConnected() override;
  void OnCoordinatorDisconnected() override;
  void OnCoordinatorMessage(const v1::CoordinatorMessage& message) override;
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
  void On(const worker::ComputeMetrics& action);
  void On(const worker::JoinGroup& action);
  void On(const worker::LeaveGroup& action);
  void On(const worker::ReduceGradients& action);
  void On(const worker::GiveSum& action);
  void On(const Exit& action);

  void OnThaw() override { core_.OnThaw(); }
  void BeforeActions() {}
  void AfterActions() {}
  void NextJob();
  void RunCompute();
  void AskForSum();
  void LeaveSum();
  void Gradient(size_t place, double tag);
  void RunEvaluation();
  void FinishJob();

  const uint32_t index_;
  const uint64_t incarnation_;
  SimulatedCore<Core, WorkerProcess> core_;
  std::map<uint64_t, StreamRef> shards_;
  std::map<uint64_t, uint64_t> attempts_;  // number of the newest connection, by shard
  Buffer current_, incoming_, evaluation_;
  uint64_t adopted_ = 0;
  std::set<std::pair<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>, uint64_t>>
      permits_;  // received: view, clock
  std::deque<Job> jobs_;
  bool working_ = false;
  // The first job, with `sync`: the sums that it has, and whether it waits for the next one.
  uint32_t sums_ = 0;
  bool summing_ = false;
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_WORKER_PROCESS_H_
