#include "services/worker/library/worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/common/process/process.h"

namespace sluice::worker {
namespace {

// For this long, another process with this index is assumed to be a predecessor that is still
// exiting.
constexpr absl::Duration kDuplicatePatience = absl::Seconds(5);
constexpr absl::Duration kPauseBeforeReturn = absl::Milliseconds(200);

// Why an instance that has no successor has ended.
CallResult EndOf(const WorkerProcess::Result& result, const std::string& coordinator) {
  if (result.unreachable) return {SLUICE_NOT_FOUND, result.message};
  switch (result.reason) {
    case ExitReason::kFinished:
    case ExitReason::kLeft:
      return {SLUICE_ENDED, result.message};
    case ExitReason::kFailed:
      return {SLUICE_JOB_FAILED, result.message};
    case ExitReason::kExpelled:
    case ExitReason::kRefused:
      break;
  }

  // The coordinator has given the reason.
  switch (result.refusal) {
    case v1::Refusal::WRONG_JOB:
      return {SLUICE_NOT_FOUND, absl::StrCat("at ", coordinator, ": ", result.message)};
    case v1::Refusal::MODEL_DIFFERS:
      return {SLUICE_MODEL_DIFFERS, result.message};
    case v1::Refusal::WIRE_VERSION:
      return {SLUICE_WIRE_VERSION, result.message};
    case v1::Refusal::DUPLICATE:
      return {SLUICE_DUPLICATE, result.message};
    default:
      return {SLUICE_JOB_FAILED, result.message};
  }
}

}  // namespace

Worker::Worker(WorkerProcess::Options options, Logger logger)
    : options_(std::move(options)),
      logger_(std::move(logger)),
      metrics_(WorkerMetrics(), {}),
      caller_(options_.core.process.index()),
      thread_([this] { Run(); }) {}

Worker::~Worker() {
  if (thread_.joinable()) thread_.join();
}

bool Worker::Stop() {
  if (!thread_.joinable()) return true;
  if (!caller_.StopIfIdle()) return false;
  caller_.Leave("the program has ended its worker", absl::ZeroDuration());
  thread_.join();
  return true;
}

void Worker::Run() {
  absl::Duration connect_timeout = options_.connect_timeout;
  while (true) {
    const WorkerProcess::Result result = RunInstance(connect_timeout);
    connect_timeout = absl::InfiniteDuration();
    if (!MayReturn(result)) return caller_.End(EndOf(result, options_.coordinator));
    caller_.WaitUntilUnused();
  }
}

WorkerProcess::Result Worker::RunInstance(absl::Duration connect_timeout) {
  WorkerProcess::Options options = options_;
  options.connect_timeout = connect_timeout;
  options.core.process.set_incarnation(RandomIncarnation());
  options.make_runner = [this](CoreShell<WorkerCore>* shell) { return caller_.MakeRunner(shell); };
  const std::unique_ptr<WorkerProcess> process =
      WorkerProcess::Start(std::move(options), &metrics_, logger_);
  if (!caller_.OnStarted()) process->Leave("the program leaves", absl::ZeroDuration());
  return process->Wait();
}

bool Worker::MayReturn(const WorkerProcess::Result& result) {
  if (result.reason != ExitReason::kExpelled) return false;
  if (result.refusal != v1::Refusal::DUPLICATE) {
    duplicate_since_ = absl::InfiniteFuture();
    return !caller_.leaving();
  }
  duplicate_since_ = std::min(duplicate_since_, absl::Now());
  if (absl::Now() - duplicate_since_ >= kDuplicatePatience) return false;
  return caller_.Sleep(kPauseBeforeReturn);
}

}  // namespace sluice::worker
