#include "tests/testing/in_process_job.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/process/logging.h"
#include "services/common/process/process.h"
#include "services/common/status_macros.h"
#include "services/protocol/member_exit.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/grpc_status.h"
#include "tests/testing/counting_engine.h"

namespace sluice::testing {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);

// Bazel shows the log if the test fails.
Logger LoggerOf(absl::string_view role, uint32_t index) {
  return Logger::Create({})->With({{"role", role}, {"index", index}});
}

bool IsOver(const v1::JobProgress& progress) {
  return progress.phase() >= v1::JobProgress::SUSPENDED;
}

}  // namespace

InProcessJob::InProcessJob(v1::JobSpec job, const std::string& directory)
    : job_(std::move(job)), files_(MakeRealFileSystem()) {
  job_.set_namespace_("default");
  job_.set_uid("test");
  job_.mutable_checkpoint()->set_directory(absl::StrCat(directory, "/checkpoints"));
}

InProcessJob::~InProcessJob() = default;

absl::Status InProcessJob::StartCoordinator() {
  auto entry = std::make_unique<Coordinator>();
  coordinator::CoordinatorServer::Options options;
  options.core.job = job_;
  options.core.incarnation = RandomIncarnation();
  options.core.checkpoint_directory = [directory =
                                           checkpoints()](const v1::CheckpointRef& checkpoint) {
    return JoinPath(directory, CheckpointDirectory(checkpoint));
  };
  if (!address_.empty()) options.address = address_;

  entry->storage =
      MakeLocalStorage(files_.get(), checkpoints(), absl::StrCat(options.core.incarnation));
  ASSIGN_OR_RETURN(entry->server, coordinator::CoordinatorServer::Start(
                                      std::move(options), entry->storage.get(), &entry->metrics,
                                      LoggerOf("coordinator", 0)));

  address_ = absl::StrCat("127.0.0.1:", entry->server->port());
  control_ = v1::JobControl::NewStub(MakeChannel({.address = address_}));
  coordinator_ = std::move(entry);
  return absl::OkStatus();
}

absl::Status InProcessJob::StartShard(uint32_t index) {
  auto entry = std::make_unique<Shard>();
  ps::ShardServer::Options options;
  options.coordinator = address_;
  options.compute_threads = 2;
  v1::Register& identity = options.core.identity;
  identity.mutable_process()->set_role(v1::SHARD);
  identity.mutable_process()->set_index(index);
  identity.mutable_process()->set_incarnation(RandomIncarnation());
  identity.set_job(coordinator::JobName(job_));
  ASSIGN_OR_RETURN(entry->server, ps::ShardServer::Start(std::move(options), files_.get(),
                                                         &entry->metrics, LoggerOf("ps", index)));
  shards_[index] = std::move(entry);
  return absl::OkStatus();
}

void InProcessJob::StartWorker(uint32_t index) {
  auto entry = std::make_unique<Worker>();
  worker::WorkerProcess::Options options;
  options.coordinator = address_;
  options.threads = 1;
  options.core.job = coordinator::JobName(job_);
  options.core.process.set_role(v1::WORKER);
  options.core.process.set_index(index);
  options.core.process.set_incarnation(RandomIncarnation());
  options.make_engine = [](const v1::JobSpec& job, const DatasetInfo& data,
                           int) -> absl::StatusOr<std::unique_ptr<ComputeEngine>> {
    return std::make_unique<CountingEngine>(job, data.samples);
  };
  entry->process =
      worker::WorkerProcess::Start(std::move(options), &entry->metrics, LoggerOf("worker", index));
  workers_[index] = std::move(entry);
}

absl::Status InProcessJob::StartAll() {
  absl::Status status = StartCoordinator();
  for (uint32_t i = 0; status.ok() && i < job_.parameter_server().replicas(); ++i) {
    status = StartShard(i);
  }
  for (uint32_t i = 0; status.ok() && i < job_.worker().replicas(); ++i) StartWorker(i);
  return status;
}

worker::WorkerProcess::Result InProcessJob::Leave(uint32_t worker) {
  workers_[worker]->process->Leave("it was asked to", absl::Seconds(30));
  worker::WorkerProcess::Result result = workers_[worker]->process->Wait();
  workers_.erase(worker);
  return result;
}

absl::StatusOr<v1::JobProgress> InProcessJob::Progress() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::JobProgress progress;
  const grpc::Status status = control_->GetProgress(&context, v1::GetProgressRequest(), &progress);
  if (!status.ok()) return FromGrpcStatus(status);
  return progress;
}

absl::StatusOr<v1::JobProgress> InProcessJob::WaitFor(
    absl::FunctionRef<bool(const v1::JobProgress&)> condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  std::string last = "none";
  while (absl::Now() < deadline) {
    absl::StatusOr<v1::JobProgress> progress = Progress();
    if (progress.ok() && condition(*progress)) return progress;
    last = progress.ok() ? progress->ShortDebugString() : progress.status().ToString();
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(absl::StrCat("last progress: ", last));
}

absl::Status InProcessJob::WaitForStep(uint64_t step) {
  ASSIGN_OR_RETURN(const v1::JobProgress progress,
                   WaitFor(
                       [&](const v1::JobProgress& p) {
                         return p.phase() > v1::JobProgress::TRAINING ||
                                (p.phase() == v1::JobProgress::TRAINING && p.step() >= step);
                       },
                       absl::Seconds(60)));
  if (progress.phase() == v1::JobProgress::TRAINING) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("training is over: ", progress.ShortDebugString()));
}

absl::Status InProcessJob::WaitForEnd(coordinator::ExitReason reason, absl::Duration timeout) {
  RETURN_IF_ERROR(WaitFor(IsOver, timeout).status());

  for (auto& [index, worker] : workers_) {
    const worker::WorkerProcess::Result result = worker->process->Wait();
    if (result.reason == ExitReason::kFinished) continue;
    // A job is suspended in a view without workers: a worker that receives this view before the
    // end of the job exits as expelled.
    const bool let_go = result.reason == ExitReason::kExpelled;
    if (reason == coordinator::ExitReason::kSuspended && let_go) continue;
    return absl::InternalError(absl::StrCat("worker-", index, ": ", result.message));
  }

  for (auto& [index, shard] : shards_) {
    const ps::ShardServer::Result result = shard->server->Wait();
    if (ExitCodeOf(result.reason) == kExitOk) continue;
    return absl::InternalError(absl::StrCat("ps-", index, ": ", result.message));
  }

  const coordinator::CoordinatorServer::Result result = coordinator_->server->Wait();
  workers_.clear();
  shards_.clear();
  coordinator_.reset();
  if (result.reason == reason) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("coordinator: ", result.message));
}

}  // namespace sluice::testing
