#include "services/worker/worker_process.h"

namespace sluice::worker {

std::vector<MetricDescriptor> WorkerMetrics() {
  using Type = MetricDescriptor::Type;
  const auto gauge = [](std::string name, std::string help) -> MetricDescriptor {
    return {std::move(name), Type::kGauge, std::move(help), {}, {}};
  };
  const auto counter = [](std::string name, std::string help,
                          std::vector<std::string> labels = {}) -> MetricDescriptor {
    return {std::move(name), Type::kCounter, std::move(help), std::move(labels), {}};
  };

  // docs/metrics.md lists them.
  return {
      // Place in the job and progress.
      gauge("member", "1 while the process is a member of the current view."),
      gauge("step",
            "The version that the worker uses; in asynchronous modes its last applied update."),
      gauge("loss", "Mean loss of the last step's samples, before its update."),
      gauge("recomputed_samples", "Samples recomputed after a view change."),

      // Waiting work.
      gauge("credit_queue_bytes", "Payload that waits for a shard's credit."),
      gauge("send_queue_bytes", "Bytes that wait to be sent."),
      gauge("pending_computes", "Gradients and evaluations that are requested but not finished."),

      // Work done.
      counter("steps_total", "Steps, or asynchronous updates, contributed to."),
      counter("samples_total", "Samples contributed."),
      counter("evaluated_samples_total", "Held-out samples evaluated."),
      counter("step_time_seconds_total", "Time spent on each part of a step.", {"part"}),

      // Traffic.
      counter("frames_received_total", "Frames received."),
      counter("received_bytes_total", "Payload received."),
      counter("frames_sent_total", "Frames sent."),
      counter("sent_bytes_total", "Payload sent."),
      counter("pushed_bytes_total", "Payload of pushed gradients, as sent."),
      counter("pushed_gradient_bytes_total", "Payload of pushed gradients, without compression."),
      counter("view_changes_total", "Views that the worker has entered."),
      {"staleness_updates",
       Type::kHistogram,
       "Updates applied between an asynchronous update and the pull that it was computed on.",
       {},
       ExponentialBuckets(1, 2, 10)},
      {"push_latency_seconds",
       Type::kHistogram,
       "Time from the last frame of a push to a shard until the shard's answer.",
       {},
       ExponentialBuckets(1e-5, 2, 21)},

      // Sums among workers.
      counter("all_reduce_sent_bytes_total",
              "Bytes of gradients sent to other workers for the sum."),
      {"all_reduce_seconds",
       Type::kHistogram,
       "Time from a step's last dense gradient until the workers' sum is complete.",
       {},
       ExponentialBuckets(1e-5, 2, 21)},
      {"coordinator_latency_seconds",
       Type::kHistogram,
       "Time from a heartbeat to the coordinator until its reply.",
       {},
       ExponentialBuckets(1e-5, 2, 21)},
  };
}

}  // namespace sluice::worker
