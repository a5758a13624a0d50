// The gRPC service Stage over a Host.
#ifndef SLUICE_SERVICES_EXECUTION_SHARD_SERVICE_H_
#define SLUICE_SERVICES_EXECUTION_SHARD_SERVICE_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "proto/stage.grpc.pb.h"
#include "services/execution/shard/host.h"

namespace sluice::stage {

// Each call computes on the thread that gRPC gave it. `host` must outlive it. `on_payload` receives
// the bytes of tensors that each call has received and sent, on the call's thread.
class StageService final : public v1::Stage::Service {
 public:
  using PayloadListener = std::function<void(uint64_t received, uint64_t sent)>;

  // The server must accept messages of kMaxStageMessageBytes.
  StageService(Host* host, PayloadListener on_payload)
      : host_(*host), on_payload_(std::move(on_payload)) {}

  // Host's errors. PERMISSION_DENIED, without any effect, if the caller's certificate is not that
  // of the worker that the request names.
  grpc::Status Open(grpc::ServerContext* context, const v1::OpenStageRequest* request,
                    v1::OpenStageReply* reply) override;
  grpc::Status Forward(grpc::ServerContext* context, const v1::ForwardRequest* request,
                       v1::ForwardReply* reply) override;
  grpc::Status Backward(grpc::ServerContext* context, const v1::BackwardRequest* request,
                        v1::BackwardReply* reply) override;
  grpc::Status ContextGradients(grpc::ServerContext* context,
                                const v1::ContextGradientsRequest* request,
                                v1::ContextGradientsReply* reply) override;

 private:
  // Every request names its worker.
  template <typename Request, typename Reply, typename Call>
  grpc::Status Answer(const grpc::ServerContext& context, const Request& request, Reply* reply,
                      Call call);

  Host& host_;
  const PayloadListener on_payload_;
};

}  // namespace sluice::stage

#endif  // SLUICE_SERVICES_EXECUTION_SHARD_SERVICE_H_
