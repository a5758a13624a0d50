#include "tests/testing/jobs.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace sluice::testing {

v1::JobSpec BaseJob() {
  v1::JobSpec job;
  job.set_name("test");
  job.mutable_training()->set_mode(v1::SYNCHRONOUS);
  job.mutable_training()->set_global_batch_size(64);
  job.mutable_training()->set_microbatch_size(8);
  job.mutable_training()->set_seed(1);
  job.mutable_optimizer()->set_name(v1::OptimizerSpec::SGD);
  job.mutable_optimizer()->set_learning_rate(0.1);
  job.mutable_parameter_server()->set_replicas(1);
  job.mutable_parameter_server()->set_partitions(8);
  job.mutable_worker()->set_replicas(1);
  job.mutable_checkpoint()->set_max_to_keep(3);
  job.set_backoff_limit(100);
  v1::TimeoutSpec& timeouts = *job.mutable_timeouts();
  timeouts.set_heartbeat(0.5);
  timeouts.set_suspect(1);
  timeouts.set_silence(5);
  timeouts.set_pause(5);
  timeouts.set_birth(60);
  timeouts.set_suspend_checkpoint(30);
  return job;
}

std::string NewFolder(const std::string& name) {
  const char* const root = std::getenv("TEST_TMPDIR");
  const std::string folder = absl::StrCat(
      root != nullptr ? root : std::filesystem::temp_directory_path().string(), "/", name);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace sluice::testing
