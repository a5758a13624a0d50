// The gRPC service Stage over a Host.
#ifndef SLUICE_SERVICES_STAGE_SERVICE_H_
#define SLUICE_SERVICES_STAGE_SERVICE_H_

#include "proto/stage.grpc.pb.h"
#include "services/stage/host.h"

namespace sluice::stage {

// Each call computes on the thread that gRPC gave it. `host` must outlive it.
class StageService final : public v1::Stage::Service {
 public:
  explicit StageService(Host* host) : host_(*host) {}

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
  Host& host_;
};

}  // namespace sluice::stage

#endif  // SLUICE_SERVICES_STAGE_SERVICE_H_
