#ifndef SLUICE_SERVICES_TRANSPORT_SERVER_BOUNDED_MESSAGE_H_
#define SLUICE_SERVICES_TRANSPORT_SERVER_BOUNDED_MESSAGE_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/method_handler.h>

#include <cstddef>

#include "absl/status/status.h"
#include "services/transport/grpc_status.h"

// A message of the control plane whose memory is bounded before it is parsed.
//
// Intuition. An element of a list, or an unknown field, may have two bytes on the wire and take a
// hundred in memory: without this bound, a message within the transport's limit could take a
// gigabyte.

namespace sluice {

// The most memory of a parsed message. A table of 150,000 tensors fits.
inline constexpr size_t kMaxParsedBytes = size_t{64} << 20;

// Whether a message of this type takes at most `max_bytes` in memory, counted roughly and with the
// largest sizes; RESOURCE_EXHAUSTED if not. Reads no more of the message than fits. Of a malformed
// message it counts what the parser reads before it fails.
absl::Status CheckParsedSize(const google::protobuf::Descriptor& type, const grpc::ByteBuffer& wire,
                             size_t max_bytes);

// A message to a stream or a call: `message` is empty if it would not fit.
template <typename Message, size_t max_bytes = kMaxParsedBytes>
struct Bounded {
  // First: grpc_server.cc reads a received message by the address of this struct.
  Message message;
  absl::Status fits;
};

// Limit for a request with a few numbers and names.
inline constexpr size_t kMaxSmallRequestBytes = size_t{64} << 10;

// A service whose methods are added one by one, in place of the generated one. Requests are bounded
// like those of a stream: one over its bound is answered with RESOURCE_EXHAUSTED, and `call` does
// not run.
class BoundedService final : public grpc::Service {
 public:
  // `call` runs on gRPC's threads and may block: grpc::Status(grpc::ServerContext*, const Request*,
  // Reply*).
  template <typename Request, typename Reply, size_t max_bytes = kMaxParsedBytes, typename Call>
  void AddUnary(const char* method, Call call) {
    using Received = Bounded<Request, max_bytes>;
    AddMethod(new grpc::internal::RpcServiceMethod(
        method, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::RpcMethodHandler<BoundedService, Received, Reply>(
            [call](BoundedService*, grpc::ServerContext* context, const Received* request,
                   Reply* reply) -> grpc::Status {
              if (!request->fits.ok()) return ToGrpcStatus(request->fits);
              return call(context, &request->message, reply);
            },
            this)));
    ++methods_;
  }

  // `handler`: of gRPC's callback API, for Bounded requests.
  void AddCallback(const char* method, grpc::internal::RpcMethod::RpcType type,
                   grpc::internal::MethodHandler* handler) {
    AddMethod(new grpc::internal::RpcServiceMethod(method, type, nullptr));
    MarkMethodCallback(methods_++, handler);
  }

 private:
  int methods_ = 0;
};

}  // namespace sluice

namespace grpc {

template <typename Message, size_t max_bytes>
class SerializationTraits<sluice::Bounded<Message, max_bytes>> {
 public:
  static Status Deserialize(ByteBuffer* wire, sluice::Bounded<Message, max_bytes>* to) {
    to->fits = sluice::CheckParsedSize(*Message::descriptor(), *wire, max_bytes);
    if (to->fits.ok()) return SerializationTraits<Message>::Deserialize(wire, &to->message);
    wire->Clear();
    return Status::OK;
  }
};

}  // namespace grpc

#endif  // SLUICE_SERVICES_TRANSPORT_SERVER_BOUNDED_MESSAGE_H_
