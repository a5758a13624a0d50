#include "operator/runtime/work_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace sluice::runtime {
namespace {

TEST(WorkQueueTest, ManyThreadsProcessAllKeysOneThreadPerKey) {
  const RealClock clock;
  WorkQueue queue({}, &clock);
  constexpr int kKeys = 20;
  Mutex mutex;
  std::map<Key, int> working;
  std::map<Key, int> worked;
  int collisions = 0;
  CondVar changed;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (const auto taken = queue.Take()) {
        {
          MutexLock lock(&mutex);
          if (++working[taken->key] > 1) ++collisions;
        }
        std::this_thread::yield();
        {
          MutexLock lock(&mutex);
          --working[taken->key];
          if (++worked[taken->key] < 10) queue.AddAfter(taken->key, absl::Milliseconds(1));
          changed.Signal();
        }
        queue.Done(taken->key);
      }
    });
  }
  for (int i = 0; i < kKeys; ++i) queue.Add({"ns", absl::StrCat(i)});
  {
    MutexLock lock(&mutex);
    const auto all = [&] {
      int total = 0;
      for (const auto& [key, count] : worked) total += count >= 10 ? 1 : 0;
      return total == kKeys;
    };
    while (!all()) changed.Wait(&mutex);
  }
  queue.ShutDown();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(collisions, 0);
}

TEST(WorkQueueTest, ShuttingDownWakesWaitingThreads) {
  const RealClock clock;
  WorkQueue queue({}, &clock);
  std::thread waiting([&] { EXPECT_FALSE(queue.Take().has_value()); });
  queue.ShutDown();
  waiting.join();
}

TEST(WorkQueueTest, UsesTheGivenClock) {
  FakeClock clock;
  WorkQueue queue({}, &clock);
  queue.AddAfter({"ns", "a"}, absl::Hours(1));
  EXPECT_FALSE(queue.TryTake().has_value());
  clock.Advance(absl::Hours(1));
  EXPECT_TRUE(queue.TryTake().has_value());
}

}  // namespace
}  // namespace sluice::runtime
