// Measures the cost of a worker's death: the longest pause in the steps of a surviving worker while
// another one is killed, and the time from the death to the first contribution of its replacement.
//
//   recovery --rounds 5
//
// One worker runs in this process and records when each of its steps begins; shard, coordinator and
// the other worker are real processes. Each round kills the other worker with SIGKILL and
// immediately starts a replacement, like a process manager; in one half of the rounds the death is
// reported to the coordinator, in the other it only sees the stream break. Prints one JSON line for
// each half.

#include <algorithm>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "bench/first_worker.h"
#include "services/common/process/program.h"
#include "services/common/status_macros.h"
#include "services/common/threads/mutex.h"
#include "services/transport/grpc_settings.h"
#include "services/worker/worker_process.h"
#include "tests/testing/counting_engine.h"
#include "tests/testing/job_processes.h"

namespace sluice {
namespace {

struct Flags {
  int rounds = 5;
  double suspect_seconds = 1;
  std::string programs;
};

// The times at which steps began, and their numbers of samples.
class StepLog {
 public:
  struct Step {
    absl::Time begin;
    uint64_t samples = 0;
  };

  void Add(uint64_t samples) {
    MutexLock lock(&mutex_);
    steps_.push_back({absl::Now(), samples});
  }
  std::vector<Step> Since(absl::Time time) const {
    MutexLock lock(&mutex_);
    std::vector<Step> steps;
    for (const Step& step : steps_) {
      if (step.begin >= time) steps.push_back(step);
    }
    return steps;
  }

 private:
  mutable Mutex mutex_;  // protects steps_
  std::vector<Step> steps_ ABSL_GUARDED_BY(mutex_);
};

class LoggingEngine final : public testing::CountingEngine {
 public:
  LoggingEngine(const v1::JobSpec& job, uint64_t samples, StepLog* log)
      : CountingEngine(job, samples), log_(log) {}

  absl::StatusOr<BatchMetrics> ComputeGradients(const GradientRequest& request,
                                                GradientSink& sink) override {
    log_->Add(request.batch->samples);
    return CountingEngine::ComputeGradients(request, sink);
  }

 private:
  StepLog* const log_;
};

struct Recovery {
  double pause_seconds = 0;        // longest time between two steps of the survivor
  double replacement_seconds = 0;  // from the death until a step is shared again
};

class Rig {
 public:
  Rig(const Flags& flags, const std::string& directory)
      : processes_({.job = MakeJob(flags, directory),
                    .directory = directory,
                    .worker_program = "tests/testing/counting_worker",
                    .programs = flags.programs}) {}

  absl::Status Start() {
    RETURN_IF_ERROR(processes_.StartCoordinator());
    RETURN_IF_ERROR(processes_.StartShard(0));
    RETURN_IF_ERROR(processes_.StartWorker(1));
    worker::WorkerProcess::Options options = bench::FirstWorkerOptions(processes_);
    options.make_engine = [this](const v1::JobSpec& job, const DatasetInfo& data,
                                 int) -> absl::StatusOr<std::unique_ptr<ComputeEngine>> {
      return std::make_unique<LoggingEngine>(job, data.samples, &log_);
    };
    survivor_ = worker::WorkerProcess::Start(std::move(options), &metrics_, Logger());
    return WaitUntilShared(absl::Now()).status();
  }

  absl::StatusOr<Recovery> Kill(bool report) {
    // Wait for undisturbed training.
    absl::SleepFor(absl::Seconds(1));
    const absl::Time death = absl::Now();
    RETURN_IF_ERROR(processes_.Kill("worker-1", report));
    RETURN_IF_ERROR(processes_.StartWorker(1));
    // First waits for a step of the whole batch, which the survivor computes alone. NOT_FOUND if
    // there is none, because the replacement joined before a view without the dead worker.
    absl::StatusOr<absl::Time> alone = WaitForStep(
        death, [](uint64_t samples) { return samples == kBatch; }, absl::Seconds(3));
    if (absl::IsDeadlineExceeded(alone.status()) && !log_.Since(death + absl::Seconds(2)).empty()) {
      return absl::NotFoundError("the survivor was never alone");
    }
    if (!alone.ok()) return alone.status();
    ASSIGN_OR_RETURN(absl::Time shared, WaitUntilShared(*alone));
    Recovery recovery;
    recovery.replacement_seconds = absl::ToDoubleSeconds(shared - death);
    absl::Time previous = death;
    for (const StepLog::Step& step : log_.Since(death)) {
      recovery.pause_seconds =
          std::max(recovery.pause_seconds, absl::ToDoubleSeconds(step.begin - previous));
      previous = step.begin;
    }
    return recovery;
  }

