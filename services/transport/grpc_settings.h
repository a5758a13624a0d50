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

// What clients can make a server keep or wait for. A client that passes one of the first three is
// disconnected, with an error of gRPC's own (GOAWAY, or "Max stream count exceeded" in its log).
//
// Streams of one connection. A client of gRPC's makes further calls wait; a process of a job has
// one or two.
inline constexpr int kMaxStreamsPerConnection = 32;
// Pings in a row that come faster than one a second.
inline constexpr int kMaxHastyPings = 20;
// From a connection's begin until TLS and HTTP/2 are agreed on. Who says nothing is disconnected.
inline constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);
// Headers of a call. A call with more is refused; a process of a job sends some hundred bytes.
inline constexpr int kMaxMetadataBytes = 8192;
// A connection without a call is closed after this; gRPC's clients connect again.
inline constexpr absl::Duration kMaxIdleTime = absl::Minutes(10);

// What all connections of a server may keep in gRPC's buffers, unless it says otherwise: a quarter
// of the memory that this process may use (the machine's, or its control group's), from 512 MiB to
// 2 GiB. Beyond, gRPC reads less from each connection, then breaks calls off with
// RESOURCE_EXHAUSTED and disconnects ("Buffers full"); clients that hold to the contract come
// again. What gRPC 1.51 takes for a moment can be two and a half times that: headers that never end
// are copied (CONTINUATION frames, whose sizes it bounds one by one only).
size_t MaxServerBufferBytes();
// Of a coordinator, whose messages are small.
inline constexpr size_t kMaxCoordinatorBufferBytes = size_t{512} << 20;

// What a client may send ahead of the reader on a connection that measures its bandwidth (kBulk):
// gRPC 1.51's own limit. It begins with 64 KiB and grows with what the connection carries.
inline constexpr size_t kMaxBulkWindowBytes = size_t{32} << 20;

// The bounds above, receive limit, keepalive, and one owner for each port (a port in use is an
// error).
void ApplyServerSettings(ChannelKind kind, size_t max_message_bytes, size_t max_buffer_bytes,
                         grpc::ServerBuilder* builder);

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_GRPC_SETTINGS_H_
