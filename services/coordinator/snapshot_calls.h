// The open calls of JobControl.OpenSnapshot. A call carries one Snapshot, and lasts until its
// reader or the core ends it: so the version of a reader that dies or loses its network is
// released.

#ifndef SLUICE_SERVICES_COORDINATOR_SNAPSHOT_CALLS_H_
#define SLUICE_SERVICES_COORDINATOR_SNAPSHOT_CALLS_H_

#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/jobcontrol.pb.h"
#include "services/common/threads/mutex.h"
#include "services/transport/server/grpc_server.h"

namespace sluice::coordinator {

// Pass it to the GrpcServer together with the generated service. Thread-safe; only Stopped blocks.
class SnapshotCalls final : public GrpcServer::Service {
 public:
  // `on_ended` is called once for each call, after its reader ended it or its last answer was sent;
  // on a gRPC thread.
  explicit SnapshotCalls(std::function<void(uint64_t call)> on_ended)
      : on_ended_(std::move(on_ended)) {}

  // For the generated service's method. `call`: its number, from 1, never used twice.
  grpc::ServerWriteReactor<v1::Snapshot>* Accept(grpc::CallbackServerContext* context,
                                                 uint64_t* call);

  // As coordinator::AnswerSnapshot. No effect on a call that has ended.
  void Answer(uint64_t call, absl::StatusOr<v1::Snapshot> snapshot);
  // Sends `why` to all open calls as their last answer.
  void EndAll(const absl::Status& why);

  // GrpcServer::Service; the generated service is registered separately.
  void Register(grpc::ServerBuilder*) override {}
  void Stopping() override { EndAll(absl::UnavailableError("the coordinator is stopping")); }
  // Blocks until all calls have ended.
  void Stopped() override;

 private:
  // The reactor of one open call.
  class Call;

  // Null: the call has ended.
  std::shared_ptr<Call> Find(uint64_t call);
  // Removes the call from the table. It is destroyed once no thread answers it.
  void Forget(uint64_t call);

  const std::function<void(uint64_t call)> on_ended_;
  Mutex mutex_;  // protects the table; not held when calls or on_ended_ are called
  CondVar ended_;
  std::map<uint64_t, std::shared_ptr<Call>> open_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::coordinator

#endif  // SLUICE_SERVICES_COORDINATOR_SNAPSHOT_CALLS_H_
