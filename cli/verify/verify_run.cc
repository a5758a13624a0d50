#include "cli/verify/verify_run.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/common/exit_codes.h"
#include "cli/common/json_line.h"
#include "cli/common/log_follower.h"
#include "cli/common/progress_text.h"
#include "cli/common/run_display.h"
#include "cli/local/job_directory.h"
#include "cli/local/job_paths.h"
#include "cli/local/local_job.h"
#include "cli/run/display_listener.h"
#include "cli/run/job_run.h"
#include "cli/run/preparation.h"
#include "cli/verify/state_comparison.h"
#include "proto/jobcontrol.pb.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/exit_code.h"
#include "services/common/io/file_util.h"
#include "services/common/status_macros.h"
#include "services/common/time/clock.h"
#include "services/download/job_data.h"
#include "services/manifest/training_job.h"
#include "services/protocol/arithmetic.h"
#include "services/protocol/kernels.h"

namespace sluice::cli {
namespace {

using verify::Difference;
using verify::Interval;
using verify::PartitionComparison;

// The limit of |a - b| / max(1, |a|) of every element, for jobs that are not BitExact. Additions in
// a different order are rounded differently, and training amplifies the difference.
constexpr double kDefaultTolerance = 1e-3;

using StepHashesOf = std::map<uint32_t, std::vector<StepHash>>;  // by partition

std::unique_ptr<CheckpointStorage> OpenStorage(const Environment& environment,
                                               const std::string& directory) {
  return MakeLocalStorage(environment.files, directory, absl::StrCat("cli-", getpid()));
}

// Shows a replay. As text, it leaves out the events of an ordinary job, such as its checkpoints:
// the table of results follows.
class ReplayListener final : public DisplayListener {
 public:
  ReplayListener(RunDisplay* display, const Clock* clock, std::optional<LogFollower> logs,
                 bool all_events)
      : DisplayListener(display, clock, std::move(logs)), all_events_(all_events) {}

  void OnProgress(const v1::JobProgress& progress) override {
    if (all_events_) return DisplayListener::OnProgress(progress);
    v1::JobProgress shown = progress;
    shown.clear_events();
    for (const v1::Event& event : progress.events()) {
      if (event.kind() == v1::Event::WARNING) *shown.add_events() = event;
    }
    DisplayListener::OnProgress(shown);
  }

 private:
  const bool all_events_;
};

// The result for one interval.
struct IntervalResult {
  const Interval* interval = nullptr;
  size_t partitions = 0;
  size_t hashes = 0;                     // recorded state hashes that were compared
  std::optional<Difference> difference;  // the first one
  double largest = 0;                    // difference of an element after the last step
  std::string largest_array;
  uint32_t largest_partition = 0;
  bool failed = false;
  std::string replay;        // its checkpoint, if it was kept
  std::string environments;  // how the replay's workers differed from those of the job; empty: not
};

class Verification {
 public:
  Verification(const Environment& environment, const VerifyFlags& flags, api::TrainingJob job,
               local::Programs programs, const local::JobDirectory& directory)
      : environment_(environment),
        flags_(flags),
        job_(std::move(job)),
        programs_(std::move(programs)),
        directory_(directory),
        checkpoints_(directory.CheckpointsOf(job_.spec)),
        storage_(OpenStorage(environment, checkpoints_)) {}

  // Whether every bit must be equal.
  bool exact() const { return job_.spec.training().bit_exact() && !flags_.tolerance.has_value(); }
  double tolerance() const { return flags_.tolerance.value_or(kDefaultTolerance); }

  // CANCELLED: the user has interrupted it.
  absl::StatusOr<IntervalResult> Verify(const Interval& interval);

 private:
  absl::StatusOr<StepHashesOf> ReadHashes(const v1::CheckpointIndex& index) const;
  absl::StatusOr<v1::CheckpointIndex> Replay(const Interval& interval, uint64_t hash_interval,
                                             local::JobDirectory* directory);
  absl::Status Compare(const v1::CheckpointIndex& replayed, CheckpointStorage& replay_storage,
                       IntervalResult* result) const;
  void Remove(local::JobDirectory* directory) const;

