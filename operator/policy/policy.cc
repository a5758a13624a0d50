#include "operator/policy/policy.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "operator/policy/check_decision.h"
#include "operator/policy/judgements.h"
#include "services/common/check.h"
#include "services/common/exit_code.h"

namespace sluice::policy {
namespace {

std::string WithMessage(std::string text, const Exit& exit) {
  if (!exit.message.empty()) absl::StrAppend(&text, ": ", exit.message);
  return text;
}

class Decider {
 public:
  Decider(const JobPlan& plan, const Limits& limits, const Observation& world, const Memory& memory,
          absl::Time now)
      : plan_(plan),
        limits_(limits),
        world_(world),
        now_(now),
        memory_(decision_.memory),
        situation_{plan, limits, world, memory_, now} {
    memory_ = memory;
  }

  Decision Run() {
    const bool over = memory_.outcome.has_value();
    if (memory_.active_since == absl::InfiniteFuture()) memory_.active_since = now_;
    for (const auto& [replica, process] : world_.processes) {
      if (process.ready) memory_.worked.insert(replica.role);
    }

    HandleRemovals();
    EndIf(&ProgressDeadline);
    HandleExits();
    NoteSuspension();
    for (const Judge judge :
         {&CoordinatorsReport, &UnexplainedFailure, &FailedSuspension, &ActiveDeadline}) {
      EndIf(judge);
    }

    if (memory_.outcome.has_value()) {
      StopAll();
    } else {
      KillExpelled();
      KillSilent();
      StopSurplus();
      ReplaceOutdated();
      if (!memory_.unexplained.has_value()) StartMissing();
    }

    if (!over) ReportExits();
    Forget();
    decision_.desired_workers = plan_.workers;
    decision_.desired_shards = plan_.shards;
    decision_.desired_suspend = plan_.suspend;
    return std::move(decision_);
  }

 private:
  void EndIf(Judge judge) {
    if (memory_.outcome.has_value()) return;
    std::optional<Judgement> judgement = judge(situation_);
    if (!judgement.has_value()) return;

    if (now_ < judgement->at) {
      RequeueBy(judgement->at);
    } else {
      End(std::move(judgement->outcome));
    }
  }

  void End(Outcome outcome) {
    if (memory_.outcome.has_value()) return;
    memory_.outcome = std::move(outcome);
    memory_.outcome->since = now_;
  }
  void Fail(std::string code, std::string reason, const Replica& blamed) {
    End(Failed(std::move(code), std::move(reason), blamed));
  }

  void RequeueBy(absl::Time time) {
    SLUICE_DCHECK(time > now_, "a caller that waits until decide_again does not spin");
    decision_.decide_again = std::min(decision_.decide_again, time);
  }

  // Only workers: a shard has state, and leaves when the coordinator has moved its partitions.
  bool Surplus(const Replica& replica) const {
    return replica.role == v1::WORKER && !Wanted(plan_, replica);
  }

  void NoteReplaced(const Replica& replica, const std::string& instance) {
    Memory::ReplicaMemory& kept = memory_.replicas[replica];
    if (kept.replaced_instance == instance) return;
    kept.replaced_instance = instance;
    ++kept.restarts;
    decision_.replaced.push_back(replica);
  }

  // A process that is removed although the job needs it counts as replaced at once, and its exit
  // does not count as a failure.
  void HandleRemovals() {
    if (memory_.outcome.has_value() || plan_.suspend) return;
    for (const auto& [replica, process] : world_.processes) {
      if (!process.removal.has_value() || !Wanted(plan_, replica)) continue;
      Memory::ReplicaMemory& kept = memory_.replicas[replica];
      if (kept.replaced_instance == process.instance) continue;
      if (now_ < process.removal->certain_from) {
        RequeueBy(process.removal->certain_from);
        continue;
      }

      NoteReplaced(replica, process.instance);
      if (kept.handled_instance == process.instance) continue;
      kept.handled_instance = process.instance;
      Exit exit = process.exit;
      exit.cause = Cause::kOutside;
      exit.reason = process.removal->reason;
      decision_.exits.push_back({replica, std::move(exit)});
    }
  }

