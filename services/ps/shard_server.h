// The shard's shell: threads, sockets and files around ShardCore.
//
// One serial executor guards the core. A small frame is handled on the thread that read it, a large
// one on the executor's thread; a separate thread writes and reads files and reports back.
#ifndef SLUICE_SERVICES_PS_SHARD_SERVER_H_
#define SLUICE_SERVICES_PS_SHARD_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/common/io/file_util.h"
#include "services/common/process/logging.h"
#include "services/common/process/metrics.h"
#include "services/protocol/member_exit.h"
#include "services/ps/core/shard_core.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/server/grpc_server.h"

namespace sluice::ps {

class ShardServer {
 public:
  struct Options {
    ShardOptions core;
    // Additional services on the same port; must outlive the server.
    std::vector<GrpcServer::Service*> services;
    std::string listen_address = "127.0.0.1:0";  // host:port; port 0: any
    // The address at which workers reach it; without a port: the one that it listens on.
    std::string advertised_address = "127.0.0.1";
    // Takes the shared memory that clients of this machine offer.
    bool shared_memory = true;
    std::string coordinator;  // host:port
    // Null: plain text.
    std::shared_ptr<const security::TransportSecurity> security;
    // Threads for the arithmetic of large closes, the calling one included; 1: no additional
    // thread.
    int compute_threads = 1;
  };

  struct Result {
    ExitReason reason = ExitReason::kFailed;
    std::string message;
  };

  // `files` and `metrics` must outlive the server. UNAVAILABLE if it cannot listen on the address.
  static absl::StatusOr<std::unique_ptr<ShardServer>> Start(Options options, FileSystem* files,
                                                            Metrics* metrics, Logger logger);
  // Ends the shard at once if it still runs.
  virtual ~ShardServer() = default;

  virtual int port() const = 0;

  // OK while the shard has a view, else UNAVAILABLE. Any thread.
  virtual absl::Status Ready() const = 0;

  // Blocks until the core has ended.
  virtual Result Wait() = 0;
  // Asks to leave within `grace`: ShardCore::OnAskedToStop. Any thread.
  virtual void Leave(std::string reason, absl::Duration grace) = 0;
  // Ends at once, as if it had left (a second SIGTERM). Any thread.
  virtual void Abandon(std::string reason) = 0;

  // OK while the core keeps handling its events (Liveness). Any thread; does not block.
  virtual absl::Status Alive() = 0;
};

// All metrics of sluice-ps. Their names are an interface: alerts and dashboards use them.
std::vector<MetricDescriptor> ShardMetrics();

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_SHARD_SERVER_H_
