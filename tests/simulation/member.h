#ifndef SLUICE_TESTS_SIMULATION_MEMBER_H_
#define SLUICE_TESTS_SIMULATION_MEMBER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "proto/common.pb.h"
#include "proto/control.pb.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/network.h"

namespace sluice::simulation {

// The time after which a member looks for the coordinator again.
inline constexpr absl::Duration kCoordinatorRetry = absl::Milliseconds(30);

v1::ProcessId MakeProcessId(v1::Role role, uint32_t index, uint64_t incarnation);

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
  void DeliverToCoordinator(const v1::MemberMessage& message);
  void LeaveCoordinator();

  Cluster& cluster_;
  const std::string name_;
  StreamRef coordinator_;
  bool hostile_ = false;

 private:
  friend class CoordinatorProcess;

  void LookForCoordinator(absl::Duration after);
  void Connect();
};

}  // namespace sluice::simulation

#endif  // SLUICE_TESTS_SIMULATION_MEMBER_H_
