#include "cli/run/preparation.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/local/job_paths.h"
#include "cli/run/start.h"
#include "services/checkpoint/local_storage.h"
#include "services/common/process/process.h"
#include "services/common/status_macros.h"
#include "services/manifest/manifest.h"

namespace sluice::cli {
namespace {

std::string NewUid() {
  return absl::StrCat(absl::Hex(RandomIncarnation(), absl::kZeroPad16), "-",
                      absl::Hex(RandomIncarnation(), absl::kZeroPad16));
}

absl::Status Refuse(const api::TrainingJob& job, const local::JobDirectory& directory,
                    const std::vector<api::ManifestChange>& changes) {
  std::string refused;
  bool fits = true;
  for (const api::ManifestChange& change : changes) {
    if (change.allowed) continue;
    fits = fits && change.change != api::Change::kShape;
    absl::StrAppend(&refused, "\n  ", change.path, ": ", change.before, " -> ", change.after);
  }
  if (refused.empty()) return absl::OkStatus();
  const std::string& name = job.spec.name();
  const std::string another = absl::StrCat(
      "\nTo train on from its newest checkpoint with the change, give the job another "
      "name and add:\n  metadata: {name: ",
      name, "-2}\n  spec: {checkpoint: {restoreFrom: ",
      std::filesystem::absolute(directory.CheckpointsOf(job.spec)).string(), "}}");
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", name, " was started with different settings (", directory.path(), "):", refused,
      fits ? another : "",
      "\nUndo the change; or use --fresh to start over, which deletes the existing checkpoints; or "
      "set spec.checkpoint.onExisting: Replace, which deletes them when there is a new one."));
}

bool WantsExisting(const v1::CheckpointSpec& checkpoint) {
  return checkpoint.on_existing() == v1::CheckpointSpec::RESUME ||
         checkpoint.on_existing() == v1::CheckpointSpec::REPLACE;
}

// Refuses checkpoints without the record of their job: neither their job nor whether this manifest
// fits them is known.
absl::Status CheckNothingIsOrphaned(const local::JobDirectory& directory, FileSystem* files) {
  const std::string checkpoint_directory = directory.checkpoints();
  ASSIGN_OR_RETURN(const bool holds, HoldsCheckpoint(checkpoint_directory, files));
  if (!holds) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      checkpoint_directory, " holds checkpoints, and ", directory.path(),
      "/job.json, the record of their job, is missing. Move the directory away to keep them "
      "(spec.checkpoint.restoreFrom starts from one), set spec.checkpoint.onExisting: Resume to "
      "continue from them, or use --fresh to remove them and start over."));
}

// Judges the checkpoint storage for a job that did not write it. FAILED_PRECONDITION, with the
// coordinator's message: the job may not use it.
absl::StatusOr<ExistingJob> JudgeStorage(const v1::JobSpec& job,
                                         const local::JobDirectory& directory, FileSystem* files) {
  v1::JobSpec spec = job;
  spec.set_uid(NewUid());
  spec.mutable_checkpoint()->set_directory(directory.CheckpointsOf(spec));
  const std::unique_ptr<CheckpointStorage> storage = MakeLocalStorage(
      files, spec.checkpoint().directory(), absl::StrCat("cli-", RandomIncarnation()));
  ASSIGN_OR_RETURN(OpenedStorage opened, ReadForJob(*storage, spec, FileCheck::kSizes),
                   absl::FailedPreconditionError(
                       absl::StrCat(spec.checkpoint().directory(), ": ", _.message())));
  if (opened.existing.kind == ExistingJob::Kind::kRefused) {
    return absl::FailedPreconditionError(
        absl::StrCat(kCheckpointDirectoryInUse, ": ", opened.existing.message));
  }
  return opened.existing;
}

// Judges the checkpoint storage of a new job. FAILED_PRECONDITION: the job may not use it.
absl::StatusOr<ExistingJob> CheckStorage(const api::TrainingJob& job, bool fresh,
                                         const local::JobDirectory& directory, FileSystem* files) {
  const v1::CheckpointSpec& checkpoint = job.spec.checkpoint();
  if (checkpoint.directory().empty()) {
    if (fresh) return ExistingJob();  // it will be removed
    if (!WantsExisting(checkpoint)) {
      RETURN_IF_ERROR(CheckNothingIsOrphaned(directory, files));
      return ExistingJob();
    }
  }
  v1::JobSpec spec = job.spec;
  // A directory that the manifest names is not emptied.
  if (fresh) spec.mutable_checkpoint()->set_on_existing(v1::CheckpointSpec::REPLACE);
  return JudgeStorage(spec, directory, files);
}

