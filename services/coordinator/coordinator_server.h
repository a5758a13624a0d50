// The coordinator's shell: threads, sockets and storage around CoordinatorCore.
//
// One serial executor guards the core. Control streams and JobControl calls pass their messages to
// it; a storage thread carries out the actions that block and reports their results. No lock is
// held while the core runs.

#ifndef SLUICE_SERVICES_COORDINATOR_COORDINATOR_SERVER_H_
#define SLUICE_SERVICES_COORDINATOR_COORDINATOR_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/jobcontrol.pb.h"
#include "services/checkpoint/storage.h"
#include "services/common/process/logging.h"
#include "services/common/process/metrics.h"
#include "services/coordinator/core/coordinator_core.h"
#include "services/coordinator/open_storage.h"
#include "services/transport/security/transport_security.h"

namespace sluice::coordinator {

class CoordinatorServer {
 public:
  struct Options {
    CoordinatorOptions core;
    std::string address = "127.0.0.1:0";  // host:port; port 0: any
    // Null: plain text.
    std::shared_ptr<const security::TransportSecurity> security;
    // Finds the other job's checkpoint with which this job begins; null: there is none.
    FindSource find_source;
    // How long GetProgress is still answered after the end, at most, so that a client that follows
    // the job sees how it ended.
    absl::Duration linger = absl::Seconds(2);
  };

  struct Result {
    ExitReason reason = ExitReason::kFailed;
    std::string message;
    v1::JobProgress progress;  // the last
  };

  // `storage`, `metrics` must outlive the server. UNAVAILABLE: the server cannot listen on the
  // address.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(Options options,
                                                                  CheckpointStorage* storage,
                                                                  Metrics* metrics, Logger logger);
  // Ends the coordinator at once if it still runs.
  virtual ~CoordinatorServer() = default;

  virtual int port() const = 0;

  // OK: it serves from its start to its end.
  virtual absl::Status Ready() const = 0;

  // OK while the core handles its events in time (Liveness). Any thread; does not block.
  virtual absl::Status Alive() = 0;

  // Suspends the job, as SetDesired with suspend does: checkpoint, then exit. Any thread.
  virtual void Suspend() = 0;

  // Exits soon, and leaves the job to the next coordinator (CoordinatorCore::OnAskedToStop). Any
  // thread.
  virtual void AskToStop() = 0;

  // Blocks until the core has ended and, unless it left (ExitReason::kLeft), a client has read the
  // final progress or the linger time is over.
  virtual Result Wait() = 0;
};

// All metrics of sluice-coordinator. Their names are an interface: alerts and dashboards use them.
std::vector<MetricDescriptor> CoordinatorMetrics();

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_COORDINATOR_SERVER_H_