  void HandleExits() {
    for (const auto& [replica, process] : world_.processes) {
      Memory::ReplicaMemory& kept = memory_.replicas[replica];
      if (process.running || kept.handled_instance == process.instance) continue;

      kept.handled_instance = process.instance;
      if (replica.role != v1::COORDINATOR) {
        decision_.deaths.push_back({replica, process.pid, ExitText(process.exit)});
      }

      if (Wanted(plan_, replica) && VerdictOn(process.exit) != ExitVerdict::kLeft) {
        const bool counted =
            WasHealthy(replica, process) && IsFailure(plan_, replica, process.exit);
        exits_.push_back({replica, process.exit, counted});
      }

      // A process that exits because of the job's end does not affect the outcome.
      if (!memory_.outcome.has_value()) HandleExit(replica, process, &kept);
    }
  }

  // Once the job ends, only the exit that fails it is reported: the others may be consequences.
  void ReportExits() {
    const std::optional<Outcome>& outcome = memory_.outcome;
    for (ReportExit& exit : exits_) {
      const bool ends_job = outcome.has_value() && outcome->kind == OutcomeKind::kFailed &&
                            outcome->blamed == exit.replica;
      if (!outcome.has_value() || ends_job) decision_.exits.push_back(std::move(exit));
    }
  }

  bool WasHealthy(const Replica& replica, const ProcessObservation& process) const {
    return !KilledBeforeItRegistered(replica, process) &&
           (process.ready || process.ended - process.started >= limits_.healthy_after);
  }

  void HandleExit(const Replica& replica, const ProcessObservation& process,
                  Memory::ReplicaMemory* kept) {
    SLUICE_DCHECK(!process.running, "only a process that has ended has an exit");
    const bool healthy = WasHealthy(replica, process);
    if (healthy) kept->failures_in_row = kept->failed_starts = 0;
    kept->data_missing = kept->refused = false;

    const FailureRule* rule = RuleFor(plan_.failure_rules, replica, process.exit);
    if (rule != nullptr && rule->action == FailureRule::Action::kFailJob) {
      Fail("FailurePolicy",
           WithMessage(absl::StrCat(ReplicaName(replica), " ended with ", ExitText(process.exit),
                                    ", which fails the job by its failurePolicy"),
                       process.exit),
           replica);
      return;
    }

    switch (VerdictOf(replica, process)) {
      case ExitVerdict::kLeft:
        if (replica.role == v1::COORDINATOR) {
          CoordinatorLeft();
        } else {
          kept->start_after = now_ + limits_.left_delay;
        }
        return;
      case ExitVerdict::kRetry:
        // The delay prevents a busy loop if a process is expelled each time before it is ready.
        Delay(kept);
        return;
      case ExitVerdict::kPending:
        if (!limits_.patient) {
          Fail("DataMissing", WithMessage(ReplicaName(replica), process.exit), replica);
          return;
        }
        kept->data_missing = true;
        Delay(kept);
        return;
      case ExitVerdict::kRefused:
        if (memory_.worked.count(replica.role) == 0) {
          Hopeless(replica, process.exit);
          return;
        }
        kept->refused = true;
        Delay(kept);
        return;
      case ExitVerdict::kHopeless:
        Hopeless(replica, process.exit);
        return;
      case ExitVerdict::kDeath:
        break;
    }

    if (Surplus(replica)) return;
    if (plan_.suspend) {
      if (replica.role == v1::COORDINATOR) Delay(kept);
      return;
    }
    if (!healthy) ++kept->failed_starts;
    Delay(kept);
    if (replica.role == v1::SHARD) {
      kept->start_after = std::max(kept->start_after, now_ + limits_.shard_delay);
    }
    if (healthy || !limits_.patient) CountDeath(replica, process, *kept);
  }

  // The coordinator's own reason is more precise. A failing worker or shard reports its error to
  // the coordinator before it exits, so the coordinator's reason may arrive a moment later.
  void Hopeless(const Replica& replica, const Exit& exit) {
    if (world_.phase == v1::JobProgress::FAILED) return;
    Outcome outcome = Failed(
        "ProcessFailed",
        WithMessage(absl::StrCat(ReplicaName(replica), " ended with ", ExitText(exit)), exit),
        replica);

    const bool reported = replica.role != v1::COORDINATOR && exit.code == kExitFailed;
    if (!reported || !world_.Running(kCoordinator)) {
      End(std::move(outcome));
    } else if (!memory_.unexplained.has_value()) {
      memory_.unexplained = std::move(outcome);
      memory_.unexplained->since = now_;
    }
  }

