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
  return {
      gauge("attempt", "The attempt in progress: one more than the restorations so far."),
      gauge("members", "Processes in the view, by role.", {"role"}),
      gauge("step", "Committed steps; in asynchronous modes updates applied."),
      gauge("steps_total_wanted", "Steps that the job will have made when it ends."),
      gauge("samples", "Training samples applied."),
      gauge("samples_per_second", "Training samples applied in a second, recently."),
      gauge("recomputed_samples",
            "Samples whose gradients were computed again after a change of the view."),
      gauge("dropped_contributions",
            "Workers' contributions that steps were closed without (training.stragglers)."),
      gauge("skipped_steps", "Steps skipped because a gradient was not finite."),
      gauge("loss", "Mean training loss over recent steps."),
      gauge("evaluation_loss", "Mean loss of the last evaluation on held-out data."),
      gauge("evaluation_accuracy_ratio",
            "Accuracy of the last evaluation on held-out data, from 0 to 1."),
      gauge("evaluation_perplexity",
            "Perplexity of the last evaluation of a language model on held-out data."),
      gauge("checkpoint_step", "Step of the newest complete checkpoint."),
      gauge("checkpoint_bytes", "Size of the newest complete checkpoint."),
      gauge("checkpoint_duration_seconds",
            "Time from opening the newest complete checkpoint's snapshot to its manifest."),
      gauge("worker_time_seconds",
            "Where the workers' time went, summed over workers, by part of a step.", {"part"}),
      gauge("pushed_bytes", "Payload of the gradients that workers reported as pushed."),
      gauge("pushed_gradient_bytes", "The same as it were raw."),
      gauge("pulled_bytes", "Payload of the parameters that workers reported as pulled to train."),
      gauge("pulled_parameter_bytes", "The same as it were raw and whole."),
      gauge("staleness_quantile_updates", "Staleness of asynchronous updates, by quantile.",
            {"quantile"}),
      counter("refused_total",
              "What was refused, by kind: messages that broke the contract, figures of workers' "
              "reports that cannot be, registrations, readers.",
              {"kind"}),
      gauge("expelled_processes", "Incarnations that are remembered as expelled or gone."),
      gauge("reader_snapshots", "Snapshots that readers hold or wait for."),
      gauge("control_waiting_bytes", "Bytes of the messages that wait for the coordinator."),
      counter("view_changes_total", "Views decided by this process."),
      {"calls_refused_total",
       Type::kCounter,
       "Calls refused before they were read, by reason.",
       {"reason"},
       {}},
      {"connections_aborted_total",
       Type::kCounter,
       "Connections aborted because the client flooded the server, by reason.",
       {"reason"},
       {}},
      counter("connections_delayed_total",
              "New connections that waited because another one of their address flooded."),
      counter("control_messages_received_total", "Messages from members."),
      counter("control_messages_sent_total", "Messages to members."),
  };
}

}  // namespace sluice::coordinator
