#include "cli/common/progress_text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sluice::cli {
namespace {

constexpr char kReset[] = "\x1b[0m";
constexpr char kBold[] = "\x1b[1m";
constexpr char kDim[] = "\x1b[2m";
constexpr char kRed[] = "\x1b[31m";
constexpr char kGreen[] = "\x1b[32m";
constexpr char kYellow[] = "\x1b[33m";

// At most this many processes are listed; the others are counted.
constexpr size_t kMaxProcessLines = 12;
constexpr int kMaxLiveMetrics = 4;  // of the program's own

std::string Painted(absl::string_view text, const char* paint, bool color) {
  return color ? absl::StrCat(paint, text, kReset) : std::string(text);
}

double Fraction(const v1::JobProgress& progress) {
  double fraction = 0;
  if (progress.total_samples() > 0) {
    fraction =
        static_cast<double>(progress.samples()) / static_cast<double>(progress.total_samples());
  } else if (progress.total_steps() > 0) {
    fraction = static_cast<double>(progress.step()) / static_cast<double>(progress.total_steps());
  }
  return std::clamp(fraction, 0.0, 1.0);
}

std::string BarLine(const v1::JobProgress& progress, int columns, bool color, bool unicode) {
  const double fraction = Fraction(progress);
  const std::string percent = absl::StrFormat(" %3.0f %%", std::floor(fraction * 100));
  const int width = std::clamp(columns - static_cast<int>(percent.size()) - 4, 5, 60);
  const int full = static_cast<int>(std::floor(fraction * width));
  std::string done;
  std::string rest;
  for (int i = 0; i < full; ++i) done += unicode ? "█" : "#";
  for (int i = full; i < width; ++i) rest += unicode ? "░" : "-";
  return absl::StrCat("  ", Painted(done, kGreen, color), Painted(rest, kDim, color), percent);
}

const char* PaintOf(ProcessState::Tone tone) {
  switch (tone) {
    case ProcessState::Tone::kGood:
      return kGreen;
    case ProcessState::Tone::kWaiting:
      return kYellow;
    case ProcessState::Tone::kBad:
      return kRed;
    case ProcessState::Tone::kDone:
      return kDim;
  }
  return kReset;
}

// The state in words: the phase, unless more is known.
std::string StateOf(const JobSummary& view) {
  if (!view.state.empty()) return view.state;
  if (!view.has_progress) return "starting";
  std::string text = PhaseText(view.progress.phase());
  if (view.progress.phase() == v1::JobProgress::TRAINING && view.progress.has_evaluating_step()) {
    absl::StrAppend(&text, ", evaluating step ", CountText(view.progress.evaluating_step()));
  }
  return text;
}

std::string MetricsText(const v1::JobProgress& progress) {
  std::vector<std::string> parts;
  if (progress.has_loss()) parts.push_back(absl::StrCat("loss ", LossText(progress.loss())));

  if (progress.samples_per_second() > 0) {
    parts.push_back(
        absl::StrCat(CountText(static_cast<uint64_t>(std::llround(progress.samples_per_second()))),
                     " samples/s"));
  }

  const absl::Duration left = TimeLeft(progress);
  if (progress.phase() == v1::JobProgress::TRAINING && left < absl::InfiniteDuration()) {
    parts.push_back(absl::StrCat(DurationText(left), " left"));
  }
  return absl::StrJoin(parts, ", ");
}

std::string FinalMetric(const v1::JobProgress& progress) {
  if (progress.last_evaluation().has_accuracy()) {
    return absl::StrCat("accuracy ", PercentText(progress.last_evaluation().accuracy()));
  }
  if (progress.last_evaluation().has_perplexity()) {
    return absl::StrCat("perplexity ", PerplexityText(progress.last_evaluation().perplexity()));
  }
  if (progress.last_evaluation().metrics_size() > 0) {
    return OwnMetricText(progress.last_evaluation().metrics(0));
  }
  if (progress.last_evaluation().samples() > 0) {
    return absl::StrCat("loss ", LossText(progress.last_evaluation().loss()),
                        " on held-out samples");
  }
  if (progress.has_loss()) return absl::StrCat("training loss ", LossText(progress.loss()));
  return "";
}

// The epoch between these texts; nothing where it would be 0.00: a stream of unknown length has
// none.
std::string EpochText(absl::string_view before, double epoch, absl::string_view after = "") {
  return epoch < 0.005 ? "" : absl::StrCat(before, absl::StrFormat("%.2f", epoch), after);
}

}  // namespace

std::string DurationText(absl::Duration duration) {
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds < 59.95) return absl::StrFormat("%.1f s", std::max(0.0, seconds));
  const int64_t whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return absl::StrFormat("%dm %02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh %02dm", whole / 3600, whole % 3600 / 60);
}

