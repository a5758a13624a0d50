// A worker's streams to the shards: passes their frames to the core, and measures what is sent.

#ifndef SLUICE_SERVICES_WORKER_SHARD_STREAMS_H_
#define SLUICE_SERVICES_WORKER_SHARD_STREAMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "services/common/logging.h"
#include "services/common/metrics.h"
#include "services/common/serial_executor.h"
#include "services/shell/core_shell.h"
#include "services/transport/event_loop.h"
#include "services/transport/security/transport_security.h"
#include "services/transport/stream_client.h"
#include "services/worker/core/worker_core.h"

namespace sluice::worker {

// Used on the shell's executor only, except Close.
class ShardStreams {
 public:
  struct Options {
    EventLoop* loop = nullptr;  // of the streams; must outlive this
    // Null: plain text.
    std::shared_ptr<const security::TransportSecurity> security;
    // With shards of this machine: StreamClient::Options::shared_memory_bytes.
    bool shared_memory = true;
  };

  // `shell` and `metrics` must outlive it.
  ShardStreams(Options options, CoreShell<WorkerCore>* shell, Metrics* metrics, Logger logger);

  void Connect(const ConnectShard& connect);
  void Disconnect(const DisconnectShard& disconnect);
  // Dropped if the stream is gone. Flush sends it at the latest.
  void Queue(SendFrame& send);
  // As StreamClient::Flush, of each stream.
  void Flush(size_t worth);

  // Reports to the core when everything queued so far had been sent, if that is news. Called with
  // the next event of any kind, so that no thread is woken up for it.
  void ReportSent(WorkerCore& core);

  // After the shell's end and its last task; not on the loop's thread.
  void Close();

 private:
  struct Shard {
    uint64_t connection = 0;  // number of the stream among all streams of the process
    std::unique_ptr<StreamClient> stream;
    struct Pushed {
      absl::Time at;
      uint32_t partition;
    };
    std::optional<Pushed> pushed;  // not answered
  };

  std::unique_ptr<StreamClient> Open(const ConnectShard& connect, uint64_t connection);
  void OnFrames(ShardId shard, uint64_t connection, std::vector<DecodedFrame> frames);
  void OnQueuedBytes(int64_t change);
  void NotePush(ShardId id, Shard& shard, const v1::Header& header);
  void NoteAnswer(Shard& shard, const v1::Header& header, absl::Time now);
  // Null: the shard has a newer stream, or none.
  Shard* Find(ShardId shard, uint64_t connection);
  void Retire(ShardId shard);

  const Options options_;
  CoreShell<WorkerCore>* const shell_;
  const Logger logger_;
  prometheus::Counter& frames_received_;
  prometheus::Counter& bytes_received_;
  prometheus::Counter& frames_sent_;
  prometheus::Counter& bytes_sent_;
  prometheus::Gauge& queued_send_;
  prometheus::Histogram& push_latency_;

  // Of all streams; changed by the streams' threads.
  std::atomic<int64_t> queued_bytes_{0};
  std::atomic<int64_t> sent_at_{0};  // Unix nanoseconds: when the queues were last empty
  int64_t reported_sent_at_ = 0;

  std::map<ShardId, Shard> shards_;
  uint64_t last_connection_ = 0;
  SerialExecutor closing_thread_;
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_SHARD_STREAMS_H_
