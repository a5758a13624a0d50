// sluice-operator: runs TrainingJobs on a Kubernetes cluster.

#include <curl/curl.h>
#include <unistd.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "operator/kube/cancellation.h"
#include "operator/kube/config.h"
#include "operator/kube/curl_http.h"
#include "operator/kube/http_client.h"
#include "operator/operator.h"
#include "operator/operator_metrics.h"
#include "operator/reconcile_log.h"
#include "operator/reconciler/names.h"
#include "operator/runtime/leader_election.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/common/process/process.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/common/version.h"
#include "services/transport/endpoint.h"
#include "services/transport/grpc_settings.h"

namespace sluice {
namespace {

constexpr char kServiceAccount[] = "/var/run/secrets/kubernetes.io/serviceaccount";
constexpr absl::Duration kHousekeeping = absl::Seconds(1);
// Threads that create pods, in addition to the threads that reconcile.
constexpr int kCreators = 8;
// Too short for a user to notice. In a cluster that creates a hundred pods a second, it saves nine
// of ten reconciliations of their job.
constexpr absl::Duration kGatherPodNews = absl::Milliseconds(100);

struct Flags {
  ProgramFlags program;
  std::string kubeconfig;
  std::string context;
  std::string namespaces;
  bool leader_elect = true;
  std::string lease_name = "sluice-operator";
  std::string lease_namespace;
  std::string identity;
  std::string server_image = "sluice-server:latest";
  std::string worker_image = "sluice-worker:latest";
  std::string job_log_format = "logfmt";
  std::optional<int64_t> job_user = 65532;
  int workers = 8;
  std::string resync_text = "10m";
  absl::Duration resync;
};

// From the environment, read in main.
struct Environment {
  std::string kubernetes_host;
  std::string kubernetes_port;
  std::string kubeconfig;
};

std::string Variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<kube::ClientConfig> FindServer(const Flags& flags, const Environment& environment,
                                              FileSystem* files) {
  constexpr size_t kMaxBytes = 1 << 20;
  std::string path = flags.kubeconfig;
  if (path.empty()) {
    std::string ns = "default";
    const auto text = files->Read(absl::StrCat(kServiceAccount, "/namespace"), kMaxBytes);
    if (text.ok()) ns = std::string(absl::StripAsciiWhitespace(*text));
    absl::StatusOr<kube::ClientConfig> config = kube::InClusterConfig(
        environment.kubernetes_host, environment.kubernetes_port, kServiceAccount, ns);
    if (config.ok() || environment.kubeconfig.empty()) return config;
    path = kube::SplitKubeconfigPath(environment.kubeconfig).front();
  }

  ASSIGN_OR_RETURN(const std::string text, files->Read(path, kMaxBytes));
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash);
  ASSIGN_OR_RETURN(kube::ClientConfig config, kube::ParseKubeconfig(text, directory, flags.context),
                   absl::Status(_.code(), absl::StrCat(path, ": ", _.message())));
  return config;
}

kube::HttpClient::Options ClientOptions(OperatorMeter* meter, const Clock* clock,
                                        kube::WriteGate* gate) {
  kube::HttpClient::Options options;
  options.sleep = [](absl::Duration time) { absl::SleepFor(time); };
  options.write_gate = gate;
  options.now = [clock] { return clock->Now(); };
  options.on_call = [meter](const std::string& verb, const std::string& resource, int code,
                            absl::Duration took) { meter->OnCall(verb, resource, code, took); };
  return options;
}

// The active parts of the process, created in the order of their dependencies.
class Process {
 public:
  Process(const Flags& flags, std::unique_ptr<kube::CurlTransport> transport,
          const kube::ClientConfig& config, const Clock* clock, const Logger& logger)
      : flags_(flags),
        logger_(logger),
        transport_(std::move(transport)),
        metrics_(OperatorMetrics(), {}),
        meter_(&metrics_, clock),
        reconcile_log_(
            {}, [this](const ReconcileLog::Line& line) { LogFailure(line); }, &meter_, clock) {
    kube::HttpClient::Options lease = ClientOptions(&meter_, clock, nullptr);
    lease.timeout = absl::Seconds(4);
    lease.retry.max_tries = 1;
    lease_client_ = std::make_unique<kube::HttpClient>(transport_.get(), std::move(lease));
    election_.lease = {
        flags.lease_namespace.empty() ? config.default_namespace : flags.lease_namespace,
        flags.lease_name};
    election_.identity = absl::StrCat(flags.identity.empty() ? HostName() : flags.identity, "-",
                                      std::random_device()());
    elector_ = std::make_unique<runtime::LeaderElector>(lease_client_.get(), clock, election_);
    reads_ = std::make_unique<kube::HttpClient>(transport_.get(),
                                                ClientOptions(&meter_, clock, nullptr));
    writes_ = std::make_unique<kube::HttpClient>(
        transport_.get(),
        ClientOptions(&meter_, clock, flags.leader_elect ? elector_.get() : nullptr));
    events_ = std::make_unique<runtime::EventRecorder>(
        runtime::EventRecorder::Options{reconciler::kManagedBy, election_.identity}, clock);
    reconciler::GrpcCoordinators::Options sync_options;
    sync_options.gate = flags.leader_elect ? elector_.get() : nullptr;
    coordinators_ = std::make_unique<reconciler::GrpcCoordinators>(
        sync_options, [this](const kube::ObjectKey& job) { operator_->Enqueue(job); });
    operator_ = std::make_unique<Operator>(OperatorOptions(), reads_.get(), writes_.get(),
                                           coordinators_.get(), events_.get(), clock);
  }

