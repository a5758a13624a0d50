#include "operator/policy/policy.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "services/common/exit_code.h"

namespace sluice::policy {
namespace {

// Added to TimeoutSpec.heartbeat_timeout, for the latency of an answer and for a busy machine.
constexpr absl::Duration kHeartbeatTimeoutMargin = absl::Seconds(2);
constexpr double kDefaultHeartbeatTimeout = 5;
constexpr double kDefaultStart = 60;
// A user's own program may need much time before it registers.
constexpr double kDefaultCommandStart = 600;

// How the policy handles an exit.
enum class Verdict {
  kLeft,     // exit code 0
  kAgain,    // restarted; not the fault of the process
  kWaits,    // its data is missing: restarted with backoff, never counted
  kRefused,  // like kWaits if a process of its role was ever ready in this job, else kHopeless
  kDeath,    // restarted with backoff, counted
  kHopeless  // a restart would fail in the same way: the job fails
};

Verdict Judge(const Exit& exit) {
  if (exit.cause == Cause::kOutside) return Verdict::kAgain;
  // Stopped by SIGTERM before it could handle the signal: a worker that has only just started, or a
  // program without a handler. Shells report the signal as 128 + SIGTERM.
  if (exit.signal == SIGTERM || (exit.signal == 0 && exit.code == 128 + SIGTERM)) {
    return Verdict::kAgain;
  }
  if (exit.signal != 0) return Verdict::kDeath;
  switch (exit.code) {
    case kExitOk:
      return Verdict::kLeft;
    case kExitExpelled:
      return Verdict::kAgain;
    case kExitMissing:
      return Verdict::kWaits;
    case kExitRefused:
      return Verdict::kRefused;
    case kExitFailed:
    case kExitUsage:
    case 126:  // a shell's code for: the program cannot be executed
    case 127:  // a shell's code for: the program was not found
      return Verdict::kHopeless;
    default:
      return Verdict::kDeath;
  }
}

int ExitCode(const Exit& exit) { return exit.signal != 0 ? 128 + exit.signal : exit.code; }

// The job's rule for this exit; null: none.
const FailureRule* RuleFor(const JobPlan& plan, const Replica& replica, const Exit& exit) {
  const bool itself = exit.cause == Cause::kItself;
  if (itself && ExitCode(exit) == kExitOk) return nullptr;
  for (const FailureRule& rule : plan.failure_rules) {
    if (!rule.roles.empty() && rule.roles.count(replica.role) == 0) continue;
    // The exit code of a process that was stopped from outside means nothing.
    if ((itself && rule.exit_codes.count(ExitCode(exit)) > 0) ||
        rule.reasons.count(ReasonOf(exit)) > 0) {
      return &rule;
    }
  }
  return nullptr;
}

std::string WithMessage(std::string text, const Exit& exit) {
  if (!exit.message.empty()) absl::StrAppend(&text, ": ", exit.message);
  return text;
}

// Why a coordinator that suspended the job saved no checkpoint; empty: it saved one.
std::string WhyNoCheckpoint(absl::string_view reason) {
  return absl::ConsumePrefix(&reason, "suspended; ") ? std::string(reason) : "";
}

class Decider {
 public:
  Decider(const JobPlan& plan, const Limits& limits, const Observation& world, const Memory& memory,
          absl::Time now)
      : plan_(plan), limits_(limits), world_(world), now_(now), memory_(decision_.memory) {
    memory_ = memory;
  }

  Decision Run() {
    if (memory_.active_since == absl::InfiniteFuture()) memory_.active_since = now_;
    for (const auto& [replica, process] : world_.processes) {
      if (process.ready) memory_.worked.insert(replica.role);
    }
    HandleExits();
    HandlePhase();
    HandleUnexplained();
    HandleSuspend();
    HandleDeadline();
    if (memory_.outcome.has_value()) {
      StopAll();
    } else {
      KillExpelled();
      KillSilent();
      StopSurplus();
      if (!plan_.suspend && !memory_.unexplained.has_value()) StartMissing();
    }
    decision_.desired_workers = plan_.workers;
    decision_.desired_shards = plan_.shards;
    decision_.desired_suspend = plan_.suspend;
    return std::move(decision_);
  }

