#include "tests/testing/jobs.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

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
  timeouts.set_heartbeat_timeout(5);
  timeouts.set_pause(5);
  timeouts.set_initialization(60);
  timeouts.set_suspend_checkpoint(30);
  return job;
}

v1::JobSpec LinearJob(uint64_t steps, double delay) {
  v1::JobSpec job = BaseJob();
  job.mutable_model()->set_name("linear");
  job.mutable_data()->set_format(v1::DataSpec::SYNTHETIC);
  job.mutable_data()->mutable_synthetic()->set_samples(1024);
  job.mutable_data()->mutable_synthetic()->add_shape(16);
  job.mutable_training()->set_steps(steps);
  job.mutable_debug()->set_step_delay_seconds(delay);
  job.mutable_worker()->set_replicas(2);
  return job;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string NewDirectory(const std::string& name) {
  const char* const root = std::getenv("TEST_TMPDIR");
  std::string directory = absl::StrCat(
      root != nullptr ? root : std::filesystem::temp_directory_path().string(), "/", name);
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  return directory;
}

}  // namespace sluice::testing
