// How a process of a job ended, and how the policy classifies it.
#ifndef SLUICE_OPERATOR_POLICY_EXIT_H_
#define SLUICE_OPERATOR_POLICY_EXIT_H_

#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "proto/common.pb.h"

namespace sluice::policy {

// A role and an index. One process at a time is the replica.
struct Replica {
  v1::Role role = v1::COORDINATOR;  // COORDINATOR, SHARD or WORKER
  uint32_t index = 0;

  friend bool operator<(const Replica& a, const Replica& b) {
    return std::tie(a.role, a.index) < std::tie(b.role, b.index);
  }
  friend bool operator==(const Replica& a, const Replica& b) {
    return a.role == b.role && a.index == b.index;
  }
};
inline constexpr Replica kCoordinator = {v1::COORDINATOR, 0};

// "coordinator", "ps-0", "worker-1".
std::string ReplicaName(const Replica& replica);

// What ended an instance.
enum class Cause {
  kItself,   // the process; code and signal say how
  kOutside,  // a deletion, an eviction or a lost node; not the fault of the process
};

struct Exit {
  int code = 0;         // exit code, if signal is 0
  int signal = 0;       // the signal that killed the process; 0: none
  std::string message;  // the process's last error message, if any
  Cause cause = Cause::kItself;
  std::string reason;  // CamelCase, if the backend knows more than code and signal
};

// "exit code 12", "killed by signal 9 (Killed)"; preceded by the exit's reason, if it has one:
// "OOMKilled, killed by signal 9 (Killed)".
std::string ExitText(const Exit& exit);

// The exit reason as a CamelCase word: "OOMKilled", "Evicted", "Killed", "Error", ...
std::string ReasonOf(const Exit& exit);

// A rule of the job's failurePolicy. Rules take precedence over the built-in verdicts.
struct FailureRule {
  enum class Action {
    kFailJob,  // the job fails
    kRestart,  // the process is restarted, and the restart counts against the limits
    kIgnore,   // the process is restarted, and the restart counts against no limit
  };
  Action action = Action::kRestart;
  // An exit matches if the role matches (an empty set matches every role) and the exit code or the
  // reason matches.
  std::set<v1::Role> roles;
  std::set<int> exit_codes;       // 128 + the signal if a signal killed the process
  std::set<std::string> reasons;  // as ReasonOf returns them
};

// The first rule that matches this exit; null: none.
const FailureRule* RuleFor(const std::vector<FailureRule>& rules, const Replica& replica,
                           const Exit& exit);

// How the policy handles an exit.
enum class Verdict {
  kLeft,     // exit code 0
  kAgain,    // restarted; not the fault of the process
  kWaits,    // its data is missing: restarted with backoff, never counted
  kRefused,  // like kWaits if a process of its role was ever ready in this job, else kHopeless
  kDeath,    // restarted with backoff, counted
  kHopeless  // a restart would fail in the same way: the job fails
};

// The built-in verdict.
Verdict VerdictOn(const Exit& exit);

}  // namespace sluice::policy

#endif  // SLUICE_OPERATOR_POLICY_EXIT_H_
