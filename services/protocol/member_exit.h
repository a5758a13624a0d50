// How a shard or a worker exits.
#ifndef SLUICE_SERVICES_PROTOCOL_MEMBER_EXIT_H_
#define SLUICE_SERVICES_PROTOCOL_MEMBER_EXIT_H_

#include <string>

#include "proto/control.pb.h"
#include "services/common/exit_code.h"

namespace sluice {

enum class ExitReason {
  kFinished,  // the coordinator no longer needs the process: the job succeeded, or it was released
  kLeft,      // it was asked to stop
  kExpelled,  // come back as a new incarnation
  kRefused,   // coming back would not help (wrong job, model differs, ...)
  kFailed,    // the job failed, or this process did: see Exit::message
};

// The last action of a member's core.
struct Exit {
  ExitReason reason = ExitReason::kFinished;
  std::string message;
  v1::Refusal::Code refusal = v1::Refusal::UNSPECIFIED;  // the coordinator's
};

// The parent decides by the code whether to start the process again (services/common/exit_code.h).
inline ExitCode ExitCodeOf(ExitReason reason) {
  switch (reason) {
    case ExitReason::kFinished:
    case ExitReason::kLeft:
      return kExitOk;
    case ExitReason::kExpelled:
      return kExitExpelled;
    case ExitReason::kRefused:
      return kExitRefused;
    case ExitReason::kFailed:
      break;
  }
  return kExitFailed;
}

}  // namespace sluice

#endif  // SLUICE_SERVICES_PROTOCOL_MEMBER_EXIT_H_