// A job that has not trained anything learns the vocabulary or encoding of its data again, and
// positions of its stream, since the data may be different now. The claims stay.
absl::Status ForgetEncodings(const std::string& checkpoint_directory, FileSystem* files) {
  for (const char* const name : {kVocabularyFile, kTableEncodingFile, kStreamStatesFile}) {
    absl::Status status = files->Remove(JoinPath(checkpoint_directory, name));
    if (!status.ok() && !absl::IsNotFound(status)) return status;
  }
  return absl::OkStatus();
}

// Why a job that is new, or starts over, is refused. These checks need no lock, so a refused job
// leaves no lock file behind.
absl::Status CheckBeginning(const api::TrainingJob& job, bool fresh,
                            const local::JobDirectory& directory, FileSystem* files) {
  RETURN_IF_ERROR(CheckPathsExist(job.spec, files));
  return CheckStorage(job, fresh, directory, files).status();
}

// Takes the job's lock. An error contains a remedy.
absl::StatusOr<std::unique_ptr<local::JobLock>> LockJob(const std::string& name, bool fresh,
                                                        local::JobDirectory* directory) {
  absl::StatusOr<std::unique_ptr<local::JobLock>> lock = directory->Lock();
  if (absl::IsAborted(lock.status())) {
    const std::string help =
        fresh ? absl::StrCat("; `sluice stop ", name, "` stops it")
              : "; --take-over checkpoints and stops it, then continues with this manifest";
    return absl::FailedPreconditionError(absl::StrCat(lock.status().message(), help));
  }
  if (!lock.ok()) {
    return absl::Status(
        lock.status().code(),
        absl::StrCat(lock.status().message(), "; choose another directory with --state-dir"));
  }
  return lock;
}

struct Program {
  v1::Role role;
  const char* name;
  const char* directory;  // in Bazel's bazel-bin
  std::string local::Programs::*path;
};

constexpr Program kPrograms[] = {
    {v1::COORDINATOR, "sluice-coordinator", "services/coordinator", &local::Programs::coordinator},
    {v1::SHARD, "sluice-ps", "services/ps", &local::Programs::shard},
    {v1::WORKER, "sluice-worker", "services/worker", &local::Programs::worker},
};
constexpr Program kComputingShard = {v1::SHARD, "sluice-ps-torch", "services/execution/shard",
                                     &local::Programs::shard};

absl::StatusOr<local::Programs> FindAll(const Environment& environment, const std::string& chosen,
                                        absl::Span<const v1::Role> roles,
                                        absl::Span<const Program> programs) {
  std::vector<std::string> directories = environment.program_directories;
  if (!chosen.empty()) directories = {chosen};
  local::Programs found;
  for (const Program& program : programs) {
    if (std::find(roles.begin(), roles.end(), program.role) == roles.end()) continue;
    for (const std::string& directory : directories) {
      for (const std::string& path :
           {JoinPath(directory, program.name),
            JoinPath(JoinPath(directory, program.directory), program.name)}) {
        if ((found.*program.path).empty() && access(path.c_str(), X_OK) == 0) {
          found.*program.path = path;
        }
      }
    }
    if ((found.*program.path).empty()) {
      return absl::NotFoundError(absl::StrCat(
          "the program ", program.name, " is missing; searched ", absl::StrJoin(directories, ", "),
          ". Install its package, build it, or name its directory with --bin-dir or "
          "SLUICE_BIN_DIR."));
    }
  }
  return found;
}

// Whether the started job `before` has anything that a changed manifest would make worthless: a
// checkpoint, or the result of a finished training. Anything that cannot be read counts.
bool HasTrained(const api::TrainingJob& before, const local::JobDirectory& directory,
                FileSystem* files) {
  const absl::StatusOr<JobResult> result = directory.ReadResult();
  if (result.ok() && result->outcome.kind == policy::OutcomeKind::kSucceeded) return true;
  const absl::StatusOr<bool> holds = HoldsCheckpoint(directory.CheckpointsOf(before.spec), files);
  return !holds.ok() || *holds;
}

// Whether the job's length of training changed.
bool ChangeLength(const std::vector<api::ManifestChange>& changes) {
  return std::any_of(changes.begin(), changes.end(), [](const api::ManifestChange& change) {
    return change.change == api::Change::kLength;
  });
}

}  // namespace

