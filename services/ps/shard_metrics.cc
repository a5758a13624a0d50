#include "services/ps/shard_server.h"

namespace sluice::ps {

std::vector<MetricDescriptor> ShardMetrics() {
  using Type = MetricDescriptor::Type;
  const auto gauge = [](std::string name, std::string help) -> MetricDescriptor {
    return {std::move(name), Type::kGauge, std::move(help), {}, {}};
  };
  const auto counter = [](std::string name, std::string help) -> MetricDescriptor {
    return {std::move(name), Type::kCounter, std::move(help), {}, {}};
  };

  // docs/metrics.md lists them.
  return {
      // Progress of training.
      gauge("step", "Lowest version of the owned partitions."),
      gauge("committed_step", "Highest version known to be committed."),
      gauge("updates_applied", "Asynchronous updates applied to this shard."),

      // Bounds on what peers make the shard keep.
      gauge("streams", "Open data streams."),
      gauge("waiting_frames", "Frames that wait for a view, a permit or the end of a pause."),
      gauge("waiting_bytes", "Payload of the waiting frames."),
      gauge("parked_pulls", "Pulls that wait for a version or for a slow worker."),
      gauge("staged_updates", "Asynchronous updates that are staged but not yet applied."),
      gauge("open_snapshots",
            "Versions that are pinned for a checkpoint, an evaluation or a reader."),

      // Copies and memory.
      gauge("copies", "Partitions of other shards of which this shard holds a whole copy."),
      gauge("blocks_allocated",
            "Memory blocks allocated since the start; constant in a steady state."),
      gauge("dropped_contributions",
            "Contributions of workers that steps did not wait for (reported by the owner of "
            "partition 0)."),
      gauge("repeated_blocks", "Gradient blocks that arrived again and were ignored."),
      gauge("executor_queue_tasks", "Tasks that wait for the shard's core."),
      gauge("executor_queue_bytes", "Payload that waits for the shard's core."),
      gauge("send_queue_bytes", "Bytes that wait to be sent."),

      // Use of each bound that a stream may reach.
      {"bound_used",
       Type::kGauge,
       "How much of a bound on the data that the shard keeps for peers is in use. For a bound on "
       "each stream: the use of the fullest stream.",
       {"bound"},
       {}},
      {"bound_limit", Type::kGauge, "The bound.", {"bound"}, {}},
      {"bound_reached_total",
       Type::kCounter,
       "How often a stream, frame or pull was refused, or an ack held back, because of the bound.",
       {"bound"},
       {}},

      // Traffic.
      counter("frames_received_total", "Frames received."),
      counter("received_bytes_total", "Payload received."),
      counter("frames_sent_total", "Frames sent."),
      counter("sent_bytes_total", "Payload sent."),
      counter("streams_refused_total", "Streams closed because the peer violated the protocol."),
      {"calls_refused_total",
       Type::kCounter,
       "Calls refused before any message was read, by reason.",
       {"reason"},
       {}},
      {"connections_aborted_total",
       Type::kCounter,
       "Connections aborted because the client flooded the server, by reason.",
       {"reason"},
       {}},
      counter("connections_delayed_total",
              "New connections that had to wait because another connection from the same address "
              "flooded the server."),

      // Work.
      counter("view_changes_total", "Views installed."),
      counter("busy_seconds_total", "Time spent on frames, messages and arithmetic."),
      counter("copied_bytes_total", "Bytes of partitions' states received as copies."),
      counter("checkpoint_written_bytes_total", "Bytes of partition files written."),
      {"partition_write_seconds",
       Type::kHistogram,
       "Time to encode and write one partition's file.",
       {},
       ExponentialBuckets(0.001, 4, 8)},
      {"coordinator_latency_seconds",
       Type::kHistogram,
       "Time from a heartbeat to the coordinator until its reply.",
       {},
       ExponentialBuckets(1e-5, 2, 21)},
  };
}

}  // namespace sluice::ps