  ExitVerdict VerdictOf(const Replica& replica, const ProcessObservation& process) const {
    if (const FailureRule* rule = RuleFor(plan_.failure_rules, replica, process.exit);
        rule != nullptr) {
      return rule->action == FailureRule::Action::kIgnore ? ExitVerdict::kRetry
                                                          : ExitVerdict::kDeath;
    }

    // A registered worker or shard that was killed counts as if it had learned of its expulsion and
    // exited. A coordinator, or a process that never registered, has died like any other.
    if (replica.role != v1::COORDINATOR && WasKilled(replica, process) &&
        !KilledBeforeItRegistered(replica, process)) {
      return ExitVerdict::kRetry;
    }

    const ExitVerdict verdict = VerdictOn(process.exit);
    if (!limits_.patient || verdict != ExitVerdict::kHopeless) return verdict;

    // Only the coordinator declares that the job has failed.
    const bool declared =
        replica.role == v1::COORDINATOR && world_.phase == v1::JobProgress::FAILED;
    return process.exit.code == kExitFailed && !declared ? ExitVerdict::kDeath : verdict;
  }

  bool WasKilled(const Replica& replica, const ProcessObservation& process) const {
    const auto killed = memory_.killed.find(replica);
    return killed != memory_.killed.end() && killed->second == process.instance;
  }

  bool KilledBeforeItRegistered(const Replica& replica, const ProcessObservation& process) const {
    if (replica.role == v1::COORDINATOR || !WasKilled(replica, process)) return false;
    const auto kept = memory_.replicas.find(replica);
    return !process.ready && process.expelled_after == absl::InfiniteFuture() &&
           (kept == memory_.replicas.end() || kept->second.registered_instance != process.instance);
  }

  // The text of an exit for messages.
  std::string LastText(const Replica& replica, const ProcessObservation& process) const {
    if (!WasKilled(replica, process)) return WithMessage(ExitText(process.exit), process.exit);
    if (replica.role == v1::COORDINATOR) {
      return absl::StrCat("it did not answer (", ExitText(process.exit), ")");
    }
    return absl::StrCat("it did not register within ", absl::FormatDuration(StartTimeout(replica)),
                        " of its start (", ExitText(process.exit), ")");
  }

  void Delay(Memory::ReplicaMemory* kept) {
    const int row = kept->failures_in_row++;
    absl::Duration delay = row == 0 ? absl::ZeroDuration() : limits_.first_delay;
    for (int i = 1; i < row && delay < limits_.max_delay; ++i) delay *= 2;
    kept->start_after = now_ + std::min(delay, limits_.max_delay);
  }

  void CountDeath(const Replica& replica, const ProcessObservation& process,
                  const Memory::ReplicaMemory& kept) {
    SLUICE_DCHECK(kept.failures_in_row > 0, "a death delays the next restart, counted or not");
    const std::string last = LastText(replica, process);

    if (kept.failed_starts >= limits_.max_failed_starts) {
      Fail("NeverReady",
           absl::StrCat(ReplicaName(replica), " ended ", kept.failed_starts,
                        " times in a row before it was ready; the last time: ", last),
           replica);
      return;
    }

    if (replica.role == v1::COORDINATOR && Trains()) return;
    if (replica.role == v1::SHARD && OthersHaveCopies(replica)) return;

    if (replica.role != v1::WORKER) {
      if (++memory_.restorations > plan_.backoff_limit) {
        Fail(
            "BackoffLimitExceeded",
            absl::StrCat(ReplicaName(replica), " died (", last, "), and the job's backoffLimit of ",
                         plan_.backoff_limit, " deaths is exceeded"),
            replica);
      }
      return;
    }

    std::deque<absl::Time>& deaths = memory_.worker_deaths;
    deaths.push_back(now_);
    while (now_ - deaths.front() > limits_.worker_window) deaths.pop_front();
    if (static_cast<int>(deaths.size()) > limits_.max_worker_deaths) {
      Fail("TooManyWorkerFailures",
           absl::StrCat(deaths.size(), " workers died within ",
                        absl::FormatDuration(limits_.worker_window), "; the last, ",
                        ReplicaName(replica), ": ", last),
           replica);
    }
  }

