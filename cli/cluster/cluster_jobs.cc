#include "cli/cluster/cluster_jobs.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/cluster/job_credentials.h"
#include "cli/cluster/job_text.h"
#include "cli/cluster/job_watch.h"
#include "cli/cluster/pod_logs.h"
#include "cli/cluster/port_forward.h"
#include "operator/kube/api_error.h"
#include "operator/reconciler/job_status.h"
#include "operator/reconciler/names.h"
#include "services/common/status_macros.h"
#include "services/protocol/job_name.h"

namespace sluice::cli {
namespace {

using kube::GetString;
using kube::Json;

constexpr absl::Duration kTick = absl::Milliseconds(100);
// How long to wait for the logs of a job that has ended.
constexpr absl::Duration kFinalLogs = absl::Seconds(5);
constexpr int kListRestarts = 3;
constexpr size_t kMaxFailuresShown = 3;
constexpr size_t kMaxNamed = 20;

bool HasEnded(const Json& job) {
  const std::optional<policy::Outcome> outcome = OutcomeOf(job);
  return outcome.has_value() && outcome->kind != policy::OutcomeKind::kSuspended;
}

// Forwards ports of a job's pods, each on first use.
class ClusterAccess final : public Jobs::Access {
 public:
  ClusterAccess(kube::Client* client, std::string kubectl, std::vector<std::string> flags,
                std::shared_ptr<grpc::ChannelCredentials> credentials, const Json& job)
      : client_(client),
        kubectl_(std::move(kubectl)),
        flags_(std::move(flags)),
        credentials_(std::move(credentials)),
        key_(kube::KeyOf(job)),
        uid_(kube::UidOf(job)) {}

  absl::Status Open() { return Forward({v1::COORDINATOR, 0}).status(); }

  std::string Identity() const override { return FullJobName(key_.ns, key_.name, uid_); }

  SnapshotSource Source() override {
    const absl::StatusOr<std::string> coordinator = Forward({v1::COORDINATOR, 0});

    SnapshotSource source;
    if (coordinator.ok()) source.coordinator = *coordinator;
    source.shard_address = [this](const v1::View::Shard& shard) {
      return Forward({v1::SHARD, shard.process().index()});
    };

    source.credentials = credentials_;
    source.handshake_help = credentials_ == nullptr
                                ? absl::StrCat(
                                      "by its status the job uses plain text; check that its "
                                      "coordinator is running: kubectl describe stj ",
                                      key_.name, " -n ", key_.ns)
                                : absl::StrCat(
                                      "pods may load new certificates a few minutes late; if the "
                                      "error persists, suspend and resume ",
                                      key_.name);
    return source;
  }

  bool Running() override {
    const absl::StatusOr<Json> job =
        client_->Get(reconciler::TrainingJobs(), key_, kube::Subresource::kNone);
    if (absl::IsNotFound(job.status())) return false;
    return !job.ok() || (kube::UidOf(*job) == uid_ && !OutcomeOf(*job).has_value());
  }

 private:
  absl::StatusOr<std::string> Forward(const policy::Replica& replica) {
    const auto found = forwards_.find(replica);
    if (found != forwards_.end()) return found->second->address();
    PortForward::Options options;
    options.kubectl = kubectl_;
    options.flags = flags_;
    options.pod = {key_.ns, reconciler::PodName(key_.name, replica)};
    options.port =
        replica.role == v1::SHARD ? reconciler::kShardPort : reconciler::kCoordinatorPort;
    ASSIGN_OR_RETURN(std::unique_ptr<PortForward> forward, PortForward::Start(options));
    return (forwards_[replica] = std::move(forward))->address();
  }

  kube::Client* const client_;
  const std::string kubectl_;
  const std::vector<std::string> flags_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;  // null: plain text
  const kube::ObjectKey key_;
  const std::string uid_;
  std::map<policy::Replica, std::unique_ptr<PortForward>> forwards_;
};

class ClusterJobs final : public Jobs {
 public:
  ClusterJobs(const Environment& environment, ClusterFlags flags, Connection connection)
      : environment_(environment), flags_(std::move(flags)), connection_(std::move(connection)) {}

