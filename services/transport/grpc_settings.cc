#include "services/transport/grpc_settings.h"

#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/support/channel_arguments.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>

#include "absl/synchronization/mutex.h"
#include "services/transport/frames/frame_wire.h"
#include "services/transport/security/gated_credentials.h"
#include "services/transport/security/identity.h"

namespace sluice {
namespace {

// Without memory_pressure_controller: with it, gRPC 1.51 crashes where a connection's bandwidth is
// measured and the answer comes while the connection closes (TransportFlowControl::PeriodicUpdate
// uses the connection's memory quota after its release; without the experiment it checks first).
constexpr char kExperiments[] =
    "tcp_frame_size_tuning,tcp_rcv_lowat,flow_control_fixes,peer_state_based_framing";

// The connection to a peer that answers no ping for this long (frozen, or unreachable) is lost.
// This is longer than the silence after which the coordinator expels it: membership is the
// coordinator's decision.
constexpr int kKeepaliveMs = 5000;
constexpr int kKeepaliveTimeoutMs = 10000;
// gRPC 1.60 and later wait for this argument (a minute by default) instead of
// GRPC_ARG_KEEPALIVE_TIMEOUT_MS; earlier versions ignore it.
constexpr char kPingTimeoutMs[] = "grpc.http2.ping_timeout_ms";

// For malloc: how much memory may stay free at the end of a heap, and the largest block that comes
// from a heap at all (the most that glibc allows).
constexpr int kKeptBytes = 1 << 30;
constexpr int kLargestHeapBlock = 32 << 20;

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 1, 3600 * 1000));
}

}  // namespace

void ConfigureGrpcProcess(const GrpcProcessOptions& options) {
  if (options.experiments) setenv("GRPC_EXPERIMENTS", kExperiments, /*overwrite=*/0);

  if (options.data_plane) {
    mallopt(M_TRIM_THRESHOLD, kKeptBytes);
    mallopt(M_MMAP_THRESHOLD, kLargestHeapBlock);
  }

#ifdef NDEBUG
  // Distributions build Abseil with deadlock detection, which enters every lock of gRPC's and ours
  // in a global graph.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

std::shared_ptr<grpc::Channel> MakeChannel(const ChannelOptions& options) {
  size_t max_message_bytes = options.max_message_bytes;
  if (max_message_bytes == 0) {
    max_message_bytes =
        options.kind == ChannelKind::kBulk ? kMaxFrameBytes : kMaxControlMessageBytes;
  }

  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(max_message_bytes));
  arguments.SetMaxSendMessageSize(static_cast<int>(max_message_bytes));
  // Connections are shared between channels only through the global pool.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(kPingTimeoutMs, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);

  // The least backoff is also the longest that one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(options.connect_timeout));
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);

  // Bulk transfers need the windows of a connection that measures its bandwidth: 4 MiB, and up to
  // kMaxBulkWindowBytes over a network with a long delay. No argument sets the window of a
  // connection: without the measurement it has 64 KiB, and a larger message waits for a round trip
  // after its first 64 KiB.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, options.kind == ChannelKind::kBulk);

  // gRPC 1.51 may lose the cancellation of a call that has sent more than it buffers for a retry
  // (256 KiB); such a call never ends. It would retry only calls that no server has seen, which
  // every caller here repeats itself.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);

  // A web proxy must not be used between Sluice's own processes.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);

  if (security::SpeaksTls(options.credentials)) {
    arguments.SetSslTargetNameOverride(
        security::ServerName(options.kind == ChannelKind::kBulk ? v1::SHARD : v1::COORDINATOR));
  }

  return grpc::CreateCustomChannel(
      options.address,
      options.credentials == nullptr ? grpc::InsecureChannelCredentials() : options.credentials,
      arguments);
}

size_t MaxServerBufferBytes() {
  constexpr uint64_t kLeast = uint64_t{512} << 20;
  constexpr uint64_t kMost = uint64_t{2} << 30;
  uint64_t usable = static_cast<uint64_t>(std::max(sysconf(_SC_PHYS_PAGES), 0L)) *
                    static_cast<uint64_t>(std::max(sysconf(_SC_PAGESIZE), 0L));

  // The second and the first version of control groups; "max", or a number beyond the machine's,
  // where there is no limit.
  for (const char* file :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    uint64_t limit = 0;
    if (std::ifstream(file) >> limit) usable = std::min(usable, limit);
  }

  return static_cast<size_t>(std::clamp(usable / 4, kLeast, kMost));
}

void ApplyServerSettings(ChannelKind kind, size_t max_message_bytes, size_t max_buffer_bytes,
                         grpc::ServerBuilder* builder) {
  builder->SetMaxReceiveMessageSize(static_cast<int>(max_message_bytes));
  builder->SetMaxSendMessageSize(static_cast<int>(max_message_bytes));

  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(kPingTimeoutMs, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);

  // Clients ping as often as set above; with the default, gRPC would treat that as an attack.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, kMaxHastyPings);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, kind == ChannelKind::kBulk);

  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                              Milliseconds(kHandshakeTimeout));
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(kMaxIdleTime));

  builder->SetResourceQuota(grpc::ResourceQuota("sluice-server").Resize(max_buffer_bytes));
}

}  // namespace sluice
