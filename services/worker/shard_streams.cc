#include "services/worker/shard_streams.h"

#include <algorithm>
#include <utility>

namespace sluice::worker {

ShardStreams::ShardStreams(const WorkerProcess::Options* options, EventLoop* loop,
                           CoreShell<WorkerCore>* shell, Metrics* metrics, Logger logger)
    : options_(options),
      loop_(loop),
      shell_(shell),
      metrics_(metrics),
      logger_(std::move(logger)) {}

void ShardStreams::Connect(const ConnectShard& connect) {
  const ShardId shard = connect.shard;
  const uint64_t connection = ++last_connection_;
  Shard& entry = shards_[shard];
  entry.connection = connection;
  entry.stream = Open(connect, connection);

  shell_->Event([this, shard, connection](WorkerCore& core, absl::Time now) {
    if (Find(shard, connection) != nullptr) core.OnShardConnected(shard, now);
  });
}

std::unique_ptr<StreamClient> ShardStreams::Open(const ConnectShard& connect, uint64_t connection) {
  StreamClient::Options options;
  options.address = connect.address;
  options.loop = loop_;
  if (!options_->shared_memory) options.shared_memory_bytes = 0;
  options.credentials = security::ChannelCredentialsOf(options_->security);
  options.on_queued_bytes = [this](int64_t change) { OnQueuedBytes(change); };

  return StreamClient::Connect(
      options,
      {.on_frames =
           [this, shard = connect.shard, connection](std::vector<DecodedFrame> frames) {
             OnFrames(shard, connection, std::move(frames));
           },
       .on_broken =
           [this, shard = connect.shard, connection](const absl::Status& why) {
             shell_->Event([this, shard, connection, why](WorkerCore& core, absl::Time now) {
               if (Find(shard, connection) == nullptr) return;
               logger_.Info("Shard stream closed", {{"why", why.ToString()}});
               Retire(shard);
               core.OnShardDisconnected(shard, why, now);
             });
           }});
}

void ShardStreams::OnFrames(ShardId shard, uint64_t connection, std::vector<DecodedFrame> frames) {
  frames_received_.Increment(static_cast<double>(frames.size()));
  for (const DecodedFrame& frame : frames) {
    bytes_received_.Increment(static_cast<double>(frame.payload.size()));
  }

  shell_->Event([this, shard, connection, frames = std::move(frames)](WorkerCore& core,
                                                                      absl::Time now) mutable {
    for (DecodedFrame& frame : frames) {
      Shard* const entry = Find(shard, connection);
      if (entry == nullptr) return;
      NoteAnswer(*entry, frame.header, now);
      core.OnShardFrame(shard, frame.header, std::move(frame.payload), now);
      if (!shell_->PerformActions()) return;
    }
  });
}

void ShardStreams::OnQueuedBytes(int64_t change) {
  queued_send_.Increment(static_cast<double>(change));
  if (queued_bytes_.fetch_add(change) + change == 0) {
    sent_at_ = absl::ToUnixNanos(shell_->clock().Now());
  }
}

void ShardStreams::Disconnect(const DisconnectShard& disconnect) {
  logger_.Info("Disconnected from a shard", {{"why", disconnect.reason}});
  Retire(disconnect.shard);
}

void ShardStreams::Queue(SendFrame& send) {
  const auto it = shards_.find(send.shard);
  if (it == shards_.end() || it->second.stream == nullptr) return;
  frames_sent_.Increment();
  bytes_sent_.Increment(static_cast<double>(send.payload.size()));
  NotePush(send.shard, it->second, send.header);
  it->second.stream->Queue(send.header, std::move(send.payload));
}

void ShardStreams::Flush(size_t worth) {
  for (const auto& [id, shard] : shards_) {
    if (shard.stream != nullptr) shard.stream->Flush(worth);
  }
}

void ShardStreams::ReportSent(WorkerCore& core) {
  const int64_t at = sent_at_;
  if (at == reported_sent_at_) return;
  reported_sent_at_ = at;
  core.OnSent(absl::FromUnixNanos(at));
}

// The round trip of a push: from the frame that completes a partition to the first data of that
// partition, or to the answer to an asynchronous update. A later push restarts the measurement.
void ShardStreams::NotePush(ShardId id, Shard& shard, const v1::Header& header) {
  if (!header.has_push() || header.push().complete_size() == 0) return;
  const v1::Push& push = header.push();
  if (logger_.debug_enabled()) {
    logger_.Debug("Sent gradients", {{"step", std::max(push.step(), push.clock())},
                                     {"samples", push.samples()},
                                     {"shard", id}});
  }
  shard.pushed = Shard::Pushed{shell_->clock().Now(), push.complete(push.complete_size() - 1)};
}

void ShardStreams::NoteAnswer(Shard& shard, const v1::Header& header, absl::Time now) {
  if (!shard.pushed) return;
  const bool answers = header.has_staged() || header.has_applied() ||
                       (header.has_data() && header.data().snapshot_id() == 0 &&
                        header.data().partition() == shard.pushed->partition);
  if (!answers) return;
  push_latency_.Observe(absl::ToDoubleSeconds(now - shard.pushed->at));
  shard.pushed.reset();
}

ShardStreams::Shard* ShardStreams::Find(ShardId shard, uint64_t connection) {
  const auto it = shards_.find(shard);
  return it != shards_.end() && it->second.connection == connection ? &it->second : nullptr;
}

// A stream must not be destroyed by its own callback, which may be the caller.
void ShardStreams::Retire(ShardId shard) {
  const auto it = shards_.find(shard);
  if (it == shards_.end()) return;
  closing_thread_.Post([stream = std::move(it->second.stream)] {});
  shards_.erase(it);
}

void ShardStreams::Close() {
  shards_.clear();
  closing_thread_.Stop();
}

}  // namespace sluice::worker