  ~Process() {
    // The operator must outlive the coordinators' connections, which call it.
    operator_->Stop();
    coordinators_.reset();
  }

  const Metrics& metrics() const { return metrics_; }

  absl::Status Ready() const {
    if (!operator_->HasSynced()) return absl::UnavailableError("the caches are not filled yet");
    return absl::OkStatus();
  }

  void Stop() { cancellation_.Cancel(); }

  // Blocks until Stop is called or leadership is lost.
  absl::Status Run() {
    operator_->StartCaches(
        [this](const std::string& ns, const std::string& resource, const absl::Status& status) {
          meter_.OnWatchError(resource);
          logger_.Warning("Watch failed",
                          {{"namespace", ns}, {"resource", resource}, {"err", status.ToString()}});
        });

    std::thread maintenance([this] { RunMaintenance(); });
    std::thread event_sender([this] { SendEvents(); });
    absl::Status status = flags_.leader_elect ? Lead() : ActUntilStopped();

    housekeeping_.Cancel();
    maintenance.join();
    event_sender.join();

    if (!absl::IsCancelled(status)) return status;
    return absl::OkStatus();
  }

 private:
  Operator::Options OperatorOptions() {
    Operator::Options options;
    options.namespaces = absl::StrSplit(flags_.namespaces, ',', absl::SkipWhitespace());
    options.reconciler.pods = {flags_.server_image, flags_.worker_image, flags_.job_log_format,
                               flags_.job_user};

    options.reconciler.control_address = [](const std::string& ip) {
      const bool six = ip.find(':') != std::string::npos;
      return absl::StrCat(six ? "[" : "", ip, six ? "]" : "", ":", reconciler::kCoordinatorPort);
    };
    options.reconciler.on_status = [this](const kube::ObjectKey& job, const kube::Json& before,
                                          const kube::Json& after) {
      meter_.OnStatus(job, before, after);
    };
    options.reconciler.on_certificates = [this](const kube::ObjectKey& job, absl::Time expiry) {
      meter_.OnCertificates(job, expiry);
    };

    options.observer = &reconcile_log_;
    options.resync = flags_.resync;
    options.controller.name = "trainingjob";
    options.controller.workers = flags_.workers;
    // A slow admission webhook in one namespace must not block the others.
    if (options.namespaces.size() != 1) {
      options.controller.queue.max_per_namespace = (flags_.workers + 1) / 2;
    }

    options.creators = kCreators;
    options.gather_pod_news = kGatherPodNews;
    // The cause of a refusal may be fixed at any time.
    options.controller.queue.max_backoff = absl::Seconds(30);

    auto random = std::make_shared<std::mt19937_64>(std::random_device()());
    auto mutex = std::make_shared<Mutex>();
    options.reflector.random = [random, mutex] {
      MutexLock lock(mutex.get());
      return std::uniform_real_distribution<double>(0, 1)(*random);
    };
    return options;
  }

