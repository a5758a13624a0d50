#include "services/transport/security/call_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/common.pb.h"
#include "proto/frame.pb.h"

namespace sluice::security {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kJoin[] = "/sluice.v1.Coordinator/Join";
constexpr char kExchange[] = "/sluice.v1.ParameterServer/Exchange";
constexpr char kProgress[] = "/sluice.v1.JobControl/GetProgress";
constexpr char kSetDesired[] = "/sluice.v1.JobControl/SetDesired";

class CallGateTest : public ::testing::Test {
 protected:
  CallGate Gate(CallGate::Options options) {
    options.on_refused = [this](const CallRefusal& refusal) { refusals_.push_back(refusal); };
    return CallGate(std::move(options));
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  std::vector<CallRefusal> refusals_;
};

TEST_F(CallGateTest, RequiresSecretForEveryMethod) {
  CallGate gate = Gate({.secret = "right", .secret_file = "/run/secret"});
  for (const char* method : {kJoin, kExchange, kProgress, kSetDesired, "/sluice.v1.Stage/Open",
                             "/sluice.v1.Rendezvous/Meet", "/of.another/Service", ""}) {
    CallGate::Call call{.connection = 1, .method = method};
    absl::Status status = gate.Admit(call, now_);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << method;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no secret")) << method;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/run/secret")) << method;
    call.secret = "wrong";
    status = gate.Admit(call, now_);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << method;
    EXPECT_THAT(std::string(status.message()), HasSubstr("a wrong secret")) << method;
    call.secret = "right";
    EXPECT_TRUE(gate.Admit(call, now_).ok()) << method;
  }
  EXPECT_EQ(refusals_.size(), 16u);
  EXPECT_EQ(refusals_[0].reason, "secret");
}

TEST_F(CallGateTest, AdmitsOnlyCertificatesOfItsOwnJob) {
  CallGate gate = Gate({.job = "default/a"});
  CallGate::Call call{.connection = 1, .method = kSetDesired};
  EXPECT_EQ(gate.Admit(call, now_).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(refusals_.back().reason, "certificate");
  call.peer = PeerIdentity{"default/a", v1::OPERATOR, 0};
  EXPECT_TRUE(gate.Admit(call, now_).ok());
  for (const char* job : {"default/b", "other/a", "", "default/a/"}) {
    call.peer->job = job;
    const absl::Status status = gate.Admit(call, now_);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << job;
    EXPECT_THAT(std::string(status.message()), HasSubstr("but this is job default/a")) << job;
    EXPECT_EQ(refusals_.back().reason, "job");
  }
  call.peer = PeerIdentity{"default/a", v1::WORKER, 0};
  EXPECT_EQ(gate.Admit(call, now_).code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(refusals_.back().reason, "role");
}

TEST_F(CallGateTest, AdmitsEveryCallerWithoutRequirements) {
  CallGate gate = Gate({});
  EXPECT_TRUE(gate.Admit({.connection = 1, .method = kSetDesired}, now_).ok());
}

TEST_F(CallGateTest, BoundsStreamsThatConnectionBegins) {
  CallGate gate = Gate({});
  int admitted = 0;
  for (int i = 0; i < 1000; ++i) {
    admitted += gate.Admit({.connection = 1, .method = kExchange}, now_).ok();
  }
  EXPECT_EQ(admitted, kStreamRate.at_once);
  EXPECT_EQ(refusals_.back().reason, "call_rate");
  EXPECT_THAT(refusals_.back().text, HasSubstr("16 calls of this kind a second"));

  // Other connections and other kinds of calls are not affected.
  EXPECT_TRUE(gate.Admit({.connection = 2, .method = kExchange}, now_).ok());
  EXPECT_TRUE(gate.Admit({.connection = 1, .method = kProgress}, now_).ok());

  // A connection that has been quiet is served again.
  now_ += absl::Seconds(1);
  admitted = 0;
  for (int i = 0; i < 1000; ++i) {
    admitted += gate.Admit({.connection = 1, .method = kExchange}, now_).ok();
  }
  EXPECT_EQ(admitted, kStreamRate.per_second);
}

TEST_F(CallGateTest, BoundsSecretsThatCallerTries) {
  CallGate gate = Gate({.secret = "right", .secret_file = "/run/secret"});
  CallGate::Call call{.connection = 1, .method = kProgress, .secret = "wrong"};
  for (int i = 0; i < 1000; ++i) (void)gate.Admit(call, now_);
  EXPECT_EQ(gate.Admit(call, now_).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(CallGateTest, ReportsConnectionsWhoseCallsAreRefusedTooOften) {
  struct Observer final : CallObserver {
    void OnAdmitted(uint64_t connection) override { admitted.push_back(connection); }
    void OnFlood(uint64_t connection) override { flooding.push_back(connection); }
    std::vector<uint64_t> admitted;
    std::vector<uint64_t> flooding;
  };
  const auto observer = std::make_shared<Observer>();
  CallGate gate = Gate({.secret = "right", .secret_file = "/run/secret", .observer = observer});
  ASSERT_TRUE(gate.Admit({.connection = 1, .method = kProgress, .secret = "right"}, now_).ok());
  EXPECT_THAT(observer->admitted, ElementsAre(1));
  const auto refuse = [&](uint64_t connection, double calls) {
    for (int i = 0; i < calls; ++i) {
      (void)gate.Admit({.connection = connection, .method = kProgress}, now_);
    }
  };
  refuse(1, kRefusalRate.at_once);
  refuse(2, 1);
  EXPECT_THAT(observer->flooding, IsEmpty());
  refuse(1, 1);
  EXPECT_THAT(observer->flooding, ElementsAre(1));
  now_ += absl::Seconds(1);
  refuse(1, kRefusalRate.per_second);
  EXPECT_THAT(observer->flooding, ElementsAre(1));
  EXPECT_THAT(observer->admitted, ElementsAre(1));
}

TEST_F(CallGateTest, RemembersBoundedNumberOfConnections) {
  CallGate gate = Gate({});
  for (uint64_t i = 1; i <= 10 * kMaxRememberedConnections; ++i) {
    ASSERT_TRUE(gate.Admit({.connection = i, .method = kProgress}, now_).ok());
  }
  EXPECT_LE(gate.remembered_connections(), kMaxRememberedConnections);
}

TEST_F(CallGateTest, LogsRefusalsAtMostOncePerInterval) {
  CallGate gate = Gate({.secret = "right", .secret_file = "/run/secret"});
  for (int i = 0; i < 100; ++i) (void)gate.Admit({.connection = 1, .method = kProgress}, now_);
  now_ += kRefusalLogInterval;
  (void)gate.Admit({.connection = 1, .method = kProgress}, now_);
  ASSERT_EQ(refusals_.size(), 101u);
  EXPECT_EQ(refusals_[0].to_log, 1u);
  for (int i = 1; i < 100; ++i) EXPECT_EQ(refusals_[i].to_log, 0u);
  EXPECT_EQ(refusals_[100].to_log, 100u);
}

}  // namespace
}  // namespace sluice::security
