#include "cli/chaos/chaos_run.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/chaos/comparison.h"
#include "cli/chaos/disturber.h"
#include "cli/chaos/link_relay.h"
#include "cli/chaos/verdict.h"
#include "cli/common/exit_codes.h"
#include "cli/common/json_line.h"
#include "cli/common/log_follower.h"
#include "cli/common/run_display.h"
#include "cli/local/job_directory.h"
#include "cli/local/job_paths.h"
#include "cli/local/local_job.h"
#include "cli/run/data_download.h"
#include "cli/run/display_listener.h"
#include "cli/run/job_run.h"
#include "cli/run/preparation.h"
#include "cli/run/texts.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/common/process/process.h"
#include "services/common/status_macros.h"
#include "services/manifest/training_job.h"
#include "services/protocol/samples/job_length.h"
#include "services/protocol/timeouts.h"

namespace sluice::cli {
namespace {

// How often progress is requested and signals are sent.
constexpr absl::Duration kTick = absl::Milliseconds(50);
// The most that a manifest may ask for.
constexpr uint32_t kMaxBackoffLimit = 1000;
// A seed that is chosen here is short, so that it is easy to type again.
constexpr uint64_t kSeeds = 1000000;

// While the disk is full, each write of a file by the process fails, as it would on a full disk.
// The kernel's limit of file sizes does this without any privilege.
void SetDiskFull(pid_t pid, bool full) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return;
  if (full) limit.rlim_cur = 0;
  (void)prlimit(pid, RLIMIT_FSIZE, &limit, nullptr);  // fails if the process has ended
}

// Shows the job, and disturbs it.
class ChaosListener final : public DisplayListener {
 public:
  ChaosListener(const Environment& environment, const ChaosFlags& flags, RunDisplay* display,
                std::optional<LogFollower> logs, chaos::Disturber::Options options)
      : DisplayListener(display, environment.clock, std::move(logs)),
        environment_(environment),
        json_(flags.output == "json"),
        display_(display),
        began_(environment.clock->Now()),
        disturber_(std::move(options), began_) {}

  // `job` and `relay` outlive the calls below. Null relay: no fault disturbs links.
  void Attach(local::LocalJob* job, chaos::LinkRelay* relay) {
    job_ = job;
    relay_ = relay;
  }

  void OnProcessEnded(const policy::Replica& replica, pid_t pid,
                      const policy::Exit& exit) override {
    DisplayListener::OnProcessEnded(replica, pid, exit);
    disturber_.OnProcessEnded(replica, pid, exit);
  }
  void OnProgress(const v1::JobProgress& progress) override {
    DisplayListener::OnProgress(progress);
    disturber_.OnProgress(progress, environment_.clock->Now());
  }
  void OnOutcome(const policy::Outcome& outcome) override {
    DisplayListener::OnOutcome(outcome);
    disturber_.Stop();
  }
  void OnTick(const std::map<policy::Replica, local::ProcessInfo>& processes) override {
    if (stopping()) disturber_.Stop();
    const absl::Time now = environment_.clock->Now();

    const chaos::Disturber::Decision decision = disturber_.Decide(processes, now);
    for (const chaos::Disturber::Signal& signal : decision.signals) {
      job_->Signal(signal.pid, signal.signal);
    }

    for (const chaos::Disturber::LinkChange& change : decision.links) {
      if (relay_ == nullptr) continue;
      if (change.fault.has_value()) relay_->Disturb(change.pid, *change.fault);
      if (!change.fault.has_value()) relay_->Restore(change.pid);
    }
    for (const chaos::Disturber::DiskChange& change : decision.disks) {
      SetDiskFull(change.pid, change.full);
    }

    if (decision.sizes.has_value()) job_->Scale(*decision.sizes);
    if (decision.injected != nullptr) Show(*decision.injected, false, now);
    if (decision.recovered != nullptr) Show(*decision.recovered, true, now);

    if (decision.problem.has_value()) {
      problem_ = decision.problem;
      job_->StopNow();
    }

    DisplayListener::OnTick(processes);
  }

  void FillIn(chaos::RunReport* report) const {
    report->began = began_;
    report->pace = disturber_.pace();
    report->faults = disturber_.faults();
    report->unexplained = disturber_.unexplained();
    report->problem = problem_;
  }
  using DisplayListener::FillIn;