 private:
  void End(OutcomeKind kind, std::string code, std::string reason, std::optional<Replica> blamed,
           absl::Duration leave_grace) {
    if (memory_.outcome.has_value()) return;
    memory_.outcome = Outcome{kind, std::move(code), std::move(reason), blamed, now_, leave_grace};
  }

  void Fail(std::string code, std::string reason, std::optional<Replica> blamed) {
    End(OutcomeKind::kFailed, std::move(code), std::move(reason), blamed, absl::ZeroDuration());
  }
  void Succeed() {
    End(OutcomeKind::kSucceeded, "Completed", "", std::nullopt, limits_.leave_grace);
  }
  void Suspended(std::string reason, absl::Duration leave_grace) {
    End(OutcomeKind::kSuspended, "Suspended", std::move(reason), std::nullopt, leave_grace);
  }

  void AgainBy(absl::Time time) { decision_.decide_again = std::min(decision_.decide_again, time); }

  bool Running(const Replica& replica) const {
    const auto found = world_.processes.find(replica);
    return found != world_.processes.end() && found->second.running;
  }

  bool Wanted(const Replica& replica) const {
    return replica.role == v1::COORDINATOR || replica.role == v1::SHARD ||
           replica.index < plan_.workers;
  }

  void HandleExits() {
    for (const auto& [replica, process] : world_.processes) {
      Memory::ReplicaMemory& kept = memory_.replicas[replica];
      if (process.running || kept.handled_instance == process.instance) continue;
      kept.handled_instance = process.instance;
      if (replica.role != v1::COORDINATOR) {
        decision_.deaths.push_back({replica, process.pid, ExitText(process.exit)});
      }
      // A process that exits because of the job's end does not affect the outcome.
      if (memory_.outcome.has_value()) continue;
      HandleExit(replica, process, &kept);
    }
  }

  void HandleExit(const Replica& replica, const ProcessObservation& process,
                  Memory::ReplicaMemory* kept) {
    const bool healthy =
        !KilledBeforeItRegistered(replica, process) &&
        (process.ready || process.ended - process.started >= limits_.healthy_after);
    if (healthy) kept->failures_in_row = kept->failed_starts = 0;
    kept->data_missing = kept->refused = false;

    const FailureRule* rule = RuleFor(plan_, replica, process.exit);
    if (rule != nullptr && rule->action == FailureRule::Action::kFailJob) {
      Fail("FailurePolicy",
           WithMessage(absl::StrCat(ReplicaName(replica), " ended with ", ExitText(process.exit),
                                    ", which fails the job by its failurePolicy"),
                       process.exit),
           replica);
      return;
    }

    switch (JudgeOf(replica, process)) {
      case Verdict::kLeft:
        if (replica.role == v1::COORDINATOR) {
          CoordinatorLeft();
        } else {
          kept->start_after = now_ + limits_.left_delay;
        }
        return;
      case Verdict::kAgain:
        // The delay keeps a process that is always expelled before it is ready from spinning.
        Delay(kept);
        return;
      case Verdict::kWaits:
        if (!limits_.patient) {
          Fail("DataMissing", WithMessage(ReplicaName(replica), process.exit), replica);
          return;
        }
        kept->data_missing = true;
        Delay(kept);
        return;
      case Verdict::kRefused:
        if (memory_.worked.count(replica.role) == 0) {
          Hopeless(replica, process.exit);
          return;
        }
        kept->refused = true;
        Delay(kept);
        return;
      case Verdict::kHopeless:
        Hopeless(replica, process.exit);
        return;
      case Verdict::kDeath:
        break;
    }

    if (!Wanted(replica) || plan_.suspend) return;
    if (!healthy) ++kept->failed_starts;
    Delay(kept);
    if (healthy || !limits_.patient) CountDeath(replica, process, *kept);
  }

