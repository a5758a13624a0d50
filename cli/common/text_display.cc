#include <algorithm>
#include <csignal>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/common/log_follower.h"
#include "cli/common/run_display.h"
#include "services/common/exit_code.h"

namespace sluice::cli {
namespace {

// If one process exits normally this often before the job's end, a hint is printed.
constexpr int kLeftOften = 3;

// A process that ends with an error may be the end of the whole job, whose reason Finish prints.
// Only if the job still runs after this time is the process's end worth a line.
constexpr absl::Duration kEndDelay = absl::Seconds(1);

constexpr absl::Duration kRedrawInterval = absl::Milliseconds(200);
// Without a live view, a line of progress is printed as soon as the pace is known, then this often.
constexpr absl::Duration kLineInterval = absl::Seconds(10);

class TextDisplay final : public RunDisplay {
 public:
  TextDisplay(const Environment& environment, DisplayOptions options)
      : environment_(environment),
        options_(std::move(options)),
        live_(environment.live && !options_.quiet && !options_.foreground),
        next_line_(environment.clock->Now() + kLineInterval) {
    view_.name = options_.job;
  }

  ~TextDisplay() override { Erase(); }

  void Note(absl::string_view text) override {
    if (!options_.quiet) Print(text);
  }

  void Stopping() override {
    if (view_.stopping) return;
    view_.stopping = true;
    Print("Saving a checkpoint and stopping (press Ctrl-C again to stop immediately)");
  }

  void OnOutcome(policy::OutcomeKind outcome) override {
    ending_ = true;
    failed_ = outcome == policy::OutcomeKind::kFailed;
    if (!failed_) ShowEnds(absl::InfiniteFuture());
    ends_.clear();
  }

  void OnProcessStarted(const ProcessInstance&) override {}

  void OnProcessEnded(const ProcessInstance& instance, const policy::Exit& exit) override {
    // The operator's events report the ends of pods in more detail.
    if (!instance.pod.empty()) return;
    const policy::Replica& replica = instance.replica;

    if (exit.signal == 0 && exit.code == kExitOk) {
      if (!ending_ && ++left_[replica] == kLeftOften) {
        Note(absl::StrCat(
            policy::ReplicaName(replica), " has exited with code 0 ", kLeftOften,
            " times before the job's end, and was restarted each time. A program should stay in "
            "its loop until the job ends; `sluice stop` ends a job early."));
      }
      return;
    }
    // This is a consequence of the job's end; the reason of the end is printed last.
    if (ending_ && (exit.signal == 0 || exit.signal == SIGTERM || exit.signal == SIGKILL)) return;

    if (exit.signal == 0 && exit.code == kExitExpelled) {
      if (!view_.stopping) {
        Note(absl::StrCat(policy::ReplicaName(replica),
                          " was expelled from the job and is restarted"));
      }
      return;
    }

    const std::string name = policy::ReplicaName(replica);
    std::string text = policy::ExitText(exit);
    last_end_ = absl::StrCat(name, ": ", text);
    if (last_warning_ == last_end_) return;
    if (!exit.message.empty()) absl::StrAppend(&text, " (", exit.message, ")");

    const std::string line = absl::StrCat(name, " ended: ", text);
    if (exit.signal != 0) return Note(line);
    ends_.push_back({environment_.clock->Now() + kEndDelay, line});
  }

  void OnProgress(const v1::JobProgress& progress, const std::string& state) override {
    fresh_ = true;
    view_.progress = progress;
    view_.state = state;
    view_.has_progress = true;
    for (const v1::Event& event : progress.events()) {
      // Finish prints the reason of a failure.
      if (!IsReasonOfFailure(event, progress)) ShowEvent(event);
    }
  }

  void OnLogLine(absl::string_view process, absl::string_view line) override {
    Print(PrefixedLine(process, line, environment_.color));
  }

  void OnTick(const std::map<policy::Replica, ProcessState>& processes) override {
    view_.processes = processes;
    const absl::Time now = environment_.clock->Now();
    ShowEnds(now);

    if (live_) {
      if (now >= next_redraw_) {
        next_redraw_ = now + kRedrawInterval;
        Redraw();
      }
    } else if (fresh_ && LineIsDue(now) && !options_.foreground &&
               (view_.progress.phase() == v1::JobProgress::TRAINING ||
                view_.progress.phase() == v1::JobProgress::EVALUATING)) {
      next_line_ = now + kLineInterval;
      has_shown_line_ = true;
      fresh_ = false;
      Note(ProgressLine(view_));
    }
    environment_.out->flush();
  }

  void Detached(const std::vector<std::string>& how) override {
    Erase();
    live_ = false;
    environment_.out->flush();
    for (const std::string& line : how) *environment_.err << line << "\n";
    environment_.err->flush();
  }

