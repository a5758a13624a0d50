// A job whose backend carries out the decisions of the policy immediately.
#ifndef SLUICE_OPERATOR_POLICY_TESTING_POLICY_WORLD_H_
#define SLUICE_OPERATOR_POLICY_TESTING_POLICY_WORLD_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "operator/policy/policy.h"
#include "proto/job.pb.h"
#include "services/common/exit_code.h"

namespace sluice::policy {

inline constexpr Replica kShard0 = {v1::SHARD, 0};
inline constexpr Replica kShard1 = {v1::SHARD, 1};
inline constexpr Replica kWorker0 = {v1::WORKER, 0};
inline constexpr Replica kWorker1 = {v1::WORKER, 1};

class World {
 public:
  World() {
    plan.shards = 2;
    plan.workers = 2;
    plan.backoff_limit = 2;
  }

  // Decides, carries out the decision, and returns it.
  Decision Step() {
    Decision decision = Decide(plan, limits, observed, memory_, now);
    memory_ = decision.memory;
    for (const StartProcess& start : decision.starts) {
      EXPECT_FALSE(finished) << "started after the end: " << ReplicaName(start.replica);
      Start(start.replica);
    }
    for (const ReportDeath& death : decision.deaths) reported.push_back(death);
    for (const StopProcess& stop : decision.stops) {
      stopped.push_back(absl::StrCat(stop.kill ? "kill " : "stop ", ReplicaName(stop.replica)));
    }
    if (decision.finish.has_value()) finished = true;
    return decision;
  }

  // The coordinator answers, and lists these processes.
  void Answer(const std::vector<Replica>& registered) {
    observed.last_progress_at = now;
    for (auto& [replica, process] : observed.processes) {
      if (replica.role == v1::COORDINATOR) continue;
      const bool known = std::count(registered.begin(), registered.end(), replica) > 0;
      process.registration = known ? Registration::kRegistered : Registration::kMissing;
    }
  }

  // The backend itself was paused, and possibly all processes with it.
  void PauseBackend(absl::Duration time) {
    now += time;
    ExtendDeadlines(time, &observed, &memory_);
  }

  void Start(const Replica& replica) {
    started.push_back(ReplicaName(replica));
    ProcessObservation process;
    process.pid = ++pids_;
    process.instance = absl::StrCat("instance-", pids_);
    process.started = now;
    observed.processes[replica] = process;
  }

  void StartAll() {
    Step();
    observed.coordinator_address = "127.0.0.1:1";
    Step();
    started.clear();
  }

  void End(const Replica& replica, int code, int signal = 0, std::string message = "") {
    ProcessObservation& process = observed.processes.at(replica);
    process.running = false;
    process.ended = now;
    process.exit = {code, signal, std::move(message)};
  }

  void EndAll() {
    for (auto& [replica, process] : observed.processes) {
      if (process.running) End(replica, kExitOk);
    }
  }

  JobPlan plan;
  Limits limits;
  Observation observed;
  absl::Time now = absl::UnixEpoch();
  std::vector<std::string> started;
  std::vector<std::string> stopped;
  std::vector<ReportDeath> reported;
  bool finished = false;

 private:
  Memory memory_;
  uint64_t pids_ = 0;
};

// All processes but the coordinator.
inline const std::vector<Replica> kEverybody = {kShard0, kShard1, kWorker0, kWorker1};

// With timeouts: 3 s of silence, 20 s to start. The backend watches the coordinator.
inline World WatchedWorld() {
  World world;
  v1::JobSpec job;
  job.mutable_timeouts()->set_heartbeat_timeout(3);
  job.mutable_timeouts()->set_start(20);
  job.mutable_parameter_server()->set_replicas(world.plan.shards);
  job.mutable_worker()->set_replicas(world.plan.workers);
  job.set_backoff_limit(world.plan.backoff_limit);
  world.plan = PlanOf(job);
  world.plan.watch_coordinator = true;
  return world;
}

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_TESTING_POLICY_WORLD_H_