  // If so, training continues with the copies of the lost shard's partitions, and nothing is
  // restored. If the copies were not complete, the coordinator restores the job and counts that.
  bool OthersHaveCopies(const Replica& lost) const {
    if (!plan_.second_copies || plan_.shards < 2 || !Trains()) return false;
    for (uint32_t index = 0; index < plan_.shards; ++index) {
      if (index == lost.index) continue;
      const ProcessObservation* other = world_.Find({v1::SHARD, index});
      if (other == nullptr || !other->running || !other->ready) return false;
    }
    return true;
  }

  // If so, a new coordinator continues the job, and nothing is restored.
  bool Trains() const {
    return world_.phase == v1::JobProgress::TRAINING ||
           world_.phase == v1::JobProgress::EVALUATING || world_.phase == v1::JobProgress::SAVING;
  }

  void CoordinatorLeft() {
    if (memory_.unexplained.has_value()) return;  // UnexplainedFailure ends the job
    switch (world_.phase) {
      case v1::JobProgress::SUCCEEDED:
      case v1::JobProgress::FAILED:
      case v1::JobProgress::SUSPENDED:
        return;  // CoordinatorsReport ends the job, or the coordinator is restarted
      default:
        break;
    }
    // A coordinator exits with 0 only at the end of the job; its last report was missed.
    End(plan_.suspend ? Suspended("", limits_.leave_grace) : Succeeded(limits_));
  }

  void NoteSuspension() {
    if (!plan_.suspend) {
      memory_.suspending_since = absl::InfiniteFuture();
    } else if (!memory_.outcome.has_value() || plan_.programs_finish) {
      memory_.suspending_since = std::min(memory_.suspending_since, now_);
    }
  }

  void Stop(const Replica& replica, const ProcessObservation& process, bool kill) {
    SLUICE_DCHECK(process.running, "only a running process is stopped");
    if (process.removal.has_value() && !kill) return;
    std::string& sent = kill ? memory_.killed[replica] : memory_.terminated[replica];
    if (sent == process.instance) return;
    sent = process.instance;
    decision_.stops.push_back({replica, process.instance, kill});
  }

  // Until when a process may exit by itself.
  absl::Time LeaveBy(const Replica& replica, const ProcessObservation& process) const {
    SLUICE_DCHECK(memory_.outcome.has_value(), "processes leave when the job has ended");
    if (plan_.programs_finish && replica.role == v1::WORKER && process.ready &&
        memory_.outcome->kind == OutcomeKind::kSucceeded) {
      if (!plan_.suspend) return absl::InfiniteFuture();
      if (memory_.suspending_since > memory_.outcome->since) return memory_.suspending_since;
    }
    const absl::Time by = memory_.outcome->since + memory_.outcome->leave_grace;

    const ProcessObservation* coordinator = world_.Find(kCoordinator);
    // A user's own program may have more to do after training has succeeded, and it is not known
    // whether a process that a script started was a member.
    if (process.ready || memory_.outcome->kind == OutcomeKind::kSucceeded ||
        coordinator == nullptr || coordinator->running) {
      return by;
    }
    // The process could only wait for the coordinator, which has ended.
    return std::min(by, std::max(memory_.outcome->since, coordinator->ended));
  }

  void StopAll() {
    bool any = false;
    for (const auto& [replica, process] : world_.processes) {
      if (!process.running) continue;
      any = true;

      const absl::Time terminate = LeaveBy(replica, process);
      const absl::Time kill = std::min(terminate + limits_.stop_grace, FrozenAt(process));
      if (now_ >= kill) {
        Stop(replica, process, /*kill=*/true);
      } else if (now_ >= terminate) {
        Stop(replica, process, /*kill=*/false);
        RequeueBy(kill);
      } else {
        RequeueBy(std::min(terminate, kill));
      }
    }

    if (!any) decision_.finish = memory_.outcome;
  }