  std::string Place() const override {
    return absl::StrCat("namespace ", connection_.ns, " of context ", connection_.config.context);
  }

  absl::StatusOr<std::vector<Line>> List() override {
    ASSIGN_OR_RETURN(const kube::ListPage page, ListAll(reconciler::TrainingJobs(), ""));
    std::vector<Line> lines;
    for (const Json& job : page.items) lines.push_back({kube::KeyOf(job).name, StateLine(job)});
    return lines;
  }

  absl::StatusOr<Details> Describe(const std::string& name) override {
    ASSIGN_OR_RETURN(const Json job, Find(name));
    const absl::StatusOr<PodStatuses> pods = Pods(job);

    Details details;
    details.view = ViewOf(job, pods.ok() ? *pods : PodStatuses());
    if (!pods.ok()) {
      details.lines.push_back(absl::StrCat("  its pods cannot be read: ", pods.status().message()));
    }
    AddProblems(job, &details.lines);

    details.checkpoint = GetString(job, {"status", "checkpoint", "location"});

    const std::optional<policy::Outcome> outcome = OutcomeOf(job);
    details.running = !outcome.has_value();
    if (outcome.has_value()) {
      details.result.emplace();
      details.result->outcome = *outcome;
      details.result->progress = ProgressOf(job);
      details.result->has_progress = HasProgress(job);
      details.result->restarts = RestartsOf(job);
    }
    return details;
  }

