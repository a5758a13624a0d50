// The operator with jobs of many pods: how it creates them, and how often it reconciles a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "operator/testing/fake_cluster.h"
#include "services/common/threads/mutex.h"

namespace sluice {
namespace {

using kube::GetInt;
using kube::GetString;
using kube::Json;
using ::testing::Contains;
using ::testing::IsEmpty;

class OperatorManyPodsTest : public ::testing::Test {
 protected:
  OperatorManyPodsTest() {
    cluster_.creators = 7;
    cluster_.Restart();
  }
  static Json NineAndACoordinator() {
    return FakeCluster::Job(
        "a", {{"spec", {{"parameterServer", {{"replicas", 3}}}, {"worker", {{"replicas", 6}}}}}});
  }
  static bool MakesPod(const kube::HttpRequest& request) {
    return request.method == "POST" && absl::StrContains(request.target, "/pods");
  }
  int64_t ReadyWorkers() { return GetInt(cluster_.Status("a"), {"worker", "readyReplicas"}); }

  FakeCluster cluster_;
};

TEST_F(OperatorManyPodsTest, CreatesPodsOfARoleConcurrentlyAndAfterThePreviousRole) {
  Mutex mutex;
  CondVar changed;
  int workers = 0;
  std::vector<std::string> early;
  bool together = true;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> none;
    if (!MakesPod(request)) return none;
    const std::string name = GetString(Json::parse(request.body), {"metadata", "name"});
    const std::vector<std::string> there = cluster_.PodNames();
    MutexLock lock(&mutex);
    if (absl::StrContains(name, "-ps-") && there.empty()) early.push_back(name);
    if (!absl::StrContains(name, "-worker-")) return none;
    if (there.size() < 4) early.push_back(name);
    ++workers;
    changed.SignalAll();
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (workers < 6 && together) {
      if (changed.WaitWithDeadline(&mutex, deadline)) together = false;
    }
    return none;
  };
  cluster_.Create(NineAndACoordinator());
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_TRUE(together);
  EXPECT_THAT(early, IsEmpty());
  EXPECT_EQ(cluster_.PodNames().size(), 10u);
  EXPECT_EQ(cluster_.Condition("a", "Ready"), "True/AllReady");
}

TEST_F(OperatorManyPodsTest, KeepsPodsCreatedBesideARefusedOneAndCreatesTheRestLater) {
  std::atomic<int> asked{0};
  std::atomic<int> room{6};
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    std::optional<kube::FakeApiServer::Fault> fault;
    if (MakesPod(request) && ++asked > room) {
      fault.emplace();
      fault->response.code = 403;
      fault->response.body = Json({{"kind", "Status"},
                                   {"code", 403},
                                   {"reason", "Forbidden"},
                                   {"message", "pods are forbidden: exceeded quota: q"}})
                                 .dump();
    }
    return fault;
  };
  cluster_.Create(NineAndACoordinator());
  ASSERT_TRUE(cluster_.Settle());
  const std::vector<std::string> first = cluster_.PodNames();
  EXPECT_EQ(first.size(), 6u)
      << "the coordinator, all shards, and as many workers as there is room";
  for (const char* name : {"a-coordinator", "a-ps-0", "a-ps-1", "a-ps-2"}) {
    EXPECT_THAT(first, Contains(name));
  }
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "True/QuotaExceeded");
  std::map<std::string, std::string> uids;
  for (const std::string& name : first) uids[name] = cluster_.UidOf(name);
  room = 1000;
  cluster_.Pass(absl::Minutes(1));
  EXPECT_EQ(cluster_.PodNames().size(), 10u);
  EXPECT_EQ(cluster_.Condition("a", "Degraded"), "False/NotDegraded");
  for (const auto& [name, uid] : uids) EXPECT_EQ(cluster_.UidOf(name), uid) << name;
  EXPECT_EQ(GetInt(cluster_.Status("a"), {"restarts", "total"}), 0);
}

TEST_F(OperatorManyPodsTest, ALargeJobDoesNotBlockOtherJobs) {
  Mutex mutex;
  std::vector<std::string> made;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    if (MakesPod(request)) {
      MutexLock lock(&mutex);
      made.push_back(GetString(Json::parse(request.body), {"metadata", "name"}));
    }
    return std::optional<kube::FakeApiServer::Fault>();
  };
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"worker", {{"replicas", 60}}}}}}));
  cluster_.Create(FakeCluster::Job("b"));
  ASSERT_TRUE(cluster_.Settle());
  const auto last = [&](const std::string& job) {
    size_t at = 0;
    for (size_t i = 0; i < made.size(); ++i) {
      if (absl::StartsWith(made[i], job)) at = i;
    }
    return at;
  };
  EXPECT_LT(last("b-"), 30u) << "the small job waits for at most one turn of the large one";
  EXPECT_GT(last("a-"), 60u);
  EXPECT_EQ(std::set<std::string>(made.begin(), made.end()).size(), made.size());
  EXPECT_EQ(cluster_.PodNames().size(), made.size());
  for (const char* job : {"a", "b"}) {
    EXPECT_EQ(cluster_.Condition(job, "Ready"), "True/AllReady") << job;
    EXPECT_EQ(GetInt(cluster_.Status(job), {"restarts", "total"}), 0) << job;
  }
}

TEST_F(OperatorManyPodsTest, DeletionsOfManyPodsDoNotBlockOtherJobs) {
  cluster_.Create(FakeCluster::Job("a", {{"spec", {{"worker", {{"replicas", 100}}}}}}));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Say("a", v1::JobProgress::TRAINING, 10);
  ASSERT_TRUE(cluster_.Settle());
  Mutex mutex;
  std::vector<std::string> writes;
  cluster_.on_write = [&](const kube::HttpRequest& request) {
    MutexLock lock(&mutex);
    writes.push_back(request.target);
    return std::optional<kube::FakeApiServer::Fault>();
  };
  cluster_.PatchJob("a", {{"spec", {{"worker", {{"replicas", 1}}}}}});
  cluster_.Create(FakeCluster::Job("b"));
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Minutes(1));
  EXPECT_EQ(cluster_.PodNames().size(), 3u + 4u);
  size_t first_of_b = writes.size();
  for (size_t i = writes.size(); i-- > 0;) {
    if (absl::StrContains(writes[i], "/trainingjobs/b/")) first_of_b = i;
  }
  EXPECT_LE(first_of_b, 20u) << "the small job waits for at most one turn of the large one";
}

TEST_F(OperatorManyPodsTest, GathersReadyPodsButHandlesAnExitAtOnce) {
  cluster_.gather_pod_news = absl::Milliseconds(100);
  cluster_.Restart();
  cluster_.kubelets = false;
  cluster_.Create(NineAndACoordinator());
  ASSERT_TRUE(cluster_.Settle());
  cluster_.Pass(absl::Seconds(5));
  cluster_.kubelets = true;
  cluster_.frozen = [](const std::string& pod) { return pod == "a-coordinator"; };
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_EQ(ReadyWorkers(), 0);
  cluster_.Pass(absl::Milliseconds(100));
  EXPECT_EQ(ReadyWorkers(), 6);
  const std::string before = cluster_.UidOf("a-worker-3");
  cluster_.EndPod("a-worker-3", 1);
  ASSERT_TRUE(cluster_.Settle());
  EXPECT_NE(cluster_.UidOf("a-worker-3"), before);
}

}  // namespace
}  // namespace sluice
