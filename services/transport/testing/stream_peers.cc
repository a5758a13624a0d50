#include "services/transport/testing/stream_peers.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "services/transport/grpc_settings.h"

namespace sluice {
namespace {

// As in the programs: gRPC reads its experiments once, before the first test.
const bool kConfigured = (ConfigureGrpcProcess({}), true);

}  // namespace

v1::Header PullHeader(uint64_t version) {
  v1::Header header;
  header.mutable_pull()->set_version(version);
  return header;
}

v1::Header DataHeader(uint64_t version, size_t bytes) {
  v1::Header header;
  header.mutable_data()->set_version(version);
  if (bytes > 0) header.mutable_data()->add_blocks()->set_payload_bytes(bytes);
  return header;
}

void Echo(StreamServer* streams, StreamId stream, const DecodedFrame& frame) {
  streams->Send(stream, frame.header, frame.payload);
}

std::unique_ptr<v1::ParameterServer::Stub> GeneratedStub(const std::string& address) {
  return v1::ParameterServer::NewStub(
      grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

}  // namespace sluice
