#include "services/common/threads/serial_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "services/common/threads/notification.h"

namespace sluice {
namespace {

// Blocks the executor's own thread until it is opened.
class Gate {
 public:
  explicit Gate(SerialExecutor* executor) {
    executor->Post([this] {
      entered_.Notify();
      opened_.Wait();
    });
    entered_.Wait();
  }
  void Open() { opened_.Notify(); }

 private:
  Notification entered_;
  Notification opened_;
};

TEST(SerialExecutorTest, RunExecutesAtOnceOnCallersThreadWhenIdle) {
  SerialExecutor executor({});
  std::thread::id ran_on;
  executor.Run([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
}

TEST(SerialExecutorTest, PostExecutesOnExecutorsThread) {
  SerialExecutor executor({});
  std::thread::id ran_on;
  executor.Post([&] { ran_on = std::this_thread::get_id(); });
  executor.Flush();
  EXPECT_NE(ran_on, std::this_thread::get_id());
  EXPECT_NE(ran_on, std::thread::id());
}

TEST(SerialExecutorTest, RunWaitsForEarlierPost) {
  SerialExecutor executor({});
  Gate gate(&executor);
  std::vector<int> order;
  executor.Post([&] { order.push_back(1); });
  executor.Run([&] { order.push_back(2); });
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(executor.queued_tasks(), 2u);
  gate.Open();
  executor.Flush();
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(SerialExecutorTest, TasksOfTaskRunAfterItOnSameThreadIfPossible) {
  SerialExecutor executor({});
  std::vector<int> order;
  std::thread::id inner;
  executor.Run([&] {
    executor.Run([&] {
      order.push_back(2);
      inner = std::this_thread::get_id();
    });
    order.push_back(1);
  });
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(inner, std::this_thread::get_id());
}

TEST(SerialExecutorTest, CallerRunsBoundedNumberOfQueuedTasks) {
  SerialExecutor::Options options;
  options.max_combined = 3;
  SerialExecutor executor(options);
  int here = 0;
  int ran = 0;
  const std::thread::id caller = std::this_thread::get_id();
  executor.Run([&] {
    for (int i = 0; i < 10; ++i) {
      executor.Run([&] {
        ++ran;
        if (std::this_thread::get_id() == caller) ++here;
      });
    }
  });
  executor.Flush();
  EXPECT_EQ(ran, 10);
  EXPECT_EQ(here, 3);
}

TEST(SerialExecutorTest, CountsQueuedBytesUntilTaskBegins) {
  std::atomic<int64_t> reported{0};
  SerialExecutor::Options options;
  options.on_queued_bytes = [&reported](int64_t change) { reported += change; };
  SerialExecutor executor(options);
  Gate gate(&executor);
  executor.Post([] {}, 100);
  executor.Run([] {}, 20);
  EXPECT_EQ(executor.queued_bytes(), 120u);
  EXPECT_EQ(reported, 120);
  gate.Open();
  executor.Flush();
  EXPECT_EQ(executor.queued_bytes(), 0u);
  EXPECT_EQ(reported, 0);
}

TEST(SerialExecutorTest, StopRunsQueuedTasksAndDropsLaterOnes) {
  SerialExecutor executor({});
  int ran = 0;
  for (int i = 0; i < 100; ++i) executor.Post([&ran] { ++ran; });
  executor.Stop();
  EXPECT_EQ(ran, 100);
  auto held = std::make_shared<int>(0);
  executor.Run([&ran, held] { ++ran; });
  executor.Post([&ran, held] { ++ran; });
  executor.Stop();
  EXPECT_EQ(ran, 100);
  EXPECT_EQ(held.use_count(), 1);
}

TEST(SerialExecutorTest, TasksOfManyThreadsRunOneAtATimeInOrderOfEachThread) {
  constexpr int kThreads = 4;
  constexpr int kTasks = 5000;
  SerialExecutor executor({});
  std::vector<int> next(kThreads, 0);  // not atomic: the executor guards them
  int running = 0;
  int mistakes = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTasks; ++i) {
        auto task = [&, t, i] {
          if (++running != 1) ++mistakes;
          if (next[t]++ != i) ++mistakes;
          --running;
        };
        if ((i * 7 + t) % 5 == 0) {
          executor.Post(task);
        } else {
          executor.Run(task);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  executor.Flush();
  EXPECT_EQ(mistakes, 0);
  EXPECT_EQ(next, std::vector<int>(kThreads, kTasks));
}

TEST(SerialExecutorTest, FlushWaitsForTaskOnAnotherThread) {
  SerialExecutor executor({});
  Notification entered;
  Notification leave;
  bool done = false;
  std::thread other([&] {
    executor.Run([&] {
      entered.Notify();
      leave.Wait();
      done = true;
    });
  });
  entered.Wait();
  std::thread opener([&] { leave.Notify(); });
  executor.Flush();
  EXPECT_TRUE(done);
  other.join();
  opener.join();
}

}  // namespace
}  // namespace sluice
