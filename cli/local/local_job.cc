#include "cli/local/local_job.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "operator/policy/process_arguments.h"
#include "operator/policy/reason_from_log.h"
#include "services/common/process/processors.h"
#include "services/common/status_macros.h"
#include "services/manifest/job_file.h"
#include "services/protocol/job_name.h"
#include "services/protocol/kernels.h"
#include "services/transport/security/gated_credentials.h"
#include "services/transport/security/job_secret.h"
#include "services/transport/security/transport_security.h"

namespace sluice::local {
namespace {

using policy::kCoordinator;

// How often to look for the port file while the coordinator starts, and whether workers can be
// forked.
constexpr absl::Duration kPoll = absl::Milliseconds(20);
// If the loop is delayed by more than this, this process itself was paused: it was stopped, or the
// machine slept.
constexpr absl::Duration kPauseThreshold = absl::Seconds(1);
// Other shards take over the partitions of a shard that died within this time. The start of its
// successor would compete with them for the processors.
constexpr absl::Duration kTakeover = absl::Milliseconds(250);
// How many of a log's last lines are searched for the reason of an exit.
constexpr size_t kReasonLines = 50;

// While a program waits in a debugger, nothing that waits for it may end.
constexpr double kDebuggerSeconds = 365 * 86400;

// The job as the processes get it.
v1::JobSpec SpecOf(const LocalJob::Options& options) {
  v1::JobSpec spec = options.job.spec;
  if (!options.foreground) return spec;
  v1::TimeoutSpec& timeouts = *spec.mutable_timeouts();
  timeouts.set_start(kDebuggerSeconds);
  timeouts.set_initialization(kDebuggerSeconds);
  timeouts.set_evaluation(kDebuggerSeconds);
  timeouts.set_gradients(kDebuggerSeconds);
  return spec;
}

policy::JobPlan PlanOf(const LocalJob::Options& options) {
  const api::TrainingJob& job = options.job;
  policy::JobPlan plan = policy::PlanOf(SpecOf(options));
  plan.watch_coordinator = true;
  plan.programs_finish = job.spec.worker().command_size() > 0;
  if (job.active_deadline_seconds.has_value()) {
    plan.active_deadline = absl::Seconds(*job.active_deadline_seconds);
  }
  return plan;
}

// If a job tolerates only short silence, an expelled process also gets less time to exit.
policy::Limits LimitsOf(const LocalJob::Options& options) {
  policy::Limits limits = options.limits;
  if (const double heartbeat_timeout = options.job.spec.timeouts().heartbeat_timeout();
      heartbeat_timeout > 0) {
    limits.expelled_grace = std::min(limits.expelled_grace, absl::Seconds(heartbeat_timeout));
  }
  if (options.job.spec.parameter_server().copies() > 1) limits.shard_delay = kTakeover;
  return limits;
}

// On a busy machine a coordinator may take a moment to answer. It is polled at least twice before
// it counts as frozen.
JobControlClient::Options ControlOf(const LocalJob::Options& options, const policy::JobPlan& plan) {
  JobControlClient::Options control = options.control;
  control.call_timeout =
      std::max(control.call_timeout, std::min(plan.heartbeat_timeout / 2, absl::Seconds(5)));
  return control;
}

}  // namespace

bool EndedByCtrlC(const policy::Replica& replica, const policy::Exit& exit) {
  return replica.role == v1::WORKER && (exit.signal == SIGINT || exit.code == 128 + SIGINT);
}

LocalJob::LocalJob(Options options, FileSystem* files, JobDirectory* directory,
                   JobListener* listener, const Clock* clock)
    : options_(std::move(options)),
      files_(files),
      directory_(directory),
      listener_(listener),
      clock_(clock),
      secret_(security::MakeSecret()),
      credentials_(security::SecretChannelCredentials(secret_)),
      plan_(PlanOf(options_)),
      limits_(LimitsOf(options_)),
      port_(options_.port) {
  JobControlClient::Options control = ControlOf(options_, plan_);
  control_ = std::make_unique<JobControlClient>(
      std::move(control), [this](const std::string&, const std::string&, v1::JobProgress progress) {
        MutexLock lock(&mutex_);
        inbox_.progress.push_back(std::move(progress));
        news_.SignalAll();
      });

  children_ = std::make_unique<ChildProcesses>([this](const ChildProcesses::End& end) {
    MutexLock lock(&mutex_);
    inbox_.ends.push_back(end);
    news_.SignalAll();
  });
}

LocalJob::~LocalJob() {
  children_.reset();
  control_.reset();
}

void LocalJob::Signal(pid_t pid, int signal) { children_->Signal(pid, signal); }

void LocalJob::Suspend() {
  MutexLock lock(&mutex_);
  inbox_.suspend = true;
  news_.SignalAll();
}

void LocalJob::StopNow() {
  MutexLock lock(&mutex_);
  inbox_.stop_now = true;
  news_.SignalAll();
}

void LocalJob::Scale(const Sizes& sizes) {
  MutexLock lock(&mutex_);
  inbox_.sizes = sizes;
  news_.SignalAll();
}

cli::JobResult LocalJob::Run() {
  cli::JobResult result;
  absl::Status prepared = WriteJobFile();
  if (prepared.ok()) prepared = security::WriteSecretFile(directory_->SecretFile(), secret_);
  if (!prepared.ok()) {
    result.outcome.reason = std::string(prepared.message());
    result.ended = clock_->Now();
    return result;
  }

  while (true) {
    const absl::Time now = clock_->Now();
    policy::Decision decision = policy::Decide(plan_, limits_, world_, memory_, now);
    const bool decided = decision.memory.outcome.has_value() && !memory_.outcome.has_value();
    Apply(decision);
    if (decided) listener_->OnOutcome(*memory_.outcome);
    listener_->OnTick(View());

    if (decision.finish.has_value()) {
      result.outcome = *decision.finish;
      break;
    }

    absl::Time until = std::min(decision.decide_again, now + options_.tick_interval);
    if (world_.coordinator_address.empty() || children_->Loading()) {
      until = std::min(until, now + kPoll);
    }

    const Inbox inbox = WaitForNews(until);
    if (const absl::Duration late = clock_->Now() - until; late > kPauseThreshold) {
      policy::ExtendDeadlines(late, &world_, &memory_);
    }

    const bool stop_now = inbox.stop_now;
    Handle(inbox);
    if (stop_now) {
      result.outcome.kind = policy::OutcomeKind::kSuspended;
      result.outcome.reason = "stopped immediately";
      break;
    }
  }

  children_.reset();              // kills the remaining processes
  (void)directory_->RemoveRun();  // else the next run removes it

  result.progress = progress_;
  result.has_progress = has_progress_;
  result.ended = clock_->Now();
  for (const auto& [replica, kept] : memory_.replicas) result.restarts += kept.restarts;
  return result;
}

std::vector<std::string> LocalJob::LastLogLines(const policy::Replica& replica,
                                                size_t count) const {
  const auto begin = log_begins_.find(replica);
  return LastLines(directory_->LogFile(replica), count,
                   begin == log_begins_.end() ? 0 : begin->second);
}

absl::Status LocalJob::WriteJobFile() {
  return AtomicWriteFile(files_, JoinPath(directory_->run(), "job.json"),
                         absl::Cord(api::JobFileText(SpecOf(options_))), "run");
}

LocalJob::Inbox LocalJob::WaitForNews(absl::Time until) {
  const absl::Time deadline = absl::Now() + (until - clock_->Now());
  MutexLock lock(&mutex_);
  while (inbox_.empty() && !news_.WaitWithDeadline(&mutex_, deadline)) {
  }
  return std::exchange(inbox_, Inbox());
}

void LocalJob::Handle(const Inbox& inbox) {
  if (inbox.suspend) plan_.suspend = true;
  if (const auto sizes = directory_->TakeRequestedSizes(); sizes.has_value()) HandleSizes(*sizes);
  if (inbox.sizes.has_value()) HandleSizes(*inbox.sizes);
  for (const v1::JobProgress& progress : inbox.progress) {
    HandleProgress(progress);
    world_.last_progress_at = clock_->Now();
  }
  for (const ChildProcesses::End& end : inbox.ends) HandleEnd(end);
  if (world_.coordinator_address.empty()) ReadCoordinatorPort();
}

void LocalJob::HandleSizes(const Sizes& sizes) {
  plan_.shards = sizes.shards;
  plan_.workers = sizes.workers;
  // For `sluice scale`, and for the next run, which reports what its manifest changes.
  api::TrainingJob job = options_.job;
  job.spec.mutable_parameter_server()->set_replicas(sizes.shards);
  job.spec.mutable_worker()->set_replicas(sizes.workers);
  (void)directory_->WriteJob(job);  // else the next run reports less
}

void LocalJob::HandleEnd(const ChildProcesses::End& end) {
  for (auto& [replica, process] : world_.processes) {
    if (process.pid != static_cast<uint64_t>(end.pid) || !process.running) continue;
    process.running = false;
    process.ended = clock_->Now();
    process.exit = {end.code, end.signal, ""};

    if (end.signal == 0 && end.code != 0) {
      process.exit.message = policy::ReasonFromLog(LastLogLines(replica, kReasonLines));
    }

    if (replica == kCoordinator) ReadFinalProgress();
    if (options_.foreground && EndedByCtrlC(replica, process.exit)) plan_.suspend = true;

    listener_->OnProcessEnded(replica, end.pid, process.exit);
    return;
  }
}

void LocalJob::HandleProgress(const v1::JobProgress& progress) {
  progress_ = progress;
  progress_.clear_events();
  progress_.clear_losses();
  has_progress_ = true;

  world_.phase = progress.phase();
  world_.phase_reason = progress.reason();
  world_.phase_code = progress.reason_code();
  ReadRegistrations(progress);

  const auto ready = [&](const policy::Replica& replica, uint64_t pid) {
    const auto found = world_.processes.find(replica);
    if (found != world_.processes.end() && (pid == 0 || found->second.pid == pid)) {
      found->second.ready = true;
    }
  };

  ready(kCoordinator, 0);
  for (const v1::ProcessStatus& status : progress.processes()) {
    if (status.pid() == 0) continue;
    const policy::Replica replica = {status.process().role(), status.process().index()};
    // A process that left between two reports was a member too.
    if (status.state() == v1::ProcessStatus::MEMBER || status.state() == v1::ProcessStatus::LEFT) {
      ready(replica, status.pid());
    }

    if (status.state() == v1::ProcessStatus::EXPELLED) {
      const auto found = world_.processes.find(replica);
      if (found == world_.processes.end() || found->second.pid != status.pid()) continue;
      found->second.expelled_after =
          clock_->Now() - absl::Seconds(status.seconds_since_last_message());
    }
  }

  listener_->OnProgress(progress);
}

// Reads which processes are registered with the coordinator. A process is identified by its pid.
// The user's own program may start another process, which then registers: in that case every
// incarnation counts that was not registered when the program was started.
void LocalJob::ReadRegistrations(const v1::JobProgress& progress) {
  const bool command = options_.job.spec.worker().command_size() > 0;
  for (auto& [replica, process] : world_.processes) {
    if (replica == kCoordinator) continue;
    process.registration = policy::Registration::kMissing;

    for (const v1::ProcessStatus& status : progress.processes()) {
      if (!(policy::Replica{status.process().role(), status.process().index()} == replica))
        continue;

      const bool own = status.pid() == process.pid ||
                       (command && replica.role == v1::WORKER &&
                        earlier_incarnations_[replica].count(status.process().incarnation()) == 0);
      if (!own || status.state() == v1::ProcessStatus::EXPELLED) continue;

      process.registration = status.state() == v1::ProcessStatus::LEFT
                                 ? policy::Registration::kLeft
                                 : policy::Registration::kRegistered;
    }
  }
}

void LocalJob::ReadCoordinatorPort() {
  const absl::StatusOr<std::string> text = files_->Read(RunFile(kCoordinator, "port"), 64);
  int port = 0;
  if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &port) || port <= 0) {
    return;
  }

  port_ = port;  // kept over restarts of the coordinator: other processes reconnect to it
  std::string address = absl::StrCat("127.0.0.1:", port);

  if (options_.links != nullptr) {
    absl::StatusOr<std::string> other = options_.links->CoordinatorAddress(port);
    if (!other.ok()) return;  // is tried again
    address = *std::move(other);
  }

  world_.coordinator_address = std::move(address);
}