  // When an expelled process is assumed to be frozen.
  absl::Time FrozenAt(const ProcessObservation& process) const {
    return process.expelled_after + limits_.expelled_grace;
  }

  void KillAt(absl::Time at, const Replica& replica, const ProcessObservation& process) {
    if (at == absl::InfiniteFuture()) return;
    if (now_ >= at) {
      Stop(replica, process, /*kill=*/true);
    } else {
      RequeueBy(at);
    }
  }

  void KillExpelled() {
    for (const auto& [replica, process] : world_.processes) {
      if (process.running) KillAt(FrozenAt(process), replica, process);
    }
  }

  // Kills frozen processes that no coordinator expels: the coordinator itself, and processes that
  // the current coordinator does not know.
  void KillSilent() {
    if (CoordinatorIsAlone()) memory_.unregistered_at = world_.last_progress_at;

    for (const auto& [replica, process] : world_.processes) {
      if (!process.running || !process.begun) continue;
      if (replica.role == v1::COORDINATOR) {
        KillAt(CoordinatorSilentAt(process), replica, process);
      } else {
        KillMissing(replica, process);
      }
    }
  }

  absl::Time CoordinatorSilentAt(const ProcessObservation& process) const {
    if (!plan_.watch_coordinator) return absl::InfiniteFuture();
    if (world_.last_progress_at < process.started) return process.started + plan_.start_timeout;
    return world_.last_progress_at + plan_.heartbeat_timeout;
  }

  absl::Duration StartTimeout(const Replica& replica) const {
    return replica.role == v1::WORKER ? plan_.worker_start_timeout : plan_.start_timeout;
  }

  // Whether the coordinator has answered, and no process is registered with it.
  bool CoordinatorIsAlone() const {
    return world_.last_progress_at > absl::InfinitePast() &&
           absl::c_none_of(world_.processes, [](const auto& entry) {
             return entry.second.registration == Registration::kRegistered;
           });
  }

  // When a process counts as frozen that was registered with an earlier coordinator and is not with
  // this one. A coordinator that no process reaches is more likely cut off itself: they get as long
  // as a running coordinator gives them (coordinator/core/own_link.h), and, once a process has
  // registered, all others get the time to do so.
  absl::Time LostAt(absl::Time missing_since) const {
    constexpr int kAllFrozenTimeouts = 5;
    if (CoordinatorIsAlone()) return missing_since + kAllFrozenTimeouts * plan_.heartbeat_timeout;
    return std::max(missing_since, memory_.unregistered_at) + plan_.heartbeat_timeout;
  }

  void KillMissing(const Replica& replica, const ProcessObservation& process) {
    Memory::ReplicaMemory& kept = memory_.replicas[replica];
    if (process.registration == Registration::kUnknown ||
        process.registration == Registration::kRegistered) {
      if (process.registration == Registration::kRegistered)
        kept.registered_instance = process.instance;
      kept.missing_instance.clear();
      kept.missing_since = absl::InfiniteFuture();
      return;
    }

    SLUICE_DCHECK(world_.last_progress_at > absl::InfinitePast(),
                  "without an answer of the coordinator, no process is known to be missing");

    if (kept.missing_instance != process.instance) {
      kept.missing_instance = process.instance;
      kept.missing_since = std::max(world_.last_progress_at, process.started);
    }

    const bool lost = process.registration == Registration::kMissing &&
                      kept.registered_instance == process.instance;
    const absl::Time at =
        lost ? LostAt(kept.missing_since) : kept.missing_since + StartTimeout(replica);

    // Only an answer of the coordinator from after that time proves that the process is missing; an
    // older one does not.
    if (world_.last_progress_at >= at) {
      Stop(replica, process, /*kill=*/true);
    } else if (now_ < at) {
      RequeueBy(at);
    }
  }

  // Surplus workers return their work and leave. A surplus shard leaves by itself after the
  // coordinator has moved its partitions.
  void StopSurplus() {
    for (const auto& [replica, process] : world_.processes) {
      if (process.running && Surplus(replica)) Stop(replica, process, /*kill=*/false);
    }
  }

