#include "operator/runtime/leader_election.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "operator/kube/api_error.h"
#include "operator/kube/fake/fake_api_server.h"
#include "operator/kube/fake/testing.h"
#include "operator/kube/http_client.h"
#include "services/common/arithmetic/splitmix64.h"
#include "services/common/threads/notification.h"

namespace sluice::runtime {
namespace {

using kube::Json;
using ::testing::HasSubstr;

// A replica: its elector, and a client that checks it before each write.
struct Replica {
  Replica(kube::FakeApiServer* server, const Clock* clock, const std::string& name)
      : plain(server, ClientOptions(nullptr)),
        elector(&plain, clock, {{"ns", "lease"}, name}),
        gated(server, ClientOptions(&elector)) {}

  static kube::HttpClient::Options ClientOptions(kube::WriteGate* gate) {
    kube::HttpClient::Options options;
    options.sleep = [](absl::Duration) {};
    options.retry.max_tries = 1;
    options.write_gate = gate;
    return options;
  }
  bool CanWrite(const std::string& name) {
    return gated.Create(kube::ConfigMaps(), "ns", kube::Named(name), {}).ok();
  }

  kube::HttpClient plain;
  LeaderElector elector;
  kube::HttpClient gated;
};

class LeaderElectionTest : public ::testing::Test {
 protected:
  LeaderElectionTest() { kube::RegisterTestTypes(&server_); }
  void Disconnect(bool disconnected) {
    server_.SetFaultInjector(
        [disconnected](const kube::HttpRequest&) -> std::optional<kube::FakeApiServer::Fault> {
          if (!disconnected) return std::nullopt;
          kube::FakeApiServer::Fault fault;
          fault.status = absl::UnavailableError("no route");
          return fault;
        });
  }
  Json Lease() { return *a_.plain.Get(kube::Leases(), {"ns", "lease"}, kube::Subresource::kNone); }

  FakeClock clock_{absl::FromUnixSeconds(1700000000)};
  kube::FakeApiServer server_{&clock_, {}};
  Replica a_{&server_, &clock_, "a"};
  Replica b_{&server_, &clock_, "b"};
};

TEST_F(LeaderElectionTest, TheFirstCandidateLeadsAndTheOtherMayNotWrite) {
  EXPECT_TRUE(a_.elector.Step().ok());
  EXPECT_THAT(std::string(b_.elector.Step().message()), HasSubstr("held by a"));
  EXPECT_TRUE(a_.CanWrite("x"));
  EXPECT_FALSE(b_.CanWrite("y"));
  EXPECT_EQ(b_.elector.Holder(), "a");
}

TEST_F(LeaderElectionTest, ALeaderThatRenewsKeepsLeading) {
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(a_.elector.Step().ok());
    EXPECT_FALSE(b_.elector.Step().ok());
    clock_.Advance(absl::Seconds(2));
    EXPECT_TRUE(a_.elector.IsLeader());
  }
  EXPECT_EQ(kube::GetInt(Lease(), {"spec", "leaseTransitions"}), 0);
}

TEST_F(LeaderElectionTest, AFrozenLeaderMayNotWriteWhenItWakesAndHasNoEarlySuccessor) {
  ASSERT_TRUE(a_.elector.Step().ok());
  ASSERT_FALSE(b_.elector.Step().ok());
  clock_.Advance(absl::Seconds(9.9));
  EXPECT_TRUE(a_.CanWrite("x"));
  clock_.Advance(absl::Seconds(0.1));
  EXPECT_FALSE(a_.CanWrite("y"));  // 5 s before another replica can follow
  EXPECT_FALSE(b_.elector.Step().ok());
  clock_.Advance(absl::Seconds(4.9));
  EXPECT_FALSE(b_.elector.Step().ok());
  clock_.Advance(absl::Seconds(0.1));
  EXPECT_TRUE(b_.elector.Step().ok());
  EXPECT_EQ(kube::GetInt(Lease(), {"spec", "leaseTransitions"}), 1);
  EXPECT_FALSE(a_.elector.Step().ok());
  EXPECT_FALSE(a_.CanWrite("z"));
}

TEST_F(LeaderElectionTest, ACandidateMeasuresTheLeaseWithItsOwnClock) {
  ASSERT_TRUE(a_.elector.Step().ok());
  clock_.Advance(absl::Hours(1));
  EXPECT_FALSE(b_.elector.Step().ok());  // it reads the Lease for the first time
  clock_.Advance(absl::Seconds(15));
  EXPECT_TRUE(b_.elector.Step().ok());
}

TEST_F(LeaderElectionTest, ALeaderThatCannotRenewStops) {
  ASSERT_TRUE(a_.elector.Step().ok());
  Disconnect(true);
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(absl::Seconds(2));
    EXPECT_FALSE(a_.elector.Step().ok());
    EXPECT_TRUE(a_.elector.IsLeader());
  }
  clock_.Advance(absl::Seconds(2));
  EXPECT_FALSE(a_.elector.IsLeader());
}

TEST_F(LeaderElectionTest, ReadsTheLeaseAfterALostRenewalAnswer) {
  ASSERT_TRUE(a_.elector.Step().ok());
  int puts = 0;
  server_.SetFaultInjector(
      [&](const kube::HttpRequest& request) -> std::optional<kube::FakeApiServer::Fault> {
        if (request.method != "PUT" || puts++ > 0) return std::nullopt;
        kube::FakeApiServer::Fault fault;
        fault.after_effect = true;
        fault.status = absl::DeadlineExceededError("lost");
        return fault;
      });
  clock_.Advance(absl::Seconds(2));
  EXPECT_FALSE(a_.elector.Step().ok());
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(a_.elector.Step().ok());
  clock_.Advance(absl::Seconds(9));
  EXPECT_TRUE(a_.elector.IsLeader());
}