  void LogFailure(const ReconcileLog::Line& line) const {
    logger_.Warning("Reconcile failed", {{"job", line.job},
                                         {"err", line.why},
                                         {"retry_in", absl::FormatDuration(line.retry_in)},
                                         {"suppressed", line.suppressed}});
  }

  bool WaitForCaches() {
    while (!operator_->HasSynced()) {
      if (cancellation_.WaitFor(absl::Milliseconds(50))) return false;
    }
    return true;
  }

  absl::Status Lead() {
    RETURN_IF_ERROR(runtime::LeaderElector::Validate(election_));
    logger_.Info("Waiting for leadership",
                 {{"lease", election_.lease.ToString()}, {"identity", election_.identity}});

    std::thread starter;
    absl::Status status = elector_->Run(
        &cancellation_,
        [&] {
          logger_.Info("Acquired leadership", {{"identity", election_.identity}});
          starter = std::thread([this] { Begin(); });
        },
        [&] {
          cancellation_.Cancel();
          starter.join();
          // If this process is stopping on request, it still holds the lease.
          if (elector_->IsLeader()) EndActing();
          logger_.Info("Leadership ended", {{"holder", elector_->Holder()}});
        });
    return status;
  }

  absl::Status ActUntilStopped() {
    Begin();
    while (!cancellation_.WaitFor(absl::Hours(1))) {
    }
    EndActing();
    return absl::OkStatus();
  }

  // Waits for the last reconciliations and sends their events.
  void EndActing() {
    operator_->Stop();
    events_->Flush(writes_.get()).IgnoreError();
  }

  void Begin() {
    if (WaitForCaches()) operator_->StartControllers();
  }

  void RunMaintenance() {
    do {
      operator_->Tick();
      meter_.Update(operator_->jobs(), operator_->queue()->depth(),
                    operator_->queue()->processing(), !flags_.leader_elect || elector_->IsLeader(),
                    events_->dropped(), operator_->refused_namespaces().size());
    } while (!housekeeping_.WaitFor(kHousekeeping));
  }

  // On a thread of its own: a slow API server must not delay metrics and resyncs.
  void SendEvents() {
    do {
      if (const absl::Status sent = events_->SendPending(writes_.get()); !sent.ok()) {
        logger_.Debug("Sending events failed", {{"err", sent.ToString()}});
      }
    } while (!housekeeping_.WaitFor(kHousekeeping));
  }

