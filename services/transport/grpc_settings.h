#ifndef SLUICE_SERVICES_TRANSPORT_GRPC_SETTINGS_H_
#define SLUICE_SERVICES_TRANSPORT_GRPC_SETTINGS_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/time/time.h"

// How Sluice sets up gRPC, in one place.

namespace sluice {

struct GrpcProcessOptions {
  // gRPC 1.51's own flow control and framing experiments: bulk transfers are 30 to 55 % faster with
  // them.
  bool experiments = true;
  // The process moves gradients and parameters. Freed memory stays with it: the next step needs as
  // much again, and fresh pages cost more than what is done with them (a fifth of pushing and
  // pulling 100 MiB).
  bool data_plane = true;
};

// To be called in main before anything else of gRPC and before there are other threads (it sets
// an environment variable that gRPC reads once). A GRPC_EXPERIMENTS that the user has set is left
// alone.
void ConfigureGrpcProcess(const GrpcProcessOptions& options);

// What a channel is for. Channels of different kinds never share a connection, so that a heartbeat
// does not queue behind 100 MiB.
enum class ChannelKind { kControl, kBulk };

struct ChannelOptions {
  std::string address;  // host:port
  ChannelKind kind = ChannelKind::kControl;
  // Null: plain text. Else the other side must show the certificate of a shard (kBulk) or of the
  // coordinator (kControl), wherever it is.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  // One attempt to connect is given up after this; a call that waits for it then fails with
  // UNAVAILABLE.
  absl::Duration connect_timeout = absl::Seconds(5);
  // 0: a frame for kBulk, kMaxControlMessageBytes for kControl.
  size_t max_message_bytes = 0;
};

// A view of a large job, its tensor table and its ledger fit with room to spare.
inline constexpr size_t kMaxControlMessageBytes = size_t{16} << 20;

// Does not connect yet. Every channel is a connection of its own.
std::shared_ptr<grpc::Channel> MakeChannel(const ChannelOptions& options);

// Receive limit, keepalive, and one owner for each port (a port in use is an error).
void ApplyServerSettings(size_t max_message_bytes, grpc::ServerBuilder* builder);

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_GRPC_SETTINGS_H_
