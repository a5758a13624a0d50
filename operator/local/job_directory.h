// The folder of a job on this machine, .sluice/<name>/:
//
//   lock           held (flock) and carrying the process id while `sluice run` runs the job
//   job.json       the job as it was last started, with its uid
//   result.json    how the last run ended
//   logs/          one file for each process, lives appended
//   run/           port files, the run's secret and what else only a running job needs
//   checkpoints/   unless the job names another place
#ifndef SLUICE_OPERATOR_LOCAL_JOB_DIRECTORY_H_
#define SLUICE_OPERATOR_LOCAL_JOB_DIRECTORY_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "operator/api/training_job.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/file_util.h"

namespace sluice::local {

// How a run ended; also what is known of the job then.
struct JobResult {
  policy::Outcome outcome = policy::Outcome::kSuspended;
  std::string reason;
  std::string time;  // RFC 3339
  uint64_t step = 0;
  uint64_t total_steps = 0;
  uint64_t samples = 0;
  uint64_t total_samples = 0;
  double epoch = 0;
  bool has_accuracy = false;
  double accuracy = 0;  // percent
  bool has_perplexity = false;
  double perplexity = 0;
  bool has_loss = false;
  double loss = 0;
  std::optional<v1::Evaluation> evaluation;  // the last
};

// Held until it is destroyed, or the process ends.
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

class JobDirectory {
 public:
  // `state_directory` is ".sluice" mostly. Touches nothing. `files` must outlive this.
  JobDirectory(FileSystem* files, absl::string_view state_directory, absl::string_view name);

  const std::string& path() const { return path_; }
  std::string logs() const { return JoinPath(path_, "logs"); }
  std::string run() const { return JoinPath(path_, "run"); }
  // Of the run's secret, which its processes and those who look into it show (mode 0600).
  std::string SecretFile() const { return JoinPath(run(), "secret"); }
  std::string checkpoints() const { return JoinPath(path_, "checkpoints"); }
  std::string LogFile(const policy::Slot& slot) const;

  // Makes the folder where it is missing, and takes the lock. ABORTED, and nothing else, if another
  // process has it, naming it; PERMISSION_DENIED and others name the folder.
  absl::StatusOr<std::unique_ptr<JobLock>> Lock();
  // The process that has the lock; none if nobody has, and then it can be taken. Asking refuses
  // nobody.
  std::optional<pid_t> LockedBy() const;

  // Makes logs/ and run/, and empties run/.
  absl::Status Prepare();
  // Removes everything of the job but the lock, which the caller holds. Nothing outside of path().
  absl::Status Clear();

  // With spec.uid. Read: NOT_FOUND if the job was never started; DATA_LOSS names a damaged file.
  absl::Status WriteJob(const api::TrainingJob& job);
  absl::StatusOr<api::TrainingJob> ReadJob() const;
  absl::Status WriteResult(const JobResult& result);
  absl::Status RemoveResult();
  absl::StatusOr<JobResult> ReadResult() const;

 private:
  FileSystem* const files_;
  const std::string path_;
};

// Names of the jobs in a state directory, sorted. Empty if there is none.
std::vector<std::string> ListJobs(FileSystem* files, const std::string& state_directory);

// "Succeeded", "Failed", "Suspended".
absl::string_view OutcomeName(policy::Outcome outcome);

// The last lines of a file, at most `count`, of at most the last 64 KiB, and only what was written
// behind its first `from` bytes. Empty if it cannot be read. A file that is shorter than `from` was
// begun again: all of it is new.
std::vector<std::string> LastLines(const std::string& path, size_t count, uint64_t from = 0);

}  // namespace sluice::local

#endif  // SLUICE_OPERATOR_LOCAL_JOB_DIRECTORY_H_