std::string CountText(uint64_t count) {
  std::string text = absl::StrCat(count);
  for (int i = static_cast<int>(text.size()) - 3; i > 0; i -= 3) {
    text.insert(static_cast<size_t>(i), ",");
  }
  return text;
}

std::string StepText(const v1::JobProgress& progress) {
  std::string text = absl::StrCat("step ", CountText(progress.step()));
  if (progress.total_steps() > 0) {
    absl::StrAppend(&text, " of ", CountText(progress.total_steps()));
  }
  return text;
}

std::string CountedText(uint64_t count, absl::string_view noun) {
  return absl::StrCat(CountText(count), " ", noun, count == 1 ? "" : "s");
}

std::string BytesText(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    value /= 1024;
    if (value < 1023.95) return absl::StrFormat("%.1f %s", value, unit);
  }
  return absl::StrFormat("%.1f TiB", value / 1024);
}

std::string LossText(double loss) {
  if (!std::isfinite(loss)) return absl::StrCat(loss);
  if (loss != 0 && std::abs(loss) < 1e-4) return absl::StrFormat("%.2e", loss);
  if (std::abs(loss) >= 1e6) return absl::StrFormat("%.3e", loss);
  return std::abs(loss) < 1 ? absl::StrFormat("%.4f", loss) : absl::StrFormat("%.3f", loss);
}

std::string PercentText(double percent) { return absl::StrFormat("%.2f %%", percent); }

std::string PerplexityText(double perplexity) {
  return perplexity < 1e6 ? absl::StrFormat("%.2f", perplexity)
                          : absl::StrFormat("%.3e", perplexity);
}

std::string OwnMetricText(const v1::Metric& metric) {
  return absl::StrFormat("%s %.4g", metric.name(), metric.value());
}

std::string EvaluationText(const v1::Evaluation& evaluation) {
  std::string text = absl::StrCat("Step ", CountText(evaluation.step()),
                                  EpochText(" (epoch ", evaluation.epoch(), ")"), ": ");
  if (evaluation.has_accuracy()) {
    absl::StrAppend(&text, "accuracy ", PercentText(evaluation.accuracy()), ", ");
  }
  if (evaluation.has_perplexity()) {
    absl::StrAppend(&text, "perplexity ", PerplexityText(evaluation.perplexity()), ", ");
  }
  for (const v1::Metric& metric : evaluation.metrics()) {
    absl::StrAppend(&text, OwnMetricText(metric), ", ");
  }

  // The status of a TrainingJob may have only the metric of an evaluation.
  const bool metric = evaluation.has_accuracy() || evaluation.has_perplexity();
  if (metric && evaluation.samples() == 0) return text.substr(0, text.size() - 2);

  absl::StrAppend(&text, "loss ", LossText(evaluation.loss()));
  if (evaluation.samples() > 0) {
    absl::StrAppend(&text, " on ", CountText(evaluation.samples()), " samples");
  }
  return text;
}

std::string PhaseText(v1::JobProgress::Phase phase) {
  switch (phase) {
    case v1::JobProgress::STARTING:
      return "starting";
    case v1::JobProgress::INITIALIZING:
      return "loading the model";
    case v1::JobProgress::TRAINING:
      return "training";
    case v1::JobProgress::EVALUATING:
      return "last evaluation";
    case v1::JobProgress::SAVING:
      return "saving";
    case v1::JobProgress::SUSPENDED:
      return "stopped";
    case v1::JobProgress::SUCCEEDED:
      return "finished";
    case v1::JobProgress::FAILED:
      return "failed";
    default:
      return "unknown";
  }
}

absl::Duration TimeLeft(const v1::JobProgress& progress) {
  if (progress.samples_per_second() <= 0 || progress.total_samples() == 0) {
    return absl::InfiniteDuration();
  }
  if (progress.samples() >= progress.total_samples()) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(progress.total_samples() - progress.samples()) /
                       progress.samples_per_second());
}

std::string ProgressLine(const JobSummary& view) {
  std::string text = StateOf(view);
  if (!view.has_progress) return text;

  const v1::JobProgress& progress = view.progress;
  const bool begun = progress.step() > 0 || progress.phase() == v1::JobProgress::TRAINING;
  if (!view.state.empty() && !begun) return text;
  if (view.state.empty() && (progress.phase() == v1::JobProgress::STARTING ||
                             progress.phase() == v1::JobProgress::INITIALIZING)) {
    return text;
  }

  absl::StrAppendFormat(&text, ": %s (%.0f %%)", StepText(progress),
                        std::floor(Fraction(progress) * 100));
  absl::StrAppend(&text, EpochText(", epoch ", progress.epoch()));

  const std::string metrics = MetricsText(progress);
  if (!metrics.empty()) absl::StrAppend(&text, ", ", metrics);
  return text;
}

