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

// The settings that differ between the programs of a job.
struct GrpcProcessOptions {
  // gRPC 1.51's own flow control and framing experiments: bulk transfers are 30 to 55 % faster with
  // them.
  bool experiments = true;
  // The process moves gradients and parameters, so it keeps freed memory: the next step needs as
  // much again, and fresh pages are expensive (a fifth of the time to push and pull 100 MiB).
  bool data_plane = true;
};

// Call this in main before any other use of gRPC and before there are other threads: it sets an
// environment variable that gRPC reads once. A GRPC_EXPERIMENTS set by the user is kept.
void ConfigureGrpcProcess(const GrpcProcessOptions& options);

// The purpose of a channel. Channels of different kinds never share a connection, so that a
// heartbeat does not queue behind 100 MiB.
enum class ChannelKind { kControl, kBulk };

struct ChannelOptions {
  std::string address;  // host:port
  ChannelKind kind = ChannelKind::kControl;
  // Null: plain text. Else the other side must show the certificate of a shard (kBulk) or of the
  // coordinator (kControl), whatever its address.
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  // One attempt to connect is given up after this; a call that waits for it then fails with
  // UNAVAILABLE.
  absl::Duration connect_timeout = absl::Seconds(5);
  // 0: kMaxFrameBytes for kBulk, kMaxControlMessageBytes for kControl.
  size_t max_message_bytes = 0;
};

// A view of a large job, its tensor table and its ledger fit with room to spare.
inline constexpr size_t kMaxControlMessageBytes = size_t{16} << 20;

// Does not connect yet. Every channel is a connection of its own.
std::shared_ptr<grpc::Channel> MakeChannel(const ChannelOptions& options);

// Bounds on what clients can make a server keep or wait for. gRPC disconnects a client that exceeds
// one of the first three, with an error of its own (GOAWAY, or "Max stream count exceeded" in the
// client's log).
//
// Streams of one connection. A gRPC client makes further calls wait; a process of a job has one or
// two.
inline constexpr int kMaxStreamsPerConnection = 32;
// Pings in a row that come faster than one a second.
inline constexpr int kMaxHastyPings = 20;
// From the start of a connection to the end of the TLS and HTTP/2 handshakes. A client that sends
// nothing is disconnected.
inline constexpr absl::Duration kHandshakeTimeout = absl::Seconds(5);
// Headers of a call. A call with more is refused; a process of a job sends a few hundred bytes.
inline constexpr int kMaxMetadataBytes = 8192;
// A connection without a call is closed after this; gRPC's clients connect again.
inline constexpr absl::Duration kMaxIdleTime = absl::Minutes(10);

// The default limit of gRPC's buffers for all connections of a server: a quarter of the memory that
// this process may use (the machine's, or its control group's), from 512 MiB to 2 GiB. Beyond, gRPC
// reads less from each connection, then fails calls with RESOURCE_EXHAUSTED and disconnects
// ("Buffers full"); clients that follow the protocol reconnect. For a moment gRPC 1.51 can take two
// and a half times that: headers that never end are copied (CONTINUATION frames, whose sizes it
// bounds one by one only).
size_t MaxServerBufferBytes();
// The same for a coordinator, whose messages are small.
inline constexpr size_t kMaxCoordinatorBufferBytes = size_t{512} << 20;

// Bytes a client may send ahead of the reader on a connection that measures its bandwidth (kBulk):
// gRPC 1.51's own limit. The window begins at 64 KiB and grows with the connection's traffic.
inline constexpr size_t kMaxBulkWindowBytes = size_t{32} << 20;

// Applies the bounds above, the receive limit and keepalive, and makes a port in use an error.
void ApplyServerSettings(ChannelKind kind, size_t max_message_bytes, size_t max_buffer_bytes,
                         grpc::ServerBuilder* builder);

}  // namespace sluice

#endif  // SLUICE_SERVICES_TRANSPORT_GRPC_SETTINGS_H_
