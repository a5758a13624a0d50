#include "services/ps/thread_pool_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace sluice::ps {
namespace {

TEST(ThreadPoolRunnerTest, RunsEveryItemOnceBeforeRunReturns) {
  for (const int threads : {1, 2, 4}) {
    ThreadPoolRunner runner(threads);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::atomic<int>> runs(round % 17);
      runner.Run(runs.size(), [&](size_t i) { ++runs[i]; });
      for (const std::atomic<int>& count : runs) ASSERT_EQ(count, 1);
    }
  }
}

TEST(ThreadPoolRunnerTest, RunsItemsConcurrentlyOnSeveralThreads) {
  ThreadPoolRunner runner(2);
  std::atomic<int> arrived{0};
  // Each item waits for the other: on one thread, Run would never return.
  runner.Run(2, [&](size_t) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

}  // namespace
}  // namespace sluice::ps
