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
#include "services/common/process/logging.h"
#include "services/common/process/metrics.h"
#include "services/common/threads/serial_executor.h"
#include "services/shell/core_shell.h"
#include "services/transport/streams/event_loop.h"
#include "services/transport/streams/stream_client.h"
#include "services/worker/core/worker_core.h"
#include "services/worker/worker_process.h"

namespace sluice::worker {

// Used on the shell's executor only, except Close.
class ShardStreams {
 public:
  // All must outlive it; `options` are the process's. The streams run on `loop`.
  ShardStreams(const WorkerProcess::Options* options, EventLoop* loop, CoreShell<WorkerCore>* shell,
               Metrics* metrics, Logger logger);

  // Opens the stream; OnShardConnected follows, and OnShardDisconnected when it fails. Replaces a
  // stream to the same shard.
  void Connect(const ConnectShard& connect);
  // No OnShardDisconnected follows.
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

  // Its callbacks carry `connection`: those of a stream that was replaced meanwhile have no effect.
  std::unique_ptr<StreamClient> Open(const ConnectShard& connect, uint64_t connection);
  void OnFrames(ShardId shard, uint64_t connection, std::vector<DecodedFrame> frames);
  // Notes the time at which all queued bytes of all streams were sent. Any thread.
  void OnQueuedBytes(int64_t change);
  // Measure the round trip of a push for the metric; a later push to the shard restarts it.
  void NotePush(ShardId id, Shard& shard, const v1::Header& header);
  void NoteAnswer(Shard& shard, const v1::Header& header, absl::Time now);
  // Null: the shard has a newer stream, or none.
  Shard* Find(ShardId shard, uint64_t connection);
  // Drops the stream; the closing thread destroys it.
  void Retire(ShardId shard);

  const WorkerProcess::Options* const options_;
  EventLoop* const loop_;
  CoreShell<WorkerCore>* const shell_;
  Metrics* const metrics_;
  const Logger logger_;
  prometheus::Counter& frames_received_ = metrics_->counter("frames_received_total");
  prometheus::Counter& bytes_received_ = metrics_->counter("received_bytes_total");
  prometheus::Counter& frames_sent_ = metrics_->counter("frames_sent_total");
  prometheus::Counter& bytes_sent_ = metrics_->counter("sent_bytes_total");
  prometheus::Gauge& queued_send_ = metrics_->gauge("send_queue_bytes");
  Histogram push_latency_ = metrics_->histogram("push_latency_seconds");

  // The queues of all streams; changed by the streams' threads.
  std::atomic<int64_t> queued_bytes_{0};
  std::atomic<int64_t> sent_at_{0};  // Unix nanoseconds: when the queues were last empty
  int64_t reported_sent_at_ = 0;

  std::map<ShardId, Shard> shards_;
  uint64_t last_connection_ = 0;
  SerialExecutor closing_thread_{{.name = "closing"}};
};

}  // namespace sluice::worker

#endif  // SLUICE_SERVICES_WORKER_SHARD_STREAMS_H_