void LocalJob::ReadFinalProgress() {
  const absl::StatusOr<std::string> text =
      files_->Read(RunFile(kCoordinator, "status.json"), 64 << 20);
  if (!text.ok()) return;
  v1::JobProgress last;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  if (!google::protobuf::util::JsonStringToMessage(*text, &last, options).ok()) return;
  last.clear_events();  // those not received before are in the coordinator's log
  HandleProgress(last);
}

void LocalJob::Apply(const policy::Decision& decision) {
  memory_ = decision.memory;

  v1::SetDesiredRequest desired;
  desired.set_workers(decision.desired_workers);
  desired.set_shards(decision.desired_shards);
  desired.set_suspend(decision.desired_suspend);

  for (const policy::ReportDeath& death : decision.deaths) {
    JobControlClient::Death& report = deaths_.emplace_back();
    report.mutable_process()->set_role(death.replica.role);
    report.mutable_process()->set_index(death.replica.index);
    report.set_pid(death.pid);
    report.set_reason(death.reason);
  }

  if (const auto* coordinator = world_.Find(kCoordinator);
      coordinator != nullptr && !world_.coordinator_address.empty()) {
    control_->Sync(directory_->path(), coordinator->instance,
                   {world_.coordinator_address, credentials_}, desired, std::exchange(deaths_, {}));
  }

  for (const policy::StopProcess& stop : decision.stops) {
    const policy::ProcessObservation* process = world_.Find(stop.replica);
    if (process == nullptr || process->instance != stop.instance) continue;
    children_->Signal(static_cast<pid_t>(process->pid), stop.kill ? SIGKILL : SIGTERM);
  }

  for (const policy::StartProcess& start : decision.starts) Start(start.replica);
}

