#include <algorithm>
#include <csignal>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/cli/log_follower.h"
#include "services/cli/run_display.h"
#include "services/common/exit_code.h"

namespace sluice::cli {
namespace {

// So many normal ends of one process are no accident, nor the end of the job.
constexpr int kLeftOften = 3;

constexpr absl::Duration kRedrawInterval = absl::Milliseconds(200);
// Without a live view, a line of progress as soon as the pace is known, then at this interval.
constexpr absl::Duration kLineInterval = absl::Seconds(10);

class TextDisplay final : public RunDisplay {
 public:
  TextDisplay(const Environment& environment, DisplayOptions options)
      : environment_(environment),
        options_(std::move(options)),
        live_(environment.live && !options_.quiet),
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

  void Ending(policy::Outcome outcome) override {
    ending_ = true;
    failed_ = outcome == policy::Outcome::kFailed;
  }

  void OnProcessStarted(const ProcessLife&) override {}

  void OnProcessEnded(const ProcessLife& life, const policy::Exit& exit) override {
    // The operator's events tell of pods, and say more.
    if (!life.pod.empty()) return;
    const policy::Slot& slot = life.slot;
    if (exit.signal == 0 && exit.code == kExitOk) {
      if (!ending_ && ++left_[slot] == kLeftOften) {
        Note(absl::StrCat(policy::SlotName(slot), " has ended with exit code 0 ", kLeftOften,
                          " times, and the job is not at its end: it is started again each time. "
                          "A program should stay in its loop until the job ends; `sluice stop` "
                          "ends a job early."));
      }
      return;
    }
    // Of the end: the job's own reason is told last.
    if (ending_ && (exit.signal == 0 || exit.signal == SIGTERM || exit.signal == SIGKILL)) return;
    if (exit.signal == 0 && exit.code == kExitExpelled) {
      if (!view_.stopping) {
        Note(absl::StrCat(policy::SlotName(slot), " was removed from the job and is restarted"));
      }
      return;
    }
    const std::string name = policy::SlotName(slot);
    std::string text = policy::ExitText(exit);
    last_end_ = absl::StrCat(name, ": ", text);
    if (last_warning_ == last_end_) return;
    if (!exit.message.empty()) absl::StrAppend(&text, " (", exit.message, ")");
    Note(absl::StrCat(name, " ended: ", text));
  }

  void OnProgress(const v1::JobProgress& progress, const std::string& state) override {
    fresh_ = true;
    view_.progress = progress;
    view_.state = state;
    view_.heard = true;
    for (const v1::Event& event : progress.events()) {
      // Finish tells it.
      if (!IsReasonOfFailure(event, progress)) ShowEvent(event);
    }
  }

  void OnLogLine(absl::string_view process, absl::string_view line) override {
    Print(PrefixedLine(process, line, environment_.color));
  }

  void OnTick(const std::map<policy::Slot, ProcessState>& processes) override {
    view_.processes = processes;
    const absl::Time now = environment_.clock->Now();
    if (live_) {
      if (now >= next_redraw_) {
        next_redraw_ = now + kRedrawInterval;
        Redraw();
      }
    } else if (fresh_ && LineIsDue(now) &&
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
    if (facts.result.heard) lines = SummaryLines(facts);
    // Of a quiet run only the first line, which has the metric.
    if (options_.quiet && lines.size() > 1) lines.resize(1);
    for (const std::string& line : lines) *environment_.out << line << "\n";
    environment_.out->flush();
    const policy::Ending& ending = facts.result.ending;
    if (ending.outcome == policy::Outcome::kFailed) {
      const std::vector<std::string> context = ContextOf(ending.reason, log_lines);
      if (!context.empty()) {
        *environment_.err << "The last lines of "
                          << (ending.blamed.has_value() ? policy::SlotName(*ending.blamed)
                                                        : "the coordinator")
                          << ":\n";
        for (const std::string& line : context) *environment_.err << "  " << line << "\n";
      }
      *environment_.err << "sluice: job " << facts.name << " failed: " << ending.reason << "\n";
      const std::string remedy = RemedyFor(ending.reason);
      if (!remedy.empty()) *environment_.err << remedy << ".\n";
    } else if (ending.outcome == policy::Outcome::kSuspended) {
      if (!ending.reason.empty()) {
        *environment_.err << "sluice: " << ending.reason
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
        // The job's own reason is told at its end, and a process's end once.
        if (failed_ || last_warning_ == last_end_) break;
        Note(absl::StrCat("Warning: ", event.message()));
        break;
      case v1::Event::VIEW:
        break;  // in the coordinator's log
      default:
        // What its coordinator says of a stop was not what ended a failed job.
        if (!failed_) Note(event.message());
        break;
    }
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
    // A terminal that was made narrower since has wrapped the lines.
    const int columns = std::max(1, environment_.columns());
    int rows = 0;
    for (const int width : drawn_) rows += std::max(1, (width + columns - 1) / columns);
    // Up to the first line of the view, and clear from there on.
    *environment_.out << "\x1b[" << rows << "A\r\x1b[J";
    drawn_.clear();
  }

  void Redraw() {
    // One less than the terminal has: a full line would wrap in some.
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
  JobView view_;
  bool ending_ = false;
  std::map<policy::Slot, int> left_;  // how often each has ended with code 0
  bool failed_ = false;
  std::vector<int> drawn_;  // the widths of the lines of the view that stands
  // "worker-1: killed by signal 9 (Killed)": the last that ended, and the coordinator's last
  // warning, which may be of the same.
  std::string last_end_, last_warning_;
  bool fresh_ = false;  // there is progress that no line has told
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
