#include "services/common/threads/mutex.h"

#include <gtest/gtest.h>

#include <deque>
#include <thread>
#include <vector>

namespace sluice {
namespace {

// Every test here also checks the calls to ThreadSanitizer: it must report nothing in this file.

TEST(MutexTest, LockKeepsOtherThreadsOut) {
  Mutex mutex;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10000; ++i) {
        MutexLock lock(&mutex);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 40000);
}

TEST(MutexTest, TryLockFailsWhileAnotherThreadHoldsIt) {
  Mutex mutex;
  const auto try_elsewhere = [&mutex] {
    bool locked = false;
    std::thread([&] {
      if (mutex.TryLock()) {
        locked = true;
        mutex.Unlock();
      }
    }).join();
    return locked;
  };
  mutex.Lock();
  EXPECT_FALSE(try_elsewhere());
  mutex.Unlock();
  EXPECT_TRUE(try_elsewhere());
}

TEST(MutexTest, ReadersShareMutexAndWritersDoNot) {
  Mutex mutex;
  int value = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        MutexLock lock(&mutex);
        ++value;
      }
    });
    threads.emplace_back([&] {
      int last = 0;
      for (int i = 0; i < 2000; ++i) {
        ReaderMutexLock lock(&mutex);
        EXPECT_LE(last, value);
        last = value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(value, 4000);

  // Two readers at once: the second does not wait for the first.
  ReaderMutexLock first(&mutex);
  std::thread([&] { ReaderMutexLock second(&mutex); }).join();
}

TEST(CondVarTest, WaitReturnsWithMutexAndSeesWritesOfSignaller) {
  Mutex mutex;
  CondVar not_empty;
  std::deque<int> queue;
  int sum = 0;
  std::thread consumer([&] {
    for (int taken = 0; taken < 1000; ++taken) {
      MutexLock lock(&mutex);
      while (queue.empty()) not_empty.Wait(&mutex);
      sum += queue.front();
      queue.pop_front();
    }
  });
  for (int i = 0; i < 1000; ++i) {
    MutexLock lock(&mutex);
    queue.push_back(1);
    not_empty.Signal();
  }
  consumer.join();
  EXPECT_EQ(sum, 1000);
}

TEST(CondVarTest, SignalAllWakesEveryWaiter) {
  Mutex mutex;
  CondVar changed;
  bool go = false;
  int woken = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      MutexLock lock(&mutex);
      while (!go) changed.Wait(&mutex);
      ++woken;
    });
  }
  {
    MutexLock lock(&mutex);
    go = true;
  }
  changed.SignalAll();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(woken, 3);
}

TEST(CondVarTest, WaitWithoutSignalTimesOut) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  // A wait may end spuriously; only a time-out returns true.
  while (!never.WaitWithTimeout(&mutex, absl::Milliseconds(1))) {
  }
  while (!never.WaitWithDeadline(&mutex, absl::InfinitePast())) {
  }
}

}  // namespace
}  // namespace sluice