absl::StatusOr<api::TrainingJob> LoadJob(const RunFlags& flags) {
  std::vector<api::Override> overrides;
  if (flags.workers.has_value()) {
    overrides.push_back(
        {absl::StrCat("--workers ", *flags.workers), "spec.worker.replicas", *flags.workers});
  }
  if (flags.shards.has_value()) {
    overrides.push_back(
        {absl::StrCat("--shards ", *flags.shards), "spec.parameterServer.replicas", *flags.shards});
  }
  return api::ReadManifest(flags.manifest, overrides);
}

std::vector<v1::Role> RolesOf(const v1::JobSpec& job) {
  if (job.worker().command_size() > 0) return {v1::COORDINATOR, v1::SHARD};
  return {v1::COORDINATOR, v1::SHARD, v1::WORKER};
}

absl::StatusOr<local::Programs> FindPrograms(const Environment& environment,
                                             const std::string& directory,
                                             absl::Span<const v1::Role> roles) {
  return FindAll(environment, directory, roles, kPrograms);
}

absl::StatusOr<local::Programs> FindPrograms(const Environment& environment,
                                             const std::string& directory, const v1::JobSpec& job) {
  std::vector<Program> programs(std::begin(kPrograms), std::end(kPrograms));
  if (job.training().execution() == v1::TrainingSpec::SERVER) {
    for (Program& program : programs) {
      if (program.role == v1::SHARD) program = kComputingShard;
    }
  }
  return FindAll(environment, directory, RolesOf(job), programs);
}

absl::Status CheckForeground(const RunFlags& flags, const v1::JobSpec& job) {
  if (!flags.foreground) return absl::OkStatus();
  if (job.worker().command_size() == 0) {
    return absl::InvalidArgumentError(
        "--foreground runs the worker's own program on this terminal, and the job has none: set "
        "spec.worker.command");
  }
  if (job.worker().replicas() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--foreground runs the program of one worker on this terminal, and the job "
                     "has ",
                     job.worker().replicas(), " workers: add --workers 1"));
  }
  return absl::OkStatus();
}

local::LocalJob::Options JobOptionsOf(const RunFlags& flags, const local::Programs& programs,
                                      api::TrainingJob job) {
  local::LocalJob::Options options;
  options.programs = programs;
  options.log_level = flags.log_level;
  if (flags.log_level.empty()) options.log_level = flags.verbose ? "debug" : "info";
  options.port = flags.port;
  options.foreground = flags.foreground;
  options.command_directory =
      std::filesystem::absolute(DirectoryOf(flags.manifest)).lexically_normal().string();
  options.control.with_losses =
      flags.output == "plain" && job.spec.training().execution() == v1::TrainingSpec::SERVER;
  options.job = std::move(job);
  return options;
}

absl::Status CheckPortIsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::ErrnoToStatus(errno, "socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Like gRPC, treats a port that was used a moment ago as free.
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool ok = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                  listen(fd, 1) == 0;
  const int error = errno;
  close(fd);
  if (ok) return absl::OkStatus();
  if (error == EADDRINUSE) {
    return absl::UnavailableError(absl::StrCat(
        "port ", port,
        " is in use by another process; choose another port with --port, or omit the flag"));
  }
  return absl::ErrnoToStatus(error, absl::StrCat("port ", port));
}

absl::Status CheckChanges(const api::TrainingJob& job, const local::JobDirectory& directory) {
  ASSIGN_OR_RETURN(const api::TrainingJob before, directory.ReadJob());
  return Refuse(job, directory, api::CompareJobs(before, job));
}

absl::StatusOr<EarlierRun> ReadEarlierRun(const api::TrainingJob& job, bool fresh,
                                          const local::JobDirectory& directory, FileSystem* files) {
  EarlierRun earlier;
  StartFacts& facts = earlier.facts;
  facts.fresh = fresh;
  if (fresh) return earlier;

  absl::StatusOr<api::TrainingJob> before = directory.ReadJob();
  if (absl::IsNotFound(before.status())) return earlier;
  RETURN_IF_ERROR(
      before.status(),
      absl::FailedPreconditionError(absl::StrCat(
          _.message(), "; use --fresh to start over, which deletes the existing checkpoints")));
  earlier.job = *std::move(before);
  earlier.changes = api::CompareJobs(earlier.job, job);

  facts.recorded = true;
  facts.fixed_changed = !Refuse(job, directory, earlier.changes).ok();
  facts.length_changed = ChangeLength(earlier.changes);
  facts.takes_existing = WantsExisting(job.spec.checkpoint());
  facts.trained = HasTrained(earlier.job, directory, files);
  absl::StatusOr<JobResult> result = directory.ReadResult();
  facts.finished = result.ok() && result->outcome.kind == policy::OutcomeKind::kSucceeded;
  if (facts.finished) earlier.result = *std::move(result);
  return earlier;
}