  void Finish(const SummaryFacts& facts, int, const std::vector<std::string>& log_lines) override {
    Erase();
    live_ = false;
    std::vector<std::string> lines;
    if (facts.result.has_progress) lines = SummaryLines(facts);
    // A quiet run prints only the first line, which has the metric.
    if (options_.quiet && lines.size() > 1) lines.resize(1);
    for (const std::string& line : lines) *environment_.out << line << "\n";
    environment_.out->flush();

    const policy::Outcome& outcome = facts.result.outcome;
    if (outcome.kind == policy::OutcomeKind::kFailed) {
      const std::vector<std::string> context = ContextOf(outcome.reason, log_lines);
      if (!context.empty()) {
        *environment_.err << "Last log lines of "
                          << (outcome.blamed.has_value() ? policy::ReplicaName(*outcome.blamed)
                                                         : "coordinator")
                          << ":\n";
        for (const std::string& line : context) *environment_.err << "  " << line << "\n";
      }
      *environment_.err << "sluice: job " << facts.name << " failed: " << outcome.reason << "\n";
      const std::string remedy = RemedyFor(outcome.reason);
      if (!remedy.empty()) *environment_.err << remedy << ".\n";
    } else if (outcome.kind == policy::OutcomeKind::kSuspended) {
      if (!outcome.reason.empty()) {
        *environment_.err << "sluice: " << outcome.reason
                          << "; work since the last checkpoint is redone on resume\n";
      }
      *environment_.err << "Run the same command to resume.\n";
    }
    environment_.err->flush();
  }

 private:
  void ShowEvent(const v1::Event& event) {
    switch (event.kind()) {
      case v1::Event::EVALUATION:
        Note(event.has_evaluation() ? EvaluationText(event.evaluation()) : event.message());
        break;
      case v1::Event::WARNING:
        last_warning_ = event.message();
        // The reason of a failure is printed at the end, and a process's end only once.
        if (failed_ || last_warning_ == last_end_) break;
        Note(absl::StrCat("Warning: ", event.message()));
        break;
      case v1::Event::VIEW:
        break;  // only in the coordinator's log
      default:
        // The coordinator's message about the stop is not why a failed job ended.
        if (!failed_) Note(event.message());
        break;
    }
  }

  // The ends that are due.
  void ShowEnds(absl::Time now) {
    size_t shown = 0;
    for (; shown < ends_.size() && ends_[shown].due <= now; ++shown) Note(ends_[shown].line);
    ends_.erase(ends_.begin(), ends_.begin() + static_cast<ptrdiff_t>(shown));
  }

  bool LineIsDue(absl::Time now) const {
    return now >= next_line_ || (!has_shown_line_ && view_.progress.samples_per_second() > 0);
  }

  void Print(absl::string_view line) {
    Erase();
    *environment_.out << line << "\n";
    if (!live_) environment_.out->flush();
    next_redraw_ = absl::InfinitePast();
  }

  void Erase() {
    if (drawn_.empty()) return;
    // If the terminal was made narrower, it has wrapped the lines.
    const int columns = std::max(1, environment_.columns());
    int rows = 0;
    for (const int width : drawn_) rows += std::max(1, (width + columns - 1) / columns);
    // Move to the first line of the view, and clear from there on.
    *environment_.out << "\x1b[" << rows << "A\r\x1b[J";
    drawn_.clear();
  }

  void Redraw() {
    // One column less than the terminal has: some terminals wrap a full line.
    const std::vector<std::string> lines = LiveLines(
        view_, std::max(20, environment_.columns() - 1), environment_.color, environment_.unicode);
    Erase();
    for (const std::string& line : lines) {
      *environment_.out << line << "\n";
      drawn_.push_back(WidthOf(line));
    }
    environment_.out->flush();
  }

  const Environment& environment_;
  DisplayOptions options_;
  bool live_;
  JobSummary view_;
  bool ending_ = false;
  std::map<policy::Replica, int> left_;  // how often each process has exited with code 0
  bool failed_ = false;
  std::vector<int> drawn_;  // widths of the lines that are drawn now
  // The last process that ended, "worker-1: killed by signal 9 (Killed)", and the coordinator's
  // last warning, which may report the same end.
  std::string last_end_, last_warning_;
  struct End {
    absl::Time due;
    std::string line;
  };
  std::vector<End> ends_;  // of processes, not shown yet
  bool fresh_ = false;     // there is progress that was not printed yet
  absl::Time next_redraw_ = absl::InfinitePast();
  absl::Time next_line_;
  bool has_shown_line_ = false;
};

}  // namespace

std::unique_ptr<RunDisplay> MakeTextDisplay(const Environment& environment,
                                            DisplayOptions options) {
  return std::make_unique<TextDisplay>(environment, std::move(options));
}

}  // namespace sluice::cli
