#include "services/shell/core_shell.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "services/common/threads/mutex.h"

namespace sluice {
namespace {

struct Say {
  std::string word;
};
struct Exit {};
using FakeAction = std::variant<Say, Exit>;

// Asks to say each word that it is given; the word "exit" ends it.
class FakeCore {
 public:
  explicit FakeCore(absl::Time deadline) : deadline_(deadline) {}

  void OnWord(const std::string& word) {
    if (word == "exit") {
      actions_.push_back(Exit{});
    } else {
      actions_.push_back(Say{word});
    }
  }
  void OnTick(absl::Time now) {
    if (now < deadline_) return;
    deadline_ = absl::InfiniteFuture();
    OnWord("tick");
  }
  absl::Time NextDeadline() const { return deadline_; }
  std::vector<FakeAction> TakeActions() { return std::exchange(actions_, {}); }

 private:
  absl::Time deadline_;
  std::vector<FakeAction> actions_;
};

using Shell = CoreShell<FakeCore>;

// Writes down what the shell calls, in order.
class FakeRole final : public Shell::Role {
 public:
  explicit FakeRole(const Clock* clock) : shell_("test", clock, this) {}
  ~FakeRole() {
    shell_.Close([this] {
      Note("closed");
      shell_.End();
    });
    shell_.Stop();
  }

  Shell& shell() { return shell_; }

  void Deliver(std::vector<std::string> words, Shell::EventOptions options = {}) {
    shell_.Event(
        [this, words = std::move(words)](FakeCore& core, absl::Time) {
          for (const std::string& word : words) {
            core.OnWord(word);
            if (!shell_.PerformActions()) return;
          }
        },
        options);
  }

  // The calls so far; forgets them.
  std::vector<std::string> Take() {
    MutexLock lock(&mutex_);
    return std::exchange(notes_, {});
  }
  void AwaitNote(const std::string& note) {
    MutexLock lock(&mutex_);
    while (notes_.empty() || notes_.back() != note) noted_.Wait(&mutex_);
  }

  void PerformAction(FakeAction& action) override {
    if (std::holds_alternative<Exit>(action)) {
      Note("exit");
      shell_.End();
    } else {
      Note(std::get<Say>(action).word);
    }
  }
  void AfterActions(size_t worth) override {
    if (worth != 0) Note("worth " + std::to_string(worth));
  }
  absl::Time ServeDeadlines(absl::Time now) override {
    if (now < own_deadline) return own_deadline;
    own_deadline = absl::InfiniteFuture();
    Note("own deadline");
    return own_deadline;
  }
  void Publish(absl::Time) override { Note("publish"); }

  absl::Time own_deadline = absl::InfiniteFuture();  // set before the first event

 private:
  void Note(std::string note) {
    MutexLock lock(&mutex_);
    notes_.push_back(std::move(note));
    noted_.SignalAll();
  }