  // The coordinator's own reason says more. A failing worker or shard reports its error to the
  // coordinator before it exits, so the coordinator's reason may arrive a moment later.
  void Hopeless(const Replica& replica, const Exit& exit) {
    if (world_.phase == v1::JobProgress::FAILED) return;
    Outcome outcome = {
        OutcomeKind::kFailed,
        "ProcessFailed",
        WithMessage(absl::StrCat(ReplicaName(replica), " ended with ", ExitText(exit)), exit),
        replica,
        now_,
        absl::ZeroDuration()};
    const bool told = replica.role != v1::COORDINATOR && exit.code == kExitFailed;
    if (!told || !Running({v1::COORDINATOR, 0})) {
      memory_.outcome = std::move(outcome);
    } else if (!memory_.unexplained.has_value()) {
      memory_.unexplained = std::move(outcome);
    }
  }

  void HandleUnexplained() {
    if (!memory_.unexplained.has_value() || memory_.outcome.has_value()) return;
    const absl::Time patience = memory_.unexplained->since + limits_.failed_grace;
    if (Running({v1::COORDINATOR, 0}) && now_ < patience) {
      AgainBy(patience);
      return;
    }
    memory_.outcome = memory_.unexplained;
    memory_.outcome->since = now_;
  }

  Verdict JudgeOf(const Replica& replica, const ProcessObservation& process) const {
    if (const FailureRule* rule = RuleFor(plan_, replica, process.exit); rule != nullptr) {
      return rule->action == FailureRule::Action::kIgnore ? Verdict::kAgain : Verdict::kDeath;
    }
    // A registered worker or shard that was killed counts as if it had learned of its expulsion and
    // exited. A coordinator, or a process that never registered, has died like any other.
    if (replica.role != v1::COORDINATOR && WasKilled(replica, process) &&
        !KilledBeforeItRegistered(replica, process)) {
      return Verdict::kAgain;
    }
    const Verdict verdict = Judge(process.exit);
    if (!limits_.patient || verdict != Verdict::kHopeless) return verdict;
    // Only the coordinator declares that the job has failed.
    const bool spoken = replica.role == v1::COORDINATOR && world_.phase == v1::JobProgress::FAILED;
    return process.exit.code == kExitFailed && !spoken ? Verdict::kDeath : verdict;
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
    const std::string last = LastText(replica, process);
    if (kept.failed_starts >= limits_.max_failed_starts) {
      Fail("NeverReady",
           absl::StrCat(ReplicaName(replica), " ended ", kept.failed_starts,
                        " times in a row before it was ready; the last time: ", last),
           replica);
      return;
    }
    if (replica.role != v1::WORKER) {
      if (++memory_.restorations > plan_.backoff_limit) {
        Fail("BackoffLimitExceeded",
             absl::StrCat(ReplicaName(replica), " died (", last, ") and the job's backoffLimit of ",
                          plan_.backoff_limit, " restorations is used up"),
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

  void CoordinatorLeft() {
    if (memory_.unexplained.has_value()) return;  // HandleUnexplained ends the job
    switch (world_.phase) {
      case v1::JobProgress::SUCCEEDED:
      case v1::JobProgress::FAILED:
      case v1::JobProgress::SUSPENDED:
        return;  // HandlePhase ends the job
      default:
        break;
    }
    // A coordinator exits with 0 only at the end of the job; its last report was missed.
    if (plan_.suspend) {
      Suspended("", limits_.leave_grace);
    } else {
      Succeed();
    }
  }

  void HandlePhase() {
    switch (world_.phase) {
      case v1::JobProgress::SUCCEEDED:
        if (world_.phase_code.empty()) {
          Succeed();
        } else {
          End(OutcomeKind::kSucceeded, world_.phase_code, world_.phase_reason, std::nullopt,
              limits_.leave_grace);
        }
        break;
      case v1::JobProgress::FAILED:
        // The coordinator has informed every process; it still serves its termination message for a
        // moment.
        End(OutcomeKind::kFailed, world_.phase_code.empty() ? "TrainingFailed" : world_.phase_code,
            world_.phase_reason.empty() ? "the coordinator gave no reason" : world_.phase_reason,
            std::nullopt, limits_.failed_grace);
        break;
      case v1::JobProgress::SUSPENDED:
        if (plan_.suspend || !plan_.outlives_coordinator) {
          Suspended(WhyNoCheckpoint(world_.phase_reason), limits_.leave_grace);
        }
        break;
      default:
        break;
    }
  }

  void HandleSuspend() {
    if (!plan_.suspend) {
      memory_.suspending_since = absl::InfiniteFuture();
      return;
    }
    if (memory_.outcome.has_value()) return;
    if (memory_.suspending_since == absl::InfiniteFuture()) memory_.suspending_since = now_;
    const auto coordinator = world_.processes.find({v1::COORDINATOR, 0});
    if (!Running({v1::COORDINATOR, 0}) || !coordinator->second.begun) {
      Suspended("there was no coordinator to write a checkpoint", absl::ZeroDuration());
      return;
    }
    const absl::Time patience = memory_.suspending_since + plan_.suspend_timeout;
    if (now_ >= patience) {
      Suspended(absl::StrCat("the checkpoint took longer than ",
                             absl::FormatDuration(plan_.suspend_timeout)),
                absl::ZeroDuration());
      return;
    }
    AgainBy(patience);
  }

  void HandleDeadline() {
    if (!plan_.active_deadline.has_value() || memory_.outcome.has_value()) return;
    const absl::Time deadline = memory_.active_since + *plan_.active_deadline;
    if (now_ >= deadline) {
      Fail("DeadlineExceeded",
           absl::StrCat("the job was active for longer than activeDeadlineSeconds (",
                        absl::FormatDuration(*plan_.active_deadline), ")"),
           std::nullopt);
      return;
    }
    AgainBy(deadline);
  }

  void Stop(const Replica& replica, const ProcessObservation& process, bool kill) {
    std::string& sent = kill ? memory_.killed[replica] : memory_.terminated[replica];
    if (sent == process.instance) return;
    sent = process.instance;
    decision_.stops.push_back({replica, process.instance, kill});
  }

  // Until when a process may exit by itself.
  absl::Time LeaveBy(const ProcessObservation& process) const {
    const absl::Time by = memory_.outcome->since + memory_.outcome->leave_grace;
    const auto coordinator = world_.processes.find({v1::COORDINATOR, 0});
    // A user's own program may have more to do after training has succeeded, and it is not known
    // whether a process that a script started was a member.
    if (process.ready || memory_.outcome->kind == OutcomeKind::kSucceeded ||
        coordinator == world_.processes.end() || coordinator->second.running) {
      return by;
    }
    // The process would only look for the coordinator, which has ended.
    return std::min(by, std::max(memory_.outcome->since, coordinator->second.ended));
  }

  void StopAll() {
    bool any = false;
    for (const auto& [replica, process] : world_.processes) {
      if (!process.running) continue;
      any = true;
      const absl::Time terminate = LeaveBy(process);
      const absl::Time kill = std::min(terminate + limits_.stop_grace, FrozenAt(process));
      if (now_ >= kill) {
        Stop(replica, process, /*kill=*/true);
      } else if (now_ >= terminate) {
        Stop(replica, process, /*kill=*/false);
        AgainBy(kill);
      } else {
        AgainBy(std::min(terminate, kill));
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
      AgainBy(at);
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
    if (kept.missing_instance != process.instance) {
      kept.missing_instance = process.instance;
      kept.missing_since = std::max(world_.last_progress_at, process.started);
    }
    const bool lost = process.registration == Registration::kMissing &&
                      kept.registered_instance == process.instance;
    const absl::Time at =
        kept.missing_since + (lost ? plan_.heartbeat_timeout : StartTimeout(replica));
    // Only an answer of the coordinator from after that time proves that the process is missing; an
    // older one does not.
    if (world_.last_progress_at >= at) {
      Stop(replica, process, /*kill=*/true);
    } else if (now_ < at) {
      AgainBy(at);
    }
  }

  // Surplus workers return their work and leave. Shards hold state and could leave only after the
  // coordinator has moved it, which is not implemented.
  void StopSurplus() {
    for (const auto& [replica, process] : world_.processes) {
      if (process.running && !Wanted(replica)) Stop(replica, process, /*kill=*/false);
    }
  }

  void StartMissing() {
    StartIfMissing({v1::COORDINATOR, 0});
    if (world_.coordinator_address.empty()) return;
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

  // Whether the coordinator has reported, since this member left, that the job continues.
  bool GoesOnWithout(const ProcessObservation& process) const {
    // Clocks of different machines cannot order the two events.
    return plan_.watch_coordinator && process.ready && world_.last_progress_at > process.ended &&
           (world_.phase == v1::JobProgress::STARTING ||
            world_.phase == v1::JobProgress::INITIALIZING ||
            world_.phase == v1::JobProgress::TRAINING);
  }

  void StartIfMissing(const Replica& replica) {
    if (Running(replica)) return;
    Memory::ReplicaMemory& kept = memory_.replicas[replica];
    const auto found = world_.processes.find(replica);
    const bool left =
        found != world_.processes.end() && Judge(found->second.exit) == Verdict::kLeft;
    if (left && replica.role == v1::WORKER && !WorkersNeeded()) return;
    if (now_ < kept.start_after && !(left && GoesOnWithout(found->second))) {
      AgainBy(kept.start_after);
      return;
    }
    if (found != world_.processes.end() && kept.replaced_instance != found->second.instance) {
      kept.replaced_instance = found->second.instance;
      ++kept.restarts;
    }
    decision_.starts.push_back({replica});
  }

  const JobPlan& plan_;
  const Limits& limits_;
  const Observation& world_;
  const absl::Time now_;
  Decision decision_;
  Memory& memory_;
};

}  // namespace

std::string ReplicaName(const Replica& replica) {
  if (replica.role == v1::COORDINATOR) return "coordinator";
  return absl::StrCat(replica.role == v1::SHARD ? "ps-" : "worker-", replica.index);
}

std::string ExitText(const Exit& exit) {
  const std::string reason = exit.reason.empty() ? "" : absl::StrCat(exit.reason, ", ");
  if (exit.signal == 0) return absl::StrCat(reason, "exit code ", exit.code);
  return absl::StrCat(reason, "killed by signal ", exit.signal, " (", strsignal(exit.signal), ")");
}

std::string ReasonOf(const Exit& exit) {
  if (!exit.reason.empty()) return exit.reason;
  if (exit.signal != 0) return "Killed";
  switch (exit.code) {
    case kExitOk:
      return "Completed";
    case kExitUsage:
      return "BadArguments";
    case kExitExpelled:
      return "Expelled";
    case kExitRefused:
      return "Refused";
    case kExitRetry:
      return "TryAgain";
    case kExitMissing:
      return "DataMissing";
    default:
      return "Error";
  }
}

bool IsFailure(const JobPlan& plan, const Replica& replica, const Exit& exit) {
  if (const FailureRule* rule = RuleFor(plan, replica, exit); rule != nullptr) {
    return rule->action != FailureRule::Action::kIgnore;
  }
  const Verdict verdict = Judge(exit);
  return verdict == Verdict::kDeath || verdict == Verdict::kHopeless;
}

void SetTimers(const v1::JobSpec& job, JobPlan* plan) {
  const v1::TimeoutSpec& timeouts = job.timeouts();
  const auto seconds = [](double value, double otherwise) {
    return absl::Seconds(value > 0 ? value : otherwise);
  };
  plan->start_timeout = seconds(timeouts.start(), kDefaultStart);
  plan->worker_start_timeout = seconds(
      timeouts.start(), job.worker().command_size() > 0 ? kDefaultCommandStart : kDefaultStart);
  plan->heartbeat_timeout =
      seconds(timeouts.heartbeat_timeout(), kDefaultHeartbeatTimeout) + kHeartbeatTimeoutMargin;
}

void Forgive(absl::Duration stood_still, Observation* world, Memory* memory) {
  world->last_progress_at += stood_still;
  for (auto& [replica, process] : world->processes) {
    if (!process.running) continue;
    process.started += stood_still;
    process.expelled_after += stood_still;
  }
  for (auto& [replica, kept] : memory->replicas) kept.missing_since += stood_still;
  if (memory->outcome.has_value()) memory->outcome->since += stood_still;
  if (memory->unexplained.has_value()) memory->unexplained->since += stood_still;
  memory->suspending_since += stood_still;
}

Decision Decide(const JobPlan& plan, const Limits& limits, const Observation& world,
                const Memory& memory, absl::Time now) {
  return Decider(plan, limits, world, memory, now).Run();
}

}  // namespace sluice::policy
