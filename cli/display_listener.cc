#include "cli/display_listener.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/local_states.h"

namespace sluice::cli {

DisplayListener::DisplayListener(RunDisplay* display, const Clock* clock,
                                 std::optional<LogFollower> logs)
    : display_(display), clock_(clock), logs_(std::move(logs)) {}

void DisplayListener::OnProcessStarted(const policy::Replica& replica, pid_t pid) {
  display_->OnProcessStarted({replica, pid, ""});
}

void DisplayListener::OnProcessEnded(const policy::Replica& replica, pid_t pid,
                                     const policy::Exit& exit) {
  display_->OnProcessEnded({replica, pid, ""}, exit);
  replicas_.insert(replica);
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
  display_->OnOutcome(outcome.kind);
}

void DisplayListener::OnTick(const std::map<policy::Replica, local::ProcessInfo>& processes) {
  // Ctrl-C is shown by the thread that draws.
  if (stopping_) display_->Stopping();
  if (logs_.has_value()) {
    logs_->Poll([this](absl::string_view process, absl::string_view line) {
      display_->OnLogLine(process, line);
    });
  }
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
  if (job.training().mode() == v1::BOUNDED_STALENESS) {
    options.iteration_steps = job.worker().replicas();
  }
  options.losses = job.training().execution() == v1::TrainingSpec::SERVER;
  return options;
}

}  // namespace sluice::cli