  const Environment& environment_;
  const VerifyFlags& flags_;
  const api::TrainingJob job_;
  const local::Programs programs_;
  const local::JobDirectory& directory_;
  const std::string checkpoints_;
  const std::unique_ptr<CheckpointStorage> storage_;
};

absl::StatusOr<StepHashesOf> Verification::ReadHashes(const v1::CheckpointIndex& index) const {
  StepHashesOf hashes;
  for (const v1::PartitionFile& file : index.files()) {
    ASSIGN_OR_RETURN(verify::SavedPartition saved,
                     verify::ReadPartition(*storage_, index.checkpoint(), file));
    hashes[file.partition()] = std::move(saved.step_hashes);
  }
  return hashes;
}

absl::StatusOr<IntervalResult> Verification::Verify(const Interval& interval) {
  IntervalResult result;
  result.interval = &interval;
  result.partitions = static_cast<size_t>(interval.to.files_size());
  ASSIGN_OR_RETURN(const StepHashesOf hashes, ReadHashes(interval.to));
  if (interval.from.has_value()) {
    RETURN_IF_ERROR(ReadWholeCheckpoint(*storage_, interval.from->checkpoint()).status());
    result.difference = verify::CompareBeginning(*interval.from, hashes);
  }
  if (result.difference.has_value()) {  // a replay from a wrong state would prove nothing
    result.failed = true;
    return result;
  }

  local::JobDirectory directory(
      environment_.files,
      JoinPath(JoinPath(directory_.path(), "verify"),
               absl::StrCat("steps-", interval.first(), "-", interval.last())),
      job_.spec.name());
  absl::StatusOr<v1::CheckpointIndex> run =
      Replay(interval, verify::HashInterval(hashes), &directory);
  if (absl::IsCancelled(run.status())) Remove(&directory);
  ASSIGN_OR_RETURN(const v1::CheckpointIndex replayed, std::move(run));

  const std::string replay_checkpoints = directory.checkpoints();
  RETURN_IF_ERROR(Compare(replayed, *OpenStorage(environment_, replay_checkpoints), &result));

  result.failed = result.difference.has_value() &&
                  (exact() || result.difference->stored || result.largest > tolerance());
  if (result.failed) {
    result.replay = JoinPath(replay_checkpoints, CheckpointDirectory(replayed.checkpoint()));
  } else {
    Remove(&directory);
  }
  return result;
}

// Trains the interval again. Returns the index of the checkpoint of its last step.
absl::StatusOr<v1::CheckpointIndex> Verification::Replay(const Interval& interval,
                                                         uint64_t hash_interval,
                                                         local::JobDirectory* directory) {
  api::TrainingJob job = job_;
  job.suspend = false;
  job.active_deadline_seconds.reset();
  std::string from;
  if (interval.from.has_value()) {
    from = JoinPath(checkpoints_, CheckpointDirectory(interval.from->checkpoint()));
  }
  job.spec = verify::ReplayJob(job_.spec, interval, from, hash_interval);
  ASSIGN_OR_RETURN(PreparedRun prepared,
                   PrepareRun(job, /*fresh=*/true, directory, environment_.files));

  JobRun run(environment_, flags_, programs_, prepared.job, directory);
  ReplayListener listener(run.display(), environment_.clock, run.Logs(),
                          flags_.output == "json" || flags_.verbose);
  run.Open(&listener);

  const policy::Outcome& outcome = run.Run(JobRun::Interrupt::kStop).outcome;
  if (outcome.kind == policy::OutcomeKind::kSuspended) {
    return absl::CancelledError("interrupted; the job's checkpoints were not changed");
  }
  if (outcome.kind == policy::OutcomeKind::kFailed) {
    return absl::AbortedError(absl::StrCat("the replay of the steps ", interval.first(), " to ",
                                           interval.last(), " failed: ", outcome.reason,
                                           "; its logs are in ", directory->logs()));
  }

  ASSIGN_OR_RETURN(const RestorePoint point,
                   FindRestorePoint(*OpenStorage(environment_, directory->checkpoints())));
  if (!point.found || point.checkpoint_index.checkpoint().step() != interval.last()) {
    return absl::AbortedError(absl::StrCat("the replay has left no checkpoint of step ",
                                           interval.last(), " in ", directory->checkpoints()));
  }
  return point.checkpoint_index;
}

absl::Status Verification::Compare(const v1::CheckpointIndex& replayed,
                                   CheckpointStorage& replay_storage,
                                   IntervalResult* result) const {
  const v1::CheckpointIndex& recorded = result->interval->to;
  if (recorded.table().SerializeAsString() != replayed.table().SerializeAsString() ||
      recorded.layout().SerializeAsString() != replayed.layout().SerializeAsString()) {
    return absl::FailedPreconditionError(
        "the replay has other tensors, or divides them into other blocks: the model or the build "
        "differs from the one that wrote the checkpoint");
  }

  std::vector<PartitionComparison> partitions;
  for (int i = 0; i < recorded.files_size() && i < replayed.files_size(); ++i) {
    // One at a time: a checkpoint may be larger than the memory.
    ASSIGN_OR_RETURN(const verify::SavedPartition before,
                     verify::ReadPartition(*storage_, recorded.checkpoint(), recorded.files(i)));
    ASSIGN_OR_RETURN(
        const verify::SavedPartition after,
        verify::ReadPartition(replay_storage, replayed.checkpoint(), replayed.files(i)));

    const PartitionComparison& comparison = partitions.emplace_back(verify::ComparePartitions(
        before, after, result->interval->first(), result->interval->last()));
    result->hashes += comparison.hashes;

    if (comparison.arrays.empty() || comparison.largest < result->largest) continue;
    result->largest = comparison.largest;
    result->largest_array = comparison.largest_array;
    result->largest_partition = comparison.partition;
  }

  if (!SameBits(recorded.environment(), replayed.environment())) {
    result->environments = absl::StrCat(
        "The steps were trained by workers with ", EnvironmentText(recorded.environment()),
        ", and the replay's worker has ", EnvironmentText(replayed.environment()),
        ": bits may differ for that reason alone.");
  }

  result->difference =
      verify::FirstDifference(partitions, result->interval->first(), result->interval->last());
  return absl::OkStatus();
}

// Removes what the replay has written.
void Verification::Remove(local::JobDirectory* directory) const {
  const std::string above = DirectoryOf(directory->path());
  (void)directory->Clear();
  (void)environment_.files->Remove(JoinPath(directory->path(), "lock"));
  for (const std::string& path : {directory->path(), above, DirectoryOf(above)}) {
    (void)environment_.files->RemoveDirectory(path);  // unless another replay was kept there
  }
}

// ---------------------------------------------------------------- texts

std::string NumberText(double value) { return absl::StrFormat("%.3g", value); }

std::string ResultText(const IntervalResult& result, bool exact, double tolerance) {
  if (!result.difference.has_value()) return "equal";

  const Difference& difference = *result.difference;
  if (exact || difference.stored) {
    return absl::StrCat("differs: ", verify::DifferenceText(difference));
  }

  const std::string largest = absl::StrCat(NumberText(result.largest), " in ", result.largest_array,
                                           " (partition ", result.largest_partition, ")");
  return result.failed ? absl::StrCat("differs by ", largest, ", more than ", NumberText(tolerance))
                       : absl::StrCat("within ", NumberText(tolerance), ": differs by ", largest);
}

// The conclusion from the difference, for the user.
std::string Explanation(const IntervalResult& result, bool exact) {
  const Difference& difference = *result.difference;
  if (difference.stored) {
    return absl::StrCat("The checkpoint of step ", difference.step,
                        " does not have the state that training had after this step, whose hash "
                        "was recorded: it was changed after it was written.");
  }

  if (!result.environments.empty()) return result.environments;
  if (exact && difference.after + 1 < difference.step) {
    return "To find the exact step, train with a smaller checkpoint.hashIntervalSteps.";
  }
  return "";
}

class Report {
 public:
  Report(const Environment& environment, const VerifyFlags& flags, const Verification& verification)
      : environment_(environment), flags_(flags), verification_(verification) {}

