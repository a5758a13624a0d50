#include "services/execution/shard/service.h"

#include <utility>

#include "services/common/status_macros.h"
#include "services/execution/payload.h"
#include "services/transport/grpc_status.h"
#include "services/transport/security/transport_security.h"

namespace sluice::stage {
template <typename Request, typename Reply, typename Call>
grpc::Status StageService::Answer(const grpc::ServerContext& context, const Request& request,
                                  Reply* reply, Call call) {
  RETURN_IF_ERROR(host_.CheckCaller(security::PeerOf(*context.auth_context()), request.worker()),
                  ToGrpcStatus(_));
  ASSIGN_OR_RETURN(*reply, (host_.*call)(request), ToGrpcStatus(_));
  on_payload_(PayloadOf(request), PayloadOf(*reply));
  return grpc::Status::OK;
}

grpc::Status StageService::Open(grpc::ServerContext* context, const v1::OpenStageRequest* request,
                                v1::OpenStageReply* reply) {
  return Answer(*context, *request, reply, &Host::Open);
}

grpc::Status StageService::Forward(grpc::ServerContext* context, const v1::ForwardRequest* request,
                                   v1::ForwardReply* reply) {
  return Answer(*context, *request, reply, &Host::Forward);
}

grpc::Status StageService::Backward(grpc::ServerContext* context,
                                    const v1::BackwardRequest* request, v1::BackwardReply* reply) {
  return Answer(*context, *request, reply, &Host::Backward);
}

grpc::Status StageService::ContextGradients(grpc::ServerContext* context,
                                            const v1::ContextGradientsRequest* request,
                                            v1::ContextGradientsReply* reply) {
  return Answer(*context, *request, reply, &Host::ContextGradients);
}

}  // namespace sluice::stage
