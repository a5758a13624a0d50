// Prints what the programs print that the examples of docs/reference-systems.md reproduce: a line
// for each evaluation, the final metric (without evaluations, the training loss) and the time; with
// layers on the shards, also the trainers' losses.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/common/log_follower.h"
#include "cli/common/run_display.h"

namespace sluice::cli {
namespace {

std::string MetricText(const v1::Evaluation& evaluation) {
  if (evaluation.has_accuracy()) return absl::StrFormat("accuracy is %.1f", evaluation.accuracy());
  if (evaluation.has_perplexity()) {
    return absl::StrFormat("perplexity is %.2f", evaluation.perplexity());
  }
  return absl::StrFormat("loss is %.4g", evaluation.loss());
}

class PlainDisplay final : public RunDisplay {
 public:
  PlainDisplay(const Environment& environment, DisplayOptions options)
      : environment_(environment), options_(std::move(options)) {}

  void Note(absl::string_view) override {}
  void Stopping() override {
    if (std::exchange(stopping_, true)) return;
    *environment_.err << "Saving a checkpoint and stopping" << std::endl;
  }
  void OnProcessStarted(const ProcessInstance&) override {}
  void OnProcessEnded(const ProcessInstance&, const policy::Exit&) override {}

  void OnProgress(const v1::JobProgress& progress, const std::string&) override {
    for (const v1::Event& event : progress.events()) {
      if (IsReasonOfFailure(event, progress)) continue;  // Finish prints it
      if (event.kind() == v1::Event::WARNING) {
        *environment_.err << "Warning: " << event.message() << std::endl;
      } else if (event.has_evaluation()) {
        OnEvaluation(event.evaluation());
      }
    }

    for (const v1::BatchLoss& loss : progress.losses()) {
      if (!options_.losses || options_.quiet) break;
      Print(absl::StrFormat("worker-%d training batch %d loss %.4g", loss.worker(), loss.batch(),
                            loss.loss()));
    }

    if (progress.phase() == v1::JobProgress::EVALUATING ||
        progress.phase() == v1::JobProgress::SAVING) {
      TrainingIsComplete();
    }
  }

  void OnLogLine(absl::string_view process, absl::string_view line) override {
    Print(PrefixedLine(process, line, environment_.color));
  }

  void OnTick(const std::map<policy::Replica, ProcessState>&) override {}

  void Detached(const std::vector<std::string>& how) override {
    for (const std::string& line : how) *environment_.err << line << "\n";
    environment_.err->flush();
  }

  void Finish(const SummaryFacts& facts, int, const std::vector<std::string>& log_lines) override {
    const v1::JobProgress& progress = facts.result.progress;
    if (facts.result.outcome.kind != policy::OutcomeKind::kSucceeded) {
      const policy::Outcome& outcome = facts.result.outcome;
      for (const std::string& line : ContextOf(outcome.reason, log_lines)) {
        *environment_.err << "  " << line << "\n";
      }

      *environment_.err << "sluice: job " << facts.name << ": " << EndText(facts.result) << "\n";
      const std::string remedy = RemedyFor(outcome.reason);
      if (!remedy.empty()) *environment_.err << remedy << ".\n";
      environment_.err->flush();
      return;
    }
    TrainingIsComplete();

    if (progress.has_last_evaluation()) {
      Print(absl::StrCat("Final ", MetricText(progress.last_evaluation())));
    } else if (progress.has_loss()) {
      Print(absl::StrFormat("Final training loss is %.4g", progress.loss()));
    }

    Print(absl::StrFormat("This took %.2f seconds", progress.training_seconds()));
  }

 private:
  void OnEvaluation(const v1::Evaluation& evaluation) {
    // The last version may be evaluated twice: on the first samples, like all earlier ones, and on
    // all samples.
    const bool again = evaluation.final() && iteration_printed_ == evaluation.step();
    iteration_printed_ = evaluation.step();
    if (!again && !options_.quiet) Print(IterationText(evaluation));
  }

  static std::string EndText(const JobResult& result) {
    if (result.outcome.kind != policy::OutcomeKind::kSuspended) return result.outcome.reason;
    std::string text = "suspended";
    if (result.has_progress) absl::StrAppend(&text, " at step ", CountText(result.progress.step()));
    if (!result.outcome.reason.empty()) absl::StrAppend(&text, " (", result.outcome.reason, ")");
    return text;
  }

  void TrainingIsComplete() {
    if (!options_.losses || options_.quiet || std::exchange(complete_, true)) return;
    Print("Training complete");
  }

  std::string IterationText(const v1::Evaluation& evaluation) const {
    const uint64_t iteration = evaluation.step() / std::max<uint64_t>(1, options_.iteration_steps);
    return absl::StrCat("Iter ", std::max<uint64_t>(1, iteration), ": ", MetricText(evaluation));
  }

  void Print(absl::string_view line) { *environment_.out << line << std::endl; }

  const Environment& environment_;
  DisplayOptions options_;
  std::optional<uint64_t> iteration_printed_;  // the step of the last line
  bool complete_ = false;
  bool stopping_ = false;
};

}  // namespace

std::unique_ptr<RunDisplay> MakePlainDisplay(const Environment& environment,
                                             DisplayOptions options) {
  return std::make_unique<PlainDisplay>(environment, std::move(options));
}

}  // namespace sluice::cli
