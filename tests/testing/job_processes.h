// A job's real programs, started one by one, for tests and benchmarks that decide themselves when
// each process starts and dies. (Tests of what `sluice run` does with them use `sluice run`.)

#ifndef SLUICE_TESTS_TESTING_JOB_PROCESSES_H_
#define SLUICE_TESTS_TESTING_JOB_PROCESSES_H_

#include <grpcpp/security/credentials.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/transport/polled_channel.h"

namespace sluice::testing {

class JobProcesses {
 public:
  struct Options {
    v1::JobSpec job;        // name is needed; uid, checkpoint directory and copies (1) are filled
                            // in if unset
    std::string directory;  // for logs, port files and checkpoints; must already exist
    // The worker program, relative to `programs`; empty: sluice-worker.
    std::string worker_program;
    // The shard program; empty: sluice-ps, or sluice-ps-torch if the shards compute the job's
    // layers.
    std::string shard_program;
    // The coordinator program; empty: sluice-coordinator.
    std::string coordinator_program;
    // A JSON merge patch on the job file: `{"newField": 1}`.
    std::string more_of_job;
    std::string coordinator;  // host:port of a running coordinator; empty: use StartCoordinator
    // Parent of the credential directories that security::WriteCredentialDirectories makes, one for
    // each process, with its name; empty: plain text with a secret.
    std::string tls_directories;
    // The secret file of a running coordinator; empty: a new one in the directory.
    std::string secret_file;
    std::string programs;  // directory that holds services/coordinator/sluice-coordinator, ...;
                           // empty: Bazel's runfiles
  };

  explicit JobProcesses(Options options);
  // Kills the processes that still run.
  ~JobProcesses();

  JobProcesses(const JobProcesses&) = delete;
  JobProcesses& operator=(const JobProcesses&) = delete;

  const v1::JobSpec& job() const { return options_.job; }
  std::string JobName() const;

  // Start a process; if it is a server, wait until it listens. Names are "coordinator", "ps-0",
  // "worker-1". A process that has ended may be started again.
  //
  // A coordinator that exits with kExitRetry is started again for up to 20 s, as every process
  // manager does: a connection of another process may briefly occupy its predecessor's port.
  absl::Status StartCoordinator();
  absl::Status StartShard(uint32_t index);
  absl::Status StartWorker(uint32_t index, std::vector<std::string> flags = {});
  absl::Status StartAll();

  bool Lives(const std::string& name);
  // The exit code (or 128 + signal) of the process's newest instance; nullopt if it has not ended.
  std::optional<int> ExitCode(const std::string& name);
  pid_t pid(const std::string& name) const;
  // Sends the signal.
  void Signal(const std::string& name, int signal);
  // Sends SIGKILL and reaps the process; with `report`, informs the coordinator at once, as a
  // process manager would.
  absl::Status Kill(const std::string& name, bool report);
  // The exit code (or 128 + signal); DEADLINE_EXCEEDED if the process does not end in time.
  absl::StatusOr<int> WaitForExit(const std::string& name, absl::Duration timeout);

  absl::StatusOr<v1::JobProgress> Progress();
  absl::Status SetDesired(const v1::SetDesiredRequest& request);
  // Asks for a checkpoint and the end of the job; does not wait for them.
  absl::Status Suspend();
  // Polls until `condition` holds; DEADLINE_EXCEEDED with the last progress if it does not.
  absl::StatusOr<v1::JobProgress> WaitFor(absl::FunctionRef<bool(const v1::JobProgress&)> condition,
                                          absl::Duration timeout);

  // host:port; empty before the coordinator has started.
  std::string coordinator_address() const { return coordinator_address_; }
  // The file with the job's secret; empty under TLS.
  const std::string& secret_file() const { return options_.secret_file; }
  // Credentials of a client with the secret, or under TLS of the operator.
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials() const;
  std::string LogFile(const std::string& name) const;
  std::string checkpoints() const { return options_.job.checkpoint().directory(); }

 private:
  absl::Status TryToStartCoordinator();
  absl::Status OpenControl();
  absl::Status Spawn(const std::string& name, std::vector<std::string> arguments);
  absl::StatusOr<int> ReadPort(const std::string& name, absl::Duration timeout);
  std::string Program(const std::string& role) const;

  Options options_;
  std::map<std::string, pid_t> living_;
  std::map<std::string, int> exit_codes_;
  std::string coordinator_address_;
  std::unique_ptr<PolledChannel> control_;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_TESTING_JOB_PROCESSES_H_
