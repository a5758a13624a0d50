#include "services/coordinator/coordinator_server.h"

namespace sluice::coordinator {

std::vector<MetricDescriptor> CoordinatorMetrics() {
  using Type = MetricDescriptor::Type;
  const auto gauge = [](std::string name, std::string help,
                        std::vector<std::string> labels = {}) -> MetricDescriptor {
    return {std::move(name), Type::kGauge, std::move(help), std::move(labels), {}};
  };
  const auto counter = [](std::string name, std::string help,
                          std::vector<std::string> labels = {}) -> MetricDescriptor {
    return {std::move(name), Type::kCounter, std::move(help), std::move(labels), {}};
  };

  // docs/metrics.md lists them.
  return {
      // The job's members and how its work is spread over them.
      gauge(
          "attempt",
          "The number of the current attempt; each restoration or resumption begins the next one."),
      gauge("members", "Processes in the current view, by role.", {"role"}),
      gauge("missing_copies", "Partitions that lack the second copy which the job wants."),
      gauge(
          "shard_load_ratio",
          "How busy the busiest shard was in the last seconds, as a multiple of the median shard."),
      gauge("cooled_shards",
            "Shards that hold fewer partitions because they were over twice as busy as the median "
            "shard."),

      // Progress, and samples and contributions that did not count.
      gauge("step", "Committed steps; in asynchronous modes applied updates."),
      gauge("steps_total_wanted", "Steps after which the job is complete."),
      gauge("samples", "Training samples applied."),
      gauge("samples_per_second", "Recent rate of training samples applied."),
      gauge("recomputed_samples", "Samples whose gradients were recomputed after a view change."),
      gauge("dropped_contributions",
            "Contributions of workers that steps did not wait for (training.stragglers)."),
      gauge("skipped_steps", "Steps skipped because a gradient was not finite."),

      // The quality of the model.
      gauge("loss", "Mean training loss over recent steps."),
      gauge("evaluation_loss", "Mean loss of the last evaluation on held-out data."),
      gauge("evaluation_accuracy_ratio",
            "Accuracy of the last evaluation on held-out data, from 0 to 1."),
      gauge("evaluation_perplexity",
            "Perplexity of the last evaluation of a language model on held-out data."),
      gauge("evaluation_metric",
            "The program's own metrics of the last evaluation on held-out data, at most 32.",
            {"name"}),
      gauge("learning_rate_factor",
            "What evaluations have multiplied the learning rate by (optimizer.plateau), without "
            "the schedule; 1: nothing."),

      // Checkpoints.
      gauge("checkpoint_step", "Step of the newest complete checkpoint."),
      gauge("checkpoint_bytes", "Size of the newest complete checkpoint."),
      gauge("checkpoint_duration_seconds",
            "Time from opening the newest complete checkpoint's snapshot until its index is "
            "written."),

      // The workers' own figures, from their reports.
      gauge("worker_time_seconds",
            "Time that workers spent on each part of a step, summed over workers.", {"part"}),
      gauge("pushed_bytes",
            "Payload of the gradients that workers have pushed, as they report it."),
      gauge("pushed_gradient_bytes", "The same payload without compression."),
      gauge("pulled_bytes",
            "Payload of the parameters that workers have pulled to train, as they report it."),
      gauge("pulled_parameter_bytes", "The same payload without compression, and with all rows."),
      gauge("staleness_quantile_updates", "Staleness of asynchronous updates, by quantile.",
            {"quantile"}),

      // Protection of the process itself.
      counter("refused_total",
              "Refusals, by kind: messages that violate the protocol, impossible figures in "
              "workers' reports, registrations, readers.",
              {"kind"}),
      gauge("expelled_processes",
            "Expelled or departed incarnations that the coordinator remembers."),
      gauge("reader_snapshots", "Snapshots that readers hold or wait for."),
      gauge("control_waiting_bytes", "Bytes of messages that wait for the coordinator's core."),

      // Traffic and views.
      counter("view_changes_total", "Views that this process has decided."),
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
      counter("control_messages_received_total", "Messages received from members."),
      counter("control_messages_sent_total", "Messages sent to members."),
  };
}

}  // namespace sluice::coordinator
