#include "tests/testing/job_processes.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/common/status_macros.h"
#include "services/manifest/job_file.h"
#include "services/protocol/job_name.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/grpc_status.h"
#include "services/transport/security/job_secret.h"
#include "services/transport/security/transport_security.h"

extern char** environ;

namespace sluice::testing {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(10);
constexpr absl::Duration kStartPatience = absl::Seconds(20);
constexpr std::chrono::seconds kCallPatience(10);

// `bazel test` and `bazel run` start programs in the root of their runfiles.
std::string RunfilesRoot() {
  const char* const source = std::getenv("TEST_SRCDIR");
  return source == nullptr ? std::string(".") : absl::StrCat(source, "/sluice");
}

int ExitCodeOf(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

JobProcesses::JobProcesses(Options options)
    : options_(std::move(options)), coordinator_address_(options_.coordinator) {
  v1::JobSpec& job = options_.job;
  if (job.namespace_().empty()) job.set_namespace_("default");
  if (job.uid().empty()) job.set_uid("test");
  if (job.parameter_server().copies() == 0) job.mutable_parameter_server()->set_copies(1);
  if (job.checkpoint().directory().empty()) {
    job.mutable_checkpoint()->set_directory(absl::StrCat(options_.directory, "/checkpoints"));
  }
  if (options_.tls_directories.empty() && options_.secret_file.empty()) {
    options_.secret_file = absl::StrCat(options_.directory, "/secret");
    // If this fails, no process starts, and each reports why.
    (void)security::WriteSecretFile(options_.secret_file, security::MakeSecret());
  }
}

JobProcesses::~JobProcesses() {
  for (const auto& [name, pid] : living_) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

std::string JobProcesses::JobName() const { return FullJobName(options_.job); }

std::string JobProcesses::LogFile(const std::string& name) const {
  return absl::StrCat(options_.directory, "/", name, ".log");
}

std::string JobProcesses::Program(const std::string& role) const {
  const std::string root = options_.programs.empty() ? RunfilesRoot() : options_.programs;
  if (role == "worker" && !options_.worker_program.empty()) {
    return absl::StrCat(root, "/", options_.worker_program);
  }
  if (role == "coordinator" && !options_.coordinator_program.empty()) {
    return absl::StrCat(root, "/", options_.coordinator_program);
  }
  if (role == "ps" && !options_.shard_program.empty()) {
    return absl::StrCat(root, "/", options_.shard_program);
  }
  if (role == "ps" && options_.job.training().execution() == v1::TrainingSpec::SERVER) {
    return absl::StrCat(root, "/services/execution/shard/sluice-ps-torch");
  }
  return absl::StrCat(root, "/services/", role, "/sluice-", role);
}

absl::Status JobProcesses::StartCoordinator() {
  const absl::Time deadline = absl::Now() + kStartPatience;
  while (true) {
    const absl::Status status = TryToStartCoordinator();
    if (status.ok() || ExitCode("coordinator") != kExitRetry || absl::Now() >= deadline) {
      return status;
    }
    absl::SleepFor(absl::Milliseconds(100));
  }
}

absl::Status JobProcesses::TryToStartCoordinator() {
  const std::string job_file = absl::StrCat(options_.directory, "/job.json");
  nlohmann::json json = nlohmann::json::parse(api::JobFileText(options_.job));
  if (!options_.more_of_job.empty()) json.merge_patch(nlohmann::json::parse(options_.more_of_job));
  std::ofstream(job_file) << json;

  // A new coordinator must listen at its predecessor's address.
  const std::string listen =
      coordinator_address_.empty() ? std::string("127.0.0.1:0") : coordinator_address_;
  RETURN_IF_ERROR(
      Spawn("coordinator", {Program("coordinator"), "--job", job_file, "--listen", listen,
                            "--status-file", absl::StrCat(options_.directory, "/status.json")}));

  ASSIGN_OR_RETURN(int port, ReadPort("coordinator", kStartPatience));
  coordinator_address_ = absl::StrCat("127.0.0.1:", port);
  return OpenControl();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> JobProcesses::credentials() const {
  const std::unique_ptr<FileSystem> files = MakeRealFileSystem();
  security::TransportSecurity::Options options{.secret_file = options_.secret_file};
  if (!options_.tls_directories.empty()) {
    options.directory = absl::StrCat(options_.tls_directories, "/operator");
  }
  ASSIGN_OR_RETURN(const auto security,
                   security::TransportSecurity::OpenIfAny(files.get(), options, absl::Now()));
  return security::ChannelCredentialsOf(security);
}

absl::Status JobProcesses::OpenControl() {
  ASSIGN_OR_RETURN(auto own, credentials());
  ChannelOptions channel{.address = coordinator_address_};
  channel.credentials = std::move(own);
  control_ = std::make_unique<PolledChannel>(std::move(channel));
  return absl::OkStatus();
}

absl::Status JobProcesses::StartShard(uint32_t index) {
  const std::string name = absl::StrCat("ps-", index);
  RETURN_IF_ERROR(Spawn(name, {Program("ps"), "--job", JobName(), "--coordinator",
                               coordinator_address_, "--index", absl::StrCat(index)}));
  return ReadPort(name, kStartPatience).status();
}

absl::Status JobProcesses::StartWorker(uint32_t index, std::vector<std::string> flags) {
  std::vector<std::string> arguments = {
      Program("worker"),    "--job",   JobName(),          "--coordinator",
      coordinator_address_, "--index", absl::StrCat(index)};
  if (flags.empty()) flags = {"--threads", "1"};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return Spawn(absl::StrCat("worker-", index), std::move(arguments));
}

absl::Status JobProcesses::StartAll() {
  absl::Status status = StartCoordinator();
  for (uint32_t i = 0; status.ok() && i < options_.job.parameter_server().replicas(); ++i) {
    status = StartShard(i);
  }
  for (uint32_t i = 0; status.ok() && i < options_.job.worker().replicas(); ++i) {
    status = StartWorker(i);
  }
  return status;
}

absl::Status JobProcesses::Spawn(const std::string& name, std::vector<std::string> arguments) {
  if (Lives(name)) return absl::FailedPreconditionError(absl::StrCat(name, " is already running"));

  const std::string port_file = absl::StrCat(options_.directory, "/", name, ".port");
  unlink(port_file.c_str());
  for (const std::string& flag : {std::string("--port-file"), port_file, std::string("--log-file"),
                                  LogFile(name), std::string("--parent"), absl::StrCat(getpid())}) {
    arguments.push_back(flag);
  }
  if (!options_.tls_directories.empty()) {
    arguments.push_back("--tls-directory");
    arguments.push_back(absl::StrCat(options_.tls_directories, "/", name));
  } else {
    arguments.push_back("--secret-file");
    arguments.push_back(options_.secret_file);
  }

  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  // The program's output before it opens its log goes to a file beside the log.
  const std::string output = absl::StrCat(options_.directory, "/", name, ".stderr");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, output.c_str(), O_CREAT | O_APPEND | O_WRONLY,
                                   0644);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::ErrnoToStatus(error, absl::StrCat("cannot start ", argv[0]));

  living_[name] = pid;
  exit_codes_.erase(name);
  return absl::OkStatus();
}

absl::StatusOr<int> JobProcesses::ReadPort(const std::string& name, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (absl::Now() < deadline) {
    std::ifstream file(absl::StrCat(options_.directory, "/", name, ".port"));
    int port = 0;
    if (file >> port) return port;
    if (!Lives(name)) {
      return absl::UnavailableError(
          absl::StrCat(name, " ended with code ", exit_codes_[name], "; see ", LogFile(name)));
    }
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(absl::StrCat(name, " does not listen"));
}

bool JobProcesses::Lives(const std::string& name) {
  const auto it = living_.find(name);
  if (it == living_.end()) return false;
  int status = 0;
  if (waitpid(it->second, &status, WNOHANG) != it->second) return true;
  exit_codes_[name] = ExitCodeOf(status);
  living_.erase(it);
  return false;
}

std::optional<int> JobProcesses::ExitCode(const std::string& name) {
  if (Lives(name)) return std::nullopt;
  const auto it = exit_codes_.find(name);
  return it == exit_codes_.end() ? std::nullopt : std::make_optional(it->second);
}

pid_t JobProcesses::pid(const std::string& name) const {
  const auto it = living_.find(name);
  return it == living_.end() ? 0 : it->second;
}

void JobProcesses::Signal(const std::string& name, int signal) {
  if (const pid_t process = pid(name); process != 0) kill(process, signal);
}

absl::Status JobProcesses::Kill(const std::string& name, bool report) {
  const pid_t process = pid(name);
  Signal(name, SIGKILL);
  absl::StatusOr<int> code = WaitForExit(name, absl::Seconds(10));
  if (!code.ok() || !report) return code.status();

  v1::SetDesiredRequest request;
  request.set_workers(options_.job.worker().replicas());
  request.set_shards(options_.job.parameter_server().replicas());
  v1::SetDesiredRequest::Death& death = *request.add_deaths();
  const std::vector<std::string> parts = absl::StrSplit(name, '-');
  death.mutable_process()->set_role(parts[0] == "ps" ? v1::SHARD : v1::WORKER);
  death.mutable_process()->set_index(static_cast<uint32_t>(std::atoi(parts[1].c_str())));
  death.set_pid(static_cast<uint64_t>(process));
  death.set_reason("killed by signal 9");
  return SetDesired(request);
}

absl::StatusOr<int> JobProcesses::WaitForExit(const std::string& name, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (Lives(name)) {
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(name, " is still running"));
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  const auto it = exit_codes_.find(name);
  if (it == exit_codes_.end()) return absl::NotFoundError(absl::StrCat(name, " was not started"));
  return it->second;
}

absl::StatusOr<v1::JobProgress> JobProcesses::Progress() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallPatience);
  v1::JobProgress progress;
  const grpc::Status status = v1::JobControl::NewStub(control_->Get())
                                  ->GetProgress(&context, v1::GetProgressRequest(), &progress);
  if (!status.ok()) return FromGrpcStatus(status);
  return progress;
}

absl::Status JobProcesses::SetDesired(const v1::SetDesiredRequest& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallPatience);
  v1::SetDesiredResponse response;
  return FromGrpcStatus(
      v1::JobControl::NewStub(control_->Get())->SetDesired(&context, request, &response));
}

absl::Status JobProcesses::Suspend() {
  v1::SetDesiredRequest request;
  request.set_workers(options_.job.worker().replicas());
  request.set_shards(options_.job.parameter_server().replicas());
  request.set_suspend(true);
  return SetDesired(request);
}

absl::StatusOr<v1::JobProgress> JobProcesses::WaitFor(
    absl::FunctionRef<bool(const v1::JobProgress&)> condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::string last = "none";
  while (absl::Now() < deadline) {
    absl::StatusOr<v1::JobProgress> progress = Progress();
    if (progress.ok()) {
      if (condition(*progress)) return progress;
      last = progress->ShortDebugString();
    } else {
      last = progress.status().ToString();
    }
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(absl::StrCat("last progress: ", last));
}

}  // namespace sluice::testing
