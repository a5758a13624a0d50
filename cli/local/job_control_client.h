// The connection of a local backend to the coordinator.
#ifndef SLUICE_CLI_LOCAL_JOB_CONTROL_CLIENT_H_
#define SLUICE_CLI_LOCAL_JOB_CONTROL_CLIENT_H_

#include <grpcpp/security/credentials.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "proto/jobcontrol.grpc.pb.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/mutex.h"
#include "services/protocol/desired_number.h"

namespace sluice::local {

// Runs on its own thread, with a deadline for every call: a coordinator that hangs or is gone
// blocks no other thread. The desired state is sent until the coordinator has acknowledged it.
class JobControlClient {
 public:
  struct Options {
    absl::Duration poll_interval = absl::Milliseconds(200);
    absl::Duration call_timeout = absl::Seconds(1);
    bool with_losses = false;  // of each batch too
    // Null: plain text without a secret.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
  };

  // `on_progress` is called on the client's thread, with the events since the previous call.
  JobControlClient(Options options, std::function<void(v1::JobProgress)> on_progress);
  // Waits for a pending call, at most its timeout.
  ~JobControlClient();

  JobControlClient(const JobControlClient&) = delete;
  JobControlClient& operator=(const JobControlClient&) = delete;

  // Sets the coordinator's address; empty: none. Then everything is sent again, and events are read
  // from the beginning.
  void SetAddress(std::string address);
  // Replaces the desired state, except for deaths.
  void SetDesired(uint32_t workers, uint32_t shards, bool suspend);
  // Sent immediately, but not before the first SetDesired.
  void ReportDeath(v1::SetDesiredRequest::Death death);

 private:
  void Loop();
  // Both return whether the coordinator answered.
  bool SendDesired(v1::JobControl::Stub* stub, uint64_t generation);
  bool PollProgress(v1::JobControl::Stub* stub, uint64_t generation);

  const Options options_;
  const std::function<void(v1::JobProgress)> on_progress_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;  // counts SetAddress
  v1::SetDesiredRequest desired_ ABSL_GUARDED_BY(mutex_);
  DesiredNumbers numbers_ ABSL_GUARDED_BY(mutex_);
  bool unsent_ ABSL_GUARDED_BY(mutex_) = false;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;  // SetDesired was called
  uint64_t events_seen_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t losses_seen_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace sluice::local

#endif  // SLUICE_CLI_LOCAL_JOB_CONTROL_CLIENT_H_