  absl::Status Logs(const std::string& name, const LogOptions& options,
                    const LogSink& sink) override {
    ASSIGN_OR_RETURN(const Json job, Find(name));

    PodLogs::Options log_options;
    log_options.ns = connection_.ns;
    log_options.process = options.process;
    log_options.tail = options.tail;
    log_options.follow = options.follow && !HasEnded(job);

    PodLogs logs(connection_.transport.get(), log_options);
    if (!log_options.follow) return ReadLogs(job, options, sink, &logs);

    JobWatch watch(connection_.client.get(), kube::KeyOf(job));
    const std::string uid = kube::UidOf(job);

    PodStatuses pods;
    bool known = false;
    absl::Time end = absl::InfiniteFuture();

    for (bool over = false; !(over && logs.Idle()) && absl::Now() < end;) {
      JobNews news = watch.Wait(kTick);
      if (news.pods.has_value()) pods = ReadPods(*news.pods, uid), known = true;
      if (known) logs.SetPods(pods);
      if (news.job_listed) {
        over = news.job.is_null() || kube::UidOf(news.job) != uid || HasEnded(news.job);
        // The pods of an ended job may be kept.
        if (over) end = std::min(end, absl::Now() + kFinalLogs);
      }

      for (const auto& [resource, status] : news.problems) {
        if (absl::IsPermissionDenied(status) && resource == "pods") {
          return Explain(status, connection_);
        }
      }

      if (!Pass(&logs, sink)) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Stop(const std::string& name, const StopOptions& options,
                                   const std::function<void(const std::string&)>& say) override {
    if (options.now) {
      return absl::InvalidArgumentError(
          absl::StrCat("--now is not supported on a cluster, where a job always saves a checkpoint "
                       "before it stops; kubectl delete stj ",
                       name, " -n ", connection_.ns,
                       " ends it immediately, and its volume claims keep the newest checkpoint"));
    }
    ASSIGN_OR_RETURN(const Json job, Find(name));
    if (HasEnded(job)) return absl::StrCat(name, ": ", StateLine(job));
    RETURN_IF_ERROR(MergeSpec(job, {{"suspend", true}}));

    say(absl::StrCat("Stopping ", name, " in ", Place(), " after saving a checkpoint"));
    JobWatch watch(connection_.client.get(), kube::KeyOf(job));
    const absl::Time deadline = absl::Now() + options.timeout;
    while (true) {
      const JobNews news = watch.Wait(kTick);
      if (news.job_listed && (news.job.is_null() || kube::UidOf(news.job) != kube::UidOf(job))) {
        return absl::StrCat(name, ": it was deleted");
      }
      if (news.job_listed && OutcomeOf(news.job).has_value()) {
        return absl::StrCat(name, ": ", StateLine(news.job));
      }
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError(absl::StrCat("job ", name,
                                                        " has not stopped yet; sluice status ",
                                                        name, flags_.Text(), " shows its state"));
      }
    }
  }

  absl::StatusOr<std::string> Scale(const std::string& name, const ScaleOptions& options) override {
    ASSIGN_OR_RETURN(const Json job, Find(name));
    if (HasEnded(job)) {
      return absl::FailedPreconditionError(
          absl::StrCat("job ", name, " is not running (", StateLine(job), ")"));
    }

    Json spec = Json::object();
    std::vector<std::string> changes;
    const auto set = [&](const char* role, const char* noun, std::optional<uint32_t> number) {
      if (!number.has_value()) return;
      spec[role]["replicas"] = *number;
      changes.push_back(CountedText(*number, noun));
    };

    set("parameterServer", "shard", options.shards);
    set("worker", "worker", options.workers);

    RETURN_IF_ERROR(MergeSpec(job, std::move(spec)));
    return absl::StrCat(name, " in ", Place(), ": ", absl::StrJoin(changes, " and "),
                        "; sluice status ", name, flags_.Text(), " shows them");
  }

  absl::StatusOr<std::unique_ptr<Access>> Reach(const std::string& name) override {
    ASSIGN_OR_RETURN(const Json job, Find(name));
    if (const auto outcome = OutcomeOf(job); outcome.has_value()) {
      const std::string location = GetString(job, {"status", "checkpoint", "location"});
      return absl::FailedPreconditionError(absl::StrCat(
          "job ", name, " is not running (", StateLine(job), ")",
          location.empty()
              ? ""
              : absl::StrCat("; its newest checkpoint is ", location,
                             " on the job's volume: copy it from a pod that mounts the volume "
                             "(kubectl cp), then sluice export the directory")));
    }

    ASSIGN_OR_RETURN(std::string kubectl, FindKubectl(environment_.cluster.path));
    ASSIGN_OR_RETURN(std::shared_ptr<grpc::ChannelCredentials> credentials,
                     ReaderCredentials(connection_, job, absl::Now()));

    auto access =
        std::make_unique<ClusterAccess>(connection_.client.get(), std::move(kubectl),
                                        KubectlFlags(flags_), std::move(credentials), job);
    RETURN_IF_ERROR(access->Open());
    return access;
  }

 private:
  absl::Status MergeSpec(const Json& job, Json spec) {
    // The uid ensures that the patch does not reach a new job of the same name.
    const Json patch = {{"metadata", {{"uid", kube::UidOf(job)}}}, {"spec", std::move(spec)}};
    kube::WriteOptions write;
    write.field_manager = kCliFieldManager;
    const absl::Status status = connection_.client
                                    ->Patch(reconciler::TrainingJobs(), kube::KeyOf(job),
                                            kube::PatchKind::kMerge, patch, write)
                                    .status();
    return status.ok() ? status : Explain(status, connection_);
  }

  absl::StatusOr<kube::ListPage> ListAll(const kube::ResourceType& type,
                                         const std::string& selector) {
    kube::ListOptions options;
    options.ns = connection_.ns;
    options.label_selector = selector;
    ASSIGN_OR_RETURN(kube::ListPage page,
                     kube::ListAll(connection_.client.get(), type, options, kListRestarts),
                     Explain(_, connection_));
    return page;
  }

  absl::StatusOr<Json> Find(const std::string& name) {
    absl::StatusOr<Json> job = connection_.client->Get(
        reconciler::TrainingJobs(), {connection_.ns, name}, kube::Subresource::kNone);
    if (job.ok()) return job;
    if (!absl::IsNotFound(job.status()) || IsUnknownType(job.status())) {
      return Explain(job.status(), connection_);
    }

    std::string known;
    size_t count = 0;
    if (const absl::StatusOr<std::vector<Line>> lines = List(); lines.ok()) {
      for (const Line& line : *lines) {
        if (++count <= kMaxNamed) absl::StrAppend(&known, known.empty() ? "" : ", ", line.name);
      }
    }

    if (count > kMaxNamed) absl::StrAppend(&known, " and ", count - kMaxNamed, " more");
    return absl::NotFoundError(
        absl::StrCat("there is no job ", name, " in ", Place(), "; ",
                     known.empty() ? "there are no jobs" : "there are: ", known));
  }

  absl::StatusOr<PodStatuses> Pods(const Json& job) {
    ASSIGN_OR_RETURN(const kube::ListPage page,
                     ListAll(reconciler::Pods(),
                             absl::StrCat(reconciler::kJobLabel, "=", kube::KeyOf(job).name)));
    return ReadPods(page.items, kube::UidOf(job));
  }

  static void AddProblems(const Json& job, std::vector<std::string>* lines) {
    if (const auto outcome = OutcomeOf(job); outcome.has_value() && !outcome->reason.empty()) {
      lines->push_back(absl::StrCat("  ", outcome->reason));
    }

    const Json* status = kube::Find(job, {"status"});
    const Json* degraded =
        status == nullptr ? nullptr : reconciler::FindCondition(*status, "Degraded");
    if (degraded != nullptr && reconciler::HasCondition(*status, "Degraded")) {
      lines->push_back(absl::StrCat("  degraded: ", GetString(*degraded, {"reason"}), ": ",
                                    GetString(*degraded, {"message"})));
    }

    const Json* pending =
        status == nullptr ? nullptr : reconciler::FindCondition(*status, "SpecNotInEffect");
    if (pending != nullptr && reconciler::HasCondition(*status, "SpecNotInEffect")) {
      lines->push_back(absl::StrCat("  not in effect: ", GetString(*pending, {"message"})));
    }

    const Json* failures = kube::Find(job, {"status", "lastFailures"});
    if (failures != nullptr && failures->is_array()) {
      for (size_t i = 0; i < std::min(failures->size(), kMaxFailuresShown); ++i) {
        const Json& failure = (*failures)[i];
        lines->push_back(absl::StrCat(
            "  ", GetString(failure, {"time"}), "  ", GetString(failure, {"pod"}),
            " ended: ", GetString(failure, {"reason"}), ": ", GetString(failure, {"message"})));
      }
    }

    const std::string checkpoint = GetString(job, {"status", "checkpoint", "location"});
    if (!checkpoint.empty()) {
      lines->push_back(absl::StrCat("  newest checkpoint: ", checkpoint));
    }
  }

  // Passes on the lines that were read. Returns false if the sink accepts no more.
  bool Pass(PodLogs* logs, const LogSink& sink) {
    std::vector<std::string> problems;
    for (const PodLogs::LogLine& line : logs->Take(&problems)) {
      if (!sink(line.process, line.text)) return false;
    }
    for (const std::string& problem : problems) *environment_.err << "sluice: " << problem << "\n";
    return true;
  }

  absl::Status ReadLogs(const Json& job, const LogOptions& options, const LogSink& sink,
                        PodLogs* logs) {
    ASSIGN_OR_RETURN(const PodStatuses pods, Pods(job));
    logs->SetPods(pods);

    if (!logs->found()) {
      return absl::NotFoundError(absl::StrCat(
          "no log of ", options.process.empty() ? "any process" : options.process, ": ",
          pods.empty() ? "the job has no pods now" : "its container has not started"));
    }

    while (!logs->Idle()) {
      if (!Pass(logs, sink)) return absl::OkStatus();
      absl::SleepFor(absl::Milliseconds(10));
    }
    Pass(logs, sink);
    return absl::OkStatus();
  }

  const Environment& environment_;
  const ClusterFlags flags_;
  const Connection connection_;
};

}  // namespace

std::unique_ptr<Jobs> MakeClusterJobs(const Environment& environment, const ClusterFlags& flags,
                                      Connection connection) {
  return std::make_unique<ClusterJobs>(environment, flags, std::move(connection));
}

}  // namespace sluice::cli
