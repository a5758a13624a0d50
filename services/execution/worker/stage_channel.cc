#include "services/execution/worker/stage_channel.h"

#include <grpcpp/client_context.h>

#include <utility>

#include "absl/time/clock.h"
#include "proto/stage.grpc.pb.h"
#include "services/execution/payload.h"
#include "services/execution/stage_limits.h"
#include "services/transport/grpc_settings.h"
#include "services/transport/grpc_status.h"

namespace sluice {
namespace {

// Longer than any pass takes; if a shard is gone, the connection reports it.
constexpr absl::Duration kDeadline = absl::Minutes(10);

class GrpcStageChannel final : public StageChannel {
 public:
  GrpcStageChannel(const std::string& address,
                   std::shared_ptr<grpc::ChannelCredentials> credentials,
                   PayloadListener on_payload)
      : on_payload_(std::move(on_payload)),
        stub_(
            v1::Stage::NewStub(MakeChannel({.address = address,
                                            .kind = ChannelKind::kBulk,
                                            .credentials = std::move(credentials),
                                            .max_message_bytes = stage::kMaxStageMessageBytes}))) {}

  absl::StatusOr<v1::OpenStageReply> Open(const v1::OpenStageRequest& request) override {
    return Call<v1::OpenStageReply>(request, &v1::Stage::Stub::Open);
  }
  absl::StatusOr<v1::ForwardReply> Forward(const v1::ForwardRequest& request) override {
    return Call<v1::ForwardReply>(request, &v1::Stage::Stub::Forward);
  }
  absl::StatusOr<v1::BackwardReply> Backward(const v1::BackwardRequest& request) override {
    return Call<v1::BackwardReply>(request, &v1::Stage::Stub::Backward);
  }
  absl::StatusOr<v1::ContextGradientsReply> ContextGradients(
      const v1::ContextGradientsRequest& request) override {
    return Call<v1::ContextGradientsReply>(request, &v1::Stage::Stub::ContextGradients);
  }

 private:
  template <typename Reply, typename Request, typename Method>
  absl::StatusOr<Reply> Call(const Request& request, Method method) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kDeadline));
    Reply reply;
    const grpc::Status status = (stub_.get()->*method)(&context, request, &reply);
    if (!status.ok()) return FromGrpcStatus(status);
    if (on_payload_) on_payload_(stage::PayloadOf(request), stage::PayloadOf(reply));
    return reply;
  }

  const PayloadListener on_payload_;
  const std::unique_ptr<v1::Stage::Stub> stub_;
};

}  // namespace

std::unique_ptr<StageChannel> ConnectStage(const std::string& address,
                                           std::shared_ptr<grpc::ChannelCredentials> credentials,
                                           PayloadListener on_payload) {
  return std::make_unique<GrpcStageChannel>(address, std::move(credentials), std::move(on_payload));
}

}  // namespace sluice