 private:
  void Show(const chaos::FaultRecord& fault, bool recovered, absl::Time now) {
    const size_t number = disturber_.faults().size();
    if (json_) {
      nlohmann::json json = chaos::FaultJson(fault, number, began_);
      json["type"] = "fault";
      json["state"] = recovered ? "recovered" : "injected";
      WriteJsonLine(environment_, std::move(json));
      return;
    }

    const std::string time = chaos::SinceText(now, began_);
    display_->Note(
        recovered
            ? absl::StrFormat("%8s  fault %d: recovered after %.1f s, caught up after %.1f s", time,
                              number, absl::ToDoubleSeconds(*fault.recovered),
                              absl::ToDoubleSeconds(*fault.caught_up))
            : absl::StrFormat("%8s  fault %d at step %s: %s%s", time, number, CountText(fault.step),
                              chaos::FaultText(fault.plan), PidsText(fault)));
  }
  static std::string PidsText(const chaos::FaultRecord& fault) {
    if (fault.pids.empty()) return "";
    return absl::StrCat(fault.pids.size() == 1 ? " (pid " : " (pids ",
                        absl::StrJoin(fault.pids, ", "), ")");
  }

  const Environment& environment_;
  const bool json_;
  RunDisplay* const display_;
  const absl::Time began_;
  chaos::Disturber disturber_;
  std::optional<std::string> problem_;
  local::LocalJob* job_ = nullptr;
  chaos::LinkRelay* relay_ = nullptr;
};

// A run of the job in a directory of its own, from its beginning.
class ChaosJob {
 public:
  ChaosJob(const Environment& environment, const ChaosFlags& flags, const api::TrainingJob& job,
           const local::Programs& programs)
      : environment_(environment), flags_(flags), job_(job), programs_(programs) {}

  // `name`: "baseline" or "faults", the directory in the state directory.
  local::JobDirectory DirectoryOf(const std::string& name) const {
    return {environment_.files, JoinPath(flags_.state_directory, name), job_.spec.name()};
  }

  absl::StatusOr<chaos::RunReport> Run(const std::string& name,
                                       chaos::Disturber::Options options) const {
    local::JobDirectory directory = DirectoryOf(name);
    if (const auto pid = directory.LockedBy(); pid.has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("process ", *pid, " already runs `sluice chaos` for job ", job_.spec.name(),
                       " in ", directory.path(), "; choose another directory with --state-dir"));
    }
    ASSIGN_OR_RETURN(PreparedRun prepared,
                     PrepareRun(job_, /*fresh=*/true, &directory, environment_.files));
    std::unique_ptr<chaos::LinkRelay> relay;
    if (absl::c_any_of(options.schedule.kinds, [](const chaos::FaultKind& kind) {
          return chaos::DisturbsLinks(kind.action);
        })) {
      ASSIGN_OR_RETURN(relay, chaos::LinkRelay::Start());
    }

    JobRun run(environment_, flags_, programs_, prepared.job, &directory);
    run.options()->tick_interval = kTick;
    run.options()->control.poll_interval = kTick;
    run.options()->links = relay.get();
    ChaosListener listener(environment_, flags_, run.display(), run.Logs(), std::move(options));
    listener.Attach(run.Open(&listener), relay.get());

    chaos::RunReport report;
    report.result = run.Run(JobRun::Interrupt::kSuspend);
    listener.FillIn(&report);
    // The text display of a stopped run shows how to resume it, but this command always starts
    // over.
    const bool stopped = report.result.outcome.kind == policy::OutcomeKind::kSuspended;
    const bool hidden = stopped || (report.Succeeded() && flags_.quiet);
    if (flags_.output != "text" || !hidden) run.Finish();
    RETURN_IF_ERROR(directory.WriteResult(report.result));
    return report;
  }

 private:
  const Environment& environment_;
  const ChaosFlags& flags_;
  const api::TrainingJob& job_;
  const local::Programs& programs_;
};

std::string DurationFlag(absl::Duration duration) {
  return absl::StrFormat("%gs", absl::ToDoubleSeconds(duration));
}

