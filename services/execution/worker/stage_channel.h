// A worker's connection to the service Stage of one shard.
#ifndef SLUICE_SERVICES_EXECUTION_WORKER_STAGE_CHANNEL_H_
#define SLUICE_SERVICES_EXECUTION_WORKER_STAGE_CHANNEL_H_

#include <grpcpp/security/credentials.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/stage.pb.h"

namespace sluice {

// Calls block until they are answered. One thread at a time. Errors are the shard's own
// (proto/stage.proto), UNAVAILABLE if there is no connection, and DEADLINE_EXCEEDED after ten
// minutes.
class StageChannel {
 public:
  virtual ~StageChannel() = default;

  virtual absl::StatusOr<v1::OpenStageReply> Open(const v1::OpenStageRequest& request) = 0;
  virtual absl::StatusOr<v1::ForwardReply> Forward(const v1::ForwardRequest& request) = 0;
  virtual absl::StatusOr<v1::BackwardReply> Backward(const v1::BackwardRequest& request) = 0;
  virtual absl::StatusOr<v1::ContextGradientsReply> ContextGradients(
      const v1::ContextGradientsRequest& request) = 0;
};

// Does not connect yet.
using StageConnector = std::function<std::unique_ptr<StageChannel>(const std::string& address)>;

// Receives the bytes of tensors in each call, on the call's thread.
using PayloadListener = std::function<void(uint64_t sent, uint64_t received)>;

// Over gRPC. Null credentials: in plain text. `on_payload` may be null.
std::unique_ptr<StageChannel> ConnectStage(const std::string& address,
                                           std::shared_ptr<grpc::ChannelCredentials> credentials,
                                           PayloadListener on_payload);

}  // namespace sluice

#endif  // SLUICE_SERVICES_EXECUTION_WORKER_STAGE_CHANNEL_H_