absl::StatusOr<Beginning> DecideBeginning(const api::TrainingJob& job, EarlierRun* earlier,
                                          const local::JobDirectory& directory, FileSystem* files) {
  StartFacts& facts = earlier->facts;
  const std::optional<Start> start = DecideStart(facts);
  if (!start.has_value()) return Refuse(job, directory, earlier->changes);
  if (*start == Start::kFirst) {
    ASSIGN_OR_RETURN(const ExistingJob existing, CheckStorage(job, facts.fresh, directory, files));
    return Beginning{Start::kFirst, existing.kind};
  }
  if (*start != Start::kAnother) return Beginning{*start};

  ASSIGN_OR_RETURN(const ExistingJob existing, JudgeStorage(job.spec, directory, files));
  if (existing.kind == ExistingJob::Kind::kNone) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", job.spec.name(),
                     " has already trained, and its checkpoints are gone; use --fresh to start "
                     "over"));
  }
  facts.existing = existing.kind;
  return Beginning{*DecideStart(facts), existing.kind};
}

bool IsResumed(const Beginning& beginning) {
  switch (beginning.start) {
    case Start::kFirst:
      return beginning.existing == ExistingJob::Kind::kResume;
    case Start::kAnother:
      return beginning.existing != ExistingJob::Kind::kReplace;
    case Start::kResume:
      return true;
    case Start::kOver:
    case Start::kFinished:
      return false;
  }
  return false;
}

namespace {

// Removes the state of earlier runs that this one must not use. Checkpoints from which it
// continues, or which it replaces, stay.
absl::Status RemoveOutdated(const api::TrainingJob& job, const EarlierRun& earlier,
                            const Beginning& beginning, local::JobDirectory* directory,
                            FileSystem* files) {
  if (earlier.facts.recorded && !earlier.facts.trained) {
    RETURN_IF_ERROR(ForgetEncodings(directory->CheckpointsOf(earlier.job.spec), files));
  }
  if (beginning.start != Start::kFirst && beginning.start != Start::kOver) return absl::OkStatus();
  const bool needed =
      job.spec.checkpoint().directory().empty() && beginning.existing != ExistingJob::Kind::kNone;
  return needed ? absl::OkStatus() : directory->Clear();
}

}  // namespace

absl::StatusOr<PreparedRun> PrepareRun(const api::TrainingJob& job, bool fresh,
                                       local::JobDirectory* directory, FileSystem* files) {
  if (!directory->LockedBy().has_value() && absl::IsNotFound(directory->ReadJob().status())) {
    RETURN_IF_ERROR(CheckBeginning(job, fresh, *directory, files));
  }
  PreparedRun run;
  ASSIGN_OR_RETURN(run.lock, LockJob(job.spec.name(), fresh, directory));

  ASSIGN_OR_RETURN(EarlierRun earlier, ReadEarlierRun(job, fresh, *directory, files));
  ASSIGN_OR_RETURN(const Beginning beginning, DecideBeginning(job, &earlier, *directory, files));
  run.job = job;
  run.changes = std::move(earlier.changes);
  run.resumed = IsResumed(beginning);
  if (beginning.start == Start::kFinished) {
    run.finished = std::move(earlier.result);
    return run;
  }

  RETURN_IF_ERROR(CheckPathsExist(job.spec, files));
  RETURN_IF_ERROR(RemoveOutdated(job, earlier, beginning, directory, files));
  const bool own = beginning.start == Start::kResume || beginning.start == Start::kOver;
  run.job.spec.set_uid(own ? earlier.job.spec.uid() : NewUid());
  RETURN_IF_ERROR(directory->Prepare());
  RETURN_IF_ERROR(directory->WriteJob(run.job));
  RETURN_IF_ERROR(directory->RemoveResult());

  v1::CheckpointSpec& checkpoint = *run.job.spec.mutable_checkpoint();
  checkpoint.set_directory(directory->CheckpointsOf(run.job.spec));
  // Only this start replaces: the same command without --fresh continues.
  if (fresh) checkpoint.set_on_existing(v1::CheckpointSpec::REPLACE);
  return run;
}

}  // namespace sluice::cli