  void Begin(const std::vector<Interval>& intervals) const {
    if (flags_.output == "json" || flags_.quiet) return;
    *environment_.out << "Replaying job " << flags_.job << " with one worker: steps "
                      << intervals.front().first() << " to " << intervals.back().last() << ", "
                      << CountedText(intervals.size(), "interval") << "; "
                      << (verification_.exact()
                              ? "every byte must be equal"
                              : absl::StrCat("differences up to ",
                                             NumberText(verification_.tolerance()),
                                             " are accepted"))
                      << std::endl;
  }

  void Note(const std::string& text) const {
    if (flags_.output == "json") {
      WriteJsonLine(environment_, {{"type", "note"}, {"message", text}});
    } else if (!flags_.quiet) {
      *environment_.out << text << std::endl;
    }
  }

  // The last lines. Returns the exit code.
  int Finish(const std::vector<IntervalResult>& results) const {
    size_t failed = 0;
    size_t partitions = 0;
    for (const IntervalResult& result : results) {
      failed += result.failed ? 1 : 0;
      partitions += result.partitions;
    }

    const bool exact = verification_.exact();
    if (flags_.output == "json") {
      WriteJson(results, failed);
    } else {
      if (!flags_.quiet) WriteTable(results);
      *environment_.out << (failed == 0 ? exact ? "Equal: " : "Passed: " : "Failed: ")
                        << (failed == 0
                                ? CountedText(results.size(), "interval")
                                : absl::StrCat(failed, " of ",
                                               CountedText(results.size(), "interval"), " differ"))
                        << ", " << CountedText(partitions, "partition") << " compared\n";
    }

    environment_.out->flush();
    return failed == 0 ? kExitOk : kExitFailed;
  }

