#include "cli/local/local_states.h"

#include <gtest/gtest.h>

#include <csignal>

namespace sluice::cli {
namespace {

v1::ProcessStatus* AddProcess(v1::JobProgress* progress, v1::Role role, uint32_t index,
                              uint64_t pid, v1::ProcessStatus::State state) {
  v1::ProcessStatus* status = progress->add_processes();
  status->mutable_process()->set_role(role);
  status->mutable_process()->set_index(index);
  status->set_pid(pid);
  status->set_state(state);
  return status;
}

local::ProcessInfo Running(pid_t pid, uint32_t restarts = 0) {
  local::ProcessInfo view;
  view.pid = pid;
  view.running = true;
  view.restarts = restarts;
  return view;
}

TEST(LocalStatesTest, CombinesCoordinatorStatusAndChildStates) {
  v1::JobProgress progress;
  AddProcess(&progress, v1::SHARD, 0, 11, v1::ProcessStatus::MEMBER)->set_partitions(64);
  AddProcess(&progress, v1::WORKER, 0, 12, v1::ProcessStatus::MEMBER)
      ->set_samples_per_second(512.4);
  progress.mutable_processes(1)->set_batch_size(16);
  AddProcess(&progress, v1::WORKER, 1, 1, v1::ProcessStatus::SUSPECT);
  AddProcess(&progress, v1::WORKER, 4, 15, v1::ProcessStatus::SUSPECT);
  std::map<policy::Replica, local::ProcessInfo> processes;
  processes[{v1::COORDINATOR, 0}] = Running(10);
  processes[{v1::SHARD, 0}] = Running(11);
  processes[{v1::WORKER, 0}] = Running(12, 1);
  processes[{v1::WORKER, 1}] = Running(13);  // not the instance in the coordinator's progress
  processes[{v1::WORKER, 2}].pid = 14;
  processes[{v1::WORKER, 2}].exit.signal = SIGKILL;
  processes[{v1::WORKER, 3}].pid = 14;
  processes[{v1::WORKER, 4}] = Running(15);
  auto states = LocalProcessStates(processes, &progress);
  EXPECT_EQ((states[{v1::COORDINATOR, 0}].text), "running");
  EXPECT_EQ((states[{v1::SHARD, 0}].text), "serving, 64 partitions");
  EXPECT_EQ((states[{v1::WORKER, 0}].text), "training, computes 512 samples/s, batches of 16");
  EXPECT_EQ((states[{v1::WORKER, 0}].restarts), 1u);
  EXPECT_EQ((states[{v1::WORKER, 1}].text), "starting");
  EXPECT_EQ((states[{v1::WORKER, 2}].text), "killed by signal 9 (Killed)");
  EXPECT_EQ((states[{v1::WORKER, 2}].tone), ProcessState::Tone::kBad);
  EXPECT_EQ((states[{v1::WORKER, 3}].text), "finished");
  EXPECT_EQ((states[{v1::WORKER, 4}].text), "not responding");
}

TEST(LocalStatesTest, LivingProcessDeterminesTheState) {
  v1::JobProgress progress;
  // In the coordinator's order: first the members, then the departed processes, oldest first.
  AddProcess(&progress, v1::SHARD, 0, 20, v1::ProcessStatus::MEMBER)->set_partitions(1);
  AddProcess(&progress, v1::WORKER, 1, 21, v1::ProcessStatus::STANDBY);
  AddProcess(&progress, v1::SHARD, 0, 10, v1::ProcessStatus::EXPELLED);
  AddProcess(&progress, v1::WORKER, 1, 11, v1::ProcessStatus::EXPELLED);
  AddProcess(&progress, v1::WORKER, 2, 12, v1::ProcessStatus::LEFT);
  AddProcess(&progress, v1::WORKER, 2, 13, v1::ProcessStatus::EXPELLED);
  AddProcess(&progress, v1::WORKER, 3, 14, v1::ProcessStatus::LEFT);
  auto states = ReportedProcessStates(progress);
  EXPECT_EQ(states.size(), 4u);
  EXPECT_EQ((states[{v1::SHARD, 0}].text), "serving, 1 partition");
  EXPECT_EQ((states[{v1::WORKER, 1}].text), "waiting to join");
  EXPECT_EQ((states[{v1::WORKER, 2}].text), "expelled");
  EXPECT_EQ((states[{v1::WORKER, 2}].tone), ProcessState::Tone::kBad);
  EXPECT_EQ((states[{v1::WORKER, 3}].text), "left");
  EXPECT_EQ((states[{v1::WORKER, 3}].tone), ProcessState::Tone::kDone);
}

TEST(LocalStatesTest, CoordinatorWithoutProgressIsStarting) {
  const auto states = LocalProcessStates({{{v1::COORDINATOR, 0}, Running(10)}}, nullptr);
  EXPECT_EQ(states.begin()->second.text, "starting");
}

}  // namespace
}  // namespace sluice::cli
