#include "services/coordinator/coordinator_publisher.h"
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
      gauge("attempt", "The current attempt: the number of restorations so far, plus one."),
      gauge("members", "Processes in the current view, by role.", {"role"}),
      gauge("step", "Committed steps; in asynchronous modes applied updates."),
      gauge("steps_total_wanted", "Steps after which the job is complete."),
      gauge("samples", "Training samples applied."),
      gauge("samples_per_second", "Recent rate of training samples applied."),
      gauge("recomputed_samples", "Samples whose gradients were recomputed after a view change."),
      gauge("dropped_contributions",
            "Contributions of workers that steps did not wait for (training.stragglers)."),
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
            "Time from opening the newest complete checkpoint's snapshot until its index is "
            "written."),
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
      counter("refused_total",
              "Refusals, by kind: messages that violate the protocol, impossible figures in "
              "workers' reports, registrations, readers.",
              {"kind"}),
      gauge("expelled_processes",
            "Expelled or departed incarnations that the coordinator remembers."),
      gauge("reader_snapshots", "Snapshots that readers hold or wait for."),
      gauge("control_waiting_bytes", "Bytes of messages that wait for the coordinator's core."),
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

void CoordinatorPublisher::Publish(const CoordinatorCore::Refusals& now) {
  const auto count = [this](absl::string_view kind, uint64_t value, uint64_t before) {
    metrics_->counter("refused_total", {std::string(kind)})
        .Increment(static_cast<double>(value - before));
  };
  count("message", now.messages, refusals_.messages);
  count("figure", now.figures, refusals_.figures);
  count("registration", now.registrations, refusals_.registrations);
  count("reader", now.readers, refusals_.readers);
  refusals_ = now;
  metrics_->gauge("expelled_processes").Set(static_cast<double>(now.expelled));
  metrics_->gauge("reader_snapshots").Set(static_cast<double>(now.snapshots));
}

void CoordinatorPublisher::Publish(const v1::JobProgress& progress) {
  const auto set = [this](absl::string_view name, double value) {
    metrics_->gauge(name).Set(value);
  };
  set("attempt", static_cast<double>(progress.attempt()));
  set("step", static_cast<double>(progress.step()));
  set("steps_total_wanted", static_cast<double>(progress.total_steps()));
  set("samples", static_cast<double>(progress.samples()));
  set("samples_per_second", progress.samples_per_second());
  set("recomputed_samples", static_cast<double>(progress.recomputed_samples()));
  set("pushed_bytes", static_cast<double>(progress.pushed_bytes()));
  set("pushed_gradient_bytes", static_cast<double>(progress.gradient_bytes()));
  set("pulled_bytes", static_cast<double>(progress.pulled_bytes()));
  set("pulled_parameter_bytes", static_cast<double>(progress.parameter_bytes()));
  if (progress.has_staleness()) {
    const v1::JobProgress::Staleness& staleness = progress.staleness();
    const std::pair<const char*, uint64_t> quantiles[] = {{"0.5", staleness.median()},
                                                          {"0.95", staleness.percentile_95()},
                                                          {"1", staleness.largest()}};
    for (const auto& [quantile, updates] : quantiles) {
      metrics_->gauge("staleness_quantile_updates", {quantile}).Set(static_cast<double>(updates));
    }
  }
  set("dropped_contributions", static_cast<double>(progress.dropped_contributions()));
  set("skipped_steps", static_cast<double>(progress.skipped_steps()));
  if (progress.has_loss()) set("loss", progress.loss());
  if (progress.has_last_evaluation()) {
    set("evaluation_loss", progress.last_evaluation().loss());
    if (progress.last_evaluation().has_accuracy()) {
      set("evaluation_accuracy_ratio", progress.last_evaluation().accuracy() / 100);
    }
    if (progress.last_evaluation().has_perplexity()) {
      set("evaluation_perplexity", progress.last_evaluation().perplexity());
    }
  }
  if (progress.checkpoint().has_last()) {
    set("checkpoint_step", static_cast<double>(progress.checkpoint().last().step()));
    set("checkpoint_bytes", static_cast<double>(progress.checkpoint().bytes()));
    set("checkpoint_duration_seconds", progress.checkpoint().seconds());
  }
  const auto time = [this](absl::string_view part, double seconds) {
    metrics_->gauge("worker_time_seconds", {std::string(part)}).Set(seconds);
  };
  time("data", progress.data_seconds());
  time("compute", progress.compute_seconds());
  time("push", progress.push_seconds());
  time("wait", progress.wait_seconds());
  time("pull", progress.pull_seconds());
}

}  // namespace sluice::coordinator
