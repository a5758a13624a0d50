#include "operator/runtime/task_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/common/threads/mutex.h"

namespace sluice::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::Le;

// Tasks that wait until this many are running.
class Meeting {
 public:
  explicit Meeting(int wanted) : wanted_(wanted) {}
  void Join() {
    MutexLock lock(&mutex_);
    ++there_;
    changed_.SignalAll();
    while (there_ < wanted_) changed_.Wait(&mutex_);
  }

 private:
  const int wanted_;
  Mutex mutex_;
  CondVar changed_;
  int there_ ABSL_GUARDED_BY(mutex_) = 0;
};

TEST(TaskPoolTest, WithoutThreadsTheCallerRunsAllTasksInOrder) {
  TaskPool pool(0);
  std::vector<size_t> done;
  EXPECT_TRUE(pool.ForEach(4, 8,
                           [&](size_t i) {
                             done.push_back(i);
                             return absl::OkStatus();
                           })
                  .ok());
  EXPECT_THAT(done, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(pool.ForEach(0, 8, [](size_t) { return absl::InternalError("never"); }).ok());
}

TEST(TaskPoolTest, RunsTasksConcurrentlyUpToTheWidth) {
  TaskPool pool(7);
  Meeting meeting(3);
  std::atomic<int> now{0};
  std::atomic<int> most{0};
  std::vector<std::atomic<int>> times(20);
  const absl::Status status = pool.ForEach(times.size(), 3, [&](size_t i) {
    const int running = ++now;
    for (int seen = most; running > seen && !most.compare_exchange_weak(seen, running);) {
    }
    if (i < 3) meeting.Join();  // ends only if three run at once
    ++times[i];
    --now;
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok());
  EXPECT_THAT(most, Le(3));
  for (const auto& count : times) EXPECT_EQ(count, 1);
}

TEST(TaskPoolTest, StopsAfterAFailureAndReturnsTheLowest) {
  TaskPool pool(3);
  Meeting meeting(4);
  std::atomic<int> begun{0};
  const absl::Status status = pool.ForEach(100, 4, [&](size_t i) {
    ++begun;
    meeting.Join();
    return i == 0 ? absl::OkStatus() : absl::InternalError(absl::StrCat(i));
  });
  EXPECT_EQ(status.message(), "1");
  // All four had started when the first of them failed; the one that succeeded may have started
  // another task before the failure was known.
  EXPECT_THAT(begun, Le(5));
}

TEST(TaskPoolTest, LoopsOfSeveralCallersProgressConcurrently) {
  TaskPool pool(2);
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  // Each loop always has at least one running task, whatever the other loops do.
  Meeting meeting(5);
  for (int c = 0; c < 5; ++c) {
    callers.emplace_back([&] {
      std::atomic<bool> first{true};
      EXPECT_TRUE(pool.ForEach(50, 1,
                               [&](size_t) {
                                 if (first.exchange(false)) meeting.Join();
                                 ++done;
                                 return absl::OkStatus();
                               })
                      .ok());
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, 250);
}

}  // namespace
}  // namespace sluice::runtime
