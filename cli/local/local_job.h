// Runs a job as processes of this machine.
//
// It uses the same policy as on a cluster (operator/policy) with another backend: it observes the
// children and the coordinator's last progress, and acts with fork, kill and SetDesired. One loop
// gathers, decides and acts; it never waits for the coordinator, because a separate thread makes
// the calls to it.
#ifndef SLUICE_CLI_LOCAL_LOCAL_JOB_H_
#define SLUICE_CLI_LOCAL_LOCAL_JOB_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/common/job_result.h"
#include "cli/local/child_processes.h"
#include "cli/local/job_directory.h"
#include "operator/policy/policy.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/threads/mutex.h"
#include "services/common/time/clock.h"
#include "services/manifest/training_job.h"
#include "services/transport/job_control_client.h"

namespace sluice::local {

// Paths of the executables.
struct Programs {
  std::string coordinator;
  std::string shard;
  std::string worker;
};

// One replica, for listeners.
struct ProcessInfo {
  pid_t pid = 0;
  bool running = false;
  uint32_t restarts = 0;
  policy::Exit exit;  // if it is not running and pid is not 0
};

// Called on the thread of Run. Calls should return soon: the handling of deaths waits for them.
class JobListener {
 public:
  virtual ~JobListener() = default;
  virtual void OnProcessStarted(const policy::Replica& replica, pid_t pid) = 0;
  virtual void OnProcessEnded(const policy::Replica& replica, pid_t pid,
                              const policy::Exit& exit) = 0;
  // With the events since the last call.
  virtual void OnProgress(const v1::JobProgress& progress) = 0;
  // The outcome of the job is decided; later calls are consequences of it. At most once.
  virtual void OnOutcome(const policy::Outcome& outcome) = 0;
  // At intervals (Options::tick_interval), and after each of the calls above.
  virtual void OnTick(const std::map<policy::Replica, ProcessInfo>& processes) = 0;
};

// Gives the job's processes addresses that lead through a relay. Called on the thread of Run.
class Links {
 public:
  virtual ~Links() = default;
  // The address that takes the place of the coordinator's, which listens on this port.
  virtual absl::StatusOr<std::string> CoordinatorAddress(int port) = 0;
  // The address of a new instance of a shard, which will write its port to the file.
  virtual absl::StatusOr<std::string> ShardAddress(uint32_t index,
                                                   const std::string& port_file) = 0;
};

// Whether the program of a worker on the terminal was ended by Ctrl-C.
bool EndedByCtrlC(const policy::Replica& replica, const policy::Exit& exit);

// One run of a job. The thread of Run decides; ChildProcesses and JobControlClient report to its
// inbox from their own threads.
class LocalJob {
 public:
  struct Options {
    api::TrainingJob job;  // with uid and checkpoint directory
    Programs programs;
    std::string log_level = "info";
    int port = 0;  // the coordinator's; 0: any
    // The working directory of spec.worker.command: the manifest's directory. Empty: that of this
    // process.
    std::string command_directory;
    policy::Limits limits;
    absl::Duration tick_interval = absl::Milliseconds(200);
    JobControlClient::Options control{.poll_interval = absl::Milliseconds(200),
                                      .call_timeout = absl::Seconds(1)};
    // The program of worker 0 runs on the terminal of this process, for a debugger: no process is
    // lost because the program waits, and the terminal's Ctrl-C, which ends it, suspends the job.
    bool foreground = false;
    // Null: the processes are connected directly. Must outlive the job.
    Links* links = nullptr;
  };

  // `directory` is prepared and locked. It, `files`, `listener` and `clock` must outlive the job.
  LocalJob(Options options, FileSystem* files, JobDirectory* directory, JobListener* listener,
           const Clock* clock);
  ~LocalJob();

  LocalJob(const LocalJob&) = delete;
  LocalJob& operator=(const LocalJob&) = delete;

  // Blocks until the job has ended and no process is left. To be called once.
  cli::JobResult Run();

