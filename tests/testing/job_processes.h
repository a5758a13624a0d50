// A job's real programs, started one by one, for tests and benchmarks that want to decide
// themselves who lives and who dies. (What `sluice run` does with them is tested through `sluice
// run`.)

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
    v1::JobSpec job;     // name is needed; uid and checkpoint directory are filled in if empty
    std::string folder;  // for logs, port files and checkpoints; must exist
    // Path of the program that is started as a worker, relative to `programs`; empty:
    // sluice-worker.
    std::string worker_program;
    // The same for shards; empty: sluice-ps, or sluice-ps-torch where the job's layers are computed
    // by its shards.
    std::string shard_program;
    // The same for coordinators; empty: sluice-coordinator.
    std::string coordinator_program;
    // Members that the job file has in front of the job's own: `"newField": 1,`.
    std::string more_of_job;
    std::string coordinator;  // host:port of one that lives already; empty: StartCoordinator
    // Folders of credentials as security::WriteCredentialFolders makes them, one of each process's
    // name; empty: plain text with a secret.
    std::string tls_folders;
    // Of a coordinator that lives already; empty: one of its own, in the folder.
    std::string secret_file;
    std::string programs;  // folder that holds services/coordinator/sluice-coordinator, ...; empty:
                           // Bazel's runfiles
  };

  explicit JobProcesses(Options options);
  // Kills what lives.
  ~JobProcesses();

  JobProcesses(const JobProcesses&) = delete;
  JobProcesses& operator=(const JobProcesses&) = delete;

  const v1::JobSpec& job() const { return options_.job; }
  std::string JobName() const;

  // Each waits until the program has said where it listens, where it does. A name is "coordinator",
  // "ps-0", "worker-1". One that has ended may be started again.
  //
  // A coordinator that ends with kExitRetry is started again for up to 20 s, as by every process
  // manager: where its predecessor listened, a connection of another process may be for a moment.
  absl::Status StartCoordinator();
  absl::Status StartShard(uint32_t index);
  absl::Status StartWorker(uint32_t index, std::vector<std::string> flags = {});
  absl::Status StartAll();

  bool Lives(const std::string& name);
  // Of the newest life, if it has ended (128 + signal).
  std::optional<int> ExitCode(const std::string& name);
  pid_t pid(const std::string& name) const;
  // kill(2).
  void Signal(const std::string& name, int signal);
  // SIGKILL, and reaped; with `report`, the coordinator is told at once, as a process manager
  // would.
  absl::Status Kill(const std::string& name, bool report);
  // The exit code (128 + signal), or DEADLINE_EXCEEDED.
  absl::StatusOr<int> WaitForExit(const std::string& name, absl::Duration timeout);

  absl::StatusOr<v1::JobProgress> Progress();
  absl::Status SetDesired(const v1::SetDesiredRequest& request);
  // Asks for a checkpoint and an end; does not wait for them.
  absl::Status Suspend();
  // Polls until `condition` holds; DEADLINE_EXCEEDED with the last progress if it does not.
  absl::StatusOr<v1::JobProgress> WaitFor(absl::FunctionRef<bool(const v1::JobProgress&)> condition,
                                          absl::Duration timeout);

  // host:port; empty before it was started.
  std::string coordinator_address() const { return coordinator_address_; }
  // Of the run's secret; empty under TLS.
  const std::string& secret_file() const { return options_.secret_file; }
  // Of a client that knows the secret, or under TLS is the operator.
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