// The command that injects the same faults.
std::string RepeatCommand(const ChaosFlags& flags, uint64_t seed) {
  const ChaosFlags defaults;
  std::string text = absl::StrCat("sluice chaos ", flags.manifest, " --seed ", seed);
  const auto add = [&](bool given, const auto&... words) {
    if (given) absl::StrAppend(&text, " ", words...);
  };

  add(flags.faults != defaults.faults, "--faults ", flags.faults);
  add(flags.every != defaults.every, "--every ", DurationFlag(flags.every));
  add(flags.lasting != defaults.lasting, "--for ", DurationFlag(flags.lasting));
  add(flags.count.has_value(), "--count ", flags.count.value_or(0));
  add(flags.workers.has_value(), "--workers ", flags.workers.value_or(0));
  add(flags.shards.has_value(), "--shards ", flags.shards.value_or(0));
  add(flags.baseline != defaults.baseline, "--baseline ", flags.baseline);

  return text;
}

chaos::Disturber::Options DisturberOptionsOf(const ChaosFlags& flags, const v1::JobSpec& job,
                                             std::vector<chaos::FaultKind> kinds, uint64_t seed) {
  chaos::Disturber::Options options;
  options.schedule.seed = seed;
  options.schedule.kinds = std::move(kinds);
  options.schedule.workers = job.worker().replicas();
  options.schedule.shards = job.parameter_server().replicas();
  options.schedule.min_shards =
      std::min(job.parameter_server().copies(), job.parameter_server().replicas());
  options.schedule.max_shards = job.parameter_server().partitions();

  options.schedule.every = flags.every;
  options.schedule.lasting = flags.lasting;
  options.schedule.heartbeat_timeout =
      TimeoutOr(job.timeouts().heartbeat_timeout(), kDefaultHeartbeatTimeout);

  options.max_faults = flags.count.value_or(UINT64_MAX);
  options.stall = flags.stall;
  options.backoff_limit = job.backoff_limit();
  options.own_worker_program = job.worker().command_size() > 0;

  return options;
}

// Why these flags do not suit the job.
absl::Status CheckFlags(const ChaosFlags& flags, const api::TrainingJob& job,
                        const chaos::Disturber::Options& options) {
  if (job.suspend) {
    return absl::InvalidArgumentError("spec.suspend is set: the job would not train");
  }
  RETURN_IF_ERROR(chaos::CheckFaults(options.schedule.kinds, options.schedule.workers,
                                     options.schedule.shards));

  for (const chaos::FaultKind& kind : options.schedule.kinds) {
    if (chaos::ScalesShards(kind) && !MovesPartitions(job.spec)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--faults: ", chaos::KindText(kind), ": a job with training.execution Server, or with ",
          "stalenessRule DelayCompensation, does not change its number of shards while it trains"));
    }
    if (chaos::DisturbsLinks(kind.action) &&
        job.spec.training().dense().aggregation() == v1::TrainingSpec::Dense::ALL_REDUCE) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--faults: ", chaos::KindText(kind), ": with `dense: {aggregation: AllReduce}` workers ",
          "have connections among themselves, which cannot be cut or slowed"));
    }
  }

  const absl::Duration longest =
      flags.lasting > absl::ZeroDuration() ? flags.lasting : 2 * options.schedule.heartbeat_timeout;
  if (flags.stall <= longest) {
    return absl::InvalidArgumentError(absl::StrCat("--stall: a fault may last ",
                                                   DurationFlag(longest),
                                                   ", and the job waits for its "
                                                   "end; --stall must be longer, not ",
                                                   DurationFlag(flags.stall)));
  }

  if (flags.tolerance.has_value() && flags.baseline != "run") {
    return absl::InvalidArgumentError("--tolerance compares with a baseline: add --baseline run");
  }
  return absl::OkStatus();
}

// Compares the last checkpoints of the two runs.
absl::StatusOr<chaos::Comparison> Compare(const Environment& environment, const v1::JobSpec& job,
                                          const local::JobDirectory& baseline,
                                          const local::JobDirectory& faults) {
  const auto storage_of = [&](const local::JobDirectory& directory) {
    return MakeLocalStorage(environment.files, directory.CheckpointsOf(job),
                            absl::StrCat("cli-", getpid()));
  };
  return chaos::CompareCheckpoints(*storage_of(baseline), *storage_of(faults));
}

void Announce(const Environment& environment, const ChaosFlags& flags, const std::string& run,
              const std::string& text, uint64_t seed) {
  if (flags.output == "json") {
    WriteJsonLine(environment, {{"type", "chaos"}, {"run", run}, {"seed", seed}});
  } else if (!flags.quiet) {
    *environment.out << text << std::endl;
  }
}

