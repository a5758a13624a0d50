#include "operator/policy/process_arguments.h"

#include <gmock/gmock.h>

namespace sluice::policy {
namespace {

using ::testing::ElementsAre;

TEST(ProcessArgumentsTest, CoordinatorGetsJobFileAndStorage) {
  ProcessArguments process;
  process.job_file = "/run/job.json";
  process.storage = "/checkpoints";
  process.listen = "127.0.0.1:0";
  process.job = "team/mnist/1";
  EXPECT_THAT(ArgumentsOf({v1::COORDINATOR, 0}, process),
              ElementsAre("--job=/run/job.json", "--listen=127.0.0.1:0", "--storage=/checkpoints"));
}

TEST(ProcessArgumentsTest, ShardsAndWorkersGetJobAndCoordinator) {
  ProcessArguments process;
  process.job = "team/mnist/1";
  process.coordinator = "127.0.0.1:29500";
  process.threads = 3;
  EXPECT_THAT(ArgumentsOf({v1::WORKER, 2}, process),
              ElementsAre("--job=team/mnist/1", "--coordinator=127.0.0.1:29500", "--index=2",
                          "--threads=3"));
  process.listen = "0.0.0.0:29501";
  process.advertise = "10.0.0.7";
  EXPECT_THAT(ArgumentsOf({v1::SHARD, 0}, process),
              ElementsAre("--job=team/mnist/1", "--coordinator=127.0.0.1:29500", "--index=0",
                          "--listen=0.0.0.0:29501", "--advertise=10.0.0.7", "--threads=3"));
}

}  // namespace
}  // namespace sluice::policy
