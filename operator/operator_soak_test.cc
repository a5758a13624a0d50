// Two months of a mixed fleet on a simulated clock: idle jobs must cost nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/kube/http_client.h"
#include "operator/reconciler/names.h"
#include "operator/testing/fake_cluster.h"

namespace sluice {
namespace {

using kube::Json;
using Progress = v1::JobProgress;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kDay = absl::Hours(24);
constexpr int kDays = 60;

class SoakTest : public ::testing::Test {
 protected:
  void End(const std::string& job, Progress::Phase phase, int exit_code) {
    cluster_.Say(job, phase, 100);
    ASSERT_TRUE(cluster_.Settle());
    for (const std::string& pod : cluster_.PodNames()) {
      if (absl::StartsWith(pod, job + "-")) cluster_.EndPod(pod, exit_code);
    }
    ASSERT_TRUE(cluster_.Settle());
  }

  // One job of each idle kind, with certificates and without.
  void MakeFleet() {
    for (const std::string tls : {"Enabled", "Disabled"}) {
      const std::string of = tls == "Enabled" ? "tls" : "plain";
      const Json spec = {{"tls", tls}};
      for (const std::string kind : {"runs", "succeeded", "failed", "suspended", "waits"}) {
        const std::string name = absl::StrCat(kind, "-", of);
        jobs_.push_back(name);
        if (kind == "waits") {
          Json patch = {{"spec", spec}};
          patch["spec"]["suspend"] = true;
          cluster_.Create(FakeCluster::Job(name, patch));
          ASSERT_TRUE(cluster_.Settle());
          continue;
        }
        ASSERT_TRUE(cluster_.Train(name, {{"spec", spec}}));
        if (kind == "succeeded") End(name, Progress::SUCCEEDED, 0);
        if (kind == "failed") End(name, Progress::FAILED, 1);
        if (kind == "suspended") {
          cluster_.PatchJob(name, {{"spec", {{"suspend", true}}}});
          ASSERT_TRUE(cluster_.Settle());
          End(name, Progress::SUSPENDED, 0);
        }
      }
    }
    cluster_.Pass(absl::Minutes(20));
  }

  // Actions of other clients on some days; returns true if the operator has to write because of
  // them.
  bool Happens(int day) {
    kube::HttpClient::Options options;
    options.sleep = [](absl::Duration) {};
    kube::HttpClient admin(&cluster_.server, options);
    const auto patch = [&](const kube::ResourceType& type, const std::string& name,
                           const Json& body) {
      EXPECT_TRUE(admin.Patch(type, {"ns", name}, kube::PatchKind::kMerge, body, {}).ok());
    };
    if (day % 10 == 3) {  // a running job
      patch(reconciler::ConfigMaps(), "runs-tls", {{"data", {{"job.json", "{}"}}}});
      return true;
    }
    if (day % 10 == 5) {  // an ended job
      patch(reconciler::Services(), "succeeded-tls", {{"spec", {{"clusterIP", "10.96.0.9"}}}});
      return false;
    }
    // An operator runs for longer than the time after which certificates are renewed.
    if (day == 27 || day == 57) {
      cluster_.Restart();
      EXPECT_TRUE(cluster_.Settle());
      return false;
    }
    return false;
  }

  FakeCluster cluster_;
  std::vector<std::string> jobs_;
};

TEST_F(SoakTest, AMixedFleetIsIdleAfterSixtyDays) {
  MakeFleet();
  int64_t most_in_an_hour = 0;
  for (int day = 1; day <= kDays; ++day) {
    cluster_.ForgetWrites();
    const bool write = Happens(day);
    ASSERT_TRUE(cluster_.Settle());
    if (write) {
      EXPECT_EQ(cluster_.Writes().size(), 1u) << "day " << day;
    }
    cluster_.Pass(absl::Minutes(1));
    cluster_.ForgetWrites();
    for (int hour = 0; hour < 24; ++hour) {
      const int64_t before = cluster_.reconciliations;
      cluster_.Pass(kDay / 24);
      most_in_an_hour = std::max(most_in_an_hour, cluster_.reconciliations - before);
    }
    // Certificates are valid for 30 days and renewed after 20: only those of running jobs.
    const std::vector<std::string> writes = cluster_.Writes();
    EXPECT_THAT(writes, Each(HasSubstr("/secrets/runs-tls-tls"))) << "day " << day;
    if (day % 20 > 2) {
      EXPECT_THAT(writes, IsEmpty()) << "day " << day;
    }
    if (day == 26 || day == 56) {  // after the operator has run for a long time
      const int64_t before = cluster_.reconciliations;
      for (int second = 0; second < 60; ++second) cluster_.Pass(absl::Seconds(1));
      // Running jobs are reconciled four times a minute.
      EXPECT_LE(cluster_.reconciliations - before, static_cast<int64_t>(2 * jobs_.size()));
    }
  }
  // Each job is reconciled at the hourly resync, and running jobs at their progress interval.
  EXPECT_LE(most_in_an_hour, static_cast<int64_t>(4 * jobs_.size()));
  for (const std::string of : {"tls", "plain"}) {
    EXPECT_EQ(cluster_.Condition("runs-" + of, "Running"), "True/Training");
    EXPECT_EQ(cluster_.Condition("succeeded-" + of, "Succeeded").substr(0, 4), "True");
    EXPECT_EQ(cluster_.Condition("failed-" + of, "Failed").substr(0, 4), "True");
    EXPECT_EQ(cluster_.Condition("suspended-" + of, "Suspended"), "True/Suspended");
  }
}

}  // namespace
}  // namespace sluice