  const Flags flags_;
  const Logger logger_;
  const std::unique_ptr<kube::CurlTransport> transport_;
  Metrics metrics_;
  OperatorMeter meter_;
  ReconcileLog reconcile_log_;
  kube::Cancellation cancellation_;
  kube::Cancellation housekeeping_;
  runtime::LeaderElector::Options election_;
  std::unique_ptr<kube::HttpClient> lease_client_;
  std::unique_ptr<runtime::LeaderElector> elector_;
  std::unique_ptr<kube::HttpClient> reads_;
  std::unique_ptr<kube::HttpClient> writes_;
  std::unique_ptr<runtime::EventRecorder> events_;
  std::unique_ptr<reconciler::GrpcCoordinators> coordinators_;
  std::unique_ptr<Operator> operator_;
};

absl::Status Run(const Flags& flags, const Environment& environment, const Logger& logger,
                 StopRequests* stop) {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  const RealClock clock;
  ASSIGN_OR_RETURN(kube::ClientConfig config, FindServer(flags, environment, files.get()));

  kube::CurlTransport::Options options;
  options.config = config;
  options.user_agent = absl::StrCat("sluice-operator/", Version());
  ASSIGN_OR_RETURN(std::unique_ptr<kube::CurlTransport> transport,
                   kube::CurlTransport::Make(std::move(options), files.get(), &clock));

  Process process(flags, std::move(transport), config, &clock, logger);
  ASSIGN_OR_RETURN(
      std::unique_ptr<MetricsServer> metrics_server,
      ServeMetrics(flags.program, &process.metrics(), [&] { return process.Ready(); }));

  logger.Info("Operator starting",
              {{"server", config.server}, {"version", std::string(Version())}});
  stop->SetHandler([&](int) { process.Stop(); });
  absl::Status status = process.Run();
  stop->SetHandler(nullptr);
  return status;
}

int Main(int argc, char** argv) {
  Flags flags;
  flags.program.metrics_address = "[::]:8080";
  CLI::App app{"Runs Sluice's TrainingJobs on a Kubernetes cluster."};
  app.add_option("--kubeconfig", flags.kubeconfig,
                 "file with the address of the API server and the credentials (default: the pod's "
                 "service account, otherwise $KUBECONFIG)");
  app.add_option("--context", flags.context,
                 "context of the kubeconfig (default: its current context)");
  app.add_option("--namespaces", flags.namespaces,
                 "namespaces in which jobs are reconciled, separated by commas (default: all)");
  app.add_flag(
      "--leader-elect,!--no-leader-elect", flags.leader_elect,
      "reconcile only while this replica holds the Lease, so that several replicas can run "
      "(default: on)");
  app.add_option("--lease-name", flags.lease_name, "name of the Lease")->capture_default_str();
  app.add_option("--lease-namespace", flags.lease_namespace,
                 "namespace of the Lease (default: the pod's own)");
  app.add_option("--identity", flags.identity,
                 "name of this replica in the Lease (default: the host's name)");
  app.add_option("--server-image", flags.server_image,
                 "image of coordinators and shards of jobs that name none")
      ->capture_default_str();
  app.add_option("--worker-image", flags.worker_image, "image of workers of jobs that name none")
      ->capture_default_str();
  app.add_option("--job-log-format", flags.job_log_format,
                 "log format of the jobs' pods: logfmt or json")
      ->capture_default_str();

  bool platform_user = false;
  app.add_option("--job-user", *flags.job_user, "user and group of the processes in jobs' pods")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{std::numeric_limits<int32_t>::max()}));
  app.add_flag("--platform-user", platform_user,
               "do not set user and group of jobs' pods: the platform chooses them, as OpenShift "
               "requires");
  app.add_option("--workers", flags.workers, "number of jobs that are reconciled at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 256));
  app.add_option("--resync", flags.resync_text,
                 "interval at which every job is reconciled (3s, 10m), in case an event was missed")
      ->capture_default_str();

  AddProgramFlags(&app, &flags.program);
  if (const int code = ParseFlags(&app, argc, argv); code >= 0) return code;
  if (platform_user) flags.job_user.reset();

  if (!absl::ParseDuration(flags.resync_text, &flags.resync) ||
      flags.resync <= absl::ZeroDuration()) {
    return ExitWith("sluice-operator", absl::InvalidArgumentError(
                                           "--resync must be a time above 0, such as 10m or 30s"));
  }

  const Environment environment = {Variable("KUBERNETES_SERVICE_HOST"),
                                   Variable("KUBERNETES_SERVICE_PORT"), Variable("KUBECONFIG")};
  curl_global_init(CURL_GLOBAL_DEFAULT);
  StopRequests stop;

  ASSIGN_OR_RETURN(Logger logger, BeginProgram(flags.program), ExitWith("sluice-operator", _));
  ConfigureGrpcProcess({.experiments = flags.program.grpc_experiments, .data_plane = false});
  const absl::Status status = Run(flags, environment, logger, &stop);
  return status.ok() ? kExitOk : ExitWith("sluice-operator", status);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
