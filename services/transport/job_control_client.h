#ifndef SLUICE_SERVICES_TRANSPORT_JOB_CONTROL_CLIENT_H_
#define SLUICE_SERVICES_TRANSPORT_JOB_CONTROL_CLIENT_H_

#include <grpcpp/security/credentials.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/jobcontrol.pb.h"

namespace sluice {

// Where a coordinator listens, and how to authenticate to it.
struct ControlAddress {
  std::string host_and_port;
  std::shared_ptr<grpc::ChannelCredentials> credentials;  // null: plain text without a secret
};

// Sends coordinators the desired state of their jobs, and polls their progress.
//
// Intuition. All calls are asynchronous and have deadlines, one at a time for each job: a
// coordinator that hangs or is gone blocks no thread and no other job. Desired state is sent until
// the coordinator has acknowledged it; then its progress is polled.
class JobControlClient {
 public:
  // The death of a process as the caller has seen it.
  using Death = v1::SetDesiredRequest::Death;

  struct Options {
    absl::Duration poll_interval = absl::Seconds(1);
    absl::Duration call_timeout = absl::Seconds(2);
    // A death that cannot be reported within this time is dropped: the coordinator also detects
    // deaths itself.
    absl::Duration deaths_last = absl::InfiniteDuration();
    // Whether progress has the events since the one before; of each batch its loss too.
    bool with_events = true;
    bool with_losses = false;
    // Asked, with a lock held, before desired state is sent; while it refuses, the progress is
    // still polled. Null: always allowed.
    std::function<bool()> may_send;
  };

  // Called on any thread, without locks, one call at a time for each job. `instance` is the one
  // that reported.
  using OnProgress = std::function<void(const std::string& job, const std::string& instance,
                                        v1::JobProgress progress)>;

  JobControlClient(Options options, OnProgress on_progress);
  // Cancels pending calls and waits for them.
  ~JobControlClient();

  JobControlClient(const JobControlClient&) = delete;
  JobControlClient& operator=(const JobControlClient&) = delete;

  // Sets the instance and address of the job's coordinator, and the desired state without deaths. A
  // new instance or address gets everything again, and its events are read from the beginning.
  // `deaths` have not been reported before. Any thread; never blocks, as the functions below.
  void Sync(const std::string& job, const std::string& instance, const ControlAddress& address,
            const v1::SetDesiredRequest& desired, std::vector<Death> deaths);
  // Makes no calls, and closes the connection, until the next Sync.
  void Pause(const std::string& job);
  // Ends everything for this job. Results of a call that is under way are dropped.
  void Forget(const std::string& job);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

// Asks a coordinator once. Blocks until it answers; without an answer before the deadline, returns
// gRPC's error.
absl::StatusOr<v1::JobProgress> AskForProgress(const ControlAddress& coordinator,
                                               const v1::GetProgressRequest& request,
                                               absl::Time deadline);

// As GetProgressRequest.events_after, asks for a progress without events.
inline constexpr uint64_t kNoEvents = ~uint64_t{0};

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_JOB_CONTROL_CLIENT_H_
