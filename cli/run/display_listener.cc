#include "cli/run/display_listener.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/local/local_states.h"

namespace sluice::cli {

namespace {

// Most programs end at once when their job has ended.
constexpr absl::Duration kNoteDelay = absl::Seconds(2);

}  // namespace

DisplayListener::DisplayListener(RunDisplay* display, const Clock* clock,
                                 std::optional<LogFollower> logs, bool foreground)
    : display_(display), clock_(clock), logs_(std::move(logs)), foreground_(foreground) {}

void DisplayListener::OnProcessStarted(const policy::Replica& replica, pid_t pid) {
  display_->OnProcessStarted({replica, pid, ""});
}

void DisplayListener::OnProcessEnded(const policy::Replica& replica, pid_t pid,
                                     const policy::Exit& exit) {
  replicas_.insert(replica);
  if (foreground_ && local::EndedByCtrlC(replica, exit)) {
    stopping_ = true;
    return;
  }
  display_->OnProcessEnded({replica, pid, ""}, exit);
}

void DisplayListener::OnProgress(const v1::JobProgress& progress) {
  if (progress.phase() == v1::JobProgress::TRAINING || training_.has_value()) {
    const Mark now = {clock_->Now(), progress.samples()};
    if (!training_.has_value()) training_ = {now, now};
    if (progress.samples() > training_->second.samples) training_->second = now;
  }
  progress_ = progress;
  display_->OnProgress(progress, "");
}

void DisplayListener::OnOutcome(const policy::Outcome& outcome) {
  if (outcome.kind == policy::OutcomeKind::kSucceeded) note_at_ = clock_->Now() + kNoteDelay;
  display_->OnOutcome(outcome.kind);
}

// Shows once what the job waits for.
void DisplayListener::NoteWaiting(const std::map<policy::Replica, local::ProcessInfo>& processes) {
  if (clock_->Now() < note_at_) return;
  note_at_ = absl::InfiniteFuture();
  std::vector<std::string> names;
  for (const auto& [replica, process] : processes) {
    if (replica.role == v1::WORKER && process.running) {
      names.push_back(policy::ReplicaName(replica));
    }
  }
  if (names.empty()) return;
  display_->Note(absl::StrCat(
      "Training has ended; waiting for the ", names.size() == 1 ? "program" : "programs", " of ",
      absl::StrJoin(names, ", "), " to end (code after the loop). Ctrl-C stops ",
      names.size() == 1 ? "it" : "them"));
}

void DisplayListener::OnTick(const std::map<policy::Replica, local::ProcessInfo>& processes) {
  // Ctrl-C is shown by the thread that draws.
  if (stopping_) display_->Stopping();
  if (logs_.has_value()) {
    logs_->Poll([this](absl::string_view process, absl::string_view line) {
      display_->OnLogLine(process, line);
    });
  }
  NoteWaiting(processes);
  display_->OnTick(LocalProcessStates(processes, progress_.has_value() ? &*progress_ : nullptr));
}

void DisplayListener::FillIn(SummaryFacts* facts) const {
  if (!training_.has_value()) return;
  facts->training_time = training_->second.time - training_->first.time;
  facts->samples = training_->second.samples - training_->first.samples;
}

policy::Replica DisplayListener::Blamed(absl::string_view reason) const {
  for (const policy::Replica& replica : replicas_) {
    if (absl::StartsWith(reason, absl::StrCat(policy::ReplicaName(replica), ":"))) return replica;
  }
  return {v1::COORDINATOR, 0};
}

DisplayOptions DisplayOptionsOf(const RunFlags& flags, const v1::JobSpec& job) {
  DisplayOptions options;
  options.job = job.name();
  options.quiet = flags.quiet;
  options.foreground = flags.foreground;
  if (job.training().mode() == v1::BOUNDED_STALENESS) {
    options.iteration_steps = job.worker().replicas();
  }
  options.losses = job.training().execution() == v1::TrainingSpec::SERVER;
  return options;
}

}  // namespace sluice::cli
