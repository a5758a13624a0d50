#include "services/transport/streams/outbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace sluice::internal {
namespace {

using IntOutbox = Outbox<int>;
using Action = IntOutbox::Action;

TEST(OutboxTest, PushOnFreeStreamWritesAndLaterPushesQueue) {
  IntOutbox outbox(100, nullptr);
  EXPECT_EQ(outbox.Push(1, 10), Action::kWrite);
  EXPECT_EQ(outbox.front(), 1);
  EXPECT_EQ(outbox.Push(2, 10), Action::kNothing);
  EXPECT_EQ(outbox.Push(3, 10), Action::kNothing);
  EXPECT_EQ(outbox.Sent(), Action::kWrite);
  EXPECT_EQ(outbox.front(), 2);
  EXPECT_EQ(outbox.Sent(), Action::kWrite);
  EXPECT_EQ(outbox.front(), 3);
  EXPECT_EQ(outbox.Sent(), Action::kNothing);
  EXPECT_EQ(outbox.Push(4, 10), Action::kWrite);
}

TEST(OutboxTest, ItemsPushedBeforeStartWaitForIt) {
  IntOutbox outbox(100, nullptr);
  outbox.HoldUntilStarted();
  EXPECT_EQ(outbox.Push(1, 10), Action::kNothing);
  EXPECT_EQ(outbox.Started(), Action::kWrite);
  EXPECT_EQ(outbox.front(), 1);
}

TEST(OutboxTest, QueuedItemsGoOutWithNextFlushOrPush) {
  IntOutbox outbox(100, nullptr, [](int* front, int* next) {
    *front = 10 * *front + *next;
    return true;
  });
  EXPECT_EQ(outbox.Flush(), Action::kNothing);
  EXPECT_EQ(outbox.Queue(1, 10, 10, 1000), Action::kNothing);
  EXPECT_EQ(outbox.Queue(2, 10, 10, 1000), Action::kNothing);
  EXPECT_EQ(outbox.Flush(), Action::kWrite);
  EXPECT_EQ(outbox.front(), 12);
  EXPECT_EQ(outbox.Flush(), Action::kNothing);
  EXPECT_EQ(outbox.Queue(3, 10, 10, 1000), Action::kNothing);
  EXPECT_EQ(outbox.Sent(), Action::kWrite);  // the stream is free, so it does not wait
  EXPECT_EQ(outbox.Sent(), Action::kNothing);
  EXPECT_EQ(outbox.Queue(4, 10, 10, 1000), Action::kNothing);
  EXPECT_EQ(outbox.Push(5, 10), Action::kWrite);
  EXPECT_EQ(outbox.front(), 45);
}

TEST(OutboxTest, QueuedItemsGoOutWhenTheyWeighEnough) {
  IntOutbox outbox(100, nullptr, [](int* front, int* next) {
    *front = 10 * *front + *next;
    return true;
  });
  EXPECT_EQ(outbox.Queue(1, 1, 300, 1000), Action::kNothing);
  EXPECT_EQ(outbox.Flush(/*worth=*/301), Action::kNothing);
  EXPECT_EQ(outbox.Queue(2, 1, 700, 1000), Action::kWrite);
  EXPECT_EQ(outbox.front(), 12);
  EXPECT_EQ(outbox.Queue(3, 1, 2000, 1000), Action::kNothing);  // a write is under way
  EXPECT_EQ(outbox.Sent(), Action::kWrite);
  EXPECT_EQ(outbox.Sent(), Action::kNothing);
  EXPECT_EQ(outbox.Queue(4, 1, 999, 1000),
            Action::kNothing);  // items that have gone out weigh nothing
  EXPECT_EQ(outbox.Flush(/*worth=*/999), Action::kWrite);
  EXPECT_EQ(outbox.front(), 4);
}

TEST(OutboxTest, CloseSendsQueuedItemsAndBreakDropsThem) {
  IntOutbox closed(100, nullptr);
  EXPECT_EQ(closed.Queue(1, 10, 10, 1000), Action::kNothing);
  EXPECT_EQ(closed.Close(absl::OkStatus()), Action::kWrite);
  EXPECT_EQ(closed.front(), 1);
  EXPECT_EQ(closed.Flush(), Action::kNothing);
  EXPECT_EQ(closed.Sent(), Action::kFinish);

  IntOutbox broken(100, nullptr);
  EXPECT_EQ(broken.Queue(1, 10, 10, 1000), Action::kNothing);
  EXPECT_EQ(broken.Break(absl::UnavailableError("gone")), Action::kFinish);
  EXPECT_EQ(broken.Flush(), Action::kNothing);
}

TEST(OutboxTest, CloseSendsQueueAndThenFinishesOnce) {
  IntOutbox outbox(100, nullptr);
  EXPECT_EQ(outbox.Push(1, 10), Action::kWrite);
  EXPECT_EQ(outbox.Push(2, 10), Action::kNothing);
  EXPECT_EQ(outbox.Close(absl::AbortedError("enough")), Action::kCutLater);
  EXPECT_EQ(outbox.Push(3, 10), Action::kNothing);
  EXPECT_EQ(outbox.Sent(), Action::kWrite);
  EXPECT_EQ(outbox.front(), 2);
  EXPECT_EQ(outbox.Close(absl::AbortedError("again")), Action::kNothing);
  EXPECT_EQ(outbox.Sent(), Action::kFinish);
  EXPECT_EQ(outbox.Break(absl::AbortedError("too late")), Action::kNothing);
  EXPECT_EQ(outbox.why().message(), "enough");
}

TEST(OutboxTest, BreakDropsQueueAndFinishesAfterWriteUnderWay) {
  IntOutbox outbox(100, nullptr);
  EXPECT_EQ(outbox.Push(1, 10), Action::kWrite);
  EXPECT_EQ(outbox.Push(2, 20), Action::kNothing);
  EXPECT_EQ(outbox.Break(absl::UnavailableError("gone")), Action::kCutLater);
  EXPECT_EQ(outbox.queued(), 10u);
  EXPECT_EQ(outbox.Sent(), Action::kFinish);
  EXPECT_EQ(outbox.queued(), 0u);
}

TEST(OutboxTest, IdleStreamFinishesAtOnce) {
  IntOutbox closed(100, nullptr);
  EXPECT_EQ(closed.Close(absl::OkStatus()), Action::kFinish);
  IntOutbox broken(100, nullptr);
  EXPECT_EQ(broken.Break(absl::UnavailableError("gone")), Action::kFinish);
}

TEST(OutboxTest, BreakAfterCloseDropsItemsThatCloseWouldHaveSent) {
  IntOutbox outbox(100, nullptr);
  EXPECT_EQ(outbox.Push(1, 10), Action::kWrite);
  EXPECT_EQ(outbox.Push(2, 10), Action::kNothing);
  EXPECT_EQ(outbox.Close(absl::OkStatus()), Action::kCutLater);
  EXPECT_EQ(outbox.Break(absl::UnavailableError("gone")), Action::kNothing);
  EXPECT_EQ(outbox.Sent(), Action::kFinish);
  EXPECT_EQ(outbox.why().message(), "gone");  // a failure counts before OK
}

TEST(OutboxTest, BreaksStreamAndDropsItemsBeyondBound) {
  int64_t queued = 0;
  IntOutbox outbox(100, [&queued](int64_t change) { queued += change; });
  EXPECT_EQ(outbox.Push(1, 40), Action::kWrite);
  EXPECT_EQ(outbox.Push(2, 60), Action::kNothing);
  EXPECT_EQ(queued, 100);
  EXPECT_EQ(outbox.Push(3, 1), Action::kCutLater);
  EXPECT_EQ(outbox.why().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(queued, 40);
  EXPECT_EQ(outbox.Sent(), Action::kFinish);
  EXPECT_EQ(queued, 0);
}

TEST(OutboxTest, ItemLargerThanBoundBreaksStream) {
  IntOutbox outbox(100, nullptr);
  EXPECT_EQ(outbox.Push(1, 101), Action::kFinish);
}

TEST(OutboxTest, JoinsWaitingItemsAndAddsTheirCosts) {
  int64_t queued = 0;
  // Joins digits to numbers of at most three digits.
  IntOutbox outbox(
      1000, [&queued](int64_t change) { queued += change; },
      [](int* front, int* next) {
        if (*front > 99) return false;
        *front = *front * 10 + *next;
        return true;
      });
  EXPECT_EQ(outbox.Push(1, 10), Action::kWrite);
  EXPECT_EQ(outbox.front(), 1);  // at once, and alone
  for (int digit : {2, 3, 4, 5, 6}) EXPECT_EQ(outbox.Push(digit, 10), Action::kNothing);
  EXPECT_EQ(outbox.Sent(), Action::kWrite);
  EXPECT_EQ(outbox.front(), 234);
  EXPECT_EQ(queued, 50);
  EXPECT_EQ(outbox.Sent(), Action::kWrite);
  EXPECT_EQ(outbox.front(), 56);
  EXPECT_EQ(queued, 20);
  EXPECT_EQ(outbox.Sent(), Action::kNothing);
  EXPECT_EQ(queued, 0);
}

TEST(OutboxTest, OneThreadWritesAtATimeAndOrderOfEachThreadIsKept) {
  constexpr int kThreads = 4;
  constexpr int kItems = 5000;
  IntOutbox outbox(1 << 30, nullptr);
  std::atomic<int> writers{0};
  std::vector<int> written;  // by the thread that gets kWrite
  const auto write = [&](Action action) {
    while (action == Action::kWrite) {
      EXPECT_EQ(writers.fetch_add(1), 0);
      written.push_back(outbox.front());
      EXPECT_EQ(writers.fetch_sub(1), 1);
      action = outbox.Sent();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kItems; ++i) write(outbox.Push(t * kItems + i, 1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(written.size(), static_cast<size_t>(kThreads * kItems));
  std::vector<int> next(kThreads, 0);
  for (int item : written) EXPECT_EQ(item % kItems, next[item / kItems]++);
}

}  // namespace
}  // namespace sluice::internal