 private:
  static constexpr uint64_t kBatch = 32;

  static v1::JobSpec MakeJob(const Flags& flags, const std::string& directory) {
    v1::JobSpec job = testing::CountingJob(directory, /*samples=*/4096, /*epochs=*/1 << 20);
    job.mutable_training()->set_global_batch_size(kBatch);
    job.mutable_training()->set_microbatch_size(2);
    job.mutable_worker()->set_replicas(2);
    job.mutable_timeouts()->set_suspect(flags.suspect_seconds);
    return job;
  }

  absl::StatusOr<absl::Time> WaitUntilShared(absl::Time since) {
    return WaitForStep(since, [](uint64_t samples) { return samples < kBatch; });
  }

  template <typename Wanted>
  absl::StatusOr<absl::Time> WaitForStep(absl::Time since, Wanted wanted,
                                         absl::Duration patience = absl::Seconds(60)) {
    const absl::Time deadline = absl::Now() + patience;
    while (absl::Now() < deadline) {
      for (const StepLog::Step& step : log_.Since(since)) {
        if (wanted(step.samples)) return step.begin;
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    return absl::DeadlineExceededError("the job does not continue");
  }

  StepLog log_;
  Metrics metrics_{worker::WorkerMetrics(), {}};
  testing::JobProcesses processes_;
  std::unique_ptr<worker::WorkerProcess> survivor_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status RunIn(const Flags& flags, const std::string& directory) {
  Rig rig(flags, directory);
  RETURN_IF_ERROR(rig.Start());
  std::vector<double> pauses[2];
  std::vector<double> replacements[2];
  for (int round = 0; round < flags.rounds; ++round) {
    for (const bool report : {true, false}) {
      absl::StatusOr<Recovery> recovery = rig.Kill(report);
      while (absl::IsNotFound(recovery.status())) recovery = rig.Kill(report);
      if (!recovery.ok()) return recovery.status();
      pauses[report].push_back(recovery->pause_seconds);
      replacements[report].push_back(recovery->replacement_seconds);
    }
  }
  for (const bool report : {true, false}) {
    std::cout << absl::StrFormat(
                     R"({"benchmark": "recovery", "death": "%s", "rounds": %d, )"
                     R"("median_pause_seconds": %.3f, "longest_pause_seconds": %.3f, )"
                     R"("median_replacement_seconds": %.3f, "longest_replacement_seconds": %.3f})",
                     report ? "reported" : "seen by the broken stream", flags.rounds,
                     Median(pauses[report]),
                     *std::max_element(pauses[report].begin(), pauses[report].end()),
                     Median(replacements[report]),
                     *std::max_element(replacements[report].begin(), replacements[report].end()))
              << std::endl;
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{"Measures the cost of a worker's death."};
  app.add_option("--rounds", flags.rounds)->capture_default_str()->check(CLI::Range(1, 1000));
  app.add_option("--suspect-seconds", flags.suspect_seconds, "timeouts.suspectSeconds of the job")
      ->capture_default_str();
  app.add_option("--programs", flags.programs,
                 "directory that contains services/ps/sluice-ps, ...");
  if (const int code = ParseFlags(&app, argc, argv); code >= 0) return code;
  ConfigureGrpcProcess({});
  const absl::Status status = bench::InNewDirectory(
      "recovery", [&](const std::string& directory) { return RunIn(flags, directory); });
  return status.ok() ? 0 : ExitWith("recovery", status);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) { return sluice::Main(argc, argv); }
