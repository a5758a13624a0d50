// Ten thousand steps of a real job: no process's memory grows.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/job_processes.h"
#include "tests/testing/jobs.h"

namespace sluice::testing {
namespace {

constexpr uint64_t kSteps = 10'000;
// By this step every buffer has been used and every bounded list (events, logs) is full.
constexpr uint64_t kSettled = 3'000;
// Allowed growth over the 7,000 steps after that; a leak of 500 bytes a step exceeds it.
constexpr int64_t kMaxGrowthKib = 3'000;

v1::JobSpec SmallJob(const std::string& directory) {
  v1::JobSpec job = BaseJob();
  job.set_name("memory");
  job.mutable_model()->set_name("mlp");
  (*job.mutable_model()->mutable_dimensions())["hidden"] = 64;

  job.mutable_data()->set_format(v1::DataSpec::SYNTHETIC);
  v1::DataSpec::Synthetic& data = *job.mutable_data()->mutable_synthetic();
  data.set_samples(10'000);
  data.add_shape(64);
  data.set_classes(10);

  job.mutable_training()->set_global_batch_size(32);
  job.mutable_training()->set_microbatch_size(16);
  job.mutable_training()->clear_epochs();
  job.mutable_training()->set_steps(kSteps);
  job.mutable_training()->set_threads(1);

  job.mutable_parameter_server()->set_replicas(2);
  job.mutable_worker()->set_replicas(2);
  job.mutable_checkpoint()->set_directory(absl::StrCat(directory, "/checkpoints"));
  job.mutable_checkpoint()->set_interval_steps(1'000);
  job.mutable_checkpoint()->set_max_to_keep(2);
  return job;
}

// The resident memory of a process; 0 if it does not exist.
int64_t ResidentKib(pid_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) return std::stoll(line.substr(6));
  }
  return 0;
}

int64_t Median(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TEST(FlatMemoryTest, NoProcessGrowsOverTenThousandSteps) {
  const std::string directory = NewDirectory("memory");
  JobProcesses processes({.job = SmallJob(directory), .directory = directory});
  ASSERT_TRUE(processes.StartAll().ok());

  const std::vector<std::string> names = {"coordinator", "ps-0", "ps-1", "worker-0", "worker-1"};
  std::map<std::string, std::vector<int64_t>> sizes;  // from step kSettled on
  const auto sample = [&](const v1::JobProgress& progress) {
    if (progress.phase() > v1::JobProgress::TRAINING) return true;
    if (progress.step() < kSettled) return false;
    for (const std::string& name : names) {
      if (const int64_t size = ResidentKib(processes.pid(name)); size > 0) {
        sizes[name].push_back(size);
      }
    }
    return false;
  };

  const auto end = processes.WaitFor(sample, absl::Minutes(12));
  ASSERT_TRUE(end.ok()) << end.status();
  ASSERT_NE(end->phase(), v1::JobProgress::FAILED) << end->reason();

  for (const std::string& name : names) {
    const std::vector<int64_t>& all = sizes[name];
    ASSERT_GE(all.size(), 20u) << "too few samples of " << name;
    const auto fifth = static_cast<ptrdiff_t>(all.size() / 5);
    const int64_t first = Median({all.begin(), all.begin() + fifth});
    const int64_t last = Median({all.end() - fifth, all.end()});
    std::cout << name << ": " << first << " KiB, then " << last << " KiB" << std::endl;
    EXPECT_LE(last - first, kMaxGrowthKib) << name << " grows";
  }
}

}  // namespace
}  // namespace sluice::testing
