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
  return {
      gauge("member", "1 while the process is a member of the view."),
      gauge("step", "The version in use; in asynchronous modes the last update applied."),
      gauge("loss", "Mean loss of the last step's samples, before its update."),
      gauge("recomputed_samples", "Samples computed again after a change of the view."),
      gauge("credit_queue_bytes", "Payload that waits for a shard's credit."),
      gauge("send_queue_bytes", "Bytes that wait to be sent."),
      gauge("pending_computes", "Gradients and evaluations that are asked for and not finished."),
      counter("steps_total", "Steps, or asynchronous updates, contributed to."),
      counter("samples_total", "Samples contributed."),
      counter("evaluated_samples_total", "Held-out samples evaluated."),
      counter("step_time_seconds_total", "Where the time went, by part of a step.", {"part"}),
      counter("frames_received_total", "Frames received."),
      counter("received_bytes_total", "Payload received."),
      counter("frames_sent_total", "Frames sent."),
      counter("sent_bytes_total", "Payload sent."),
      counter("pushed_bytes_total", "Payload of gradients pushed, as it was sent."),
      counter("pushed_gradient_bytes_total", "Payload of gradients pushed, as it were raw."),
      counter("view_changes_total", "Views worked in."),
      {"staleness_updates",
       Type::kHistogram,
       "Updates applied between the pull that an asynchronous update was computed on and itself.",
       {},
       ExponentialBuckets(1, 2, 10)},
      {"push_latency_seconds",
       Type::kHistogram,
       "Time from the last frame of a push to a shard until the shard's answer.",
       {},
       ExponentialBuckets(1e-5, 2, 21)},
      counter("all_reduce_sent_bytes_total",
              "Gradients sent to other workers, to be summed there."),
      {"all_reduce_seconds",
       Type::kHistogram,
       "Time from a step's last dense gradient until the workers have summed them.",
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