std::vector<std::string> LiveLines(const JobSummary& view, int columns, bool color, bool unicode) {
  std::vector<std::string> lines;
  const v1::JobProgress& progress = view.progress;
  const std::string phase = view.stopping ? "saving a checkpoint and stopping" : StateOf(view);

  std::string head = absl::StrCat(Painted(view.name, kBold, color), "  ", phase);
  if (view.has_progress && progress.total_samples() > 0) {
    absl::StrAppend(&head, "  ", StepText(progress), EpochText("  epoch ", progress.epoch()));
  }
  lines.push_back(std::move(head));

  if (view.has_progress) {
    lines.push_back(BarLine(progress, columns, color, unicode));
    std::string metrics = MetricsText(progress);
    const v1::Evaluation& evaluation = progress.last_evaluation();
    const bool classic = evaluation.has_accuracy() || evaluation.has_perplexity();
    if (classic || evaluation.metrics_size() > 0) {
      absl::StrAppend(&metrics, metrics.empty() ? "" : ", ", FinalMetric(progress));

      // FinalMetric has the first one if there is no other.
      const int end = std::min(evaluation.metrics_size(), kMaxLiveMetrics);
      for (int i = classic ? 0 : 1; i < end; ++i) {
        absl::StrAppend(&metrics, ", ", OwnMetricText(evaluation.metrics(i)));
      }
      absl::StrAppend(&metrics, " at step ", CountText(evaluation.step()));
    }
    lines.push_back(absl::StrCat("  ", metrics));
  }

  size_t listed = 0;
  for (const auto& [replica, process] : view.processes) {
    if (++listed > kMaxProcessLines) {
      lines.push_back(absl::StrCat("  and ", view.processes.size() - kMaxProcessLines, " more"));
      break;
    }

    std::string line = absl::StrFormat("  %-12s %s", policy::ReplicaName(replica),
                                       Painted(process.text, PaintOf(process.tone), color));
    if (process.restarts > 0) {
      absl::StrAppend(&line, " (restarted ",
                      process.restarts == 1 ? "once" : absl::StrCat(process.restarts, " times"),
                      ")");
    }
    lines.push_back(std::move(line));
  }

  for (std::string& line : lines) line = CutToWidth(line, columns);
  return lines;
}

namespace {

// Cuts to `columns` characters, and counts all characters.
std::string Cut(absl::string_view text, int columns, int* counted) {
  std::string cut;
  int& width = *counted;
  width = 0;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    if (text[i] == '\x1b') {
      while (end < text.size() && text[end - 1] != 'm') ++end;
      cut.append(text.data() + i, end - i);
      i = end;
      continue;
    }

    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    if (width < columns) cut.append(text.data() + i, end - i);
    ++width;
    i = end;
  }
  return cut;
}

}  // namespace

std::string CutToWidth(absl::string_view text, int columns) {
  int width = 0;
  return Cut(text, columns, &width);
}

int WidthOf(absl::string_view text) {
  int width = 0;
  Cut(text, 0, &width);
  return width;
}

bool IsReasonOfFailure(const v1::Event& event, const v1::JobProgress& progress) {
  return progress.phase() == v1::JobProgress::FAILED && event.message() == progress.reason();
}

std::string RemedyFor(absl::string_view reason) {
  if (absl::StrContains(reason, "is not finite")) {
    return "Lower the learning rate, set optimizer.clipNorm, look for a division by zero or a "
           "logarithm of 0 in the loss, or let such steps be skipped with training.nonFinite: Skip";
  }
  return "";
}

std::string TimeSplitText(const v1::JobProgress& progress) {
  const std::pair<const char*, double> parts[] = {{"data", progress.data_seconds()},
                                                  {"compute", progress.compute_seconds()},
                                                  {"push", progress.push_seconds()},
                                                  {"wait", progress.wait_seconds()},
                                                  {"pull", progress.pull_seconds()}};
  double sum = 0;
  for (const auto& [name, seconds] : parts) sum += seconds;
  if (sum <= 0) return "";

  std::vector<std::string> texts;
  for (const auto& [name, seconds] : parts) {
    texts.push_back(absl::StrFormat("%.0f %% %s", 100 * seconds / sum, name));
  }
  return absl::StrJoin(texts, ", ");
}

