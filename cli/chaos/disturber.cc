#include "cli/chaos/disturber.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/common/progress_text.h"

namespace sluice::chaos {
namespace {

// If Decide is called this long after the previous call, this process itself was paused.
constexpr absl::Duration kPauseThreshold = absl::Seconds(5);
// A coordinator that has not answered for this long does not take part.
constexpr absl::Duration kSilence = absl::Seconds(2);
// The most failures that are listed.
constexpr size_t kMaxUnexplained = 20;

// 0: none.
int SignalOf(Action action) {
  switch (action) {
    case Action::kKill:
      return SIGKILL;
    case Action::kFreeze:
      return SIGSTOP;
    case Action::kTerminate:
      return SIGTERM;
    case Action::kScale:
    case Action::kCut:
    case Action::kSlow:
    case Action::kFill:
      break;
  }
  return 0;
}

bool Contains(const std::vector<pid_t>& pids, pid_t pid) {
  return std::find(pids.begin(), pids.end(), pid) != pids.end();
}

bool IsRunning(const Disturber::Processes& processes, const policy::Replica& replica, pid_t pid) {
  const auto found = processes.find(replica);
  return found != processes.end() && found->second.running && found->second.pid == pid;
}

}  // namespace

double Pace::StepsPerSecond() const {
  const double seconds = absl::ToDoubleSeconds(training);
  return seconds > 0 ? static_cast<double>(steps) / seconds : 0;
}

Disturber::Disturber(Options options, absl::Time now)
    : options_(std::move(options)),
      sizes_{options_.schedule.shards, options_.schedule.workers},
      stepped_(now),
      advanced_(now),
      decided_(now) {}

void Disturber::OnProgress(const v1::JobProgress& progress, absl::Time now) {
  if (progress.recomputed_samples() < progress_.recomputed_samples()) {
    reported_before_ += progress_.recomputed_samples();
  }
  answered_ = now;
  const bool was_over = TrainingIsOver();
  if (progress.last_evaluation().step() != progress_.last_evaluation().step()) advanced_ = now;
  progress_ = progress;
  progress_.clear_events();
  progress_.clear_losses();
  if (TrainingIsOver() && !was_over) advanced_ = now;

  const v1::ViewId& id = progress.view().id();
  if (id.attempt() == 0 || id.attempt() != progress.attempt()) return;
  view_ = {id.attempt(), id.term().counter(), id.number()};
  if (progress.attempt() > attempt_) BeginAttempt(progress, now);
  if (progress.attempt() == attempt_) Advance(progress, now);
  // Workers report such samples a moment later.
  if (!faults_.empty()) faults_.back().recomputed_samples = Recomputed() - recomputed_at_fault_;
  Follow(now);
}

void Disturber::BeginAttempt(const v1::JobProgress& progress, absl::Time now) {
  const uint64_t base = progress.restored() ? progress.restored_from_step() : 0;
  if (attempt_ == 0) {
    began_ = stepped_ = now;
    first_step_ = base;
  } else if (samples_ > progress.samples()) {
    rolled_back_ += samples_ - progress.samples();
  }
  attempt_ = progress.attempt();
  step_ = base;
  if (open_.has_value()) faults_.back().attempts += 1;
}

void Disturber::Advance(const v1::JobProgress& progress, absl::Time now) {
  samples_ = progress.samples();
  if (progress.step() <= step_) return;
  const absl::Duration stall = now - stepped_;
  longest_stall_ = std::max(longest_stall_, stall);
  if (!faults_.empty()) {
    faults_.back().longest_stall = std::max(faults_.back().longest_stall, stall);
  }
  step_ = progress.step();
  stepped_ = advanced_ = now;
  training_ = now - began_;
}

// Measures how the job recovers from the newest fault.
void Disturber::Follow(absl::Time now) {
  if (!open_.has_value()) return;
  FaultRecord& fault = faults_.back();
  if (!open_->base.has_value() || attempt_ > open_->base_attempt) {
    if (!Consequences()) return;
    const bool restored = attempt_ > std::get<0>(open_->view);
    open_->base = step_;
    open_->base_attempt = attempt_;
    // A first observation may already show steps of the new attempt.
    if (restored) open_->base = progress_.restored() ? progress_.restored_from_step() : 0;
  }

  const bool over = TrainingIsOver();
  if (!fault.recovered.has_value() && (step_ > *open_->base || over)) {
    fault.recovered = now - fault.at;
  }

  if (fault.recovered.has_value() && !fault.caught_up.has_value() && (step_ > fault.step || over)) {
    fault.caught_up = now - fault.at;
  }
}

// Whether the newest view is one in which the targets are replaced, or take part again.
bool Disturber::Consequences() const {
  const FaultRecord& fault = faults_.back();
  if (fault.plan.action == Action::kSlow) return true;  // slow processes always take part

  for (size_t i = 0; i < fault.pids.size(); ++i) {
    if (Lasts(fault.plan.action) && !Contains(open_->ended, fault.pids[i])) {
      if (!open_->over) return false;
      continue;
    }

    switch (fault.plan.targets[i].role) {
      // A shard's partitions continue on other shards in a new view, or in a new attempt.
      case v1::SHARD:
      case v1::COORDINATOR:
        if (view_ <= open_->view) return false;
        break;
      default:
        if (open_->hit_member && view_ <= open_->view) return false;
        break;
    }
  }
  return true;
}

bool Disturber::TrainingIsOver() const {
  switch (progress_.phase()) {
    case v1::JobProgress::EVALUATING:
    case v1::JobProgress::SAVING:
    case v1::JobProgress::SUSPENDED:
    case v1::JobProgress::SUCCEEDED:
    case v1::JobProgress::FAILED:
      return true;
    default:
      return false;
  }
}

void Disturber::OnProcessEnded(const policy::Replica& replica, pid_t pid,
                               const policy::Exit& exit) {
  if (stopped_) return;
  for (const FaultRecord& fault : faults_) {
    if (!Contains(fault.pids, pid)) continue;
    if (open_.has_value() && &fault == &faults_.back()) open_->ended.push_back(pid);
    return;
  }
  const policy::ExitVerdict verdict = policy::VerdictOn(exit);
  const bool failed =
      verdict != policy::ExitVerdict::kLeft && verdict != policy::ExitVerdict::kRetry;
  if (!failed || unexplained_.size() >= kMaxUnexplained) return;
  unexplained_.push_back(absl::StrCat(policy::ReplicaName(replica), ": ", policy::ExitText(exit)));
}

Disturber::Decision Disturber::Decide(const Processes& processes, absl::Time now) {
  Decision decision;
  if (now - decided_ > kPauseThreshold) advanced_ += now - decided_;
  decided_ = now;

  if (open_.has_value() && (stopped_ || now >= faults_.back().at + faults_.back().plan.lasts)) {
    End(processes, &decision);
  }

  const std::optional<policy::Replica> missing = Missing(processes, now);
  if (!missing.has_value()) missing_since_ = absl::InfiniteFuture();
  if (missing.has_value() && missing_since_ == absl::InfiniteFuture()) missing_since_ = now;

  if (open_.has_value()) {
    FaultRecord& fault = faults_.back();
    if (!missing.has_value() && HasAllCopies() && fault.recovered.has_value() &&
        !fault.all_back.has_value() && IsDone()) {
      fault.all_back = now - fault.at;
    }
    if (fault.all_back.has_value() && fault.caught_up.has_value()) {
      End(processes, &decision);  // of processes that are gone
      decision.recovered = &fault;
      open_.reset();
      next_at_ = now + FaultAt(options_.schedule, faults_.size()).delay;
    }
  } else if (next_at_ == absl::InfiniteFuture() && attempt_ > 0 && !missing.has_value()) {
    next_at_ = now + FaultAt(options_.schedule, 0).delay;
  }

  if (stopped_) return decision;
  const bool injects = !open_.has_value() && decision.recovered == nullptr && now >= next_at_ &&
                       faults_.size() < options_.max_faults && !missing.has_value() &&
                       HasAllCopies();
  if (injects) Inject(processes, now, &decision);
  if (!found_problem_) decision.problem = FindHang(processes, now);
  found_problem_ = found_problem_ || decision.problem.has_value();
  return decision;
}

void Disturber::Inject(const Processes& processes, absl::Time now, Decision* decision) {
  FaultRecord fault;
  fault.plan = FaultAt(options_.schedule, faults_.size());
  fault.at = now;
  fault.step = step_;

  Open open;
  open.view = view_;

  if (fault.plan.action == Action::kScale) decision->sizes = sizes_ = fault.plan.sizes;

  for (const policy::Replica& target : fault.plan.targets) {
    fault.pids.push_back(processes.at(target).pid);
    for (const v1::ProcessStatus& status : progress_.processes()) {
      if (status.process().role() == v1::WORKER && status.process().role() == target.role &&
          status.process().index() == target.index && status.state() == v1::ProcessStatus::MEMBER) {
        open.hit_member = true;
      }
    }
  }

  if (fault.plan.action == Action::kFill) {
    for (const auto& [replica, process] : processes) {
      if (process.running && replica.role != v1::WORKER) open.full.push_back(process.pid);
    }
  }

  recomputed_at_fault_ = Recomputed();
  faults_.push_back(std::move(fault));
  open_ = std::move(open);

  Begin(decision);
  decision->injected = &faults_.back();
}

void Disturber::Begin(Decision* decision) const {
  const FaultRecord& fault = faults_.back();
  const int signal = SignalOf(fault.plan.action);
  for (size_t i = 0; i < fault.pids.size(); ++i) {
    if (signal != 0) decision->signals.push_back({fault.plan.targets[i], fault.pids[i], signal});
    if (DisturbsLinks(fault.plan.action)) {
      decision->links.push_back({fault.pids[i], fault.plan.link});
    }
  }
  for (const pid_t pid : open_->full) decision->disks.push_back({pid, true});
}

void Disturber::End(const Processes& processes, Decision* decision) {
  const FaultRecord& fault = faults_.back();
  if (open_->over || !Lasts(fault.plan.action)) return;
  open_->over = true;

  for (size_t i = 0; i < fault.pids.size(); ++i) {
    if (DisturbsLinks(fault.plan.action)) decision->links.push_back({fault.pids[i], std::nullopt});
    const policy::Replica& target = fault.plan.targets[i];
    if (fault.plan.action == Action::kFreeze && IsRunning(processes, target, fault.pids[i])) {
      decision->signals.push_back({target, fault.pids[i], SIGCONT});
    }
  }

  for (const auto& [replica, process] : processes) {
    if (process.running && Contains(open_->full, process.pid)) {
      decision->disks.push_back({process.pid, false});
    }
  }
}

// Whether the fault has ended, or its targets have.
bool Disturber::IsDone() const {
  const FaultRecord& fault = faults_.back();
  if (!Lasts(fault.plan.action) || open_->over) return true;
  return !fault.pids.empty() &&
         absl::c_all_of(fault.pids, [&](pid_t pid) { return Contains(open_->ended, pid); });
}

std::optional<policy::Replica> Disturber::Missing(const Processes& processes,
                                                  absl::Time now) const {
  const auto takes_part = [&](const policy::Replica& replica) {
    const auto found = processes.find(replica);
    if (found == processes.end() || !found->second.running) return false;
    if (replica.role == v1::COORDINATOR) return now - answered_ < kSilence;

    for (const v1::ProcessStatus& status : progress_.processes()) {
      const bool same =
          status.process().role() == replica.role && status.process().index() == replica.index;
      if (!same || (status.state() != v1::ProcessStatus::MEMBER &&
                    status.state() != v1::ProcessStatus::STANDBY)) {
        continue;
      }

      // A new shard joins the view of an attempt that has copies.
      const bool joins = replica.role == v1::SHARD && progress_.copies() > 0 &&
                         status.state() == v1::ProcessStatus::STANDBY;
      if (joins) continue;
      if (status.pid() == static_cast<uint64_t>(found->second.pid)) return true;
      if (options_.own_worker_program && replica.role == v1::WORKER) return true;
    }
    return false;
  };

  if (!takes_part(policy::kCoordinator)) return policy::kCoordinator;
  for (uint32_t i = 0; i < sizes_.shards; ++i) {
    if (!takes_part({v1::SHARD, i})) return policy::Replica{v1::SHARD, i};
  }
  for (uint32_t i = 0; i < sizes_.workers; ++i) {
    if (!takes_part({v1::WORKER, i})) return policy::Replica{v1::WORKER, i};
  }

  for (const auto& [replica, process] : processes) {
    if (process.running && !Wanted(replica)) return replica;
  }
  return std::nullopt;
}

bool Disturber::Wanted(const policy::Replica& replica) const {
  if (replica.role == v1::COORDINATOR) return true;
  return replica.index < (replica.role == v1::SHARD ? sizes_.shards : sizes_.workers);
}

// Whether every partition has the copies that the job should have.
bool Disturber::HasAllCopies() const { return progress_.missing_copies() == 0; }

std::optional<std::string> Disturber::FindHang(const Processes& processes, absl::Time now) const {
  const std::string seconds = absl::StrFormat("%g s", absl::ToDoubleSeconds(options_.stall));
  std::string since;
  if (!faults_.empty()) {
    since = absl::StrFormat("; the last fault: %s, %.1f s ago", FaultText(faults_.back().plan),
                            absl::ToDoubleSeconds(now - faults_.back().at));
  }

  const std::optional<policy::Replica> missing = Missing(processes, now);
  if (now - advanced_ > options_.stall) {
    const std::string without =
        missing.has_value() ? absl::StrCat(", without ", policy::ReplicaName(*missing)) : "";
    return absl::StrCat("the job hangs: no step for ", seconds, " in the phase ",
                        cli::PhaseText(progress_.phase()), " at ", cli::StepText(progress_),
                        without, since);
  }

  if (!open_.has_value()) return std::nullopt;
  if (now - missing_since_ > options_.stall && faults_.back().recovered.has_value() &&
      !TrainingIsOver()) {
    const policy::Replica replica = missing.value_or(policy::kCoordinator);
    return absl::StrCat(policy::ReplicaName(replica),
                        Wanted(replica) ? " has not taken part in the job for "
                                        : " should have left the job and is still there after ",
                        seconds, since);
  }

  if (faults_.back().attempts > faults_.back().plan.targets.size() + options_.backoff_limit) {
    return absl::StrCat("the job was restored ", faults_.back().attempts, " times", since);
  }
  return std::nullopt;
}

uint64_t Disturber::Recomputed() const {
  return rolled_back_ + reported_before_ + progress_.recomputed_samples();
}

Pace Disturber::pace() const {
  Pace pace;
  pace.steps = step_ > first_step_ ? step_ - first_step_ : 0;
  pace.training = training_;
  pace.longest_stall = longest_stall_;
  pace.attempts = attempt_;
  pace.recomputed_samples = Recomputed();
  return pace;
}

}  // namespace sluice::chaos