TEST_F(LeaderElectionTest, ASlowRenewalCountsFromItsStart) {
  server_.SetFaultInjector(
      [&](const kube::HttpRequest& request) -> std::optional<kube::FakeApiServer::Fault> {
        if (request.method == "POST") clock_.Advance(absl::Seconds(4));
        return std::nullopt;
      });
  ASSERT_TRUE(a_.elector.Step().ok());
  server_.SetFaultInjector(nullptr);
  clock_.Advance(absl::Seconds(5.9));
  EXPECT_TRUE(a_.elector.IsLeader());
  clock_.Advance(absl::Seconds(0.1));
  EXPECT_FALSE(a_.elector.IsLeader());
}

TEST_F(LeaderElectionTest, AReleasedLeaseIsTakenAtOnce) {
  ASSERT_TRUE(a_.elector.Step().ok());
  ASSERT_FALSE(b_.elector.Step().ok());
  ASSERT_TRUE(a_.elector.Release().ok());
  EXPECT_FALSE(a_.CanWrite("x"));
  EXPECT_TRUE(b_.elector.Step().ok());
}

TEST_F(LeaderElectionTest, OneOfTwoConcurrentCandidatesWins) {
  ASSERT_TRUE(a_.elector.Step().ok());
  ASSERT_TRUE(a_.elector.Release().ok());
  bool between = false;
  server_.SetFaultInjector(
      [&](const kube::HttpRequest& request) -> std::optional<kube::FakeApiServer::Fault> {
        // a takes it between b's reading and b's writing.
        if (request.method == "PUT" && !std::exchange(between, true)) {
          EXPECT_TRUE(a_.elector.Step().ok());
        }
        return std::nullopt;
      });
  EXPECT_TRUE(kube::IsConflict(b_.elector.Step()));
  EXPECT_TRUE(a_.elector.IsLeader());
  EXPECT_FALSE(b_.elector.IsLeader());
}

TEST_F(LeaderElectionTest, RecreatesADeletedLease) {
  ASSERT_TRUE(a_.elector.Step().ok());
  ASSERT_TRUE(a_.plain.Delete(kube::Leases(), {"ns", "lease"}, {}).ok());
  EXPECT_TRUE(a_.elector.Step().ok());
  EXPECT_EQ(kube::GetString(Lease(), {"spec", "holderIdentity"}), "a");
}

TEST_F(LeaderElectionTest, NeverHasTwoLeadersUnderRandomFreezesAndLostAnswers) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    kube::FakeApiServer server(&clock_, {});
    kube::RegisterTestTypes(&server);
    Replica a(&server, &clock_, "a");
    Replica b(&server, &clock_, "b");
    uint64_t n = 0;
    server.SetFaultInjector(
        [&](const kube::HttpRequest&) -> std::optional<kube::FakeApiServer::Fault> {
          const uint64_t draw = SplitMix64At(seed, ++n) % 10;
          if (draw > 1) return std::nullopt;
          kube::FakeApiServer::Fault fault;
          fault.after_effect = draw == 0;
          fault.status = absl::UnavailableError("cut");
          return fault;
        });
    int led = 0;
    for (int i = 0; i < 200; ++i) {
      const uint64_t draw = SplitMix64At(seed, ++n);
      clock_.Advance(absl::Milliseconds(draw % 20 == 0 ? 20000 : draw % 3000));
      if (draw % 3 != 0) a.elector.Step().IgnoreError();
      ASSERT_FALSE(a.elector.IsLeader() && b.elector.IsLeader()) << "seed " << seed;
      if (draw % 5 != 0) b.elector.Step().IgnoreError();
      ASSERT_FALSE(a.elector.IsLeader() && b.elector.IsLeader()) << "seed " << seed;
      led += a.elector.IsLeader() || b.elector.IsLeader() ? 1 : 0;
    }
    EXPECT_GT(led, 20) << "seed " << seed;
  }
}

TEST_F(LeaderElectionTest, RunsUntilCancelledAndThenReleases) {
  kube::Cancellation cancellation;
  Notification started;
  bool stopped = false;
  absl::Status status;
  std::thread runner([&] {
    status = a_.elector.Run(
        &cancellation, [&] { started.Notify(); }, [&] { stopped = a_.elector.Check().ok(); });
  });
  started.Wait();
  cancellation.Cancel();
  runner.join();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(stopped) << "and may still write then";
  EXPECT_EQ(kube::GetString(Lease(), {"spec", "holderIdentity"}), "");
}

TEST(LeaderElectionOptionsTest, RejectsUnsafeTimes) {
  LeaderElector::Options options{{"ns", "lease"}, "a"};
  EXPECT_TRUE(LeaderElector::Validate(options).ok());
  options.renew_deadline = options.lease_duration;
  EXPECT_FALSE(LeaderElector::Validate(options).ok());
  options = {{"ns", "lease"}, ""};
  EXPECT_FALSE(LeaderElector::Validate(options).ok());
}

}  // namespace
}  // namespace sluice::runtime
