// The directory of a job on this machine, .sluice/<name>/:
//
//   lock          locked (F_OFD_SETLK) while `sluice run` runs the job; contains its process id
//   job.json      the job as it was last started, with its uid
//   result.json   how the last run ended
//   logs/         one file for each process, to which each of its instances appends
//   run/          port files, the run's secret, requests to change the number of processes, and
//                 other files that only a running job needs
//   checkpoints/  unless the job names another directory
#ifndef SLUICE_CLI_LOCAL_JOB_DIRECTORY_H_
#define SLUICE_CLI_LOCAL_JOB_DIRECTORY_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cli/common/job_result.h"
#include "operator/policy/policy.h"
#include "proto/job.pb.h"
#include "services/common/io/file_util.h"
#include "services/manifest/training_job.h"

namespace sluice::local {

// The numbers of processes that a running job is asked to have.
struct Sizes {
  uint32_t shards = 0;
  uint32_t workers = 0;

  friend bool operator==(const Sizes& a, const Sizes& b) {
    return a.shards == b.shards && a.workers == b.workers;
  }
};

// "2 shards and 1 worker"
std::string SizesText(const Sizes& sizes);

// Held until this object is destroyed, or the process ends.
class JobLock {
 public:
  ~JobLock();
  JobLock(const JobLock&) = delete;
  JobLock& operator=(const JobLock&) = delete;

 private:
  friend class JobDirectory;
  explicit JobLock(int fd) : fd_(fd) {}
  int fd_;
};

// The files of one job. Functions that write replace a file at once, so a reader sees the old
// content or the new one. Not thread-safe; other processes may use the directory at the same time.
class JobDirectory {
 public:
  // `state_directory` is usually ".sluice". Does not touch the file system. `files` must outlive
  // this.
  JobDirectory(FileSystem* files, absl::string_view state_directory, absl::string_view name);

  const std::string& path() const { return path_; }
  std::string logs() const { return JoinPath(path_, "logs"); }
  std::string run() const { return JoinPath(path_, "run"); }
  // The file with the run's secret, which its processes and clients present (mode 0600).
  std::string SecretFile() const { return JoinPath(run(), "secret"); }
  std::string checkpoints() const { return JoinPath(path_, "checkpoints"); }
  // The directory of the job's checkpoints: the one that it names, or else checkpoints().
  std::string CheckpointsOf(const v1::JobSpec& job) const;
  std::string LogFile(const policy::Replica& replica) const;

  // Creates the directory if it is missing, and takes the lock. ABORTED if and only if another
  // process has it: the message names that process; PERMISSION_DENIED and other errors name the
  // directory.
  absl::StatusOr<std::unique_ptr<JobLock>> Lock();
  // The process that has the lock; nullopt if it is free. Does not take the lock, so a concurrent
  // Lock does not fail.
  std::optional<pid_t> LockedBy() const;

  // Creates logs/ and run/, and empties run/, which only its user may read.
  absl::Status Prepare();
  // Removes run/ at the end of a run. OK if there is none.
  absl::Status RemoveRun();
  // Removes all files of the job but the lock, which the caller holds. Removes nothing outside
  // path().
  absl::Status Clear();

  // The job includes spec.uid. Read: NOT_FOUND if the job was never started; DATA_LOSS names a
  // damaged file.
  std::string JobFile() const { return JoinPath(path_, "job.json"); }
  absl::Status WriteJob(const api::TrainingJob& job);
  absl::StatusOr<api::TrainingJob> ReadJob() const;

  // `sluice scale` asks, and the process that runs the job takes the request; a newer one replaces
  // one that was not taken yet. Take: nullopt if there is none, or if it is damaged.
  absl::Status RequestSizes(const Sizes& sizes);
  std::optional<Sizes> TakeRequestedSizes();
  bool HasRequestedSizes() const;

  // How the last run ended. Read: NOT_FOUND if the job runs, or was never run to an end.
  absl::Status WriteResult(const cli::JobResult& result);
  absl::Status RemoveResult();
  absl::StatusOr<cli::JobResult> ReadResult() const;

 private:
  FileSystem* const files_;
  const std::string path_;
};

// Names of the jobs in a state directory, sorted. Empty if the directory does not exist.
std::vector<std::string> ListJobs(FileSystem* files, const std::string& state_directory);

// The last lines of a file, at most `count`, from at most its last 64 KiB, and only those written
// after its first `from` bytes. Empty if the file cannot be read. A file shorter than `from` was
// truncated: all of it is new.
std::vector<std::string> LastLines(const std::string& path, size_t count, uint64_t from = 0);

}  // namespace sluice::local

#endif  // SLUICE_CLI_LOCAL_JOB_DIRECTORY_H_
