#include "operator/policy/exit.h"

#include <csignal>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/common/exit_code.h"

namespace sluice::policy {

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

const FailureRule* RuleFor(const std::vector<FailureRule>& rules, const Replica& replica,
                           const Exit& exit) {
  const bool itself = exit.cause == Cause::kItself;
  const int code = exit.signal != 0 ? 128 + exit.signal : exit.code;
  if (itself && code == kExitOk) return nullptr;

  for (const FailureRule& rule : rules) {
    if (!rule.roles.empty() && rule.roles.count(replica.role) == 0) continue;
    // The exit code of a process that was stopped from outside means nothing.
    if ((itself && rule.exit_codes.count(code) > 0) || rule.reasons.count(ReasonOf(exit)) > 0) {
      return &rule;
    }
  }
  return nullptr;
}

Verdict VerdictOn(const Exit& exit) {
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

}  // namespace sluice::policy