namespace {

// "2 KiB of gradients a step, 2 % of their size".
std::string TravelledText(const v1::JobProgress& progress, absl::string_view what, uint64_t sent,
                          uint64_t whole) {
  if (whole == 0) return "";

  std::string text = absl::StrCat(BytesText(sent), " of ", what);
  // After a restoration, the coordinator does not know the counts of earlier attempts.
  if (progress.step() > 0 && !progress.restored()) {
    text = absl::StrCat(BytesText(sent / progress.step()), " of ", what, " a step");
  }

  if (sent < whole) {
    absl::StrAppendFormat(&text, ", %.3g %% of their size",
                          100 * static_cast<double>(sent) / static_cast<double>(whole));
  }
  return text;
}

}  // namespace

std::string PushedText(const v1::JobProgress& progress) {
  return TravelledText(progress, "gradients", progress.pushed_bytes(), progress.gradient_bytes());
}

std::string PulledText(const v1::JobProgress& progress) {
  if (progress.pulled_bytes() >= progress.parameter_bytes()) return "";
  return TravelledText(progress, "parameters", progress.pulled_bytes(), progress.parameter_bytes());
}

std::string StalenessText(const v1::JobProgress& progress) {
  if (!progress.has_staleness()) return "";
  const v1::JobProgress::Staleness& staleness = progress.staleness();
  return absl::StrCat("mean ", absl::StrFormat("%.2f", staleness.mean()), ", median ",
                      CountText(staleness.median()), ", 95 % at most ",
                      CountText(staleness.percentile_95()), ", largest ",
                      CountText(staleness.largest()), " updates");
}

std::vector<std::string> SummaryLines(const SummaryFacts& facts) {
  const v1::JobProgress& progress = facts.result.progress;
  std::vector<std::string> lines;
  const std::string metric = FinalMetric(progress);

  std::string head;
  switch (facts.result.outcome.kind) {
    case policy::OutcomeKind::kSucceeded:
      head = absl::StrCat("Trained ", facts.name, ": ", metric, metric.empty() ? "" : " after ");
      break;
    case policy::OutcomeKind::kSuspended:
      head = absl::StrCat("Stopped ", facts.name, " at ");
      break;
    case policy::OutcomeKind::kFailed:
      // Processes that fail do not report the steps since their last report.
      head = absl::StrCat("Failed: ", facts.name, ", last reported at ");
      break;
  }

  if (facts.result.outcome.kind == policy::OutcomeKind::kSucceeded) {
    absl::StrAppend(&head, CountText(progress.step()), " steps");
  } else {
    absl::StrAppend(&head, StepText(progress));
  }
  absl::StrAppend(&head, EpochText(" (", progress.epoch(), " epochs)"));
  lines.push_back(std::move(head));

  const auto add = [&](absl::string_view name, absl::string_view text) {
    lines.push_back(absl::StrFormat("  %-12s %s", name, text));
  };

  std::string time = DurationText(facts.elapsed);
  if (const std::string split = TimeSplitText(progress); !split.empty()) {
    absl::StrAppend(&time, " (of the workers' time: ", split, ")");
  }
  add("time", time);

  if (facts.samples > 0 && facts.training_time > absl::ZeroDuration()) {
    const double speed =
        static_cast<double>(facts.samples) / absl::ToDoubleSeconds(facts.training_time);
    add("samples/s", CountText(static_cast<uint64_t>(std::llround(speed))));
  }

  if (const std::string pushed = PushedText(progress); !pushed.empty()) add("pushed", pushed);
  if (const std::string pulled = PulledText(progress); !pulled.empty()) add("pulled", pulled);
  if (const std::string text = StalenessText(progress); !text.empty()) add("staleness", text);

  if (facts.result.restarts > 0) {
    add("restarts", absl::StrCat(facts.result.restarts, ", ",
                                 CountText(progress.recomputed_samples()), " samples recomputed"));
  }
  if (progress.dropped_contributions() > 0) {
    add("dropped", absl::StrCat(CountText(progress.dropped_contributions()),
                                " contributions of slow workers"));
  }
  if (progress.skipped_steps() > 0) add("skipped", CountedText(progress.skipped_steps(), "step"));

  if (progress.checkpoint().has_last()) {
    std::string checkpoint = progress.checkpoint().directory();
    if (progress.checkpoint().bytes() > 0) {
      absl::StrAppend(&checkpoint, " (", BytesText(progress.checkpoint().bytes()), ")");
    }
    add("checkpoint", checkpoint);
    if (facts.result.outcome.kind == policy::OutcomeKind::kSucceeded &&
        !facts.export_command.empty()) {
      add("model", facts.export_command);
    }
  }

  if (!progress.checkpoint().error().empty()) {
    add("warning",
        absl::StrCat("saving the newest checkpoint failed: ", progress.checkpoint().error()));
  }

  add("logs", facts.logs);
  return lines;
}

}  // namespace sluice::cli