  // The last lines, at most `count`, that the newest instance of the replica has logged. On the
  // thread of Run, or after it.
  std::vector<std::string> LastLogLines(const policy::Replica& replica, size_t count) const;

  // Sends a signal to a process of the job; no effect if it has ended. To be called by the
  // listener.
  void Signal(pid_t pid, int signal);

  // Any thread. Suspend: save a checkpoint and end; StopNow: end immediately.
  void Suspend();
  void StopNow();
  // From now on the job has these numbers of shards and workers. Requires that its manifest's rules
  // allow them.
  void Scale(const Sizes& sizes);

 private:
  // Reports of other threads that Run has not handled yet.
  struct Inbox {
    std::vector<ChildProcesses::End> ends;
    std::vector<v1::JobProgress> progress;
    std::optional<Sizes> sizes;
    bool suspend = false;
    bool stop_now = false;
    bool empty() const {
      return ends.empty() && progress.empty() && !sizes.has_value() && !suspend && !stop_now;
    }
  };

  // Writes the job for the coordinator into the directory of the run.
  absl::Status WriteJobFile();
  // Waits for reports of other threads, at most until then, and takes them.
  Inbox WaitForNews(absl::Time until);

  // ---- the news
  void Handle(const Inbox& inbox);
  void HandleSizes(const Sizes& sizes);
  void HandleEnd(const ChildProcesses::End& end);
  void HandleProgress(const v1::JobProgress& progress);
  // Reads from the coordinator's report which processes are registered.
  void ReadRegistrations(const v1::JobProgress& progress);
  // Reads the coordinator's port once it has written it. Then the other processes may start.
  void ReadCoordinatorPort();
  // The coordinator's last progress, from its status file, which may be newer than its last report.
  void ReadFinalProgress();
  // Carries out the policy's decision.
  void Apply(const policy::Decision& decision);
  // Loads the worker's program if several starts share it; returns whether the start waits for
  // that.
  bool WaitsToBeForked(const policy::Replica& replica);
  // Starts a process and notes it in `world_`; a start that fails counts as exit code 127.
  void Start(const policy::Replica& replica);
  // Starts the replica's program, or the user's own.
  absl::StatusOr<pid_t> StartProgram(const policy::Replica& replica);
  std::vector<std::string> ArgumentsFor(const policy::Replica& replica) const;
  // The command line of the user's own program, with the variables that it needs.
  std::vector<std::string> CommandFor(const policy::Replica& replica) const;
  // Threads for a worker: its share of the machine, unless the job says otherwise.
  int WorkerThreads() const;
  // The processes, for the listener.
  std::map<policy::Replica, ProcessInfo> View() const;
  // A file of this replica in the directory of the run.
  std::string RunFile(const policy::Replica& replica, const char* what) const;

  const Options options_;
  FileSystem* const files_;
  JobDirectory* const directory_;
  JobListener* const listener_;
  const Clock* const clock_;
  const std::string secret_;  // of this run
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  policy::JobPlan plan_;
  const policy::Limits limits_;

  // Used only by the thread of Run.
  policy::Observation world_;
  policy::Memory memory_;
  // The size of each log when the newest instance of its replica began.
  std::map<policy::Replica, uint64_t> log_begins_;
  // Incarnations that were registered before the newest instance of the replica began.
  std::map<policy::Replica, std::set<uint64_t>> earlier_incarnations_;
  v1::JobProgress progress_;
  bool has_progress_ = false;
  uint64_t instances_ = 0;
  std::vector<JobControlClient::Death> deaths_;  // that wait for the coordinator's address
  int port_ = 0;

  Mutex mutex_;
  CondVar news_;
  Inbox inbox_ ABSL_GUARDED_BY(mutex_);

  // The threads of these use the members above.
  std::unique_ptr<JobControlClient> control_;
  std::unique_ptr<ChildProcesses> children_;
};

}  // namespace sluice::local

#endif  // SLUICE_CLI_LOCAL_LOCAL_JOB_H_