// Most of a built-in worker's start is loading LibTorch, so several workers share that.
bool LocalJob::WaitsToBeForked(const policy::Replica& replica) {
  if (replica.role != v1::WORKER || options_.job.spec.worker().command_size() > 0) return false;
  if (plan_.workers < 2 && world_.Find(replica) == nullptr) return false;
  children_->Load(options_.programs.worker);
  return children_->Loading();
}

void LocalJob::Start(const policy::Replica& replica) {
  if (WaitsToBeForked(replica)) return;  // the policy names it again
  if (replica == kCoordinator) {
    world_.last_progress_at = absl::InfinitePast();
    for (auto& [other, process] : world_.processes) {
      process.registration = policy::Registration::kUnknown;
    }
    for (const char* what : {"port", "status.json"}) (void)files_->Remove(RunFile(replica, what));
  }

  earlier_incarnations_[replica].clear();
  for (const v1::ProcessStatus& status : progress_.processes()) {
    if (policy::Replica{status.process().role(), status.process().index()} == replica) {
      earlier_incarnations_[replica].insert(status.process().incarnation());
    }
  }

  std::error_code error;
  const uintmax_t length = std::filesystem::file_size(directory_->LogFile(replica), error);
  log_begins_[replica] = error ? 0 : length;  // no log exists before the first instance
  const absl::StatusOr<pid_t> pid = StartProgram(replica);

  policy::ProcessObservation process;
  process.started = clock_->Now();
  if (pid.ok()) {
    process.pid = static_cast<uint64_t>(*pid);
    process.instance = absl::StrCat(*pid, ".", ++instances_);
    world_.processes[replica] = process;
    listener_->OnProcessStarted(replica, *pid);
    return;
  }

  process.instance = absl::StrCat("none.", ++instances_);
  process.running = false;
  process.ended = process.started;
  process.exit = {127, 0, std::string(pid.status().message())};
  // It was killed because it did not start its program in time.
  if (absl::IsDeadlineExceeded(pid.status())) process.exit.signal = SIGKILL;
  world_.processes[replica] = process;
  listener_->OnProcessEnded(replica, 0, process.exit);
}