 private:
  void WriteTable(const std::vector<IntervalResult>& results) const {
    std::ostream& out = *environment_.out;
    const bool exact = verification_.exact();
    out << absl::StrFormat("\n%12s %12s %11s %12s  %s\n", "from step", "to step", "partitions",
                           "step hashes", "result");

    for (const IntervalResult& result : results) {
      out << absl::StrFormat("%12s %12s %11d %12d  %s\n", CountText(result.interval->first()),
                             CountText(result.interval->last()), result.partitions, result.hashes,
                             ResultText(result, exact, verification_.tolerance()));
    }
    out << "\n";

    for (const IntervalResult& result : results) {
      if (!result.failed) continue;
      const std::string explanation = Explanation(result, exact);
      if (!explanation.empty()) out << explanation << "\n";
      if (!result.replay.empty()) out << "The replay's checkpoint: " << result.replay << "\n";
    }
  }

  void WriteJson(const std::vector<IntervalResult>& results, size_t failed) const {
    nlohmann::json intervals = nlohmann::json::array();
    for (const IntervalResult& result : results) {
      nlohmann::json& json =
          intervals.emplace_back(nlohmann::json{{"from", result.interval->first()},
                                                {"to", result.interval->last()},
                                                {"partitions", result.partitions},
                                                {"stepHashes", result.hashes},
                                                {"passed", !result.failed},
                                                {"equal", !result.difference.has_value()}});

      if (!result.difference.has_value()) continue;
      const Difference& difference = *result.difference;
      json["difference"] = {{"after", difference.after},
                            {"step", difference.step},
                            {"partitions", difference.partitions},
                            {"arrays", difference.arrays},
                            {"storedOnly", difference.stored}};

      if (std::isfinite(result.largest)) json["largest"] = result.largest;
      if (!result.replay.empty()) json["replay"] = result.replay;
      if (!result.environments.empty()) json["environments"] = result.environments;
    }

    nlohmann::json verdict = {{"type", "verdict"},
                              {"job", flags_.job},
                              {"verdict", failed == 0 ? "Passed" : "Failed"},
                              {"exitCode", failed == 0 ? kExitOk : kExitFailed},
                              {"exact", verification_.exact()},
                              {"intervals", intervals}};
    if (!verification_.exact()) verdict["tolerance"] = verification_.tolerance();
    WriteJsonLine(environment_, std::move(verdict));
  }

  const Environment& environment_;
  const VerifyFlags& flags_;
  const Verification& verification_;
};

// When the file, or the newest file of the directory, was changed; nullopt if that is not known.
std::optional<absl::Time> ChangeOf(const Environment& environment, const std::string& path) {
  std::vector<std::string> paths = {path};
  if (const auto names = environment.files->List(path); names.ok()) {
    for (const std::string& name : *names) paths.push_back(JoinPath(path, name));
  }

  std::optional<absl::Time> newest;
  // The file system's clock has an epoch of its own.
  const auto file_now = std::filesystem::file_time_type::clock::now();
  const absl::Time now = environment.clock->Now();

  for (const std::string& one : paths) {
    std::error_code failed;
    const auto changed = std::filesystem::last_write_time(one, failed);
    if (failed) continue;
    const absl::Time time = now + absl::FromChrono(changed - file_now);
    newest = std::max(newest.value_or(time), time);
  }
  return newest;
}

// The inputs that were changed after a checkpoint was written, a sentence for each.
std::vector<std::string> ChangedInputs(const Environment& environment, const v1::JobSpec& job,
                                       const v1::CheckpointIndex& index) {
  std::vector<std::string> sentences;
  absl::Time written;
  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, index.time(), &written, &error)) return sentences;

