#include "services/stage/service.h"

#include <utility>

#include "services/transport/grpc_status.h"

namespace sluice::stage {
namespace {

template <typename Reply>
grpc::Status Answer(absl::StatusOr<Reply> result, Reply* reply) {
  if (!result.ok()) return ToGrpcStatus(result.status());
  *reply = *std::move(result);
  return grpc::Status::OK;
}

}  // namespace

grpc::Status StageService::Open(grpc::ServerContext*, const v1::OpenStageRequest* request,
                                v1::OpenStageReply* reply) {
  return Answer(host_.Open(*request), reply);
}

grpc::Status StageService::Forward(grpc::ServerContext*, const v1::ForwardRequest* request,
                                   v1::ForwardReply* reply) {
  return Answer(host_.Forward(*request), reply);
}

grpc::Status StageService::Backward(grpc::ServerContext*, const v1::BackwardRequest* request,
                                    v1::BackwardReply* reply) {
  return Answer(host_.Backward(*request), reply);
}

grpc::Status StageService::ContextGradients(grpc::ServerContext*,
                                            const v1::ContextGradientsRequest* request,
                                            v1::ContextGradientsReply* reply) {
  return Answer(host_.ContextGradients(*request), reply);
}

}  // namespace sluice::stage
