// The operator is killed at each of its writes, before and after the write takes effect, and
// another one continues: the outcome is the same, and no pod is created more often.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "operator/testing/fake_cluster.h"

namespace sluice {
namespace {

using kube::Json;
using Progress = v1::JobProgress;

// Runs a job with all features from start to end; kills the operator at its write number `kill_at`
// (0: never), and starts another one at once.
class JobRun {
 public:
  JobRun(int kill_at, bool after_effect) {
    cluster_.on_write = [this, kill_at, after_effect](const kube::HttpRequest& request) {
      std::optional<kube::FakeApiServer::Fault> fault;
      if (request.method == "POST" && absl::StrContains(request.target, "/pods")) {
        ++pods_[kube::GetString(Json::parse(request.body), {"metadata", "name"})];
      }
      if (++writes_ != kill_at) return fault;
      cluster_.operator_dead = true;
      fault.emplace();
      fault->after_effect = after_effect;
      fault->status = absl::UnavailableError("killed");
      return fault;
    };
  }

  void Run() {
    cluster_.Create(FakeCluster::Job("a"));
    Settle();
    Say(Progress::TRAINING, 10);
    cluster_.clock.Advance(absl::Seconds(40));
    cluster_.EndPod("a-worker-1", 137, "OOMKilled");
    Settle();
    cluster_.EndPod("a-ps-0", 139);
    Settle();
    cluster_.DeletePod("a-coordinator");
    Settle();
    Say(Progress::TRAINING, 20);
    cluster_.PatchJob("a", {{"spec", {{"worker", {{"replicas", 3}}}}}});
    Settle();
    cluster_.PatchJob("a", {{"spec", {{"worker", {{"replicas", 1}}}}}});
    Settle();
    cluster_.PatchJob("a", {{"spec", {{"suspend", true}}}});
    Settle();
    Say(Progress::SUSPENDED, 30);
    EndAll();
    cluster_.PatchJob("a", {{"spec", {{"suspend", false}}}});
    Settle();
    Say(Progress::TRAINING, 40);
    cluster_.PatchJob("a", {{"spec", {{"parameterServer", {{"replicas", 2}}}}}});
    Settle();
    Say(Progress::TRAINING, 50);
    cluster_.PatchJob("a", {{"spec", {{"parameterServer", {{"replicas", 1}}}}}});
    Settle();
    cluster_.EndPod("a-ps-1", 0);
    Settle();
    Say(Progress::TRAINING, 60);
    cluster_.PatchJob("a", {{"spec", {{"networkPolicy", "Disabled"}}}});
    Settle();
    cluster_.PatchJob("a", {{"spec", {{"training", {{"mode", "Asynchronous"}}}}}});
    Settle();
    Say(Progress::SUSPENDED, 70);
    EndAll();
    Say(Progress::TRAINING, 80);
    cluster_.PatchJob("a", {{"spec", {{"parameterServer", {{"replicas", 2}}}}}});
    Settle();
    Say(Progress::SUSPENDED, 85);
    EndAll();
    Say(Progress::TRAINING, 90);
    Say(Progress::SUCCEEDED, 100);
    EndAll();
    for (int i = 0; i < 3; ++i) {
      cluster_.clock.Advance(absl::Seconds(30));
      Settle();
    }
  }

  int writes() const { return writes_; }

  // The results that must not depend on how often the operator was killed.
  Json End() {
    Json end;
    const Json status = cluster_.Status("a");
    for (const char* field : {"restarts", "worker", "parameterServer", "summary", "training"}) {
      if (status.contains(field)) end[field] = status[field];
    }
    end["training"].erase("lastProgressTime");
    for (const Json& failure : status["lastFailures"]) {
      end["failures"].push_back({failure["pod"], failure["reason"], failure["counted"]});
    }
    for (const Json& condition : status["conditions"]) {
      end["conditions"][std::string(condition["type"])] = {condition["status"],
                                                           condition["reason"]};
    }
    end["restorations"] = kube::GetInt(status, {"recovery", "restorations"});
    end["pods"] = cluster_.PodNames();
    // How often each was created: the next operator finds the pods that the killed one created.
    end["creations"] = pods_;
    return end;
  }

 private:
  void Settle() {
    ASSERT_TRUE(cluster_.Settle());
    if (!cluster_.operator_dead) return;
    cluster_.Restart();
    // The coordinator repeats its last report to the new operator.
    if (said_) said_();
    ASSERT_TRUE(cluster_.Settle());
  }
  void Say(Progress::Phase phase, uint64_t step) {
    said_ = [this, phase, step] { cluster_.Say("a", phase, step); };
    said_();
    Settle();
  }
  void EndAll() {
    for (const std::string& pod : cluster_.PodNames()) {
      // The coordinator's termination message stays with its pod.
      const bool speaks = absl::StrContains(pod, "coordinator");
      const std::string phase =
          cluster_.coordinators.last_progress.begin()->second.progress->phase() ==
                  Progress::SUSPENDED
              ? "SUSPENDED"
              : "SUCCEEDED";
      const auto step = cluster_.coordinators.last_progress.begin()->second.progress->step();
      cluster_.EndPod(pod, 0, "Completed",
                      speaks ? absl::StrCat("{\"phase\":\"", phase, "\",\"step\":\"", step,
                                            "\",\"totalSteps\":\"100\",\"attempt\":\"1\"}")
                             : "");
    }
    Settle();
    said_ = nullptr;
    cluster_.coordinators.last_progress.clear();
  }

  FakeCluster cluster_;
  int writes_ = 0;
  std::map<std::string, int> pods_;
  std::function<void()> said_;
};

constexpr int kParts = 4;

class OperatorCrashTest : public ::testing::TestWithParam<int> {};

TEST_P(OperatorCrashTest, HasTheSameOutcomeAfterBeingKilledAtAnyWrite) {
  JobRun undisturbed(0, false);
  undisturbed.Run();
  const Json end = undisturbed.End();
  ASSERT_EQ(end["summary"], "Succeeded") << end.dump(2);
  ASSERT_GT(undisturbed.writes(), 40);
  for (int n = 1 + GetParam(); n <= undisturbed.writes(); n += kParts) {
    SCOPED_TRACE(absl::StrCat("killed right after write ", n));
    // Killing before this write equals killing after the previous one.
    JobRun run(n, /*after_effect=*/true);
    run.Run();
    EXPECT_EQ(run.End(), end);
    if (::testing::Test::HasFailure()) return;
  }
}

// Parts that can run in parallel.
INSTANTIATE_TEST_SUITE_P(Parts, OperatorCrashTest, ::testing::Range(0, kParts));

}  // namespace
}  // namespace sluice
