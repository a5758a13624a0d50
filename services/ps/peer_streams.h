// A shard's own streams to other shards, one for each incarnation. A stream is opened when there is
// something to send, and reopened with backoff when it breaks. Frames wait for the peer's credit.
// Without a connection they are dropped: the core sends again what the peer needs once there is one
// (OnShardConnected).

#ifndef SLUICE_SERVICES_PS_PEER_STREAMS_H_
#define SLUICE_SERVICES_PS_PEER_STREAMS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "services/common/process/logging.h"
#include "services/common/threads/serial_executor.h"
#include "services/common/time/backoff.h"
#include "services/ps/core/shard_core.h"
#include "services/shell/core_shell.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/streams/stream_client.h"
#include "services/transport/streams/stream_server.h"

namespace sluice::ps {

// Used on the shell's executor only, except Close.
class PeerStreams {
 public:
  // All must outlive it. The streams run on the loop of `server`. `closer` destroys broken streams,
  // which must not happen in their callbacks. Null `security`: plain text.
  PeerStreams(CoreShell<ShardCore>* shell, StreamServer* server, SerialExecutor* closer,
              std::shared_ptr<const security::TransportSecurity> security, Logger logger);

  // Sends now, or once the peer has given credit for the payload. Opens the stream if there is
  // none.
  void Send(SendToShard send);

  // Opens the streams whose backoff is over; returns when the next one's is.
  absl::Time Retry(absl::Time now);

  // After the shell's end and its last task; not on the loop's thread.
  void Close() { peers_.clear(); }

 private:
  // A shard with a stream, or with one that will be opened again.
  struct Peer {
    std::string address;
    v1::ProcessId process;
    uint64_t connection = 0;               // number of the stream among all streams of this object
    std::unique_ptr<StreamClient> stream;  // null: will be opened at `retry_at`
    bool connected = false;                // its HelloReply has arrived
    // Frames over memory that the core keeps anyway.
    std::deque<std::pair<v1::Header, absl::Cord>> waiting;
    uint64_t window = 0;  // bytes of payload that may be in flight
    uint64_t credit = 0;  // of them still unused
    Backoff backoff{{.max = absl::Seconds(1)}};
    absl::Time retry_at = absl::InfiniteFuture();
  };

  // Opens the stream and sends the Hello. The core sends frames after the reply (OnShardConnected).
  void Open(Peer& peer);
  // `connection`: of the stream that the event came from. An event of a stream that was replaced
  // meanwhile has no effect.
  void OnFrame(uint64_t incarnation, uint64_t connection, const v1::Header& header, absl::Time now);
  // Sends waiting frames, in order, while there is credit.
  void SendWaiting(Peer& peer);
  void OnBroken(uint64_t incarnation, uint64_t connection, const absl::Status& why, absl::Time now);
  // Null: the peer has a newer stream, or none.
  Peer* Find(uint64_t incarnation, uint64_t connection);

  CoreShell<ShardCore>* const shell_;
  StreamServer* const server_;
  SerialExecutor* const closer_;
  const std::shared_ptr<const security::TransportSecurity> security_;
  const Logger logger_;

  std::map<uint64_t, Peer> peers_;  // by incarnation
  uint64_t last_connection_ = 0;
  absl::BitGen random_;
};

}  // namespace sluice::ps

#endif  // SLUICE_SERVICES_PS_PEER_STREAMS_H_