  // Restarts of processes that have not begun are not counted.
  void ReplaceOutdated() {
    for (const auto& [replica, process] : world_.processes) {
      if (!process.running || !Wanted(plan_, replica)) continue;
      if (now_ < process.outdated_from) {
        RequeueBy(process.outdated_from);
        continue;
      }

      SLUICE_DCHECK(!process.begun, "a process that has begun keeps its template");
      Memory::ReplicaMemory& kept = memory_.replicas[replica];
      kept.replaced_instance = kept.handled_instance = process.instance;
      Stop(replica, process, /*kill=*/false);
    }
  }

  void StartMissing() {
    // A job that is to be suspended needs a coordinator to save its steps.
    if (!plan_.suspend || ShardsMayHoldSteps(situation_)) StartIfMissing(kCoordinator);
    if (plan_.suspend || world_.coordinator_address.empty()) return;
    for (uint32_t i = 0; i < plan_.shards; ++i) StartIfMissing({v1::SHARD, i});
    for (uint32_t i = 0; i < plan_.workers; ++i) StartIfMissing({v1::WORKER, i});
  }

  // After training, workers that have left are not needed again, except one for the last
  // evaluation.
  bool WorkersNeeded() const {
    if (world_.phase == v1::JobProgress::SAVING) return false;
    if (world_.phase != v1::JobProgress::EVALUATING) return true;
    return std::none_of(world_.processes.begin(), world_.processes.end(), [](const auto& entry) {
      return entry.first.role == v1::WORKER && entry.second.running;
    });
  }

  // Whether the coordinator has reported since this member left that the job continues.
  bool ContinuesWithout(const ProcessObservation& process) const {
    // Clocks of different machines cannot order the two events.
    return plan_.watch_coordinator && process.ready && world_.last_progress_at > process.ended &&
           (world_.phase == v1::JobProgress::STARTING ||
            world_.phase == v1::JobProgress::INITIALIZING ||
            world_.phase == v1::JobProgress::TRAINING);
  }

  void StartIfMissing(const Replica& replica) {
    if (world_.Running(replica)) return;
    const absl::Time start_after = memory_.replicas[replica].start_after;

    const ProcessObservation* ended = world_.Find(replica);
    const bool left = ended != nullptr && VerdictOn(ended->exit) == ExitVerdict::kLeft;
    if (left && replica.role == v1::WORKER && !WorkersNeeded()) return;

    if (now_ < start_after && !(left && ContinuesWithout(*ended))) {
      RequeueBy(start_after);
      return;
    }

    if (ended != nullptr) NoteReplaced(replica, ended->instance);
    decision_.starts.push_back({replica});
  }

  // Drops what has no effect any more.
  void Forget() {
    for (auto& [replica, kept] : memory_.replicas) {
      const ProcessObservation* process = world_.Find(replica);
      if (process == nullptr && !Wanted(plan_, replica)) kept = {};

      if (process != nullptr && process->running && process->ready) {
        kept.failures_in_row = kept.failed_starts = 0;
        kept.data_missing = kept.refused = false;
      }

      if (kept.start_after <= now_) kept.start_after = absl::InfinitePast();
      for (std::string* instance :
           {&kept.handled_instance, &kept.replaced_instance, &kept.missing_instance}) {
        if (process == nullptr || *instance != process->instance) instance->clear();
      }
      if (kept.missing_instance.empty()) kept.missing_since = absl::InfiniteFuture();
    }

    std::deque<absl::Time>& deaths = memory_.worker_deaths;
    while (!deaths.empty() && now_ - deaths.front() > limits_.worker_window) deaths.pop_front();
  }

  const JobPlan& plan_;
  const Limits& limits_;
  const Observation& world_;
  const absl::Time now_;
  Decision decision_;
  Memory& memory_;
  const Situation situation_;      // as it is at the moment: it refers to memory_
  std::vector<ReportExit> exits_;  // handled by this decision
};

}  // namespace

Decision Decide(const JobPlan& plan, const Limits& limits, const Observation& world,
                const Memory& memory, absl::Time now) {
  Decision decision = Decider(plan, limits, world, memory, now).Run();
  CheckDecision(world, memory, decision);
  return decision;
}

}  // namespace sluice::policy
