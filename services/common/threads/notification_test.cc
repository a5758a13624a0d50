#include "services/common/threads/notification.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

namespace sluice {
namespace {

TEST(NotificationTest, WaiterSeesEarlierWritesOfNotifier) {
  int value = 0;
  Notification notification;
  std::thread notifier([&] {
    value = 1;
    notification.Notify();
  });
  notification.Wait();
  EXPECT_EQ(value, 1);
  notifier.join();
}

TEST(NotificationTest, HasBeenNotifiedSeesEarlierWritesOfNotifier) {
  int value = 0;
  Notification notification;
  std::thread notifier([&] {
    value = 1;
    notification.Notify();
  });
  while (!notification.HasBeenNotified()) std::this_thread::yield();
  EXPECT_EQ(value, 1);
  notifier.join();
}

TEST(NotificationTest, WaiterMayDestroyItDuringNotify) {
  for (int i = 0; i < 1000; ++i) {
    auto notification = std::make_unique<Notification>();
    std::thread notifier([raw = notification.get()] { raw->Notify(); });
    notification->Wait();
    notification.reset();
    notifier.join();
  }
}

TEST(NotificationTest, WaitWithoutNotifyTimesOut) {
  Notification notification;
  EXPECT_FALSE(notification.WaitWithTimeout(absl::Milliseconds(1)));
  notification.Notify();
  EXPECT_TRUE(notification.WaitWithTimeout(absl::ZeroDuration()));
}

}  // namespace
}  // namespace sluice