  v1::JobSpec copy = job;
  std::vector<DataPath> inputs = PathsOf(copy.mutable_data());
  inputs.push_back({"spec.model.path", copy.mutable_model()->mutable_path()});

  for (const DataPath& input : inputs) {
    if (input.path->empty()) continue;

    const std::optional<absl::Time> changed = ChangeOf(environment, *input.path);
    if (!changed.has_value() || *changed <= written) continue;
    sentences.push_back(absl::StrCat(
        "Note: ", input.field, ": ", *input.path, " was changed after the checkpoint of step ",
        index.checkpoint().step(), " was written; differences may come from that"));
  }
  return sentences;
}

// The job, its selected intervals, and the programs; an error says why nothing is replayed.
struct Prepared {
  api::TrainingJob job;
  std::vector<Interval> intervals;
  local::Programs programs;
};

absl::StatusOr<Prepared> Prepare(const Environment& environment, const VerifyFlags& flags,
                                 const local::JobDirectory& directory) {
  Prepared prepared;
  absl::StatusOr<api::TrainingJob> job = directory.ReadJob();
  if (absl::IsNotFound(job.status())) {
    const std::vector<std::string> jobs = local::ListJobs(environment.files, flags.state_directory);
    return absl::NotFoundError(
        absl::StrCat("there is no job ", flags.job, " in ", flags.state_directory,
                     jobs.empty() ? "" : absl::StrCat("; there are: ", absl::StrJoin(jobs, ", "))));
  }

  ASSIGN_OR_RETURN(prepared.job, std::move(job));

  if (const auto pid = directory.LockedBy(); pid.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", *pid, " runs job ", flags.job,
                     ", which replaces its checkpoints; verify it when it has ended, or stop it "
                     "with `sluice stop ",
                     flags.job, "`"));
  }
  RETURN_IF_ERROR(CheckPathsExist(prepared.job.spec, environment.files));

  const std::string checkpoints = directory.CheckpointsOf(prepared.job.spec);
  const auto in_storage = [&](const absl::Status& status) {
    return absl::Status(
        status.code(), absl::StrCat("job ", flags.job, " (", checkpoints, "): ", status.message()));
  };
  const std::unique_ptr<CheckpointStorage> storage = OpenStorage(environment, checkpoints);
  ASSIGN_OR_RETURN(const verify::History history, verify::ReadHistory(*storage), in_storage(_));

  const MachineArithmetic machine = ThisMachine();
  const bool exact = prepared.job.spec.training().bit_exact() && !flags.tolerance.has_value();
  const auto check = [&](const Interval& interval) {
    return verify::CheckReplayable(prepared.job.spec, interval, machine, exact);
  };
  // Whatever else is missing, more checkpoints would not help an asynchronous job.
  if (!flags.selection.to.has_value()) {
    RETURN_IF_ERROR(check({std::nullopt, history.checkpoints.back()}), in_storage(_));
  }

  ASSIGN_OR_RETURN(prepared.intervals, verify::SelectIntervals(history, flags.selection),
                   in_storage(_));
  for (const Interval& interval : prepared.intervals) {
    RETURN_IF_ERROR(check(interval), in_storage(_));
  }

  ASSIGN_OR_RETURN(prepared.programs,
                   FindPrograms(environment, flags.program_directory, prepared.job.spec));
  return prepared;
}

}  // namespace

int RunVerify(const Environment& environment, const VerifyFlags& flags) {
  const local::JobDirectory directory(environment.files, flags.state_directory, flags.job);
  ASSIGN_OR_RETURN(Prepared prepared, Prepare(environment, flags, directory),
                   PrintError(environment, _));
  const std::vector<std::string> notes =
      ChangedInputs(environment, prepared.job.spec, prepared.intervals.back().to);
  Verification verification(environment, flags, std::move(prepared.job),
                            std::move(prepared.programs), directory);
  const Report report(environment, flags, verification);
  report.Begin(prepared.intervals);
  for (const std::string& note : notes) report.Note(note);

  std::vector<IntervalResult> results;
  for (const Interval& interval : prepared.intervals) {
    absl::StatusOr<IntervalResult> result = verification.Verify(interval);
    if (!result.ok()) {
      const int code = PrintError(environment, result.status());
      return absl::IsCancelled(result.status()) ? +kExitInterrupted : code;
    }
    results.push_back(*std::move(result));
  }
  return report.Finish(results);
}

}  // namespace sluice::cli