  Mutex mutex_;  // protects what follows
  CondVar noted_;
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_);
  Shell shell_;
};

using Notes = std::vector<std::string>;

TEST(CoreShellTest, PerformsActionsInOrder) {
  FakeClock clock;
  FakeRole role(&clock);
  role.shell().Start(absl::InfiniteFuture());
  role.Deliver({"a", "b"});
  role.Deliver({"c"});
  EXPECT_EQ(role.Take(), (Notes{"a", "b", "publish", "c"}));
}

TEST(CoreShellTest, EndDropsRemainingActionsAndLaterEvents) {
  FakeClock clock;
  FakeRole role(&clock);
  role.shell().Start(absl::InfiniteFuture());
  role.shell().Event([](FakeCore& core, absl::Time) {
    for (const char* word : {"a", "exit", "b"}) core.OnWord(word);
  });
  role.Deliver({"c"});
  role.shell().Wait();
  EXPECT_TRUE(role.shell().ended());
  EXPECT_EQ(role.Take(), (Notes{"a", "exit", "publish"}));
}

TEST(CoreShellTest, EndWithinEventOfSeveralCallsDropsItsRest) {
  FakeClock clock;
  FakeRole role(&clock);
  role.shell().Start(absl::InfiniteFuture());
  role.Deliver({"a", "exit", "b"});
  EXPECT_EQ(role.Take(), (Notes{"a", "exit", "publish"}));
}

TEST(CoreShellTest, PublishesOnceASecondAndAfterLastEvent) {
  FakeClock clock;
  FakeRole role(&clock);
  role.shell().Start(absl::InfiniteFuture());
  role.Deliver({"a"});
  EXPECT_EQ(role.Take(), (Notes{"a", "publish"}));

  clock.Advance(absl::Milliseconds(999));
  role.Deliver({"b"});
  EXPECT_EQ(role.Take(), (Notes{"b"}));

  clock.Advance(absl::Milliseconds(1));
  role.Deliver({"c"});
  EXPECT_EQ(role.Take(), (Notes{"c", "publish"}));

  role.Deliver({"exit"});
  EXPECT_EQ(role.Take(), (Notes{"exit", "publish"}));
}

TEST(CoreShellTest, PublishesWithoutEvents) {
  const RealClock clock;
  FakeRole role(&clock);
  role.shell().Start(absl::InfiniteFuture());
  const absl::Time start = clock.Now();
  role.Deliver({"a"});
  EXPECT_EQ(role.Take(), (Notes{"a", "publish"}));
  role.AwaitNote("publish");
  EXPECT_GE(clock.Now(), start + Shell::kPublicationInterval);
}

TEST(CoreShellTest, TicksAtCoresDeadline) {
  const RealClock clock;
  FakeRole role(&clock);
  const absl::Time deadline = clock.Now() + absl::Milliseconds(20);
  role.shell().Start(deadline);
  role.Deliver({});
  role.AwaitNote("tick");
  EXPECT_GE(clock.Now(), deadline);
}

TEST(CoreShellTest, ServesRolesDeadlineBeforeLaterOneOfCore) {
  const RealClock clock;
  FakeRole role(&clock);
  role.own_deadline = clock.Now() + absl::Milliseconds(20);
  role.shell().Start(clock.Now() + absl::Hours(1));
  role.Deliver({});
  role.AwaitNote("own deadline");
}

TEST(CoreShellTest, PassesOptionsOfEvent) {
  FakeClock clock;
  FakeRole role(&clock);
  role.shell().Start(absl::InfiniteFuture());

  role.Deliver({"a"}, {.worth = 5});
  EXPECT_EQ(role.Take(), (Notes{"a", "worth 5", "publish"}));

  const std::thread::id caller = std::this_thread::get_id();
  std::thread::id direct, posted;
  role.shell().Event([&](FakeCore&, absl::Time) { direct = std::this_thread::get_id(); });
  role.shell().Event([&](FakeCore&, absl::Time) { posted = std::this_thread::get_id(); },
                     {.post = true});
  role.shell().executor().Flush();
  EXPECT_EQ(direct, caller);
  EXPECT_NE(posted, caller);
}

TEST(CoreShellTest, QueuedEventRunsBeforeCloseAndLaterOneHasNoEffect) {
  FakeClock clock;
  FakeRole role(&clock);
  role.shell().Start(absl::InfiniteFuture());
  Notification queued;
  role.shell().Event([&](FakeCore&, absl::Time) { queued.Wait(); }, {.post = true});
  role.Deliver({"a"});
  queued.Notify();

  role.shell().Close([&] { role.shell().End(); });
  role.Deliver({"b"});
  EXPECT_EQ(role.Take(), (Notes{"publish", "a"}));
}

TEST(CoreShellTest, DestroysQueuedEventOfStoppedShell) {
  FakeClock clock;
  auto held = std::make_shared<int>(0);
  {
    FakeRole role(&clock);
    role.shell().Start(absl::InfiniteFuture());
    role.shell().Close([&] { role.shell().End(); });
    role.shell().Event([held](FakeCore&, absl::Time) { FAIL() << "the role has ended"; });
    role.shell().Stop();
    role.shell().Event([held](FakeCore&, absl::Time) { FAIL() << "the shell has stopped"; });
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(CoreShellTest, CloseWithoutStartEndsRole) {
  FakeClock clock;
  FakeRole role(&clock);
  role.shell().Close([&] { role.shell().End(); });
  EXPECT_TRUE(role.shell().ended());
}

TEST(CoreShellTest, CloseAfterEndHasNoEffect) {
  FakeClock clock;
  FakeRole role(&clock);
  role.shell().Start(absl::InfiniteFuture());
  role.Deliver({"exit"});
  role.shell().Close([] { FAIL() << "the role has ended"; });
}

TEST(CoreShellTest, IsNotAliveWhileAnEventTakesTooLong) {
  FakeClock clock;
  FakeRole role(&clock);
  role.shell().Start(absl::InfiniteFuture());
  EXPECT_TRUE(role.shell().Alive().ok());
  role.shell().executor().Flush();

  Notification done;
  role.shell().Event([&](FakeCore&, absl::Time) { done.Wait(); }, {.post = true});
  EXPECT_TRUE(role.shell().Alive().ok());
  clock.Advance(kLivenessPatience + absl::Seconds(1));
  EXPECT_EQ(role.shell().Alive().code(), absl::StatusCode::kUnavailable);
  done.Notify();
}

}  // namespace
}  // namespace sluice
