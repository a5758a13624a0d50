// The Secrets of a job with TLS.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "operator/kube/http_client.h"
#include "operator/reconciler/names.h"
#include "operator/testing/operator_fixture.h"

namespace sluice {
namespace {

using kube::GetString;
using kube::Json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Progress = v1::JobProgress;

constexpr absl::Duration kDay = absl::Hours(24);

class OperatorTlsTest : public OperatorFixture {
 protected:
  Json Secret(const std::string& name) {
    return Admin()
        .Get(reconciler::Secrets(), {"ns", name}, kube::Subresource::kNone)
        .value_or(Json());
  }
  std::string Certificate(const std::string& role, const std::string& key) {
    return GetString(Secret("a-tls-" + role), {"data", key});
  }
};

TEST_F(OperatorTlsTest, CreatesSecretsAndUsesThemWithTheCoordinator) {
  Train();
  for (const char* name : {"a-tls-ca", "a-tls-coordinator", "a-tls-ps", "a-tls-worker"}) {
    EXPECT_EQ(kube::ControllerUidOf(Secret(name)), kube::UidOf(cluster_.GetJob("a"))) << name;
  }
  EXPECT_FALSE(Certificate("worker", "1.crt").empty());
  EXPECT_EQ(GetString(cluster_.Status("a"), {"tls"}), "Enabled");
  EXPECT_NE(cluster_.coordinators.peers.begin()->second.credentials, nullptr);
}

TEST_F(OperatorTlsTest, APlainTextJobHasNoSecrets) {
  Train({{"spec", {{"tls", "Disabled"}}}});
  EXPECT_TRUE(Secret("a-tls-ca").is_null());
  EXPECT_EQ(GetString(cluster_.Status("a"), {"tls"}), "Disabled");
  EXPECT_EQ(cluster_.coordinators.peers.begin()->second.credentials, nullptr);
}

TEST_F(OperatorTlsTest, AJobThatStartedInPlainTextKeepsIt) {
  // Started by an operator with that default, or by one without TLS support.
  for (const auto& [name, status] :
       {std::pair<std::string, Json>{"a", {{"observedGeneration", 1}, {"tls", "Disabled"}}},
        {"b", {{"observedGeneration", 1}}}}) {
    cluster_.Create(FakeCluster::Job(name));
    Json job = cluster_.GetJob(name);
    job["status"] = status;
    kube::WriteOptions options;
    options.subresource = kube::Subresource::kStatus;
    ASSERT_TRUE(Admin().Update(reconciler::TrainingJobs(), {"ns", name}, job, options).ok());
    ASSERT_TRUE(cluster_.Settle());
    EXPECT_TRUE(Secret(name + "-tls-ca").is_null()) << name;
    EXPECT_EQ(GetString(cluster_.Status(name), {"tls"}), "Disabled") << name;
  }
  EXPECT_EQ(cluster_.PodNames().size(), 8u);
}

TEST_F(OperatorTlsTest, RenewsCertificatesOfAnIdleJob) {
  Train();
  const std::string before = Certificate("ps", "0.crt");
  const auto credentials = cluster_.coordinators.peers.begin()->second.credentials;
  const std::string pod = cluster_.UidOf("a-ps-0");
  for (int i = 0; i < 21; ++i) cluster_.Pass(kDay);
  EXPECT_NE(Certificate("ps", "0.crt"), before);
  EXPECT_EQ(cluster_.UidOf("a-ps-0"), pod) << "no pod is re-created for it";
  EXPECT_NE(cluster_.coordinators.peers.begin()->second.credentials, credentials);
}

TEST_F(OperatorTlsTest, RecreatesDeletedSecrets) {
  Train();
  const std::string authority = Certificate("ca", "ca.crt");
  const std::string before = Certificate("worker", "0.crt");
  ASSERT_TRUE(Admin().Delete(reconciler::Secrets(), {"ns", "a-tls-worker"}, {}).ok());
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_FALSE(Certificate("worker", "0.crt").empty());
  EXPECT_NE(Certificate("worker", "0.crt"), before);
  EXPECT_EQ(Certificate("ca", "ca.crt"), authority);
  ASSERT_TRUE(Admin().Delete(reconciler::Secrets(), {"ns", "a-tls-ca"}, {}).ok());
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_FALSE(Certificate("ca", "ca.crt").empty());
  EXPECT_NE(Certificate("ca", "ca.crt"), authority);
}

// Certificates are renewed after 20 days, except those of a job that has ended.
TEST_F(OperatorTlsTest, AnEndedOrSuspendedJobNeedsNoReconciliations) {
  for (const bool suspended : {false, true}) {
    Train();
    if (suspended) {
      cluster_.PatchJob("a", {{"spec", {{"suspend", true}}}});
      ASSERT_TRUE(cluster_.Settle());
    }
    cluster_.Say("a", suspended ? Progress::SUSPENDED : Progress::SUCCEEDED, 100);
    ASSERT_TRUE(cluster_.Settle());
    for (const std::string& name : cluster_.PodNames()) cluster_.EndPod(name, 0);
    cluster_.Pass(absl::Minutes(1));
    cluster_.ForgetWrites();
    const int64_t before = cluster_.reconciliations;
    for (int i = 0; i < 90; ++i) cluster_.Pass(kDay);
    EXPECT_THAT(cluster_.Writes(), IsEmpty());
    EXPECT_LE(cluster_.reconciliations - before, 3 * 90) << "one a resync, and little more";
    const int64_t rested = cluster_.reconciliations;
    for (int i = 0; i < 60; ++i) cluster_.Pass(absl::Seconds(1));
    EXPECT_LE(cluster_.reconciliations - rested, 1) << "not each second either";
    ASSERT_TRUE(Admin().Delete(reconciler::TrainingJobs(), {"ns", "a"}, {}).ok());
    ASSERT_TRUE(cluster_.Settle());
  }
}

TEST_F(OperatorTlsTest, WritesNothingWhileNothingChanges) {
  Train();
  cluster_.ForgetWrites();
  for (int i = 0; i < 10; ++i) cluster_.Pass(absl::Minutes(20));
  EXPECT_THAT(cluster_.Writes(), IsEmpty());
}

TEST_F(OperatorTlsTest, TheCertificateOfANewWorkerExistsBeforeItsPod) {
  Train();
  EXPECT_TRUE(Certificate("worker", "2.crt").empty());
  bool certified = false;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    if (absl::StrContains(request.body, "\"a-worker-2\"") && request.method == "POST") {
      certified = !Certificate("worker", "2.crt").empty();
    }
    return std::optional<kube::FakeApiServer::Fault>();
  };
  cluster_.PatchJob("a", {{"spec", {{"worker", {{"replicas", 3}}}}}});
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_TRUE(certified);
}

TEST_F(OperatorTlsTest, ReportsAndKeepsAForeignSecret) {
  Json theirs = {{"apiVersion", "v1"}, {"kind", "Secret"}, {"metadata", {{"name", "a-tls-ps"}}}};
  ASSERT_TRUE(Admin().Create(reconciler::Secrets(), "ns", theirs, {}).ok());
  cluster_.Create(FakeCluster::Job("a"));
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_THAT(cluster_.PodNames(), IsEmpty());
  EXPECT_THAT(cluster_.Condition("a", "Degraded"), HasSubstr("NameTaken"));
  EXPECT_FALSE(Secret("a-tls-ps").contains("data"));
}

}  // namespace
}  // namespace sluice