int Report(const Environment& environment, const ChaosFlags& flags,
           const chaos::Findings& findings) {
  const chaos::Verdict verdict = chaos::Judge(findings);

  if (flags.output == "json") {
    nlohmann::json json = chaos::ReportJson(findings, verdict);
    json["type"] = "verdict";
    WriteJsonLine(environment, std::move(json));
    return verdict.exit_code();
  }

  std::vector<std::string> lines = chaos::ReportLines(findings, verdict);
  const size_t verdicts = verdict.problems.empty() ? 1 : verdict.problems.size();
  if (flags.quiet) lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(verdicts));

  for (const std::string& line : lines) *environment.out << line << "\n";
  environment.out->flush();
  return verdict.exit_code();
}

// Runs the prepared job, and judges it.
int Disturb(const Environment& environment, const ChaosFlags& flags, const ChaosJob& runs,
            const api::TrainingJob& job, chaos::Disturber::Options options) {
  chaos::Findings findings;
  findings.job = job.spec.name();
  findings.seed = options.schedule.seed;
  findings.repeat = RepeatCommand(flags, findings.seed);
  findings.tolerance = flags.tolerance;
  const local::JobDirectory directory = runs.DirectoryOf("faults");
  findings.logs = directory.logs();

  if (flags.baseline == "run") {
    Announce(environment, flags, "baseline", "Training without faults, as the baseline",
             findings.seed);
    chaos::Disturber::Options undisturbed = options;
    undisturbed.max_faults = 0;
    ASSIGN_OR_RETURN(findings.baseline, runs.Run("baseline", std::move(undisturbed)),
                     PrintError(environment, _));
    if (!findings.baseline->Succeeded()) {
      findings.logs = runs.DirectoryOf("baseline").logs();
      return Report(environment, flags, findings);
    }
  }

  Announce(environment, flags, "faults",
           absl::StrCat("Training with faults of seed ", findings.seed, ": ",
                        absl::StrJoin(options.schedule.kinds, ", ",
                                      [](std::string* out, const chaos::FaultKind& kind) {
                                        *out += chaos::KindText(kind);
                                      })),
           findings.seed);
  ASSIGN_OR_RETURN(findings.run, runs.Run("faults", std::move(options)),
                   PrintError(environment, _));

  if (findings.run.Succeeded() && findings.baseline.has_value() &&
      job.spec.training().bit_exact()) {
    ASSIGN_OR_RETURN(findings.comparison,
                     Compare(environment, job.spec, runs.DirectoryOf("baseline"), directory),
                     PrintError(environment, _));
  }
  return Report(environment, flags, findings);
}

}  // namespace

int RunChaos(const Environment& environment, const ChaosFlags& flags) {
  ASSIGN_OR_RETURN(std::vector<chaos::FaultKind> kinds, chaos::ParseFaults(flags.faults),
                   PrintError(environment, _));

  absl::StatusOr<api::TrainingJob> job = LoadJob(flags);
  if (!job.ok()) {
    *environment.err << job.status().message() << "\n";
    return kExitUsage;
  }

  std::vector<std::string> notes =
      FindData(flags.manifest, environment.data_directory, environment.files, &job->spec);

  const uint64_t seed = flags.seed.value_or(RandomIncarnation() % kSeeds);
  chaos::Disturber::Options options = DisturberOptionsOf(flags, job->spec, std::move(kinds), seed);
  RETURN_IF_ERROR(CheckFlags(flags, *job, options), PrintError(environment, _));
  ASSIGN_OR_RETURN(const local::Programs programs,
                   FindPrograms(environment, flags.program_directory, job->spec),
                   PrintError(environment, _));

  if (absl::Status status = DownloadData(environment, flags.quiet, job->spec.data());
      !status.ok()) {
    return absl::IsCancelled(status) ? +kExitInterrupted : PrintError(environment, status);
  }

  // The user's own checkpoints are not changed.
  if (!job->spec.checkpoint().directory().empty()) {
    notes.push_back(absl::StrCat("the checkpoints go to ", flags.state_directory, ", not to ",
                                 job->spec.checkpoint().directory()));
    job->spec.mutable_checkpoint()->clear_directory();
  }
  // The faults must not use up the limit: the disturber applies it to each fault.
  job->spec.set_backoff_limit(kMaxBackoffLimit);
  if (!flags.quiet) PrintNotes(environment, *job, notes);
  return Disturb(environment, flags, ChaosJob(environment, flags, *job, programs), *job,
                 std::move(options));
}

}  // namespace sluice::cli