absl::StatusOr<pid_t> LocalJob::StartProgram(const policy::Replica& replica) {
  std::vector<std::string> arguments = ArgumentsFor(replica);
  if (replica.role == v1::SHARD && options_.links != nullptr) {
    const std::string port_file = RunFile(replica, "port");
    (void)files_->Remove(port_file);
    ASSIGN_OR_RETURN(const std::string address,
                     options_.links->ShardAddress(replica.index, port_file));
    // The relay cannot disturb shared memory.
    for (const std::string& argument :
         {std::string("--no-shared-memory"), absl::StrCat("--advertise=", address),
          absl::StrCat("--port-file=", port_file)}) {
      arguments.push_back(argument);
    }
  }

  const bool foreground = options_.foreground && replica.role == v1::WORKER && replica.index == 0;
  return children_->Start({std::move(arguments), directory_->LogFile(replica), foreground});
}

std::vector<std::string> LocalJob::ArgumentsFor(const policy::Replica& replica) const {
  const v1::JobSpec& job = options_.job.spec;
  policy::ProcessArguments process;
  process.job_file = JoinPath(directory_->run(), "job.json");
  process.storage = job.checkpoint().directory();
  process.job = FullJobName(job);
  process.coordinator = world_.coordinator_address;
  process.threads = WorkerThreads();

  std::vector<std::string> arguments = {options_.programs.worker};
  if (replica.role == v1::COORDINATOR) {
    arguments = {options_.programs.coordinator};
    process.listen = absl::StrCat("127.0.0.1:", port_);
  } else if (replica.role == v1::SHARD) {
    arguments = {options_.programs.shard};
    process.threads =
        std::max(1, AvailableProcessors() / static_cast<int>(plan_.shards + plan_.workers));
  } else if (job.worker().command_size() > 0) {
    return CommandFor(replica);
  }

  absl::c_move(policy::ArgumentsOf(replica, process), std::back_inserter(arguments));
  const auto add = [&](const char* flag, const auto& value) {
    arguments.push_back(absl::StrCat(flag, "=", value));
  };
  if (replica.role == v1::COORDINATOR) {
    add("--port-file", RunFile(replica, "port"));
    add("--status-file", RunFile(replica, "status.json"));
  }

  add("--secret-file", directory_->SecretFile());
  add("--metrics-address", "127.0.0.1:0");
  add("--metrics-port-file", RunFile(replica, "metrics-port"));
  add("--log-level", options_.log_level);
  add("--parent", getpid());
  return arguments;
}

