// The pages describe the ends of pods and jobs on a cluster as the code decides them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "operator/policy/policy.h"
#include "operator/reconciler/decide.h"
#include "services/common/exit_code.h"

namespace sluice {
namespace {

using policy::Exit;
using policy::Replica;

const absl::Time kNow = absl::FromUnixSeconds(1700000000);
constexpr Replica kShard = {v1::SHARD, 0};
constexpr Replica kWorker = {v1::WORKER, 0};

std::string Page(const std::string& name) {
  std::ifstream file("docs/" + name);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_FALSE(text.str().empty()) << name;
  return text.str();
}

// The cells of the rows of the first table below the line, without the table's head.
std::vector<std::vector<std::string>> TableBelow(const std::string& page, const std::string& line) {
  std::vector<std::vector<std::string>> rows;
  const size_t at = page.find("\n" + line);
  EXPECT_NE(at, std::string::npos) << line;
  if (at == std::string::npos) return rows;
  for (absl::string_view row : absl::StrSplit(absl::string_view(page).substr(at + 1), '\n')) {
    if (absl::StartsWith(row, "| ")) {
      rows.push_back(absl::StrSplit(row, absl::ByString(" | ")));
      rows.back()[0].erase(0, 2);
    } else if (!rows.empty() && !absl::StartsWith(row, "|-")) {
      break;
    }
  }
  if (!rows.empty()) rows.erase(rows.begin());
  return rows;
}

// A job with one worker and one shard, which must not be lost, after one of the two has ended.
struct Scene {
  explicit Scene(const Replica& replica, const Exit& exit, bool was_ready = true) {
    plan.backoff_limit = 0;
    for (const Replica& one : {Replica{v1::COORDINATOR, 0}, kShard, kWorker}) {
      policy::ProcessObservation& process = world.processes[one];
      process.instance = policy::ReplicaName(one);
      process.started = kNow - absl::Seconds(was_ready ? 60 : 1);
      process.ready = was_ready;
    }
    world.coordinator_address = "a:1";
    world.processes[replica].running = false;
    world.processes[replica].exit = exit;
    world.processes[replica].ended = kNow;
  }
  policy::Memory After() const {
    return policy::Decide(plan, reconciler::ClusterLimits(), world, memory, kNow).memory;
  }
  std::string EndOfTheJob() const {
    const policy::Memory after = After();
    return after.outcome.has_value() ? after.outcome->code : "";
  }

  policy::JobPlan plan;
  policy::Observation world;
  policy::Memory memory;
};

struct EndOfPod {
  std::string name;  // as the page has it
  Exit exit;
  bool was_ready = true;
};

std::vector<EndOfPod> EndsOfPods() {
  std::vector<EndOfPod> ends = {
      {"OOMKilled", {0, 9, "", policy::Cause::kItself, "OOMKilled"}},
      {"Killed", {0, 11}},
      {"Error", {kExitFailed}},
      {"Error", {77}},
      {"Error of exit code 126 or 127", {126}, false},
      {"Error of exit code 126 or 127", {127}, false},
      {"TryAgain", {kExitRetry}},
      {"StartError", {128, 0, "", policy::Cause::kItself, "StartError"}, false},
      {"BadArguments", {kExitUsage}, false},
      {"Refused", {kExitRefused}, false},
      {"DataMissing", {kExitMissing}, false},
      {"Expelled", {kExitExpelled}},
  };
  for (const char* reason :
       {"Evicted", "Preempted", "NodeLost", "NodeShutdown", "NodeRefused", "Deleted"}) {
    ends.push_back({reason, {1, 0, "", policy::Cause::kOutside, reason}});
  }
  return ends;
}

TEST(FailuresPage, StatesWhetherEachEndOfPodCounts) {
  std::map<std::string, std::string> documented;
  for (const auto& row : TableBelow(Page("kubernetes.md"), "Ends of pods")) {
    for (absl::string_view reason : absl::StrSplit(row[0], ", ")) {
      documented[std::string(reason)] = row[1];
    }
  }

  std::set<std::string> known;
  for (const EndOfPod& end : EndsOfPods()) {
    known.insert(end.name);
    const std::string of_shard = Scene(kShard, end.exit, end.was_ready).EndOfTheJob();
    const Scene worker(kWorker, end.exit, end.was_ready);
    std::string what = "no";
    if (of_shard == "ProcessFailed") what = "the job fails";
    if (of_shard == "BackoffLimitExceeded") what = "yes";
    EXPECT_EQ(documented[end.name], what) << end.name;
    EXPECT_EQ(worker.EndOfTheJob() == "ProcessFailed", what == "the job fails") << end.name;
    EXPECT_EQ(worker.After().worker_deaths.size(), what == "yes" ? 1u : 0u) << end.name;
    // If a restart may help, a process that was never ready is restarted without limit.
    if (what == "yes") {
      EXPECT_EQ(Scene(kShard, end.exit, false).EndOfTheJob(), "") << end.name;
    }
  }

  for (const auto& [name, what] : documented) EXPECT_TRUE(known.count(name)) << name;
}

std::set<std::string> EndsOfJobs() {
  const Exit killed = {0, 9};
  std::set<std::string> ends = {
      "ProgressDeadlineExceeded",  // the operator's own
      Scene(kShard, killed).EndOfTheJob(),
      Scene(kWorker, {kExitUsage}).EndOfTheJob(),
  };

  Scene rule(kWorker, killed);
  rule.plan.failure_rules = {{policy::FailureRule::Action::kFailJob, {}, {137}, {}}};
  Scene failed(kWorker, killed);
  failed.world.phase = v1::JobProgress::FAILED;
  Scene in_use(kWorker, killed);
  in_use.world.phase = v1::JobProgress::FAILED;
  in_use.world.phase_code = "CheckpointDirectoryInUse";
  Scene late(kWorker, killed);
  late.plan.active_deadline = absl::ZeroDuration();
  Scene many(kWorker, killed);
  many.memory.worker_deaths.assign(reconciler::ClusterLimits().max_worker_deaths, kNow);
  Scene never(kWorker, killed, /*was_ready=*/false);
  never.memory.replicas[kWorker].failed_starts = 1000;

  for (const Scene& scene : {rule, failed, in_use, late, many, never})
    ends.insert(scene.EndOfTheJob());
  ends.erase("");
  return ends;
}

TEST(FailuresPage, ListsExactlyTheEndsOfJobs) {
  std::set<std::string> documented;
  for (const auto& row : TableBelow(Page("kubernetes.md"), "Ends of jobs")) {
    for (absl::string_view reason : absl::StrSplit(row[0], ", ")) documented.emplace(reason);
  }
  EXPECT_EQ(documented, EndsOfJobs());

  std::set<std::string> of_condition;
  for (const auto& row : TableBelow(Page("operator.md"), "| condition | True when | reasons ")) {
    if (row[0] != "`Failed`") continue;
    const std::vector<std::string> parts = absl::StrSplit(row.back(), '`');
    for (size_t i = 1; i < parts.size(); i += 2) of_condition.insert(parts[i]);
  }
  EXPECT_EQ(of_condition, EndsOfJobs());
}

}  // namespace
}  // namespace sluice