// Uses env(1), which finds the program as a shell would, and becomes it.
std::vector<std::string> LocalJob::CommandFor(const policy::Replica& replica) const {
  const v1::JobSpec& job = options_.job.spec;
  std::vector<std::string> arguments = {
      "/usr/bin/env",
      "-u",
      security::kDirectoryVariable,
      absl::StrCat("SLUICE_COORDINATOR=", world_.coordinator_address),
      absl::StrCat("SLUICE_JOB=", FullJobName(job)),
      absl::StrCat("SLUICE_WORKER_INDEX=", replica.index),
      // The program may change its working directory.
      absl::StrCat(security::kSecretVariable, "=",
                   std::filesystem::absolute(directory_->SecretFile()).string()),
      absl::StrCat("SLUICE_CHECKPOINT_DIRECTORY=",
                   std::filesystem::absolute(job.checkpoint().directory()).string()),
      absl::StrCat("SLUICE_THREADS=", WorkerThreads()),
      "PYTHONUNBUFFERED=1",
  };

  for (const auto& [name, value] : ProgramVariables(job.training(), WorkerThreads())) {
    arguments.push_back(absl::StrCat(name, "=", value));
  }

  if (!options_.command_directory.empty()) {
    arguments.insert(arguments.begin() + 1, absl::StrCat("--chdir=", options_.command_directory));
  }

  arguments.insert(arguments.end(), job.worker().command().begin(), job.worker().command().end());
  return arguments;
}

int LocalJob::WorkerThreads() const {
  if (const int fixed = FixedThreads(options_.job.spec.training()); fixed != 0) return fixed;
  return std::max(1, AvailableProcessors() / std::max(1, static_cast<int>(plan_.workers)));
}

std::map<policy::Replica, ProcessInfo> LocalJob::View() const {
  std::map<policy::Replica, ProcessInfo> view;
  for (const auto& [replica, process] : world_.processes) {
    const auto kept = memory_.replicas.find(replica);
    view[replica] = {static_cast<pid_t>(process.pid), process.running,
                     kept == memory_.replicas.end() ? 0 : kept->second.restarts, process.exit};
  }
  return view;
}

std::string LocalJob::RunFile(const policy::Replica& replica, const char* what) const {
  return JoinPath(directory_->run(), absl::StrCat(policy::ReplicaName(replica), ".", what));
}

}  // namespace sluice::local
